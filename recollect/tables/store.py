"""A memory of table rows in a folder: files go in one by one, and it is always in its old or its new state.

    STORE/store.json               what it was made for; does not change once a file was taken
    STORE/current.json             the number of the generation that counts: replacing this file is the one atomic step
    STORE/latest.json              the same number, written next: tells a lost or an old current.json from a new store
    STORE/generation-000007/       state.json (encoding, files taken), rows.arrow (kept rows, their places), memory/
    STORE/lock                     held while updating, by the process itself: let go when the process ends

A generation is written whole before it is named. One that is not named is left over from a crash and is removed by the
next update. The one before is kept for those who are reading it. Each file is bound to the next by a checksum: the
pointer holds that of the state, and the state those of the rows and of the memory.
"""

import contextlib
import difflib
import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from recollect.files import (
    checksum,
    locked,
    remove_temporaries,
    seal,
    sync_folder,
    unseal,
    write_atomically,
)
from recollect.forms import parse
from recollect.memories import GradientMatching, load_memory
from recollect.tables.blocks import with_places
from recollect.tables.conforming import conform, examine_files, widened_schema
from recollect.tables.documents import (
    GENERATION,
    About,
    Entry,
    Latest,
    Pointer,
    Recovery,
    State,
    Update,
    bound_content,
    entries,
    fit_together,
    has_taken,
    is_unused,
    read_rows,
    rows_content,
    write_document,
)
from recollect.tables.frames import is_frame
from recollect.tables.memory import TableMemory
from recollect.tables.networks import MakeNetwork
from recollect.tables.reading import (
    Reading,
    Skipped,
    Source,
    at_hand,
    content_hash,
    in_use,
    known_rows,
    opened,
    pieces,
    plain,
    retyped,
    watched,
)
from recollect.tables.saying import scarce
from recollect.tables.settings import Settings
from recollect.tables.wording import command, option
from recollect.tables.workers import Workers

FORMAT = "recollect store"
VERSION = 3

T = TypeVar("T")


