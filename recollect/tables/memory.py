"""A rehearsal memory of table rows: encodes them, lets a memory choose, and keeps the chosen rows as they came."""

import importlib
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from recollect import models
from recollect.checks import check_count, check_seed
from recollect.classes import LostClassWarning, check_classes
from recollect.embedding import MakeModel
from recollect.memories import ClassBalanced, Clustering, GradientMatching, Memory, Reservoir, SlidingWindow
from recollect.progress import Bar, progress_bar
from recollect.tables.account import Account
from recollect.tables.encoding import Drift, Encoding
from recollect.tables.examining import Examined, examine
from recollect.tables.kinds import Task
from recollect.tables.reading import Reading, Source, pieces, recognise
from recollect.tables.summaries import KINDS
from recollect.tables.timing import LONG, expected_seconds
from recollect.tables.values import class_names
from recollect.terminal import lasting

TABLE_MEMORIES: dict[str, type[Memory]] = {
    "recollect": GradientMatching,
    "clustering": Clustering,
    "reservoir": Reservoir,
    "class-balanced": ClassBalanced,
    "sliding-window": SlidingWindow,
}
MakeNetwork = Callable[[int, int], nn.Module]

_EMBEDDING = 10_000  # numbers per row with the library's settings: S = 10 times d = 1000
_BASE_BYTES = 700_000_000  # the interpreter with its libraries, and what is being read
_ROW_BYTES = 4096  # for the row itself; wider rows are taken in fewer at a time
_LEAST_ROWS = 500
_ROOM = 16  # outputs of the network at least, so that classes may come later


@dataclass(frozen=True)
class Settings:
    """What a memory of table rows is asked to do; fixed when it is made.

    Attributes:
        target: the column to be predicted.
        size: how many rows are kept at most.
        memory: a name of `TABLE_MEMORIES`.
        task: "classification" or "regression"; decided by the target's values if None.
        ignore: columns that are kept but not looked at.
        classes: for how many classes there is room; twice as many as in the first file by default.
        model: where the user's own network comes from, as "module:function"; the paper's MLP if None.
        seed: the same seed and files give the same memory.
        memory_limit: bytes; rows are taken in as many at a time as fit.
        kinds: what columns are, by name, where it is not to be recognised: one of `KINDS`.
        weight_name: what the column of weights is called; "weight", or another name if there is one, by default.
        class_weight: None, or "balanced" to let every class count alike.
        min_per_class: how many rows of each class are kept at least.
        reading: how files are read, as far as it is not to be recognised.
    """

    target: str
    size: int
    memory: str = "recollect"
    task: Task | None = None
    ignore: tuple[str, ...] = ()
    classes: int | None = None
    model: str | None = None
    seed: int = 0
    memory_limit: int = 4 * 10**9
    kinds: dict[str, str] = field(default_factory=dict)
    weight_name: str | None = None
    class_weight: Literal["balanced"] | None = None
    min_per_class: int = 0
    reading: Reading = field(default_factory=Reading)

    def __post_init__(self) -> None:
        check_count("size", self.size)
        check_seed(self.seed)
        if self.memory not in TABLE_MEMORIES:
            raise ValueError(f"memory must be one of {', '.join(TABLE_MEMORIES)}, got {self.memory!r}")
        if self.task not in (None, "classification", "regression"):
            raise ValueError(f"task must be classification or regression, got {self.task!r}")
        if self.classes is not None and self.classes < 2:
            raise ValueError(f"classes must be at least 2, got {self.classes}")
        for name, kind in self.kinds.items():
            if kind not in KINDS:
                raise ValueError(f"a column can be taken as {', '.join(KINDS)}, got {kind!r} for {name!r}")
        check_classes(self.class_weight, self.min_per_class)
        if self.memory != "recollect" and (self.class_weight or self.min_per_class):
            raise ValueError(f"class weights and places need the memory 'recollect', got {self.memory!r}")
        if self.weight_name == "":
            raise ValueError("the column of weights must have a name, got an empty one")
        self.block_rows  # noqa: B018  # says so if the limit is too low

    @property
    def block_rows(self) -> int:
        """How many rows are taken in at a time."""
        chosen = self.size * _EMBEDDING * 28 + 40 * self.size**2  # what choosing keeps of the chosen
        per_row = _EMBEDDING * 4.5 + _ROW_BYTES
        rows = int((self.memory_limit - _BASE_BYTES - chosen) / per_row)
        if self.memory != "recollect":
            return max(rows, 10_000)
        if rows < _LEAST_ROWS:
            least = (_BASE_BYTES + chosen + _LEAST_ROWS * per_row) / 1e9
            raise ValueError(
                f"keeping {self.size} rows needs a memory limit of at least {least + 0.05:.1f}GB, "
                f"got {self.memory_limit / 1e9:.1f}GB: pass a larger --memory-limit or a smaller --size"
            )
        return rows

    def as_data(self) -> dict[str, Any]:
        return {**asdict(self), "ignore": list(self.ignore)}


