"""The documents of a store, and what binds them to one another."""

import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from recollect.batch import named_tensors
from recollect.files import checksum, is_temporary, seal, unseal, write_atomically
from recollect.forms import parse
from recollect.tables.account import Account
from recollect.tables.encoding import Encoding
from recollect.tables.memory import TableMemory, Taken
from recollect.tables.settings import Settings
from recollect.tables.wording import command

GENERATION = re.compile(r"generation-(\d{6,12})")


@dataclass(frozen=True)
class Update:
    """What became of one file."""

    file: str
    taken: Taken | None  # None if it had been taken before
    seen: int
    kept: int
    read_as: str  # the dialect, for people
    account: Account  # of the columns, as the first file had them
    scarce: dict[str, int] = field(default_factory=dict)  # classes of which few rows are kept, though many came


@dataclass(frozen=True)
class About:
    """`store.json`."""

    format: str
    version: int
    settings: Settings


@dataclass(frozen=True)
class Latest:
    """`latest.json`."""

    number: int


@dataclass(frozen=True)
class Pointer:
    """`current.json`."""

    number: int  # 0 until a file is taken
    state: str | None  # the checksum of state.json


@dataclass(frozen=True)
class Entry:
    """A file that was taken in."""

    name: str
    hash: str
    first: int  # the place of its first row in the stream
    time: float
    rows: int
    seconds: float
    reading_seconds: float
    skipped: int  # rows that could not be read
    unlabelled: int  # rows whose target was missing
    class_counts: dict[str, int]
    drift: list[str]
    error: float | None
    lost: list[str]  # classes of which no row was kept any more
    rows_per_second: float
    read_as: str  # the dialect, for people


@dataclass(frozen=True)
class State:
    """`state.json`."""

    number: int
    settings: Settings
    outputs: int
    encoding: Encoding
    account: Account  # of the first file, which decided the encoding
    files: list[Entry]
    rows: str  # the checksum of rows.arrow
    memory: str  # the checksum of memory/memory.json


@dataclass(frozen=True)
class Recovery:
    """What recovering a store came to."""

    number: int  # of the generation that counts
    was_whole: bool  # nothing had to be done
    seen: int
    kept: int
    files: int


def is_unused(path: Path) -> bool:
    """Whether it may be left over of a store that was never used."""
    ours = ("store.json", "current.json", "latest.json", "lock")
    return path.name in ours or is_temporary(path) or GENERATION.fullmatch(path.name) is not None


def has_taken(folder: Path) -> bool:
    """Whether a store has taken in files; if nothing tells, a generation does."""
    try:
        pointer = parse(Pointer, unseal((folder / "current.json").read_bytes(), "it"), "it")
        latest = parse(Latest, unseal((folder / "latest.json").read_bytes(), "it"), "it")
        return pointer.number != 0 or latest.number != 0
    except (ValueError, OSError):
        return any(GENERATION.fullmatch(path.name) for path in folder.iterdir())


def check_outside(output: Path) -> None:
    """Refuse a place within a store, where a file may take that of one of its own."""
    folder = output.parent.resolve()
    for place in (folder, *folder.parents):
        is_store = (place / "store.json").is_file() and (place / "current.json").is_file()
        if is_store or (GENERATION.fullmatch(place.name) and (place / "state.json").is_file()):
            raise ValueError(f"the output must not be within a store, got {str(output)!r}: choose another folder")


def write_document(path: Path, document: Any) -> None:
    write_atomically(path, seal(asdict(document)))


def entries(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise ValueError(f"a store is a folder, got {str(folder)!r}, which is none")
    return list(folder.iterdir())


def bound_content(path: Path, digest: str | None) -> bytes:
    """What is in a file that is bound by its checksum."""
    if not path.is_file():
        raise ValueError(f"{str(path)!r} must be there, but it is lost: run {command('recover')}")
    content = path.read_bytes()
    if checksum(content) != digest:
        raise ValueError(
            f"{str(path)!r} must have the content it was saved with: it is damaged: run {command('recover')}"
        )
    return content


def fit_together(held: TableMemory, state: State) -> bool:
    """Whether the rows, the encoding, the files and the memory are of one another."""
    encoding, memory, total = state.encoding, held.memory, 0
    for entry in state.files:
        if entry.first != total or entry.rows < 1:
            return False
        total += entry.rows
    if memory.seen != total or memory.capacity != held.settings.size or len(memory) != held.rows.num_rows or not total:
        return False
    batch = memory.batch
    inputs = named_tensors(batch.inputs)
    fits = list(inputs) == [""] and inputs[""].shape[1:] == (encoding.n_features,) and encoding.n_features > 0
    fits &= sorted(encoding.names) == sorted(held.schema.names) and encoding.target == held.settings.target
    fits &= held.places.dtype == np.int64
    if encoding.task == "classification":
        fits &= len(encoding.classes) <= state.outputs and batch.targets.ndim == 1
        fits &= not batch.targets.is_floating_point() and int(batch.targets.min()) >= 0
        return fits and int(batch.targets.max()) < len(encoding.classes)
    return fits and state.outputs == 1 and batch.targets.shape[1:] == (1,)


def rows_content(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pyarrow.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def read_rows(path: Path, digest: str) -> pa.Table:
    content = bound_content(path, digest)
    try:
        rows = pyarrow.ipc.open_file(pa.BufferReader(content)).read_all()
        rows.validate(full=True)  # or offsets could lead out of its buffers
    except pa.ArrowException as error:
        raise ValueError(f"{str(path)!r} must be an Arrow file: {' '.join(str(error).split())}") from None
    return rows