class Store:
    """A memory of table rows in a folder, which survives crashes.

    An update happens completely or not at all; a file that was taken in before is not counted twice; two updates at
    once wait for one another; the same files in the same order with the same seed give the same rows, bit for bit. If
    something is wrong with a file or the folder, a `ValueError` says so in one sentence, and the store is unchanged.

    Args:
        folder: where the store is; `Store.create` makes one.

    Example:
        >>> import tempfile, pyarrow as pa, pyarrow.parquet
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     table = pa.table({"x": [i % 7 / 2 for i in range(60)], "y": [0, 1] * 30})
        ...     pyarrow.parquet.write_table(table, f"{folder}/monday.parquet")
        ...     store = Store.create(f"{folder}/store", Settings(target="y", size=10))
        ...     [done] = store.update([f"{folder}/monday.parquet"])
        ...     done.seen, store.load().table().num_rows <= 10
        (60, True)
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = folder = Path(folder)
        path = folder / "store.json"
        if folder.is_file():
            raise ValueError(f"a store is a folder, got the file {str(folder)!r}: name the store first")
        if not path.is_file():
            raise ValueError(
                f"{str(folder)!r} must be a store, got no store.json there: make one with {command('init')}, "
                f"or mend one that was there with {command('recover')}"
            )
        content = path.read_bytes()
        document = {"format": FORMAT, "version": 1} if b'"version": 1,' in content[:100] else None
        document = document or unseal(content, repr(str(path)))
        if document.get("format") != FORMAT:
            raise ValueError(f"{str(path)!r} must describe a {FORMAT}, got something else")
        version = document.get("version")
        if isinstance(version, int) and 0 < version < VERSION:
            raise ValueError(
                f"{str(folder)!r} must be a store of version {VERSION}, got {version}, which an older recollect wrote: "
                f"make a new one with {command('init')} and update it with the files"
            )
        if version != VERSION:
            raise ValueError(f"{str(folder)!r} must be of version {VERSION}, got {version!r}: update recollect")
        self.settings = parse(About, document, repr(str(path))).settings

    @classmethod
    def create(cls, folder: str | Path, settings: Settings) -> "Store":
        """Make an empty store in a new or empty folder, or in place of a store that has taken in nothing."""
        folder = Path(folder)
        settings.check_room()
        if folder.is_file():
            raise ValueError(f"a store is a folder, got the file {str(folder)!r}")
        if folder.is_dir() and any(not is_unused(path) for path in folder.iterdir()):
            raise ValueError(f"a store is made in a new or empty folder, got {str(folder)!r}, which holds something")
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / "lock"):
            if has_taken(folder):
                raise ValueError(
                    f"{str(folder)!r} must be new or have taken in nothing, got a store that has: choose another folder"
                )
            remove_temporaries(folder)
            # The pointers come first and the description last: without it they are left over from a crash.
            write_document(folder / "current.json", Pointer(0, None))
            write_document(folder / "latest.json", Latest(0))
            write_document(folder / "store.json", About(FORMAT, VERSION, settings))
        sync_folder(folder.parent)
        return cls(folder)

    def change(self, settings: Settings, *, wait: bool = True) -> None:
        """Give a store other settings, as long as it has taken in nothing."""
        settings.check_room()
        with self._locked(wait, lambda text: None):
            if self.number():
                raise ValueError(
                    f"the settings of {str(self.folder)!r} must stay as they are, as it has taken in files: "
                    f"make a new store, or pass what is to be different to {command('update')}"
                )
            write_document(self.folder / "store.json", About(FORMAT, VERSION, settings))
        self.settings = settings

    # Reading

    def state(self) -> State | None:
        """The encoding and the files taken so far; None if there are none."""
        pointer = self._pointer()
        return self._state(pointer) if pointer.number else None

    def number(self) -> int:
        """How many files were taken in so far."""
        return self._pointer().number

    def load(self, make_network: MakeNetwork | None = None) -> TableMemory:
        """The memory as it is now. `table()` of it gives the kept rows; your own network is not needed to read it."""
        return self.read(make_network)[0]

    def read(self, make_network: MakeNetwork | None = None) -> tuple[TableMemory, list[Entry]]:
        """The memory and the files it took in, of one and the same generation though updates may be running."""
        while True:
            pointer = self._pointer()
            if not pointer.number:
                raise ValueError(
                    f"{str(self.folder)!r} must have taken in a file, got none so far: run {command('update')}"
                )
            try:
                state = self._state(pointer)
                return self._held(state, make_network), state.files
            except (ValueError, OSError):
                if self._pointer() == pointer:
                    raise
                # Updates have left this generation behind, and removed it under our hands: read the new one.

    def _pointer(self) -> Pointer:
        # Read in this order, as they are written in the other: an update in between cannot make the pointer look old.
        latest, pointer = self._pointing(Latest, "latest.json"), self._pointing(Pointer, "current.json")
        if pointer.number < max(latest.number, 0) or (pointer.number > 0) != (pointer.state is not None):
            raise ValueError(
                f"{str(self.folder)!r} must point at its latest generation, {latest.number}, got {pointer.number}: "
                f"current.json is an old one: run {command('recover')}"
            )
        return pointer

    def _pointing(self, kind: type[T], name: str) -> T:
        path = self.folder / name
        if not path.is_file():
            raise ValueError(
                f"the store {str(self.folder)!r} must hold {name}, which is lost: run {command('recover')}"
            )
        return parse(kind, unseal(path.read_bytes(), repr(str(path))), repr(str(path)))

    def generation(self, number: int) -> Path:
        """Where a generation is."""
        return self.folder / f"generation-{number:06d}"

    def _state(self, pointer: Pointer) -> State:
        path = self.generation(pointer.number) / "state.json"
        return self._checked_state(bound_content(path, pointer.state), path)

    def _checked_state(self, content: bytes, path: Path) -> State:
        state = parse(State, unseal(content, repr(str(path))), repr(str(path)))
        if self.generation(state.number) != path.parent or state.settings != self.settings:
            raise ValueError(f"{str(path)!r} must be of its generation and store, got another's: it is damaged")
        return state

    def _held(self, state: State, make_network: MakeNetwork | None) -> TableMemory:
        generation = self.generation(state.number)
        rows = read_rows(generation / "rows.arrow", state.rows)
        rows = retyped(retyped(rows, plain), in_use)  # a store that was made before may hold more
        bound_content(generation / "memory" / "memory.json", state.memory)
        schema = rows.select([name for name in rows.schema.names if name in state.encoding.names]).schema
        held = TableMemory(self.settings, schema, state.encoding, state.account, make_network)
        held.outputs = state.outputs
        make_model = held.make_model(make_network) if isinstance(held.memory, GradientMatching) else None
        if self.settings.model is not None and make_network is None:
            make_model = None
        kind = type(held.memory)
        held.memory = load_memory(generation / "memory", make_model)
        if held.row_name not in rows.schema.names:  # as in a store that was made before
            rows = with_places(rows, held.row_name, held.memory.batch.ids.numpy())
        held.hold(rows)
        held.passed = sum(entry.rows + entry.skipped + entry.unlabelled for entry in state.files)
        if type(held.memory) is not kind or not fit_together(held, state):
            raise ValueError(
                f"{str(generation)!r} must hold a state, rows and a memory that fit together: it is damaged"
            )
        return held

    # Updating

    def update(
        self,
        files: str | Path | Source | Iterable[str | Path | Source],
        *,
        reading: Reading | None = None,
        ignore: Sequence[str] = (),
        make_network: MakeNetwork | None = None,
        force: bool = False,
        wait: bool = True,
        say: Callable[[str], None] = lambda text: None,
        progress: bool = False,
        workers: Workers | None = None,
    ) -> list[Update]:
        """Take in files one after the other; each is taken in completely or not at all.

        Args:
            files: tables with the columns of the first: a path, a glob, a folder or an address, or several of these.
            reading: how these files are read, if not as the store says.
            ignore: columns that are taken as missing in these files, or left out if the first file did not have them.
            make_network: your own network, if the store was made for one.
            force: take in a file again that was taken before.
            wait: wait for another update to end; False makes that an error.
            say: a function that is given messages, such as how long an update will take.
            progress: show progress bars in a terminal, and a line every half minute elsewhere.
            workers: those of a Ray cluster, to read the files; by default this process does.
        """
        reading = (reading or Reading()).over(self.settings.reading)
        with ExitStack() as stack:
            sources = [source for file in _each(files) for source in _opened(file, reading, stack, workers)]
            return [*self.updates(sources, reading, ignore, make_network, force, wait, say, progress, workers)]

    def updates(
        self,
        sources: Sequence[Source],
        reading: Reading,
        ignore: Sequence[str],
        make_network: MakeNetwork | None,
        force: bool,
        wait: bool,
        say: Callable[[str], None],
        progress: bool,
        workers: Workers | None,
    ) -> Iterator[Update]:
        """As `update`, of files that are open, and telling of each as soon as it is there."""
        if (self.settings.model is None) != (make_network is None):
            raise ValueError(
                f"the store was made for the library's network, got {option('model')}: make a new store for another"
                if self.settings.model is None
                else f"the store was made with {option('model', self.settings.model)}, got none: pass it again"
            )
        with self._locked(wait, say):
            if Store(self.folder).settings != self.settings:
                raise ValueError(
                    f"the settings of {str(self.folder)!r} must stay as they are once it is open, but somebody gave it "
                    "others: open it again"
                )
            self._check_known(ignore, sources)
            for source in sources:
                with _naming(source) if len(sources) > 1 else nullcontext():
                    done = self._update_one(source, reading, tuple(ignore), make_network, force, progress, say, workers)
                yield done

    def _check_known(self, ignore: Iterable[str], sources: Iterable[Source]) -> None:
        """Refuse columns to ignore that are neither in the store nor in any of the files."""
        state = self.state()
        known = {self.settings.target, *(column.name for column in state.encoding.columns)} if state else set()
        unknown = [name for name in ignore if name not in known] if state else []
        for source in sources if unknown else ():
            known |= _names_in(source)
        if wrong := [name for name in unknown if name not in known]:
            near = difflib.get_close_matches(wrong[0], sorted(known), 1)
            hint = f": is it {near[0]!r}?" if near else ": leave it out"
            raise ValueError(f"columns to ignore must be in the store or in a file, got {wrong[0]!r}{hint}")

    def _update_one(
        self,
        source: Source,
        reading: Reading,
        ignore: tuple[str, ...],
        make_network: MakeNetwork | None,
        force: bool,
        progress: bool,
        say: Callable[[str], None],
        workers: Workers | None,
    ) -> Update:
        check_unchanged, name = watched([source]), Path(source.name).name
        digest = content_hash(source) if workers is None else workers.digest(source)
        held, files = self.read(make_network) if self.number() else (None, [])
        if held is not None and not force and any(entry.hash == digest for entry in files):
            return Update(name, None, held.memory.seen, len(held.memory), source.read_as, held.account)
        if held is None:
            if ignore:
                raise ValueError(
                    f"columns to ignore are fixed by the first file, got {ignore[0]!r} here: "
                    f"run {command('set', self.folder, option('ignore', ignore[0]))}"
                )
            first_settings = replace(self.settings, reading=reading)
            examine = examine_files if workers is None else workers.examine
            held = TableMemory.for_files(first_settings, [source], make_network, progress=progress, examine=examine)
        elif isinstance(held.memory, GradientMatching):
            held.memory.progress = progress
        held.settings, held.progress = replace(held.settings, reading=reading), progress
        _check_ignored(ignore, held, source)
        if files and reading.decimal != self.settings.reading.decimal:
            _check_decimal(reading.decimal, held)
        first, skipped = held.memory.seen, Skipped()
        total = known_rows(source) if files else held.account.rows
        if workers is None:
            taken = held.take(_rows(held, source, skipped, ignore), total, say, skipped)
        else:
            taken = held.take_blocks(workers.blocks(held, [source], skipped, ignore), total, say, skipped)
        check_unchanged()
        told = name.encode(errors="replace").decode()  # a name need not be text
        entry = Entry(told, digest, first, time.time(), **taken.as_data(), read_as=source.read_as)
        self._commit(held, [*files, entry])
        came: Counter[str] = Counter()
        for one in (*files, entry):
            came.update(one.class_counts)
        return Update(name, taken, held.memory.seen, len(held.memory), source.read_as, held.account, scarce(held, came))

    def _commit(self, held: TableMemory, files: list[Entry]) -> None:
        before = self.number()
        self._remove_all_but(before)
        number = before + 1
        try:
            self._write(number, held, files)
            self._name(number)
        except BaseException:
            with contextlib.suppress(ValueError, OSError):
                if self.number() == before:  # else it was named, and counts
                    shutil.rmtree(self.generation(number), ignore_errors=True)
            raise

    def _write(self, number: int, held: TableMemory, files: list[Entry]) -> None:
        """Write a generation, which does not count before it is named."""
        new = self.generation(number)
        new.mkdir()
        rows = rows_content(held.placed())
        held.memory.save(new / "memory")
        write_atomically(new / "rows.arrow", rows)
        memory = checksum((new / "memory" / "memory.json").read_bytes())
        account, encoding = held.account, held.encoding
        state = State(number, self.settings, held.outputs, encoding, account, files, checksum(rows), memory)
        # What could not be read again is not written.
        parse(State, json.loads(json.dumps(asdict(replace(state, files=files[-1:])))), "what was taken")
        # There may be thousands of files, so they are not copied.
        document = asdict(replace(state, files=[])) | {"files": [vars(entry) for entry in files]}
        write_atomically(new / "state.json", seal(document))

    def _name(self, number: int) -> None:
        """Make a generation the one that counts."""
        sync_folder(self.folder)  # which must know the generation before it is named
        state = checksum((self.generation(number) / "state.json").read_bytes())
        write_document(self.folder / "current.json", Pointer(number, state))
        with contextlib.suppress(OSError):  # the update is done, and the next one writes it again
            write_document(self.folder / "latest.json", Latest(number))

    def _remove_all_but(self, number: int) -> None:
        """Remove what a crash left behind, and what nobody can still be reading."""
        remove_temporaries(self.folder)
        for path in self.folder.iterdir():
            if GENERATION.fullmatch(path.name) and path != self.generation(number):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    @contextmanager
    def _locked(self, wait: bool, say: Callable[[str], None]) -> Iterator[None]:
        def busy() -> None:
            if not wait:
                raise ValueError(
                    f"one update of {str(self.folder)!r} can run at a time, and one is running: try again later"
                )
            say("another update is running: waiting for it to end")

        with locked(self.folder / "lock", busy):
            yield

    # Recovering

    @classmethod
    def recover(cls, folder: Path) -> Recovery:
        """Make a damaged store go back to its newest complete version; a complete store is left as it is."""
        numbers = sorted(int(match[1]) for path in entries(folder) if (match := GENERATION.fullmatch(path.name)))
        if not numbers:
            raise ValueError(f"a store to recover must hold a generation, got none in {str(folder)!r}: make a new one")
        with locked(folder / "lock"):
            with contextlib.suppress(ValueError, OSError):
                store = cls(folder)
                if not store.number():
                    return Recovery(0, True, 0, 0, 0)
                held, files = store.read()
                return Recovery(store.number(), True, held.memory.seen, len(held.memory), len(files))
            for number in reversed(numbers):
                with contextlib.suppress(ValueError, OSError):
                    store = cls.__new__(cls)  # what store.json says is in every state, too
                    store.folder = folder
                    path = store.generation(number) / "state.json"
                    content = path.read_bytes()
                    store.settings = parse(State, unseal(content, repr(str(path))), repr(str(path))).settings
                    state = store._checked_state(content, path)
                    held = store._held(state, None)
                    write_document(folder / "store.json", About(FORMAT, VERSION, state.settings))
                    store._name(number)
                    return Recovery(number, False, held.memory.seen, len(held.memory), len(state.files))
        raise ValueError(
            f"a store to recover must hold a whole generation, got none in {str(folder)!r}: make a new one"
        )


def _each(files: str | Path | Source | Iterable[str | Path | Source]) -> Iterator[str | Path | Source]:
    """One file, or each of several; a frame would be taken for the names of its columns."""
    several = isinstance(files, Iterable) and not isinstance(files, str) and not is_frame(files)
    for file in files if several else [files]:  # type: ignore[union-attr]
        if not isinstance(file, str | Path | Source):
            raise ValueError(
                f"a store must be given paths of files, got a {type(file).__name__}: write it to a file first"
            )
        yield file


def _opened(file: str | Path | Source, reading: Reading, stack: ExitStack, workers: Workers | None) -> list[Source]:
    if isinstance(file, Source):
        return [file]
    if workers is not None:
        return workers.sources([str(file)], reading)
    return stack.enter_context(opened([str(file)], reading))


def _rows(held: TableMemory, source: Source, skipped: Skipped, ignore: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of a file in the columns of the first, or in what these become by it; its first piece has its types."""
    for i, piece in enumerate(pieces(source, skipped)):
        if i == 0:
            held.widen(widened_schema(held.schema, piece.schema, source, ignore))
        yield conform(piece, held.schema, source, ignore)


@contextmanager
def _naming(source: Source) -> Iterator[None]:
    """Let what is wrong be told with the name of the file, which is one of several."""
    try:
        yield
    except ValueError as error:
        if Path(source.name).name in str(error):
            raise
        raise ValueError(f"{source.name!r}: {error}") from error


def _names_in(source: Source) -> set[str]:
    with at_hand(source) as here, closing(pieces(here)) as first:
        return set(next(first).schema.names)


def _check_decimal(said: str | None, held: TableMemory) -> None:
    """Refuse a decimal mark that the columns do not have, as how they are read was decided by the first file."""
    marks = {"comma": ",", "point": "."}
    found = {marks[form] for form in held.encoding.number_forms.values()}
    if said is not None and found and said not in found:
        raise ValueError(
            f"the decimal mark must stay that of the first file, {found.pop()!r}, got {said!r}: "
            f"leave out {option('decimal')}, or make a new store for files with the other mark"
        )


def _check_ignored(ignore: Sequence[str], held: TableMemory, source: Source) -> None:
    if held.encoding.target in ignore:
        raise ValueError(
            f"the target must not be ignored, got {held.encoding.target!r} for {source.name!r}: "
            "give its column that name in the file"
        )
