"""Which characters the bytes of a text stand for, and those characters as UTF-8, which is what readers take."""

import codecs
import io
import re
from typing import IO, cast

from recollect.tables.reading.dialect import UnreadableError
from recollect.tables.wording import option

_BLOCK = 2**20
_LOOKED_AT = 2**28  # bytes; beyond, a wrong byte is found when it is read
_BOMS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_NEWLINE = b"\n"
_DOUBLED = re.compile(rb"\xc3[\x80-\xbf]|\xe2\x80[\x90-\xa6]")  # of utf-8; Ã and a sign, or â€ and one, are in no word
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")


def recognise_encoding(file: IO[bytes], name: str) -> str:
    """The encoding of a text: by its first bytes, UTF-8 if it is that, or else the western one that Windows uses."""
    head = file.read(_BLOCK)
    for mark, encoding in _BOMS.items():
        if head.startswith(mark):
            return encoding
    if wide := _without_mark(head):
        return wide
    if control := _CONTROL.search(head):
        place = f"in line {head[: control.start()].count(_NEWLINE) + 1:,}"
        raise UnreadableError(
            f"{name!r} must be a table, got bytes that are no text, such as {control[0]!r} {place}: "
            f"pass {option('encoding', 'utf-8')} if it is text all the same"
        )
    decoder = codecs.getincrementaldecoder("utf-8")()
    block, size, line, good = head, 0, 1, 0
    try:
        while block and size < _LOOKED_AT:
            decoder.decode(block)
            size, line, good = size + len(block), line + block.count(b"\n"), good + _beyond_ascii(block)
            block = file.read(_BLOCK)
        decoder.decode(b"", final=not block)
        return "utf-8"
    except UnicodeDecodeError as error:
        if not block:  # what is left of a character at the very end has been counted as good
            good -= len(error.object)
        _check_mostly_western(error.object, line, good, error, name)
        return _western(file, error, line, good, name)


def _beyond_ascii(block: bytes) -> int:
    return len(block.translate(None, bytes(range(128))))


def _without_mark(head: bytes) -> str | None:
    """UTF-16 shows itself where every other byte is zero."""
    some = head[: 2 * (len(head) // 2)][:4000]
    if len(some) < 4 or b"\0" not in some:
        return None
    for encoding, zeros in (("utf-16-le", some[1::2]), ("utf-16-be", some[::2])):
        others = some[::2] if encoding == "utf-16-le" else some[1::2]
        if zeros.count(0) > 0.7 * len(zeros) and others.count(0) == 0:
            return encoding
    return None


def _check_mostly_western(block: bytes, line: int, good: int, error: UnicodeDecodeError, name: str) -> None:
    """Refuse a text with a block that is no UTF-8, after many bytes of letters beyond ASCII that were."""
    letters = [c for c in block.decode("utf-8", errors="ignore") if not c.isascii()]
    strange = _beyond_ascii(block) - len("".join(letters).encode())
    if len(letters) + good // 2 > strange:  # UTF-8, but for something: in another encoding all of it would be wrong
        line += block[: error.start].count(b"\n")
        wrong = block[error.start : error.start + 1]
        raise UnreadableError(
            f"{name!r} must be in utf-8 throughout, got the byte {wrong!r} in line {line:,}: mend it or "
            f"pass {option('encoding')}"
        )


def _western(file: IO[bytes], error: UnicodeDecodeError, line: int, good: int, name: str) -> str:
    """Which western encoding a text is in; refused if it is UTF-8 in other places, where letters would be two each."""
    wrong = line + error.object[: error.start].count(_NEWLINE)
    block, size, place, signs = error.object, 0, "before" if good > 1 else "", b""
    while block and size < _LOOKED_AT and not place:
        if found := _DOUBLED.search(block):
            place = f"in line {line + block[: found.start()].count(_NEWLINE):,}"
        signs = bytes({*signs, *block} & {*range(0x80, 0xA0)})
        line, size = line + block.count(_NEWLINE), size + len(block)
        block = file.read(_BLOCK)
    if place:
        byte = error.object[error.start : error.start + 1]
        raise UnreadableError(
            f"{name!r} must be in one encoding throughout, got the byte {byte!r} in line {wrong:,}, which is no utf-8, "
            f"and letters of utf-8 {place}: mend it or pass {option('encoding')}"
        )
    try:
        signs.decode("cp1252")
    except UnicodeDecodeError:
        return "latin-1"
    return "cp1252" if signs else "latin-1"


class Recoded(io.RawIOBase):
    """A text in any encoding, to be read as UTF-8."""

    def __init__(self, file: IO[bytes], encoding: str, name: str, returns: bool = False) -> None:
        self._file, self._encoding, self._name, self._returns = file, encoding, name, returns
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._ready, self._line = b"", 1

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._ready:
            block = self._file.read(_BLOCK)
            try:
                text = self._decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                line = self._line + error.object[: error.start].count(b"\n")
                raise UnreadableError(
                    f"{self._name!r} must be in {self._encoding}, got other bytes in line {line:,}: "
                    f"pass another {option('encoding')}"
                ) from None
            text = text.replace("\r", "\n") if self._returns else text
            self._line += text.count("\n")
            self._ready = text.encode("utf-8", errors="replace")
            if not block:
                break
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def close(self) -> None:
        super().close()
        self._file.close()


def open_recoded(file: IO[bytes], encoding: str, name: str, returns: bool = False) -> IO[bytes]:
    """The same text in UTF-8, without a mark at its beginning; carriage returns may end its lines."""
    if encoding == "utf-8" and not returns:
        return file
    return cast(IO[bytes], io.BufferedReader(Recoded(file, encoding, name, returns), _BLOCK))
