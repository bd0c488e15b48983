"""Choosing rows of table files once, and writing chosen rows down."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from recollect.files import replacing
from recollect.tables.conforming import conform, examine_files, recognised
from recollect.tables.encoding import Encoding
from recollect.tables.memory import TableMemory, Taken
from recollect.tables.networks import MakeNetwork
from recollect.tables.reading import Skipped, Source, pieces, retyped, watched
from recollect.tables.settings import Settings
from recollect.tables.values import has_codes, known_texts, parse_numbers
from recollect.tables.workers import Workers
from recollect.tables.writing import write_table


def select_rows(
    settings: Settings,
    sources: Sequence[Path | Source],
    *,
    share: float | None = None,
    make_network: MakeNetwork | None = None,
    progress: bool = False,
    say: Callable[[str], None] = lambda text: None,
    workers: Workers | None = None,
) -> tuple[TableMemory, Taken]:
    """Choose rows of all files together; they are read twice, once to decide how columns are encoded.

    Rows that do not fit the memory limit at once are taken in one block after the other, as a stream. Files are read by
    the workers of a cluster if there are any. If a share is given, that part of all rows is chosen.
    """
    examine = examine_files if workers is None else workers.examine
    known = recognised(sources, settings.reading)
    check_unchanged = watched(known)
    options: dict[str, Any] = {"all_known": True, "share": share, "progress": progress, "examine": examine}
    held = TableMemory.for_files(settings, known, make_network, **options)
    skipped = Skipped()
    if workers is None:
        rows = (conform(piece, held.schema, source) for source in known for piece in pieces(source, skipped))
        taken = held.take(rows, held.account.rows, say, skipped)
    else:
        taken = held.take_blocks(workers.blocks(held, known, skipped), held.account.rows, say, skipped)
    check_unchanged()
    return held, taken


def export_table(held: TableMemory, output: Path) -> int:
    """Write the chosen rows with their weights, in the format of the file's ending; returns how many."""
    table = held.table() if output.suffix.lower() == ".csv" else typed_table(held)
    with replacing(output) as file:
        write_table(table, output, file)
    return int(table.num_rows)


def typed_table(held: TableMemory) -> pa.Table:
    """The chosen rows with their weights, and numbers where the text was numbers."""
    return _typed(held.table(), held.encoding)


def _typed(table: pa.Table, encoding: Encoding) -> pa.Table:
    """Numbers that were read as text, from CSV, as numbers: other formats have a place for them.

    Their type follows what all rows were read as, not those that were chosen. A column in which something is neither a
    number nor a word for a missing one stays the text it was, and so does one that was set aside.
    """
    forms = encoding.number_forms
    wholes = {encoding.target: encoding.whole}
    for column in encoding.columns:
        wholes[column.name] = column.whole
        if column.strays:
            forms.pop(column.name, None)
    if encoding.task == "classification":
        classes = pa.chunked_array([pa.array(encoding.classes, pa.string())])
        if not has_codes(classes) and not np.isnan(parse_numbers(classes, "point")).any():
            forms[encoding.target] = "point"
            wholes[encoding.target] = not _is_broken(classes)

    def typed(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
        if name not in forms or not pa.types.is_string(column.type):
            return column
        texts = known_texts(column)
        numbers = parse_numbers(texts, forms[name])
        if has_codes(texts) or not np.array_equal(np.isnan(numbers), np.asarray(pc.is_null(texts))):
            return column
        if _is_broken(texts) or wholes[name] is False:
            if _has_too_many_digits(texts, numbers):
                return column
            return pa.chunked_array([pa.array(numbers, pa.float64(), from_pandas=True)])
        try:
            return texts.cast(pa.int64())
        except pa.ArrowInvalid:  # more digits than there is a type for
            return column

    return retyped(table, typed)


def _is_broken(texts: pa.ChunkedArray) -> bool:
    """Whether some numbers are more than their digits."""
    return bool(pc.any(pc.match_substring_regex(texts, "[^0-9+-]")).as_py())


def _has_too_many_digits(texts: pa.ChunkedArray, numbers: NDArray[np.float64]) -> bool:
    """Whether some whole numbers would be others as floats."""
    large = texts.filter(pa.array(np.abs(numbers) >= 2.0**53))
    return any(re.fullmatch(r"[+-]?\d+", text) and int(float(text)) != int(text) for text in large.to_pylist())