@dataclass
class Taken:
    """What taking in some rows came to."""

    rows: int = 0
    seconds: float = 0.0
    reading_seconds: float = 0.0  # reading and encoding
    skipped: int = 0  # rows that could not be read
    unlabelled: int = 0  # rows whose target was missing
    class_counts: dict[str, int] = field(default_factory=dict)
    drift: Drift = field(default_factory=Drift)
    error: float | None = None
    lost: list[str] = field(default_factory=list)  # classes that were seen, and of which no row is kept

    def as_data(self) -> dict[str, Any]:
        speed = self.rows / self.seconds if self.seconds else 0.0
        return {**asdict(self), "drift": self.drift.sentences(), "rows_per_second": round(speed, 1)}


class TableMemory:
    """The chosen rows, their weights, and all that is needed to go on.

    Args:
        settings: what is wanted.
        schema: the columns of the table.
        encoding: how they become numbers.
        make_network: builds the user's own network from the numbers of features and outputs.
        progress: show progress bars in a terminal.
    """

    def __init__(
        self,
        settings: Settings,
        schema: pa.Schema,
        encoding: Encoding,
        account: Account,
        make_network: MakeNetwork | None = None,
        *,
        progress: bool = False,
    ) -> None:
        self.settings, self.schema, self.encoding, self.account = settings, schema, encoding, account
        self.row_name, self.weight_name = _added_names(schema, settings.weight_name)
        if encoding.task == "classification":
            self.outputs = settings.classes or max(_ROOM, 2 * len(encoding.classes))
            if len(encoding.classes) < 2 and settings.classes is None:
                raise ValueError(
                    f"the target {encoding.target!r} must have at least two classes, got one: "
                    "say how many there will be with --classes"
                )
        else:
            self.outputs = 1
        self.progress = progress
        self.rows = schema.empty_table()
        self.memory = self._make_memory(make_network)

    @classmethod
    def for_files(
        cls,
        settings: Settings,
        sources: Sequence[Path | Source],
        make_network: MakeNetwork | None = None,
        *,
        all_known: bool = False,
        progress: bool = False,
    ) -> "TableMemory":
        """An empty memory for tables like these; nothing but these will come if all is known."""
        known = recognised(sources, settings.reading)
        schema, found = examine_files(settings, known, progress=progress)
        files = {Path(source.name).name: str(source.dialect) for source in known}
        return cls.for_examined(settings, schema, found, files, make_network, all_known=all_known, progress=progress)

    @classmethod
    def for_examined(
        cls,
        settings: Settings,
        schema: pa.Schema,
        found: Examined,
        files: dict[str, str],
        make_network: MakeNetwork | None = None,
        *,
        all_known: bool = False,
        progress: bool = False,
    ) -> "TableMemory":
        """The same, for rows that were looked at already."""
        encoding = found.encoding(drop_missing_target=settings.reading.drop_missing_target)
        if all_known and settings.classes is None and len(encoding.classes) > 1:
            settings = replace(settings, classes=len(encoding.classes))
        return cls(settings, schema, encoding, found.account(files), make_network, progress=progress)

    def _make_memory(self, make_network: MakeNetwork | None) -> Memory:
        settings, kind = self.settings, TABLE_MEMORIES[self.settings.memory]
        if kind is ClassBalanced and self.encoding.task == "regression":
            raise ValueError("class-balanced needs a target with classes, got a quantity: choose another --memory")
        if kind is not GradientMatching:
            return kind(settings.size, seed=settings.seed)
        if self.encoding.task == "regression" and (settings.class_weight or settings.min_per_class):
            raise ValueError("--class-weight and --min-per-class need a target with classes, got a quantity")
        return GradientMatching(
            self.make_model(make_network),
            settings.size,
            loss=self.loss,
            class_weight=settings.class_weight,
            min_per_class=settings.min_per_class,
            seed=settings.seed,
            progress=self.progress,
        )

    @property
    def loss(self) -> str:
        return "cross_entropy" if self.encoding.task == "classification" else "squared_error"

    def make_model(self, make_network: MakeNetwork | None) -> MakeModel:
        """What the gradients are those of."""
        return partial(make_network or models.mlp, self.encoding.n_features, self.outputs)

    def take(
        self, tables: Iterable[pa.Table], total: int | None = None, say: Callable[[str], None] = lambda text: None
    ) -> Taken:
        """Take in rows and choose anew. If that fails this object is of no more use; nothing else is touched.

        Args:
            tables: the rows, in the columns of the first file.
            total: how many rows there will be, if that is known; only for showing how far it is.
            say: told how long it will take, if it takes long.
        """
        taken = Taken()
        start = time.perf_counter()
        most = self.settings.block_rows
        rows = max(1, most * _ROW_BYTES // max(_ROW_BYTES, 4 * self.encoding.n_features))
        many = self.progress and total is not None and total > rows
        with progress_bar("taking in rows", total or 1, show=many) as bar:
            for block in _blocks(tables, rows, most * _ROW_BYTES):
                usable, features, targets = self._encode(block, taken)
                taken.reading_seconds = time.perf_counter() - start - taken.seconds
                if not taken.rows and total is not None:
                    self._announce(features, targets, total, rows, say)
                before = time.perf_counter()
                if usable.num_rows:
                    first, ids = self.memory.seen, self.memory.batch.ids if len(self.memory) else torch.empty(0).long()
                    self._update(features, targets)
                    self.rows = _kept_rows(self.rows, ids, usable, first, self.memory.batch.ids)
                taken.rows += usable.num_rows
                taken.seconds += time.perf_counter() - before
                bar.advance(block.num_rows)
        if not taken.rows:
            raise ValueError("there must be rows that can be taken in, got none: all were left out")
        taken.seconds += taken.reading_seconds
        taken.error = self.memory.error if isinstance(self.memory, GradientMatching) else None
        taken.lost = self.lost()
        return taken

    def _announce(self, features: Tensor, targets: Tensor, total: int, rows: int, say: Callable[[str], None]) -> None:
        memory = self.memory
        if total < LONG or not isinstance(memory, GradientMatching) or memory.embedding is None or not len(targets):
            return
        seconds = expected_seconds(
            memory.embedding.make_model, self.loss, features, targets, rows=total, block=rows, size=memory.capacity
        )
        say(f"{total:,} rows will take about {lasting(seconds)}")

    def lost(self) -> list[str]:
        """The classes that were seen and of which no row is kept."""
        if self.encoding.task == "regression" or not len(self.memory):
            return []
        kept = set(self.memory.batch.targets.tolist())
        return [name for i, name in enumerate(self.encoding.classes) if i not in kept]

    def _update(self, features: Tensor, targets: Tensor) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", LostClassWarning)  # which is told by name, with what there was
                self.memory.update(features, targets)
        except (RuntimeError, TypeError, AttributeError) as error:
            if self.settings.model is None:
                raise
            reason = " ".join(str(error).split())[:300]
            raise ValueError(
                f"the network of {self.settings.model} must take rows of {features.shape[1]} features "
                f"and give {self.outputs} outputs, got: {reason}"
            ) from error

    def _encode(self, block: pa.Table, taken: Taken) -> tuple[pa.Table, Tensor, Tensor]:
        """The rows that can be taken, and what they are to a model."""
        block = self._usable(block, taken)
        features = self.encoding.features(block, taken.drift)
        targets = self.encoding.targets(block, taken.drift)
        if self.encoding.task == "classification":
            if len(self.encoding.classes) > self.outputs:
                raise ValueError(
                    f"the memory has room for {self.outputs} classes, got {len(self.encoding.classes)}: "
                    "pass --skip-bad-rows to leave out rows of others, or start a new store with --classes"
                )
            counts = torch.bincount(targets, minlength=len(self.encoding.classes)).tolist()
            for name, count in zip(self.encoding.classes, counts, strict=True):
                taken.class_counts[name] = taken.class_counts.get(name, 0) + count
        return block, features, targets

    def _usable(self, block: pa.Table, taken: Taken) -> pa.Table:
        """Without the rows that nothing can be learned from, if somebody said that they may be left out."""
        reading = self.settings.reading
        if reading.drop_missing_target and (without := self.encoding.unlabelled(block)).any():
            taken.unlabelled += int(without.sum())
            block = block.filter(pa.array(~without))
        if reading.skip_bad_rows and self.encoding.task == "classification":
            names = class_names(block.column(self.encoding.target))
            known = list(dict.fromkeys([*self.encoding.classes, *names]))[: self.outputs]
            fits = np.isin(np.array(names, dtype=object), known) if len(block) else np.ones(0, dtype=bool)
            if not fits.all():
                taken.skipped += int((~fits).sum())
                block = block.filter(pa.array(fits))
        return block

    def table(self) -> pa.Table:
        """The chosen rows as they came, with their places in the stream and their weights."""
        if not len(self.memory):
            raise ValueError("there must be rows to write, got none so far: update first")
        batch = self.memory.batch
        table = self.rows.append_column(self.row_name, pa.array(batch.ids.numpy()))
        return table.append_column(self.weight_name, pa.array(batch.weights.double().numpy()))


def _added_names(schema: pa.Schema, weight: str | None) -> tuple[str, str]:
    """What the columns of places and weights are called, so that they are no others'."""
    if weight in schema.names:
        raise ValueError(f"the column of weights must have a name of its own, got {weight!r}, which there is already")
    found: list[str] = []
    for name in ("row", weight or "weight"):
        while name in (*schema.names, *found):
            name = name if name.startswith("recollect_") else f"recollect_{name}"
            name = f"{name}_" if name in schema.names else name
        found.append(name)
    return found[0], found[1]


def recognised(sources: Iterable[Path | Source], reading: Reading) -> list[Source]:
    """Files, and how each is read."""
    return [source if isinstance(source, Source) else recognise(source, reading) for source in sources]


def examine_files(
    settings: Settings, sources: Sequence[Source], *, target: bool = True, progress: bool = False
) -> tuple[pa.Schema, Examined]:
    """The columns of the first file, and what all rows of all files say about them."""
    with closing(pieces(sources[0])) as first:
        schema = next(first).schema
    kinds = {**dict.fromkeys(settings.ignore, "ignored"), **settings.kinds}
    with progress_bar("looking at columns", None, show=progress) as bar:
        found = examine(
            _watched((conform(piece, schema, source) for source in sources for piece in pieces(source)), bar),
            settings.target if target else None,
            task=settings.task,
            kinds=kinds,
            decimal=settings.reading.decimal,
        )
    return schema, found


def _watched(tables: Iterable[pa.Table], bar: Bar) -> Iterator[pa.Table]:
    for table in tables:
        yield table
        bar.advance(table.num_rows)


def conform(piece: pa.Table, schema: pa.Schema, source: object, ignore: Sequence[str] = ()) -> pa.Table:
    """The rows with the columns of the first file; another schema is refused with the column named.

    Args:
        piece: some rows.
        schema: the columns of the first file.
        source: where the rows come from, for the sentence.
        ignore: columns that may be missing, or be more, or of another type: they are missing values then.
    """
    wanted_names, names, what = schema.names, piece.schema.names, repr(str(source))
    if wanted_names != names:
        if missing := sorted(set(wanted_names) - set(names) - set(ignore)):
            raise ValueError(
                f"{what} must have the column {missing[0]!r} of the first file, which is missing: "
                f"pass --ignore {missing[0]} to take it as missing values"
            )
        if more := sorted(set(names) - set(wanted_names) - set(ignore)):
            raise ValueError(
                f"{what} must have the columns of the first file, got {more[0]!r} besides: "
                f"pass --ignore {more[0]} to leave it out"
            )
    columns = []
    for wanted in schema:
        if wanted.name in ignore:
            columns.append(pa.nulls(piece.num_rows, wanted.type))
            continue
        column = piece.column(wanted.name)
        try:
            columns.append(column if column.type == wanted.type else column.cast(wanted.type))
        except pa.ArrowException:
            raise ValueError(
                f"column {wanted.name!r} of {what} must be {wanted.type} as in the first file, got {column.type}: "
                f"pass --ignore {wanted.name} to take it as missing values"
            ) from None
    return pa.table(columns, schema=schema)


def load_network(name: str) -> MakeNetwork:
    """The user's own function, named as "module:function"; it is given the numbers of features and of outputs."""
    match = re.fullmatch(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)", name)
    if match is None:
        raise ValueError(f"the model must be given as module:function, got {name!r}")
    sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(match[1]), match[2], None)
    except ImportError as error:
        raise ValueError(f"the model's module must import, got {error}") from None
    finally:
        sys.path.remove("")
    if not callable(found):
        raise ValueError(f"the model must be a function of the module {match[1]}, got no {match[2]!r} there")
    return found  # type: ignore[no-any-return]


