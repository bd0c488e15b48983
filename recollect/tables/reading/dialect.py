"""What is known of a file before its rows are read: what was asked for, and what was recognised."""

import re
from array import array
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

Format: TypeAlias = Literal["csv", "parquet", "arrow", "ndjson", "json", "npz", "xlsx"]
Compression: TypeAlias = Literal["gzip", "bz2", "xz", "zstd", "zip"]
Decimal: TypeAlias = Literal[".", ","]
Folders: TypeAlias = tuple[tuple[str, str | None], ...]
"""Columns that the names of folders say, and their values."""

FORMATS: tuple[Format, ...] = ("csv", "parquet", "arrow", "ndjson", "json", "npz", "xlsx")
TEXTS: tuple[Format, ...] = ("csv", "ndjson", "json")
"""Formats that are text, which may be compressed and in any character encoding."""

_PARTITION = re.compile(r"[^\W\d]\w*=.+")  # a folder as Hive and Spark have them
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_DELIMITERS = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "pipe": "|", "space": " "}
_SPOKEN = {"\t": "tabs", ",": "commas", ";": "semicolons", "|": "pipes", " ": "spaces"}


class UnreadableError(ValueError):
    """A file is not a table that can be read."""


@dataclass(frozen=True)
class Reading:
    """How files are to be read; what is None is recognised from their content.

    Attributes:
        format: "csv", "parquet", "arrow", "ndjson", "json", "npz" or "xlsx".
        delimiter: the character between the values of a text table, or its name, such as "tab".
        decimal: "." or ",", for numbers that are text.
        encoding: of the characters, such as "latin-1".
        sheet: the name of a sheet of an xlsx file; by default the first that is not hidden.
        skip_bad_rows: leave out and count rows that cannot be read; otherwise they are an error.
        drop_missing_target: leave out and count rows whose target is missing; otherwise they are an error.
    """

    format: Format | None = None
    delimiter: str | None = None
    decimal: Decimal | None = None
    encoding: str | None = None
    sheet: str | None = None
    skip_bad_rows: bool = False
    drop_missing_target: bool = False

    def __post_init__(self) -> None:
        if self.format is not None and self.format not in FORMATS:
            raise ValueError(f"the format must be one of {', '.join(FORMATS)}, got {self.format!r}")
        if self.decimal not in (None, ".", ","):
            raise ValueError(f"the decimal mark must be . or , and got {self.decimal!r}")
        if self.delimiter is not None:
            found = _DELIMITERS.get(self.delimiter, self.delimiter)
            if len(found) != 1 or not found.isascii() or found in '"\r\n' or found.isalnum():
                raise ValueError(f"the delimiter must be one character such as ; or the word tab, got {found!r}")
            object.__setattr__(self, "delimiter", found)
        if self.delimiter is not None and self.delimiter == self.decimal:
            raise ValueError(f"the delimiter and the decimal mark must differ, got {self.decimal!r} for both")
        if self.encoding is not None:
            try:
                b"".decode(self.encoding)
                "".encode(self.encoding)
            except (LookupError, UnicodeError, AttributeError, ValueError):
                raise ValueError(f"the encoding must be one that Python knows, got {self.encoding!r}") from None

    def over(self, other: "Reading") -> "Reading":
        """What is said here, and what the other says where nothing is said here."""
        said = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) not in (None, False)}
        return replace(other, **said)

    def as_data(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value not in (None, False)}


