"""Workbooks of spreadsheets, a row at a time; openpyxl is needed for them, and only then."""

import datetime
import re
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any
from xml.etree.ElementTree import fromstring, iterparse

import pyarrow as pa

from recollect.tables.reading.cutting import PIECE
from recollect.tables.reading.dialect import Skipped, Source, UnreadableError

_MOST_BESIDE = 2**29  # bytes of a part that is no sheet, such as texts and styles: openpyxl keeps these in memory
_TYPES = "/[Content_Types].xml"
_MOST_COLUMNS = 20_000
_FORMULA, _FORMULA_BYTES = re.compile(rb"<(?:\w{1,20}:)?f[\s/>]"), 30
_MOST_ROWS = 2**20  # of a sheet, in all spreadsheet programs


def sheet_names(path: Path, name: str, wanted: str | None) -> list[str]:
    """The sheets of a workbook, the wanted one first, or those that are not hidden; a chart is no table."""
    with _workbook(path, name) as book:
        sheets = sorted(book.worksheets, key=lambda sheet: sheet.sheet_state != "visible")
        names: list[str] = [sheet.title for sheet in sheets]
    if not names:
        raise UnreadableError(f"{name!r} must hold a sheet with cells, got none: save the table as xlsx or csv")
    if wanted is None:
        return names
    if wanted not in names:
        raise UnreadableError(f"the sheet of {name!r} must be one of {', '.join(map(repr, names))}, got {wanted!r}")
    return [wanted, *(other for other in names if other != wanted)]


def read_xlsx(source: Source, skipped: Skipped) -> Iterator[pa.Table]:
    """One sheet: names in its first row that is not empty; a column is of numbers or dates if all its cells are."""
    with _workbook(source.path, source.name) as book:
        top, header = next(_rows(book, source), (0, ()))
    names = [_text(value) or "" for value in header]
    while names and not names[-1]:
        names.pop()
    if not names:
        raise UnreadableError(f"{source.name!r} must begin with the names of its columns, got nothing")
    if len(names) > _MOST_COLUMNS:
        raise UnreadableError(f"{source.name!r} must have at most {_MOST_COLUMNS:,} columns, got more")
    kinds: list[set[type]] = [set() for _ in names]
    with _workbook(source.path, source.name) as book:
        for number, row in islice(_rows(book, source), 1, None):
            if any(value is not None for value in row[len(names) :]):
                cells = "one cell" if len(names) == 1 else f"{len(names)} cells"
                raise UnreadableError(
                    f"row {number:,} of {source.name!r} must have {cells}, one per name in row {top:,}, got more: "
                    "remove what stands above the names of the columns or beside the table, or save it as csv"
                )
            for kind, value in zip(kinds, row, strict=False):
                if value is not None:
                    kind.add(type(value))
    _check_formulas(source)
    schema = pa.schema([(name, _type(kind)) for name, kind in zip(names, kinds, strict=True)])
    yield schema.empty_table()
    with _workbook(source.path, source.name) as book:
        rows = (row for _, row in islice(_rows(book, source), 1, None))
        while part := list(islice(rows, PIECE)):
            padded = [(*row, *[None] * (len(names) - len(row))) for row in part]
            columns = [_column([row[i] for row in padded], field.type) for i, field in enumerate(schema)]
            yield pa.table(columns, schema=schema)


@contextmanager
def _workbook(path: Path, name: str) -> Iterator[Any]:
    try:
        import openpyxl
    except ImportError:
        raise UnreadableError(
            f"{name!r} must be read by openpyxl, which is not installed: pip install 'recollect[excel]'"
        ) from None
    _check_parts(path, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about styles and the like, which are of no interest
        try:
            book = openpyxl.load_workbook(path, read_only=True, data_only=True, keep_links=False)
        except Exception as error:  # it stumbles over much that is beside the table, such as a page without its chart
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise UnreadableError(
                f"{name!r} must be a readable table, got {reason!r} from openpyxl: save the sheet alone, or as csv"
            ) from None
        try:
            yield book
        finally:
            book.close()


def _check_parts(path: Path, name: str) -> None:
    """Refuse large parts that are no sheets, whatever they are called; sheets are read a row at a time."""
    with zipfile.ZipFile(path) as archive:
        large = {f"/{info.filename}" for info in archive.infolist() if info.file_size > _MOST_BESIDE}
        if large and _TYPES not in large:
            types = fromstring(archive.read(_TYPES[1:]))
            sheets = {
                part.get("PartName", "") for part in types if part.get("ContentType", "").endswith(".worksheet+xml")
            }
            large -= {sheet for sheet in sheets if sheet.startswith("/xl/worksheets/")}
    if large:
        raise UnreadableError(f"{name!r} must hold less beside its sheets, such as texts and styles: save it as csv")


def _rows(book: Any, source: Source) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """The rows that are not empty, and their numbers; what the sheet says of its size is not believed."""
    sheet = _sheet(book, source)
    sheet.reset_dimensions()
    for number, row in enumerate(sheet.iter_rows(values_only=True), 1):
        if number > _MOST_ROWS:  # one row that says it is far below brings all those above it, though they are empty
            raise UnreadableError(
                f"{source.name!r} must have at most {_MOST_ROWS:,} rows, got one with a higher number: save it as csv"
            )
        if any(value is not None for value in row):
            yield number, row


def _sheet(book: Any, source: Source) -> Any:
    return book[source.dialect.sheet] if source.dialect.sheet else book.worksheets[0]


def _check_formulas(source: Source) -> None:
    """Refuse formulas whose values nobody has computed yet: they would be missing values."""
    with _workbook(source.path, source.name) as book:
        sheet = _sheet(book, source)
        with sheet._get_source() as file:
            if not _has_formulas(file):
                return
        with sheet._get_source() as file:
            for _, element in iterparse(file):
                if element.tag.endswith("}c") and _is_not_computed(element):
                    raise UnreadableError(
                        f"cell {element.get('r', '')} of {source.name!r} must have a value, got a formula that no "
                        "program has computed: open it in a spreadsheet program, save it there, and read that"
                    )
                if element.tag.endswith("}row"):
                    element.clear()


def _has_formulas(file: IO[bytes]) -> bool:
    """Whether there may be some: most tables have none, and this is much quicker than parsing."""
    before = b""
    while block := file.read(2**20):
        if _FORMULA.search(before + block):
            return True
        before = block[-_FORMULA_BYTES:]
    return False


def _is_not_computed(cell: Any) -> bool:
    """A formula without a value; one that came to an empty text says that it is a text."""
    parts = {part.tag.rpartition("}")[2]: part.text for part in cell}
    return "f" in parts and not parts.get("v") and cell.get("t", "n") == "n"


def _type(kinds: set[type]) -> pa.DataType:
    if not kinds:
        return pa.null()
    if kinds == {bool}:
        return pa.bool_()
    if kinds <= {int}:
        return pa.int64()
    if kinds <= {int, float}:
        return pa.float64()
    if kinds <= {datetime.datetime, datetime.date}:
        return pa.timestamp("us")
    return pa.string()


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_string(kind):
        return pa.array([_text(value) for value in values], kind)
    if pa.types.is_integer(kind) and any(value is not None and abs(value) >= 2**63 for value in values):
        raise UnreadableError("numbers of a workbook must have at most 18 digits, got more")
    return pa.array(values, kind)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
