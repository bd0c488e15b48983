"""What commands say of what they did, in sentences and as data."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from recollect.terminal import counted

if TYPE_CHECKING:
    from recollect.tables.documents import Update
    from recollect.tables.memory import TableMemory, Taken
    from recollect.tables.reading import Source
    from recollect.tables.settings import Settings


def told(source: "Source", done: "Update") -> dict[str, Any]:
    """What became of a file, as data."""
    about = {"file": source.name, "taken": done.taken is not None, "seen": done.seen, "kept": done.kept}
    about["read_as"] = done.read_as
    return about if done.taken is None else about | done.taken.as_data()


def sentences(source: "Source", done: "Update", settings: "Settings", first: bool) -> Iterator[str]:
    """What became of a file."""
    if done.taken is None:
        yield f"{source.name}: taken before, not counted again (--force does)"
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
    size = min(settings.size, done.seen)
    found = remarks(done.taken, done.kept, replace(settings, size=size), "a new store with ")
    yield from (f"  {remark}" for remark in found)


def matching(taken: "Taken") -> str:
    """How well the kept rows match, explained in half a sentence."""
    if taken.error is None:
        return ""
    return f"; their gradients differ from those of all rows by {taken.error:.2%} (matching error {taken.error:.4f})"


def remarks(taken: "Taken", kept: int, settings: "Settings", where: str = "") -> Iterator[str]:
    """What was left out, what is missing among the kept, and why there are fewer than asked for.

    Args:
        taken: what taking in rows came to.
        kept: how many are kept of all.
        settings: what was asked for.
        where: what advised options are for, as a store that has taken in files has its own.
    """
    if taken.skipped:
        yield f"{counted(taken.skipped, 'row')} left out that could not be read"
    if taken.unlabelled:
        yield f"{counted(taken.unlabelled, 'row')} left out, as the target is missing"
    if kept < settings.size:
        reason = "no other row brings their gradients nearer to those of all"
        if kept >= taken.rows:
            reason = "there are no more"
        elif settings.memory == "clustering":
            reason = "no others differ from these"
        yield f"{counted(settings.size - kept, 'row')} fewer than asked for, as {reason}"
    classes, least = len(taken.class_counts), settings.min_per_class
    if classes * least > settings.size:
        yield f"some classes keep fewer than {least} rows, as {classes} of them have {settings.size} places"
    if taken.lost:
        names = ", ".join(map(repr, taken.lost[:5])) + (f" and {len(taken.lost) - 5} more" if taken.lost[5:] else "")
        word = "the class" if len(taken.lost) == 1 else f"{len(taken.lost)} classes:"
        yield f"no row is kept of {word} {names}; {where}{_keeping(classes, settings)} keeps some"


def _keeping(classes: int, settings: "Settings") -> str:
    """What keeps rows of every class."""
    if settings.min_per_class or classes > settings.size:
        return "a larger --size"
    advice = "--min-per-class 1 or --class-weight balanced"
    return advice if settings.memory == "recollect" else f"--memory recollect with {advice}"


def added(held: "TableMemory") -> Iterator[str]:
    """What the added columns are called, if not as usual."""
    if (held.row_name, held.weight_name) != ("row", held.settings.weight_name or "weight"):
        yield f"there are columns of these names: places are in {held.row_name!r}, weights in {held.weight_name!r}"