@dataclass(frozen=True)
class Dialect:
    """How a file is read: recognised from its content, or as somebody said.

    Attributes:
        format: what its bytes mean.
        compression: what must be undone first.
        encoding: of its characters, if it is text.
        delimiter: between the values of a line.
        quote: around values that hold a delimiter.
        escape: before a quote within quotes, where it is not doubled.
        returns: whether lines end in carriage returns alone, as on old Macintoshes.
        preamble: lines before the names of the columns, such as Excel's "sep=;".
        sheet: of a workbook.
        sheets: how many a workbook has.
    """

    format: Format
    compression: Compression | None = None
    encoding: str = "utf-8"
    delimiter: str = ","
    quote: str = '"'
    escape: str | None = None
    returns: bool = False
    preamble: int = 0
    sheet: str | None = None
    sheets: int = 1

    def __str__(self) -> str:
        """For people.

        Example:
            >>> print(Dialect("csv", "gzip", "latin-1", ";"))
            csv with semicolons, in latin-1, unpacked from gzip
        """
        text: str = self.format
        if self.format == "csv":
            text += f" with {_SPOKEN.get(self.delimiter, repr(self.delimiter))}"
            text += "" if self.quote == '"' else f", quoted by {self.quote}"
        if self.sheet is not None and self.sheets > 1:
            text += f", the sheet {self.sheet!r} of {self.sheets}"
        if self.format in TEXTS and self.encoding not in ("utf-8", "utf-8-sig"):
            text += f", in {self.encoding}"
        return text if self.compression is None else f"{text}, unpacked from {self.compression}"


@dataclass(frozen=True)
class Source:
    """A table to be read, or a part of one.

    Attributes:
        name: what people call it.
        path: where its bytes are.
        dialect: how to read them.
        reading: what somebody said about that.
        folders: what the names of folders say, such as year=2024, in columns that the file need not have.
        groups: which row groups of a Parquet file; all if None.
        address: where whoever reads it must copy it from first, if it is at no path.
        digest: of the content, which must still be the same then.
    """

    name: str
    path: Path
    dialect: Dialect
    reading: Reading = field(default_factory=Reading)
    folders: Folders = ()
    groups: tuple[int, int] | None = None
    address: str | None = None
    digest: str | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def read_as(self) -> str:
        """How it is read, for people, and what is not.

        Example:
            >>> path = Path("year=2024/month=1/a.parquet")
            >>> print(Source(str(path), path, Dialect("parquet"), folders=(("month", "1"),)).read_as)
            parquet, with month as the names of its folders say, without what they say of year
        """
        read = [name for name, _ in self.folders]
        left_out = [name for name, _ in said_by_folders(Path(self.name).parts[:-1]) if name not in read]
        about = f", with {', '.join(read)} as the names of its folders say" if read else ""
        if left_out:
            about += f", without what {'they' if read else 'the names of its folders'} say of {', '.join(left_out)}"
        return f"{self.dialect}{about}".encode(errors="replace").decode()  # a name need not be text


def said_by_folders(names: Iterable[str]) -> Folders:
    """Columns and their values in the names of folders, as Hive and Spark write them.

    Example:
        >>> said_by_folders(["sales", "year=2024", "city=S%C3%A3o Paulo", "shop=__HIVE_DEFAULT_PARTITION__"])
        (('year', '2024'), ('city', 'São Paulo'), ('shop', None))
    """
    found = [name.split("=", 1) for name in names if _PARTITION.fullmatch(name)]
    return tuple((name, None if value == _NO_VALUE else unquote(value)) for name, value in found)


@dataclass
class Skipped:
    """Rows that could not be read and were left out.

    Attributes:
        rows: how many.
        first: the first of them.
        start: how many rows the files that were read before have, those left out among them.
    """

    rows: int = 0
    first: str | None = None
    start: int = field(default=0, compare=False)
    _places: "array[int]" = field(default_factory=lambda: array("q"), compare=False)

    def add(self, text: str, place: int) -> None:
        """Take note of a row, which has so many before it in its file."""
        self.rows += 1
        self.first = self.first or text
        self._places.append(self.start + place)

    def places(self, before: int, count: int) -> NDArray[np.int64]:
        """Where `count` rows that were read after `before` others stand in the files, where rows left out count too.

        Example:
            >>> skipped = Skipped()
            >>> skipped.add("bad", 1)
            >>> skipped.places(0, 3).tolist()
            [0, 2, 3]
        """
        read = np.arange(before, before + count)
        left_out = np.array(self._places, dtype=np.int64)
        return read + np.searchsorted(left_out - np.arange(len(left_out)), read, side="right")
