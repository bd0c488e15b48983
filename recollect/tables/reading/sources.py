"""Paths, globs, folders, standard input and addresses to files that can be read.

What is not a file here, standard input or something at an address, is copied to a temporary file first: it is read
twice, and must not change in between.
"""

import errno
import glob
import hashlib
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from itertools import takewhile
from os.path import realpath
from pathlib import Path
from typing import IO, Any

from recollect.tables.reading.compression import ENDINGS, open_content
from recollect.tables.reading.dialect import Folders, Reading, Source, UnreadableError, said_by_folders
from recollect.tables.reading.recognising import SUFFIXES, recognise
from recollect.tables.wording import option

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://.")
STANDARD_INPUT = "-"


@contextmanager
def opened(patterns: Iterable[str], reading: Reading | None = None) -> Iterator[list[Source]]:
    """The tables that paths, globs, folders, addresses and `-` stand for, in order, each once."""
    with tempfile.TemporaryDirectory(prefix="recollect-") as folder:
        found: list[Source] = []
        for i, pattern in enumerate(dict.fromkeys(patterns)):
            if pattern == STANDARD_INPUT or _ADDRESS.match(pattern):
                found.append(_copied(pattern, Path(folder, f"{i}{_endings(pattern)}"), reading))
            else:
                known = {realpath(source.path) for source in found}
                some = [path for path in find_files([pattern]) if realpath(path) not in known]
                found += [recognise(path, reading, folders=_folders(path, pattern)) for path in some]
        yield found


def found_at(patterns: Iterable[str]) -> list[tuple[str, Path | str, Folders]]:
    """The files and addresses that patterns stand for, in order, each once: what people call them, and where they are.

    Nothing is read: that is for others, who may be on other machines. Beside each stands what its folders say.
    """
    found: list[tuple[str, Path | str, Folders]] = []
    known: set[str] = set()
    for pattern in dict.fromkeys(patterns):
        if pattern == STANDARD_INPUT:
            raise ValueError(
                "the workers of a cluster read files and addresses, got standard input, which comes to this process "
                f"alone: write it to a file first, or leave out {option('cluster')}"
            )
        if _ADDRESS.match(pattern):
            found.append((pattern, pattern, ()))
            continue
        some = [path for path in find_files([pattern]) if realpath(path) not in known]
        found += [(str(path), path.absolute(), _folders(path, pattern)) for path in some]
        known |= {realpath(path) for path in some}
    return found


def recognise_at(name: str, where: Path | str, folders: Folders, reading: Reading) -> Source:
    """How a file is read, or something at an address, of which a copy is made meanwhile."""
    if isinstance(where, Path):
        _check_there(where, name)
        return recognise(where, reading, name, folders)
    with tempfile.TemporaryDirectory(prefix="recollect-") as folder:
        copied = _copied(where, Path(folder, f"copy{_endings(where)}"), reading)
        return replace(copied, address=where, digest=content_hash(copied))


def _folders(path: Path, pattern: str) -> Folders:
    """What the names of folders say that lie within the folder that was given, or were matched by a glob."""
    given = Path(pattern)
    if not given.exists():
        given = Path(*takewhile(lambda part: not glob.has_magic(part), given.parts))
    return said_by_folders(path.relative_to(given).parts[:-1])


@contextmanager
def at_hand(source: Source) -> Iterator[Source]:
    """A table that can be read by this process, which may not be the one that found it."""
    if source.address is not None:
        with tempfile.TemporaryDirectory(prefix="recollect-") as folder:
            path = Path(folder, source.path.name)
            _copied(source.address, path, source.reading)
            here = replace(source, path=path)
            if content_hash(here) != source.digest:
                raise ValueError(f"{source.name!r} must not change while it is read, but it did: start again")
            yield here
    else:
        _check_there(source.path, source.name)
        yield source


def watched(sources: Iterable[Source]) -> Callable[[], None]:
    """What refuses files that have changed since: what was found out first need not hold for what was read then."""
    before = [(source, _stamp(source)) for source in sources]

    def check() -> None:
        for source, stamp in before:
            if stamp != _stamp(source):
                raise ValueError(f"{source.name!r} must not change while it is read, but it did: start again")

    return check


