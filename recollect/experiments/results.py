"""Results as JSON lines: appended whole, never edited, never repeated."""

import json
import os
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

from recollect.files import locked


class Results:
    """A file with one result per line.

    Lines are appended with one write and synced, so that a crash loses at most the line being written; what is left of
    such a line is skipped on reading and cut off by the next writing. Several processes may append at once, also the
    same result: it is kept once.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     results = Results(f"{folder}/results.jsonl", key=("seed",))
        ...     results.append({"seed": 0, "final_accuracy": 91.5}), results.append({"seed": 0, "final_accuracy": 91.5})
        ...     results.find({"seed": 0})["final_accuracy"], results.find({"seed": 1})
        (1, 0)
        (91.5, None)
    """

    def __init__(self, path: str | PathLike[str], key: Iterable[str]) -> None:
        self.path = Path(path)
        self._key = tuple(key)
        if self.path.is_dir():
            raise ValueError(f"results are kept in a file, got the folder {str(self.path)!r}")

    def read(self) -> list[dict[str, Any]]:
        """All results; a file with anything but results in it is refused."""
        if not self.path.exists():
            return []
        *lines, _unfinished = self.path.read_bytes().split(b"\n")
        results = []
        for number, line in enumerate(lines, start=1):
            try:
                result = json.loads(line)
            except ValueError:
                result = None
            if not isinstance(result, dict):
                raise ValueError(
                    f"{str(self.path)!r} must hold one JSON object per line, got another thing in line {number}"
                )
            results.append(result)
        return results

    def find(self, key: dict[str, Any]) -> dict[str, Any] | None:
        """The result of the experiment with this key, if there is one."""
        wanted = self.normalised(key)
        return next((result for result in self.read() if self.normalised(result) == wanted), None)

    def keys(self) -> set[str]:
        """What is stored, in the form of `normalised`."""
        return {self.normalised(result) for result in self.read()}

    def append(self, *results: dict[str, Any]) -> int:
        """Add results that are not there yet, on disk when this returns; returns how many."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with locked(self.path.with_name(f".{self.path.name}.lock")):
            # Looked up while nobody else can write: another process may have come to the same result meanwhile.
            known, new = self.keys(), []
            for result in results:
                if (key := self.normalised(result)) not in known:
                    known.add(key)
                    new.append(json.dumps(result).encode() + b"\n")
            with self.path.open("ab+") as file:
                _cut_unfinished(file)
                file.write(b"".join(new))
                file.flush()
                os.fsync(file.fileno())
        return len(new)

    def normalised(self, result: dict[str, Any]) -> str:
        """What tells a result from others, as one string."""
        return json.dumps({name: result.get(name) for name in self._key}, sort_keys=True)


def _cut_unfinished(file: BinaryIO) -> None:
    """Remove what a crash left of a line."""
    size = end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - 65536)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end < size:
        file.truncate(end)
