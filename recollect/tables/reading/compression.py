"""Files to streams of their content, whatever they are packed in; nothing is unpacked as a whole."""

import bz2
import gzip
import io
import lzma
import zipfile
from pathlib import Path
from typing import IO, cast

import pyarrow as pa

from recollect.tables.reading.dialect import Compression, UnreadableError

_MAGIC: dict[bytes, Compression] = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bz2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}
ENDINGS = (".gz", ".bz2", ".xz", ".zst", ".zip")


def compression_of(head: bytes) -> Compression | None:
    """What the first bytes of a file say; archives are looked at elsewhere."""
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)


def open_content(path: Path, compression: Compression | None) -> IO[bytes]:
    """The bytes of a file, unpacked as they are read."""
    match compression:
        case "gzip":
            return cast(IO[bytes], gzip.open(path))
        case "bz2":
            return cast(IO[bytes], bz2.open(path))
        case "xz":
            return cast(IO[bytes], lzma.open(path))
        case "zstd":
            return cast(IO[bytes], io.BufferedReader(cast(io.RawIOBase, _Zstd(path))))
        case "zip":
            return _ZipMember(path)
        case _:
            return path.open("rb")


def only_member(path: Path) -> str:
    """The one file in an archive."""
    with zipfile.ZipFile(path) as archive:
        names = [info.filename for info in archive.infolist() if not info.is_dir()]
    names = [name for name in names if not name.startswith("__MACOSX/")]
    if len(names) != 1:
        raise UnreadableError(f"{str(path)!r} must hold one table, got {len(names)} files in it: unpack it first")
    return names[0]


class _ZipMember(io.BufferedReader):
    """The one file in an archive, which is closed with it."""

    def __init__(self, path: Path) -> None:
        self._archive = zipfile.ZipFile(path)
        super().__init__(cast(io.RawIOBase, self._archive.open(only_member(path))))

    def close(self) -> None:
        super().close()
        self._archive.close()


class _Zstd(io.RawIOBase):
    """pyarrow unpacks zstd; the standard library does not everywhere."""

    def __init__(self, path: Path) -> None:
        self._file = pa.CompressedInputStream(pa.OSFile(str(path)), "zstd")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        content = self._file.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        super().close()
        self._file.close()
