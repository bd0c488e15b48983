"""Files that are there whole or not at all."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of `path` when the block ends well, also after a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    if os.name == "posix":
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    with replacing(path) as file:
        file.write(content)


def is_temporary(path: Path) -> bool:
    """Whether this was left over by a crash while a file was being replaced."""
    return path.name.startswith(".") and path.name.endswith(".tmp")


def check_output(path: Path, suffixes: Sequence[str], sources: Sequence[Path] = ()) -> None:
    """Refuse a place that cannot be written to, or that is being read from, before any work is done."""
    if path.suffix.lower() not in suffixes:
        raise ValueError(f"the output must end in {' or '.join(suffixes)}, got {str(path)!r}")
    if path.is_dir() or not path.resolve().parent.is_dir():
        raise ValueError(f"the output must be a file in an existing folder, got {str(path)!r}")
    if any(source.resolve() == path.resolve() for source in sources):
        raise ValueError(f"the output must not be one of the files that are read, got {str(path)!r}")
