"""Choosing rows of frames or files from Python: what comes out is of the kind that went in."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from recollect.classes import LostClassWarning
from recollect.tables.account import Account
from recollect.tables.conforming import examine_files, kinds_of, read_as
from recollect.tables.examining import Examined, examine
from recollect.tables.kinds import Task
from recollect.tables.memory import TableMemory, Taken
from recollect.tables.networks import MakeNetwork
from recollect.tables.reading import Reading, opened, retyped
from recollect.tables.reading.cutting import cut
from recollect.tables.reading.pieces import plain
from recollect.tables.selecting import select_rows, typed_table
from recollect.tables.settings import Settings, check_name, memory_once, parse_bytes, parse_size
from recollect.terminal import say
from recollect.warning import warn


def select(
    data: Any,
    target: str,
    size: float,
    *,
    memory: str = "auto",
    task: Task | None = None,
    ignore: Sequence[str] = (),
    kinds: Mapping[str, str] | None = None,
    class_weight: Literal["balanced"] | None = None,
    min_per_class: int = 0,
    weight_name: str | None = None,
    network: MakeNetwork | None = None,
    reading: Reading | None = None,
    seed: int = 0,
    memory_limit: int | str = "4GB",
    progress: bool = False,
) -> Any:
    """Choose a few rows that represent all, with a column of weights.

    Columns are read as by the command `recollect select`: numbers, dates and categories in any of the usual forms are
    encoded, identifiers and free text are not used for choosing, and all come out as they went in. `columns` shows what
    is made of each.

    Args:
        data: a table of pandas, polars or pyarrow, or a batch of pyarrow; or files: a path, a glob, a folder, an
            address, or several of these.
        target: the column to be predicted.
        size: how many rows to keep: a whole number, or a fraction of all up to 1.
        memory: "clustering" (k-means by class), "recollect" (gradient matching), "reservoir", "class-balanced" or
            "sliding-window". "auto" is "clustering", unless `class_weight`, `min_per_class` or `network` is given,
            which need "recollect".
        task: "classification" or "regression"; decided by the target's values if None.
        ignore: columns that are kept but not looked at.
        kinds: what columns are, by name, if they are read wrongly: "number", "date", "date-dmy", "date-mdy",
            "category" or "ignored".
        class_weight: None, or "balanced" to let all classes count the same.
        min_per_class: how many rows of each class are kept at least.
        weight_name: of the column of weights; "weight" by default, "recollect_weight" if there is one of that name.
        network: builds the network whose gradients are matched, from the numbers of features and of outputs.
        reading: how files are read, if they are recognised wrongly, and whether rows without a target are left out.
        seed: the same seed gives the same choice.
        memory_limit: bytes, or text such as "4GB"; more rows than fit are read block by block.
        progress: show progress bars.

    Returns:
        The chosen rows, in their order, as pandas if `data` is pandas (with its index), polars if it is polars, pyarrow
        if it is pyarrow. Of files, a table of pyarrow as `recollect select` writes it, with the column "row" as well.

    Example:
        >>> table = pa.table({"x": [float(i % 7) for i in range(60)], "y": ["a", "b"] * 30})
        >>> chosen = select(table, target="y", size=10)
        >>> chosen.column_names, chosen.num_rows <= 10
        (['x', 'y', 'weight'], True)
    """
    limit = parse_bytes(memory_limit) if isinstance(memory_limit, str) else memory_limit
    number, share = parse_size(size)
    settings = Settings(
        target,
        number,
        memory_once(memory, class_weight, min_per_class, network),
        task,
        tuple(ignore),
        seed=seed,
        memory_limit=limit,
        kinds=dict(kinds or {}),
        weight_name=weight_name,
        class_weight=class_weight,
        min_per_class=min_per_class,
        reading=reading or Reading(),
    )
    if not is_frame(data):
        with opened(_patterns(data), settings.reading) as sources:
            held, taken = select_rows(
                settings, sources, share=share, make_network=network, progress=progress, say=_teller(progress)
            )
        _warn(taken)
        return typed_table(held)
    data = _collected(data)  # once: a lazy query need not have its rows in the same order twice
    table = retyped(as_table(data), plain)
    found = _examine(settings, table)
    options: dict[str, Any] = {"all_known": True, "share": share, "progress": progress}
    held = TableMemory.for_examined(settings, table.schema, found, {}, network, **options)
    places = np.arange(table.num_rows)
    if settings.reading.drop_missing_target:
        places = places[~held.encoding.unlabelled(table)]
    taken = held.take(cut(table), table.num_rows, _teller(progress))
    _warn(taken)
    batch = held.memory.batch
    return _taken(data, places[batch.ids.numpy()], held.weight_name, batch.weights.double().numpy())


def columns(
    data: Any,
    target: str | None = None,
    *,
    task: Task | None = None,
    ignore: Sequence[str] = (),
    kinds: Mapping[str, str] | None = None,
    reading: Reading | None = None,
) -> Account:
    """Show what each column of a table or of files is read as, and how many features it becomes.

    Args:
        data: as for `select`.
        target: the column to be predicted, if one is known.
        task: as for `select`.
        ignore: as for `select`.
        kinds: as for `select`.
        reading: as for `select`.

    Example:
        >>> table = pa.table({"price": ["1.234,50 €", "7,25 €"] * 9, "sold": ["yes", "no"] * 9})
        >>> account = columns(table, "sold")
        >>> account["price"].kind, account["price"].note
        ('number', 'decimal comma, money')
    """
    if target is not None:
        check_name("target", target)
    settings = Settings(
        target or "", 1, "reservoir", task, tuple(ignore), kinds=dict(kinds or {}), reading=reading or Reading()
    )
    if is_frame(data):
        return _examine(settings, retyped(as_table(data), plain), target is not None).account()
    with opened(_patterns(data), reading) as sources:
        _, found = examine_files(settings, sources, target=target is not None)
        return found.account(read_as(sources))


def is_frame(data: Any) -> bool:
    """Whether this is a table of pandas, polars or pyarrow."""
    return isinstance(data, pa.Table | pa.RecordBatch) or _library(data) in ("pandas", "polars")


def as_table(data: Any) -> pa.Table:
    """A frame as a table of pyarrow; columns that hold all sorts of things are text."""
    data = _collected(data)
    if isinstance(data, pa.Table):
        table = data
    elif _library(data) == "polars":
        table = _from_polars(data)
    else:
        names = [str(name) for name in data.columns]
        table = pa.table([_array(data.iloc[:, i]) for i in range(len(names))], names)
    twice = {name for name in table.column_names if table.column_names.count(name) > 1} if _repeats(table) else set()
    if twice:
        raise ValueError(f"columns must have different names, got {sorted(twice)[0]!r} more than once: rename one")
    if not table.num_rows:
        raise ValueError("a table must hold at least one row, got none")
    return table


def _collected(data: Any) -> Any:
    """A lazy frame of polars as its rows, and a batch of pyarrow as a table."""
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    return data.collect() if _library(data) == "polars" and hasattr(data, "collect") else data


def _from_polars(frame: Any) -> pa.Table:
    try:
        return frame.to_arrow()
    except (pa.ArrowException, TypeError, ValueError):
        for name in frame.columns:
            try:
                frame[name].to_arrow()
            except (pa.ArrowException, TypeError, ValueError):
                raise ValueError(
                    f"column {name!r} must be of a type that pyarrow has, got {frame[name].dtype}: cast it to another"
                ) from None
        raise


def _repeats(table: pa.Table) -> bool:
    return len(set(table.column_names)) < len(table.column_names)


def _library(data: Any) -> str:
    """Whose frame it is, or whose frame it is made of: "" if it is none."""
    frames = [kind for kind in type(data).__mro__ if kind.__name__ in ("DataFrame", "LazyFrame")]
    return frames[-1].__module__.partition(".")[0] if frames else ""


def _array(series: Any) -> pa.Array:
    try:
        found = pa.Array.from_pandas(series)
        if pa.types.is_dictionary(found.type) and isinstance(found.type.value_type, pa.BaseExtensionType):
            names = [str(category) for category in series.cat.categories]  # as of pandas.cut, which are intervals
            return pa.DictionaryArray.from_arrays(found.indices, names, ordered=found.type.ordered)
        return found
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return pa.array([None if missing else str(v) for v, missing in zip(series, series.isna(), strict=True)])


def _patterns(data: Any) -> list[str]:
    if isinstance(data, str | Path):
        return [str(data)]
    if isinstance(data, Iterable) and not isinstance(data, Mapping) and not _library(data):
        paths = list(data)
        if paths and all(isinstance(path, str | Path) for path in paths):
            return [str(path) for path in paths]
    raise ValueError(f"data must be a table of pandas, polars or pyarrow, or paths of files, got {_named(data)}")


def _named(data: Any) -> str:
    name = type(data).__name__
    return f"a {name} of {library}" if (library := _library(data)) else name


def _examine(settings: Settings, table: pa.Table, target: bool = True) -> Examined:
    wanted, decimal = settings.target if target else None, settings.reading.decimal
    return examine(cut(table), wanted, task=settings.task, kinds=kinds_of(settings), decimal=decimal)


def _taken(data: Any, rows: NDArray[np.int64], name: str, weights: NDArray[np.float64]) -> Any:
    """Rows of a frame with their weights, by its own means, so that all else of it stays."""
    if isinstance(data, pa.Table):
        return data.take(pa.array(rows)).append_column(name, pa.array(weights))
    if _library(data) == "polars":
        import polars

        return data[rows].with_columns(polars.Series(name, weights))
    return data.iloc[rows].assign(**{name: weights})


def _warn(taken: Taken) -> None:
    if taken.lost:
        warn(
            f"each class should keep a row, got none of {', '.join(map(repr, taken.lost[:5]))}: "
            "pass min_per_class=1 or class_weight='balanced', or keep more",
            LostClassWarning,
        )


def _teller(progress: bool) -> Any:
    return (lambda text: say(text, err=True)) if progress else (lambda text: None)