def parse_bytes(text: str) -> int:
    """A number of bytes as people write it.

    Example:
        >>> parse_bytes("1.5GB"), parse_bytes("512 MiB")
        (1500000000, 536870912)
    """
    match = re.fullmatch(r"\s*(\d+\.?\d*)\s*([kmgt]?)(i?)b?\s*", text.lower())
    if match is None or (match[3] and not match[2]):
        raise ValueError(f"a memory limit must be written like 4GB or 500MiB, got {text!r}")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** ("kmgt".find(match[2]) + 1 if match[2] else 0))


def _blocks(tables: Iterable[pa.Table], rows: int, most_bytes: int) -> Iterator[pa.Table]:
    """The same rows in blocks of a fixed number, whatever the pieces were; fewer where they are wide, or the last."""
    waiting: list[pa.Table] = []
    count = size = 0
    for table in tables:
        waiting.append(table)
        count, size = count + table.num_rows, size + table.nbytes
        while count >= rows:
            joined = pa.concat_tables(waiting)
            yield joined.slice(0, rows)
            rest = joined.slice(rows)
            waiting, count, size = [rest], rest.num_rows, rest.nbytes
        if size >= most_bytes:
            yield pa.concat_tables(waiting)
            waiting, count, size = [], 0, 0
    if count:
        yield pa.concat_tables(waiting)


def _kept_rows(rows: pa.Table, ids: Tensor, block: pa.Table, first: int, kept: Tensor) -> pa.Table:
    """The rows with the kept ids, out of those held before and those of the block."""
    old, new = kept[kept < first].numpy(), kept[kept >= first].numpy() - first
    places = np.searchsorted(ids.numpy(), old)
    # Copied, so that the block they came from can be let go.
    return pa.concat_tables([rows.take(places), block.take(new)]).combine_chunks()
