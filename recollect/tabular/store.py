"""A memory of table rows in a folder: files go in one by one, and it is always in its old or its new state.

    STORE/store.json               what it was made for; never changes
    STORE/current.json             names the generation that counts: replacing this file is the one atomic step
    STORE/generation-000007/       state.json (encoding, files taken), rows.arrow (kept rows), memory/ (see memories)
    STORE/lock                     held while updating, by the process itself: gone when the process is

A generation is written whole before it is named. One that is not named is left over from a crash and is removed by the
next update. The one before is kept for those who are reading it.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc

from recollect.files import is_temporary, write_atomically
from recollect.memories import GradientMatching, load_memory
from recollect.tabular.encoding import Encoding
from recollect.tabular.memory import MakeNetwork, Settings, TableMemory, Taken, conform
from recollect.tabular.reading import content_hash, pieces

FORMAT = "recollect store"
VERSION = 1

_GENERATION = re.compile(r"generation-\d{6,12}")


@dataclass(frozen=True)
class Update:
    """What became of one file."""

    file: str
    taken: Taken | None  # None if it had been taken before
    seen: int
    kept: int


class Store:
    """A folder that remembers.

    Example:
        >>> import tempfile, pyarrow as pa, pyarrow.parquet
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     table = pa.table({"x": [float(i % 7) for i in range(60)], "y": [i % 2 for i in range(60)]})
        ...     pyarrow.parquet.write_table(table, f"{folder}/monday.parquet")
        ...     store = Store.create(Path(folder, "store"), Settings(target="y", size=10))
        ...     store.update([Path(folder, "monday.parquet")])[0].seen, store.load().table().num_rows <= 10
        (60, True)
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        document = _read_json(folder / "store.json", f"{str(folder)!r} must be a store: make one with `recollect init`")
        if document.get("format") != FORMAT:
            raise ValueError(f"{str(folder / 'store.json')!r} must describe a {FORMAT}, got something else")
        version = document.get("version")
        if not isinstance(version, int) or version > VERSION:
            raise ValueError(
                f"{str(folder)!r} must be of version {VERSION} or older, got {version!r}: update recollect"
            )
        self.settings = Settings.from_data(document.get("settings", {}))

    @classmethod
    def create(cls, folder: Path, settings: Settings) -> "Store":
        """Make an empty store in a new or empty folder."""
        if folder.is_file():
            raise ValueError(f"a store is a folder, got the file {str(folder)!r}")
        if folder.is_dir() and any(not is_temporary(path) for path in folder.iterdir()):
            raise ValueError(f"a store is made in a new or empty folder, got {str(folder)!r}, which holds something")
        folder.mkdir(parents=True, exist_ok=True)
        document = {"format": FORMAT, "version": VERSION, "settings": settings.as_data()}
        write_atomically(folder / "store.json", json.dumps(document, indent=2).encode())
        return cls(folder)

    # Reading

    def state(self) -> dict[str, Any] | None:
        """The encoding and the files taken so far; None if there are none."""
        generation = self._current()
        return None if generation is None else self._state_of(generation)

    def _state_of(self, generation: Path) -> dict[str, Any]:
        state = _read_json(generation / "state.json", f"{str(generation)!r} must hold state.json: it is damaged")
        if not isinstance(state.get("files"), list) or not isinstance(state.get("encoding"), dict):
            raise ValueError(f"{str(generation / 'state.json')!r} must hold what was saved, got something else")
        return state

    def load(self, make_network: MakeNetwork | None = None) -> TableMemory:
        """The memory as it is now; the user's own network is only needed to go on."""
        return self.read(make_network)[0]

    def read(self, make_network: MakeNetwork | None = None) -> tuple[TableMemory, list[dict[str, Any]]]:
        """The memory and the files it took in, of one and the same generation though an update may be running."""
        generation = self._current()
        if generation is None:
            raise ValueError(f"{str(self.folder)!r} must have taken in a file, got none so far: run `recollect update`")
        state = self._state_of(generation)
        rows = _read_rows(generation / "rows.arrow", state["rows_hash"])
        held = TableMemory(self.settings, rows.schema, Encoding.from_data(state["encoding"]), make_network)
        held.outputs = int(state["outputs"])
        make_model = held.make_model(make_network) if isinstance(held.memory, GradientMatching) else None
        if self.settings.model is not None and make_network is None:
            make_model = None
        held.memory = load_memory(generation / "memory", make_model)
        if len(held.memory) != rows.num_rows:
            raise ValueError(f"{str(generation)!r} must hold as many rows as examples: it is damaged")
        held.rows = rows
        return held, state["files"]

    def _current(self) -> Path | None:
        path = self.folder / "current.json"
        if not path.exists():
            return None
        name = _read_json(path, "").get("generation")
        # A name from outside is only ever one of ours: nothing that could lead out of the folder.
        if not isinstance(name, str) or not _GENERATION.fullmatch(name) or not (self.folder / name).is_dir():
            raise ValueError(f"{str(path)!r} must name a generation of its folder, got {name!r}: it is damaged")
        return self.folder / name

    # Updating

    def update(
        self,
        paths: Sequence[Path],
        *,
        make_network: MakeNetwork | None = None,
        force: bool = False,
        wait: bool = True,
        say: Callable[[str], None] = lambda text: None,
        progress: bool = False,
    ) -> list[Update]:
        """Take in files one after the other; each is there wholly or not at all.

        Args:
            paths: tables with the columns of the first.
            make_network: the user's own network, if the store was made for one.
            force: take in a file again that was taken before.
            wait: for another update to end; else that is an error.
            say: told when waiting.
            progress: show progress bars in a terminal.
        """
        if (self.settings.model is None) != (make_network is None):
            raise ValueError(
                "the store was made for the library's network, got --model: make a new store for another"
                if self.settings.model is None
                else f"the store was made with --model {self.settings.model}, got none: pass it again"
            )
        with self._locked(wait, say):
            return [self._update_one(path, make_network, force, progress) for path in paths]

    def _update_one(self, path: Path, make_network: MakeNetwork | None, force: bool, progress: bool) -> Update:
        started = path.stat()
        digest = content_hash(path)
        held, files = (None, []) if self._current() is None else self.read(make_network)
        if held is not None and not force and any(entry["hash"] == digest for entry in files):
            return Update(path.name, None, held.memory.seen, len(held.memory))
        if held is None:
            held = TableMemory.for_files(self.settings, [path], make_network, progress=progress)
        elif isinstance(held.memory, GradientMatching):
            held.memory.progress = progress
        first = held.memory.seen
        taken = held.take(conform(piece, held.schema, path) for piece in pieces(path))
        ended = path.stat()
        if (started.st_size, started.st_mtime_ns) != (ended.st_size, ended.st_mtime_ns):
            raise ValueError(f"{str(path)!r} must not change while it is read, but it did: update again")
        entry = {"name": path.name, "hash": digest, "first": first, "time": time.time(), **taken.as_data()}
        self._commit(held, [*files, entry])
        return Update(path.name, taken, held.memory.seen, len(held.memory))

    def _commit(self, held: TableMemory, files: list[dict[str, Any]]) -> None:
        current = self._current()
        number = 1 if current is None else int(current.name.split("-")[1]) + 1
        new = self.folder / f"generation-{number:06d}"
        for path in self.folder.iterdir():  # what a crash left behind, and what nobody can still be reading
            if path not in (current, new) and (is_temporary(path) or _GENERATION.fullmatch(path.name)):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        rows = _rows_content(held.rows)
        held.memory.save(new / "memory")
        write_atomically(new / "rows.arrow", rows)
        state = {
            "outputs": held.outputs,
            "encoding": held.encoding.as_data(),
            "files": files,
            "rows_hash": hashlib.sha256(rows).hexdigest(),
        }
        write_atomically(new / "state.json", json.dumps(state, indent=1).encode())
        write_atomically(self.folder / "current.json", json.dumps({"generation": new.name}).encode())

    @contextmanager
    def _locked(self, wait: bool, say: Callable[[str], None]) -> Iterator[None]:
        handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not wait:
                    raise ValueError(
                        f"one update of {str(self.folder)!r} can run at a time, and one is running: try again later"
                    ) from None
                say("another update is running: waiting for it to end")
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)  # which also unlocks it, as the end of the process does


def _rows_content(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pyarrow.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _read_rows(path: Path, digest: str) -> pa.Table:
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        raise ValueError(f"{str(path)!r} must have the content it was saved with: it is damaged or truncated")
    try:
        rows = pyarrow.ipc.open_file(pa.BufferReader(content)).read_all()
        rows.validate(full=True)  # or offsets could lead out of its buffers
    except pa.ArrowException as error:
        raise ValueError(f"{str(path)!r} must be an Arrow file: {' '.join(str(error).split())}") from None
    return rows


def _read_json(path: Path, missing: str) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(missing or f"{str(path)!r} must be a file, got none")
    try:
        document = json.loads(path.read_bytes())
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise ValueError(f"{str(path)!r} must be a JSON file, got something else: it is damaged")
    return document
