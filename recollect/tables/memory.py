"""A rehearsal memory of table rows: encodes them, lets a memory choose, and keeps the chosen rows as they came."""

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from recollect import models
from recollect.checks import check_size
from recollect.classes import LostClassWarning
from recollect.embedding import MakeModel
from recollect.estimating import estimate
from recollect.memories import ClassBalanced, GradientMatching, Memory
from recollect.progress import progress_bar
from recollect.tables.account import Account
from recollect.tables.blocks import Block, Found, RowsHere, cut_blocks, joined, with_places
from recollect.tables.casting import cast_unchanged
from recollect.tables.conforming import examine_files, read_as, recognised
from recollect.tables.encoding import Drift, Encoding, missing_target
from recollect.tables.examining import Examined
from recollect.tables.networks import MakeNetwork
from recollect.tables.reading import Skipped, Source, in_use, retyped
from recollect.tables.settings import ROW_BYTES, TABLE_MEMORIES, Settings
from recollect.tables.wording import option
from recollect.terminal import lasting

_LONG = 50_000  # from so many rows on, people are told beforehand how long it may take
_FIRST = 1024  # rows that this is measured on
BATCH_SIZE = 512  # rows per pass: the network for tables is small, and starting one is a third of its time
_ROOM = 16  # outputs of the network at least, so that classes may come later


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
        account: what was read as what, and why.
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
                    "there is nothing to tell apart, unless a store is told how many there will be with "
                    f"{option('classes', ...)}"
                )
        else:
            self.outputs = 1
        self.block_size  # noqa: B018  # says so if the limit is too low for what the first file has
        self.progress = progress
        self.rows = schema.empty_table()
        self.places: NDArray[np.int64] = np.empty(0, np.int64)  # of the rows, in all files
        self.passed = 0  # rows of all files, those that were left out among them
        self.memory = self._make_memory(make_network)

    @classmethod
    def for_files(
        cls,
        settings: Settings,
        sources: Sequence[Path | Source],
        make_network: MakeNetwork | None = None,
        *,
        all_known: bool = False,
        share: float | None = None,
        progress: bool = False,
        examine: Callable[..., tuple[pa.Schema, Examined]] = examine_files,
    ) -> "TableMemory":
        """An empty memory for tables like these; nothing but these will come if all is known.

        Of a share of all rows, there are as many places as it comes to, whatever the settings say.
        """
        known = recognised(sources, settings.reading)
        schema, found = examine(settings, known, progress=progress)
        options: dict[str, Any] = {"all_known": all_known, "share": share, "progress": progress}
        return cls.for_examined(settings, schema, found, read_as(known), make_network, **options)

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
        share: float | None = None,
        progress: bool = False,
    ) -> "TableMemory":
        """The same, for rows that were looked at already."""
        if share is not None:
            settings = replace(settings, size=check_size(share, found.rows, "rows"))
        encoding = found.encoding(drop_missing_target=settings.reading.drop_missing_target)
        if all_known and settings.classes is None and len(encoding.classes) > 1:
            settings = replace(settings, classes=len(encoding.classes))
        return cls(settings, schema, encoding, found.account(files), make_network, progress=progress)

    def _make_memory(self, make_network: MakeNetwork | None) -> Memory:
        settings, kind = self.settings, TABLE_MEMORIES[self.settings.memory]
        if kind is ClassBalanced and self.encoding.task == "regression":
            raise ValueError(
                f"class-balanced needs a target with classes, got a quantity: choose another {option('memory')}"
            )
        if kind is not GradientMatching:
            return kind(settings.size, seed=settings.seed)
        if self.encoding.task == "regression" and (settings.class_weight or settings.min_per_class):
            raise ValueError(
                f"{option('class_weight')} and {option('min_per_class')} need a target with classes, got a quantity"
            )
        return GradientMatching(
            self.make_model(make_network),
            settings.size,
            loss=self.loss,
            batch_size=BATCH_SIZE if settings.model is None else 128,
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
        self,
        tables: Iterable[pa.Table],
        total: int | None = None,
        say: Callable[[str], None] = lambda text: None,
        skipped: Skipped | None = None,
    ) -> Taken:
        """Take in rows and choose anew. If that fails this object is of no more use; nothing else is touched.

        Args:
            tables: the rows, in the columns of the first file.
            total: how many rows there will be, if that is known; only for showing how far it is.
            say: told how long it will take, if it takes long.
            skipped: knows of rows that were left out as the tables were read.
        """
        skipped = skipped or Skipped()
        pieces = self._placed(tables, skipped)
        blocks = (RowsHere(joined(parts), self.encoding) for parts in cut_blocks(pieces, *self.block_size))
        return self.take_blocks(blocks, total, say, skipped)

    def _placed(self, tables: Iterable[pa.Table], skipped: Skipped) -> Iterator[tuple[pa.Table, int, int]]:
        """Rows with their places, how many there are, and their bytes."""
        read = 0
        for table in tables:
            places = self.passed + skipped.places(read, table.num_rows)
            read += table.num_rows
            yield with_places(table, self.row_name, places), table.num_rows, table.nbytes

    @property
    def block_size(self) -> tuple[int, int]:
        """How many rows are taken in at a time, and how many bytes of them at most."""
        most = self.settings.block_rows(self.encoding.task, self.outputs) * ROW_BYTES
        return max(1, most // max(ROW_BYTES, 4 * self.encoding.n_features)), most

    def take_blocks(
        self,
        blocks: Iterable[Block],
        total: int | None = None,
        say: Callable[[str], None] = lambda text: None,
        skipped: Skipped | None = None,
    ) -> Taken:
        """The same, of rows that may be elsewhere, in blocks of `block_size`."""
        taken = Taken()
        start = time.perf_counter()
        rows, _ = self.block_size
        many = self.progress and total is not None and total > rows
        with progress_bar("taking in rows", total or 1, show=many) as bar:
            for block in blocks:
                found = block.found()
                count = self._note(found, taken)
                taken.reading_seconds = time.perf_counter() - start - taken.seconds
                if not taken.rows and total is not None:
                    self._announce(block, total, rows, say)
                before = time.perf_counter()
                if count:
                    first, ids = self.memory.seen, self.memory.batch.ids if len(self.memory) else torch.empty(0).long()
                    self._update(block)
                    kept = self.memory.batch.ids
                    old = np.searchsorted(ids.numpy(), kept[kept < first].numpy())
                    self._keep(old, block.take(kept[kept >= first].numpy() - first, self.encoding.classes))
                taken.rows += count
                taken.seconds += time.perf_counter() - before
                bar.advance(found.rows + found.unlabelled)
        if not taken.rows:
            raise ValueError("there must be rows that can be taken in, got none: all were left out")
        taken.seconds += taken.reading_seconds
        taken.skipped += skipped.rows if skipped is not None else 0
        self.passed += taken.rows + taken.skipped + taken.unlabelled
        taken.error = self.memory.error if isinstance(self.memory, GradientMatching) else None
        taken.lost = self.lost()
        return taken

    def _keep(self, old: NDArray[np.int64], new: pa.Table) -> None:
        """Keep some of the rows held before, and new ones, which come with their places."""
        held = self.placed().take(old)
        # Copied, so that the block they came from can be let go.
        self.hold(retyped(pa.concat_tables([held, new]).combine_chunks(), in_use))

    def hold(self, placed: pa.Table) -> None:
        """Hold rows that come with their places."""
        self.rows = placed.drop_columns([self.row_name])
        self.places = placed.column(self.row_name).to_numpy()

    def widen(self, schema: pa.Schema) -> None:
        """Hold the rows in types that hold what comes later, where no value changes by it."""
        for i, wider in enumerate(schema):
            if wider.type != self.schema.field(i).type:
                with suppress(pa.ArrowException, ValueError):  # then what comes is refused
                    self.rows = self.rows.set_column(i, wider, cast_unchanged(self.rows.column(i), wider.type))
        self.schema = self.rows.schema

    def _announce(self, block: Block, total: int, rows: int, say: Callable[[str], None]) -> None:
        """Say how long it will take, measured on the first rows, which decide nothing else by that."""
        memory, rows = self.memory, min(rows, total)
        if total < _LONG or not isinstance(memory, GradientMatching) or memory.embedding is None:
            return
        head = block.head(self.encoding.classes)
        if head is not None and memory.capacity < rows and len(head[1]):
            make_model = memory.embedding.make_model
            some, labels = head[0][:_FIRST], head[1][:_FIRST]
            cost = estimate(make_model, some, labels, memory.capacity, rows=rows, loss=self.loss)
            say(f"{total:,} rows will take {lasting(cost.seconds * total / rows)}")

    def lost(self) -> list[str]:
        """The classes that were seen and of which no row is kept."""
        if self.encoding.task == "regression" or not len(self.memory):
            return []
        kept = set(self.memory.batch.targets.tolist())
        return [name for i, name in enumerate(self.encoding.classes) if i not in kept]

    def _update(self, block: Block) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", LostClassWarning)  # which is told by name, with what there was
                block.update(self.memory, self.encoding.classes)
        except (RuntimeError, TypeError, AttributeError) as error:
            if self.settings.model is None:
                raise
            reason = " ".join(str(error).split())[:300]
            raise ValueError(
                f"the network of {self.settings.model} must take rows of {self.encoding.n_features} features "
                f"and give {self.outputs} outputs, got: {reason}"
            ) from error

    def _note(self, found: Found, taken: Taken) -> int:
        """Take note of what a block holds; how many of its rows can be taken, if those of other classes may not."""
        encoding, reading, counts = self.encoding, self.settings.reading, found.counts
        if found.unlabelled and not reading.drop_missing_target:
            raise ValueError(missing_target(encoding.target, found.unlabelled))
        taken.unlabelled += found.unlabelled
        for column, noted in zip(encoding.columns, found.noted, strict=True):
            taken.drift.note(column, noted, found.rows)
        if encoding.task == "regression":
            return found.rows
        if reading.skip_bad_rows:
            known = list(dict.fromkeys([*encoding.classes, *counts]))[: self.outputs]
            counts = {name: count for name, count in counts.items() if name in known}
            taken.skipped += found.rows - sum(counts.values())
        encoding.admit(counts, taken.drift)
        if len(encoding.classes) > self.outputs:
            raise ValueError(
                f"the memory has room for {self.outputs} classes, got {len(encoding.classes)}: "
                f"pass {option('skip_bad_rows', True)} to leave out rows of others, "
                f"or start a new store with {option('classes', ...)}"
            )
        for name in encoding.classes:
            taken.class_counts[name] = taken.class_counts.get(name, 0) + counts.get(name, 0)
        return sum(counts.values())

    def placed(self) -> pa.Table:
        """The chosen rows as they came, with their places in all files."""
        return with_places(self.rows, self.row_name, self.places)

    def table(self) -> pa.Table:
        """The chosen rows as they came, with their places in all files and their weights."""
        if not len(self.memory):
            raise ValueError("there must be rows to write, got none so far: update first")
        batch = self.memory.batch
        return self.placed().append_column(self.weight_name, pa.array(batch.weights.double().numpy()))


def _added_names(schema: pa.Schema, weight: str | None) -> tuple[str, str]:
    """What the columns of places and weights are called, so that they are no others'."""
    if weight in schema.names:
        raise ValueError(f"the column of weights must have a name of its own, got {weight!r}, which there is already")
    found: list[str] = []
    for name in (weight or "weight", "row"):
        while name in (*schema.names, *found):
            name = name if name.startswith("recollect_") else f"recollect_{name}"
            name = f"{name}_" if name in schema.names else name
        found.append(name)
    return found[1], found[0]
