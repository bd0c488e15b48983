"""Rows in files, by the ending of their names: any other program must be able to read them."""

import csv
import datetime
import io
import json
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from recollect.tables import WRITTEN, write_table
from recollect.tables.reading import pieces

NAMED = uuid.UUID("12345678-1234-5678-1234-567812345678")


def written(values: Any, ending: str, kind: pa.DataType | None = None) -> str:
    """A column as the text of a file."""
    array = values if isinstance(values, pa.Array) else pa.array(values, kind)
    file = io.BytesIO()
    write_table(pa.table({"x": array}), Path(f"rows{ending}"), file)
    return file.getvalue().decode()


def refuse_constant(text: str) -> None:
    raise AssertionError(f"{text} is no JSON")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["62.03", None, "-7.50"], [62.03, None, -7.5]),
        (["62.03", "1234567890123456789.01"], ["62.03", "1234567890123456789.01"]),  # which no float holds
    ],
)
def test_decimals_in_json_are_numbers_where_no_digit_is_lost(values: list[Any], expected: list[Any]) -> None:
    found = written([None if v is None else Decimal(v) for v in values], ".ndjson", pa.decimal128(30, 2))
    assert [json.loads(line)["x"] for line in found.splitlines()] == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([float("nan"), 1.5, None], [None, 1.5, None]),
        ([[float("nan"), 1.0], None], [[None, 1.0], None]),
        ([{"a": {"b": float("nan")}, "c": b"abc"}], [{"a": {"b": None}, "c": "abc"}]),
        ([b"abc", None, "ä".encode()], ["abc", None, "ä"]),
    ],
)
def test_json_is_what_everybody_reads_as_json(values: list[Any], expected: list[Any]) -> None:
    lines = written(values, ".ndjson").splitlines()
    assert [json.loads(line, parse_constant=refuse_constant)["x"] for line in lines] == expected


@pytest.mark.parametrize("value", [float("inf"), [float("-inf")], b"\xff", {"a": [b"\xff"]}])
def test_what_json_has_no_place_for_is_refused_with_its_column(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]* in column 'x': choose another ending$"):
        written([value], ".ndjson")


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([["a", 'b"'], None]), ['["a", "b\\""]', ""]),
        (pa.array([{"a": 1.5, "d": datetime.date(2024, 1, 1)}]), ['{"a": 1.5, "d": "2024-01-01"}']),
        (pa.array([[float("nan")]]), ["[null]"]),
        (pa.array([pa.MonthDayNano([1, 2, 3])]), ["[1, 2, 3]"]),
        (pa.array(["a", None], pa.string_view()), ["a", ""]),
        (pa.ExtensionArray.from_storage(pa.uuid(), pa.array([NAMED.bytes, None], pa.binary(16))), [str(NAMED), ""]),
        (pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a":1}'])), ['{"a":1}']),
        (pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0, None], pa.int8())), ["true", "false", ""]),
    ],
)
def test_types_that_csv_does_not_have_are_text_that_others_read(array: pa.Array, expected: list[str]) -> None:
    table, file = pa.table({"x": array, "y": pa.array(["end"] * len(array))}), io.BytesIO()
    write_table(table, Path("rows.csv"), file)
    rows = list(csv.reader(io.StringIO(file.getvalue().decode())))
    assert rows == [["x", "y"], *([text, "end"] for text in expected)]


def test_what_csv_has_no_form_for_is_refused_with_its_column() -> None:
    table = pa.table({"y": ["a", "b"], "x": pa.array([b"\x00", b"\xff"])})
    with pytest.raises(ValueError, match=r"^column 'x' must have .* csv .* of binary .*: choose another ending$"):
        write_table(table, Path("rows.csv"), io.BytesIO())


@pytest.mark.parametrize("ending", WRITTEN)
def test_rows_are_read_again_from_every_ending_that_is_written(tmp_path: Path, ending: str) -> None:
    assert {".jsonl", ".feather", ".ipc"} < set(WRITTEN)
    table, path = pa.table({"x": ["a", "b"], "y": ["c", "d"]}), tmp_path / f"rows{ending}"
    with path.open("wb") as file:
        write_table(table, path, file)
    assert pa.concat_tables(pieces(path)).equals(table)
