"""Files that are there whole or not at all, sealed by a checksum, and written by one at a time."""

import contextlib
import hashlib
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

_TEMPORARY = re.compile(r"\.recollect-[0-9a-f]{16}\.tmp")
_LEFT_OVER = 3600.0  # seconds after which nobody is still writing to a temporary file
_SEAL = re.compile(rb',\n "checksum": "([0-9a-f]{64})"\n}\n\Z')


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of `path` when the block ends well, also after a power cut.

    The mode of what is replaced is kept. The file is made beside it under a name that nobody can foresee, so that no
    link can lie in wait there and no two writers share it.
    """
    remove_temporaries(path.parent, older_than=_LEFT_OVER)
    temporary = path.with_name(f".recollect-{secrets.token_hex(8)}.tmp")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    mode = stat.S_IMODE(path.stat().st_mode) if path.is_file() else None
    handle = os.open(temporary, flags, 0o666 if mode is None else 0o600)
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
            file.flush()
            if mode is not None and hasattr(os, "fchmod"):
                os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    with replacing(path) as file:
        file.write(content)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on disk when this returns."""
    if os.name == "posix":  # elsewhere folders cannot be opened
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def is_temporary(path: Path) -> bool:
    """Whether this is a file on its way to replace another, or was left over by a crash."""
    return _TEMPORARY.fullmatch(path.name) is not None


def remove_temporaries(folder: Path, *, older_than: float = 0.0) -> None:
    """Remove what crashes left behind; whoever holds a lock on the folder need not wait until it is old."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if _TEMPORARY.fullmatch(entry.name):
                with contextlib.suppress(OSError):  # somebody else removed it, or may while we may not
                    if time.time() - entry.stat(follow_symlinks=False).st_mtime >= older_than:
                        Path(entry.path).unlink()


@contextmanager
def locked(path: Path, busy: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock file at `path`, as one thread of one process at a time can; the end of the process lets it go.

    Args:
        path: the lock file, which is made as needed and stays.
        busy: called once if somebody else holds it; waits for them to end unless it raises.
    """
    if path.is_symlink():
        raise ValueError(f"a lock must be a plain file, got the link {str(path)!r}: remove it")
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        busy()
        lock.acquire(timeout=-1)
    try:
        yield
    finally:
        lock.release()


def seal(document: Mapping[str, Any]) -> bytes:
    """A JSON file that ends in the checksum of the rest, so that `unseal` notices whatever happens to it.

    Example:
        >>> unseal(seal({"seen": 120}), "it")
        {'seen': 120}
        >>> unseal(seal({"seen": 120}).replace(b"120", b"121"), "it")
        Traceback (most recent call last):
        ...
        ValueError: it must be as it was written, but its checksum says otherwise: it is damaged
    """
    # A line for each part: indenting all of it would cost ten times as much.
    parts = ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in document.items())
    content = f"{{\n{parts}".encode()
    return content + f',\n "checksum": "{checksum(content)}"\n}}\n'.encode()


def unseal(content: bytes, what: str) -> dict[str, Any]:
    """The document that was sealed; any other content is refused, in a sentence about `what`."""
    end = _SEAL.search(content)
    if end is None or checksum(content[: end.start()]).encode() != end[1]:
        raise ValueError(f"{what} must be as it was written, but its checksum says otherwise: it is damaged")
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise ValueError(f"{what} must hold a JSON object, got something else: it is damaged")
    del document["checksum"]
    return document


def checksum(content: bytes) -> str:
    """What tells one content from another."""
    return hashlib.sha256(content).hexdigest()


def check_output(path: Path, suffixes: Sequence[str], sources: Sequence[Path] = ()) -> None:
    """Refuse a place that cannot be written to, or that is being read from, before any work is done."""
    if path.suffix.lower() not in suffixes:
        raise ValueError(f"the output must end in {' or '.join(suffixes)}, got {str(path)!r}")
    if path.is_dir() or not path.resolve().parent.is_dir():
        raise ValueError(f"the output must be a file in an existing folder, got {str(path)!r}")
    if any(source.resolve() == path.resolve() for source in sources):
        raise ValueError(f"the output must not be one of the files that are read, got {str(path)!r}")