def _stamp(source: Source) -> tuple[int, int] | None:
    """What changes with a file; whoever copies something from an address sees to that by itself."""
    if source.address is not None:
        return None
    found = source.path.stat()
    return found.st_size, found.st_mtime_ns


def _check_there(path: Path, name: str) -> None:
    if not path.is_file():
        raise ValueError(
            f"every worker must be able to read {name!r}, got no such file on {socket.gethostname()}: "
            "put it in a folder that all machines share, or pass its address"
        )


def find_files(patterns: Iterable[str]) -> list[Path]:
    """The files that paths, globs and folders stand for, in order, each once."""
    found: dict[str, Path] = {}  # by where they really are, as a file may be spelled in many ways
    for pattern in patterns:
        path = Path(pattern)
        matches = [path] if path.exists() else sorted(map(Path, glob.glob(pattern, recursive=True)))  # noqa: PTH207
        if not matches:
            raise ValueError(f"there must be a file {pattern!r}, got none")
        for match in matches:
            for path in _inside(match) if match.is_dir() else [match]:
                found.setdefault(realpath(path), path)
    for path in found.values():
        if not path.is_file():
            raise ValueError(f"rows are read from files, got {str(path)!r}, which is not one")
    return list(found.values())


def content_hash(source: Source) -> str:
    """What tells one table's content from another's, however it is packed."""
    digest = hashlib.sha256(repr(source.folders).encode() if source.folders else b"")
    try:
        with open_content(source.path, source.dialect.compression) as file:
            while block := file.read(2**20):
                digest.update(block)
    except Exception as error:  # whatever unpacking makes of a damaged file
        if source.dialect.compression is None:
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UnreadableError(
            f"{source.name!r} must be a readable {source.dialect.compression} file: {reason[:300]}"
        ) from None
    return digest.hexdigest()


def _inside(folder: Path) -> list[Path]:
    """The tables in a folder and its folders, as their names tell them; what is hidden is not looked at."""
    tables = sorted(path for path in _walk(folder, set()) if _table_suffix(path) in SUFFIXES)
    if not tables:
        raise ValueError(f"the folder {str(folder)!r} must hold tables ({', '.join(SUFFIXES)}), got none")
    return tables


def _walk(folder: Path, known: set[str]) -> Iterator[Path]:
    """The files in a folder and its folders, and in those that links lead to, each folder once."""
    known.add(realpath(folder))
    for path in sorted(folder.iterdir()):
        if path.name.startswith((".", "_")):
            continue
        if path.is_file():
            yield path
        elif path.is_dir() and realpath(path) not in known:
            yield from _walk(path, known)


def _table_suffix(path: Path) -> str:
    return (Path(path.stem) if path.suffix.lower() in ENDINGS else path).suffix.lower()


def _endings(address: str) -> str:
    return "".join(re.findall(r"\.[A-Za-z0-9]{1,8}", address.rpartition("/")[2])[-2:])


def _copied(address: str, path: Path, reading: Reading | None) -> Source:
    name = "standard input" if address == STANDARD_INPUT else address
    try:
        with path.open("wb") as copy, _content(address) as content:
            shutil.copyfileobj(content, copy, 2**20)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):  # the copy has no room, whatever is there
            raise
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"{name!r} must be there and readable, got: {reason}") from None
    return recognise(path, reading, name)


def _content(address: str) -> AbstractContextManager[IO[bytes]]:
    """What is at an address, by pyarrow's file systems or else by fsspec's, if it is installed."""
    if address == STANDARD_INPUT:
        return nullcontext(sys.stdin.buffer)  # which is not ours to close
    import pyarrow as pa
    from pyarrow import fs

    try:
        system, path = fs.FileSystem.from_uri(address)
        return system.open_input_stream(path)  # type: ignore[no-any-return]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        pass
    scheme = address.partition("://")[0]
    try:
        import fsspec
    except ImportError:
        raise ValueError(f"an address of {scheme}:// must have somebody who reads it: install fsspec") from None
    try:
        opened: Any = fsspec.open(address, "rb")
        return opened.open()  # type: ignore[no-any-return]
    except (ImportError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"an address of {scheme}:// must have somebody who reads it, got: {reason}") from None
