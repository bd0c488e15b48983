"""What commands say of what they did, in sentences and as data."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from recollect.tables.wording import option
from recollect.terminal import counted

if TYPE_CHECKING:
    from recollect.tables.documents import Update
    from recollect.tables.memory import TableMemory, Taken
    from recollect.tables.reading import Source
    from recollect.tables.settings import Settings


_FEW, _CAME = 5, 50  # rows kept of a class that a model can hardly learn it from, though so many came
_MANY = 10_000  # rows from which on a rate says something
_ENOUGH = 30  # rows of a class that are advised, if there is room


def told(source: "Source", done: "Update") -> dict[str, Any]:
    """What became of a file, as data."""
    about = {"file": source.name, "taken": done.taken is not None, "seen": done.seen, "kept": done.kept}
    about["read_as"] = done.read_as
    return about if done.taken is None else about | done.taken.as_data()


def sentences(source: "Source", done: "Update", settings: "Settings", first: bool) -> Iterator[str]:
    """What became of a file."""
    if done.taken is None:
        yield f"{source.name}: taken before, not counted again ({option('force')} does)"
        return
    yield (
        f"{source.name}: {counted(done.taken.rows, 'row')}, {done.kept:,} kept of {done.seen:,} seen"
        f"{matching(done.taken)}"
    )
    if first:
        yield from (f"  {note}" for note in done.account.notes())
    elif done.read_as != next(iter(done.account.files.values()), done.read_as):
        yield f"  read as {done.read_as}"
    yield from (f"  {sentence}" for sentence in done.taken.drift.sentences())
    found = remarks(done.taken, done.kept, settings, "a new store with ", done.scarce, done.seen)
    yield from (f"  {remark}" for remark in found)


def pace(taken: "Taken") -> str:
    """How fast rows were taken in; nothing where there are few, as setting out takes longer than they do."""
    if taken.rows < _MANY:
        return ""
    reading = taken.reading_seconds / taken.seconds
    return f"; {taken.rows / taken.seconds:,.0f} rows per second, {reading:.0%} of the time for reading and encoding"


def matching(taken: "Taken") -> str:
    """How well the kept rows match, explained in half a sentence."""
    if taken.error is None:
        return ""
    return f"; their gradients differ from those of all rows by {taken.error:.2%} (matching error {taken.error:.4f})"


def scarce(held: "TableMemory", came: Mapping[str, int]) -> dict[str, int]:
    """The classes of which so few rows are kept that a model can hardly learn them, though many came, and how many."""
    if held.encoding.task == "regression":
        return {}
    kept = Counter(held.memory.batch.targets.tolist())
    counts = {name: kept[label] for label, name in enumerate(held.encoding.classes)}
    return {name: count for name, count in counts.items() if 0 < count < _FEW and came.get(name, 0) >= _CAME}


def remarks(
    taken: "Taken",
    kept: int,
    settings: "Settings",
    where: str = "",
    few: Mapping[str, int] | None = None,
    seen: int | None = None,
) -> Iterator[str]:
    """What was left out, what is missing among the kept, and why there are fewer than asked for.

    Args:
        taken: what taking in rows came to.
        kept: how many are kept of all.
        settings: what was asked for.
        where: what advised options are for, as a store that has taken in files has its own.
        few: what `scarce` found.
        seen: how many rows have come to a store, which may be filled later.
    """
    if taken.skipped:
        yield f"{counted(taken.skipped, 'row')} left out that could not be read"
    if taken.unlabelled:
        yield f"{counted(taken.unlabelled, 'row')} left out, as the target is missing"
    size = settings.size if seen is None else min(settings.size, seen)
    if kept < size:
        reason = "no other row brings their gradients nearer to those of all"
        if kept >= taken.rows and seen is None:
            reason = "there are no more"
        elif settings.memory == "clustering":
            reason = "no others differ from these"
        elif seen is not None and _leaves_room(taken, settings):
            reason = "some places stay free for the next rows where few come at a time"
        yield f"{counted(size - kept, 'row')} fewer than asked for, as {reason}"
    classes, least = len(taken.class_counts), settings.min_per_class
    if classes * least > settings.size:
        yield f"some classes keep fewer than {least} rows, as {classes} of them have {settings.size} places"
    if taken.lost:
        names = ", ".join(map(repr, taken.lost[:5])) + (f" and {len(taken.lost) - 5} more" if taken.lost[5:] else "")
        word = "the class" if len(taken.lost) == 1 else f"{len(taken.lost)} classes:"
        yield f"no row is kept of {word} {names}; {where}{_keeping(classes, settings)} keeps some"
    places = min(_ENOUGH, settings.size // (2 * max(classes, 1)))  # half of them may be for the frequent ones
    if few and places >= _FEW and not settings.min_per_class and settings.class_weight is None:
        counts = ", ".join(f"{counted(count, 'row')} of {name!r}" for name, count in list(few.items())[:5])
        more = f" and few of {len(few) - 5} other classes" if len(few) > 5 else ""
        matched = "" if settings.memory == "recollect" else f"{option('memory', 'recollect')} with "
        yield (
            f"only {counts}{more} kept, too few for most models to learn from; "
            f"{where}{matched}{option('min_per_class', places)} keeps more"
        )


def _leaves_room(taken: "Taken", settings: "Settings") -> bool:
    """Whether gradient matching leaves places free for what comes next, as so few rows came."""
    from recollect.memories.gradient_matching.choosing import ROOM

    return taken.rows <= settings.size // ROOM and settings.class_weight is None and not settings.min_per_class


def _keeping(classes: int, settings: "Settings") -> str:
    """What keeps rows of every class."""
    if settings.min_per_class or classes > settings.size:
        return f"a larger {option('size')}"
    advice = f"{option('min_per_class', 1)} or {option('class_weight', 'balanced')}"
    return advice if settings.memory == "recollect" else f"{option('memory', 'recollect')} with {advice}"


def added(held: "TableMemory") -> Iterator[str]:
    """What the added columns are called, if not as usual."""
    if (held.row_name, held.weight_name) != ("row", held.settings.weight_name or "weight"):
        yield f"there are columns of these names: places are in {held.row_name!r}, weights in {held.weight_name!r}"
