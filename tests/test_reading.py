"""Where rows come from and how files are told apart: sources, encodings, delimiters, compression."""

import csv
import errno
import gzip
import io
import json
import re
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import hypothesis.strategies as st
import numpy as np
import openpyxl
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from openpyxl.chart import BarChart

from recollect.tables import Settings, Store, columns, select
from recollect.tables.blocks import cut_blocks
from recollect.tables.reading import (
    Reading,
    Skipped,
    Source,
    characters,
    columnar,
    find_files,
    found_at,
    opened,
    parts,
    pieces,
    recognise,
    recognising,
)

LINES = [["x", "größe", "y"], ["1,5", "a b", "ja"], ["2,25", "c", "nein"], ["3,0", "ü", "ja"]]


def read(path: Path, **said: object) -> pa.Table:
    return pa.concat_tables(pieces(recognise(path, Reading(**said))))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1", "cp1252"])
@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_encodings_and_delimiters_are_recognised(tmp_path: Path, encoding: str, delimiter: str) -> None:
    path = tmp_path / "rows.txt"
    text = "\r\n".join(delimiter.join(line) for line in LINES) + "\r\n"
    path.write_bytes(text.replace("c", "€" if encoding == "cp1252" else "c").encode(encoding))
    table = read(path)
    assert table.column_names == LINES[0] and table.column("größe").to_pylist()[2] == "ü"
    assert table.column("x").to_pylist() == ["1,5", "2,25", "3,0"]  # text as it came


@pytest.mark.parametrize("quote", ["", '"'])
def test_a_delimiter_is_recognised_beside_a_very_long_value(tmp_path: Path, quote: str) -> None:
    path, long, limit = tmp_path / "rows.csv", "word, " * 25_000 + "end", csv.field_size_limit()
    path.write_text(f"x;text;y\n1,5;{quote}{long}{quote};a\n2,5;short;b\n")
    assert read(path).to_pylist() == [{"x": "1,5", "text": long, "y": "a"}, {"x": "2,5", "text": "short", "y": "b"}]
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize("form", ["ndjson", "json", "a bad line"])
def test_moments_in_json_are_the_text_that_they_came_as(tmp_path: Path, form: str) -> None:
    rows = [
        {"x": 1, "t": "2024-01-01T10:00:00+02:00", "n": {"d": "2024-01-01 10:00:00", "k": ["2024-01-01"]}, "y": "a"},
        {"x": 2, "t": "2024-01-02 10:00:00", "n": {"d": "2024-01-02 10:00:00", "k": []}, "y": "b"},
    ]
    bad, path = form == "a bad line", tmp_path / ("a.json" if form == "json" else "a.ndjson")
    lines = [json.dumps(rows[0]), *["{]"] * bad, json.dumps(rows[1])]
    path.write_text(json.dumps(rows) if form == "json" else "\n".join(lines) + "\n")
    skipped = Skipped()
    table = pa.concat_tables(pieces(recognise(path, Reading(skip_bad_rows=bad)), skipped))
    assert table.to_pylist() == rows and skipped.rows == bad
    assert table.column_names == ["x", "t", "n", "y"]


def test_what_was_said_wins_over_what_was_recognised(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"a;b,c\n1;2,x\n3;4,y\n")
    assert read(path, delimiter=",").column_names == ["a;b", "c"]
    assert read(path, delimiter=";").column_names == ["a", "b,c"]
    path.write_bytes("x,y\n1,\xe9\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"in utf-8-sig, got other bytes in line 2: pass another reading=Reading\(enc"):
        read(path, encoding="utf-8-sig")
    for said in ({"delimiter": "ab"}, {"decimal": ";"}, {"encoding": "klingon"}, {"format": "doc"}):
        with pytest.raises(ValueError, match="must be"):
            Reading(**said)


def test_one_wrong_byte_does_not_make_a_text_another_encoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes("x,y\nä,ö\nü,ß\n".encode() + b"\xe9,1\n")
    with pytest.raises(ValueError, match=r"must be in utf-8 throughout, got the byte b'\\xe9' in line 4"):
        read(path)
    assert read(path, encoding="latin-1").num_rows == 3
    rows = "x,y\n" + "".join(f"Zürich{i},{i}\n" for i in range(30))
    path.write_bytes((rows + "Zü").encode()[:-1])  # a download that broke off within a letter
    with pytest.raises(ValueError, match=r"must be in utf-8 throughout, got the byte b'\\xc3' in line 32"):
        read(path)
    monkeypatch.setattr(characters, "_BLOCK", 256)
    path.write_bytes(rows.encode() + b"plain,1\n" * 100 + b"caf\xe9,1\n")  # in a block without another letter
    with pytest.raises(ValueError, match=r"must be in utf-8 throughout, got the byte b'\\xe9' in line 132"):
        read(path)
    path.write_bytes(b"x,y\n" + b"plain,1\n" * 100 + b"caf\xe9,1\n")
    assert read(path).column("x").to_pylist()[-1] == "café"


def test_a_text_with_control_characters_is_taken_once_its_encoding_is_said(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"x,y\n1,a\n2,\x07b\n")
    with pytest.raises(ValueError, match=r"such as b'\\x07' in line 3: pass .*encoding='utf-8'.* if it is text all"):
        read(path)
    assert read(path, encoding="utf-8").column("y").to_pylist() == ["a", "\x07b"]


def test_a_file_half_in_utf_8_and_half_in_latin_1_is_refused_with_both_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.csv"
    some, others = "Müller,1\n" * 50, "Gärtner,2\n" * 60
    for block in (2**20, 256):
        monkeypatch.setattr(characters, "_BLOCK", block)
        path.write_bytes(b"x,y\n" + some.encode() + others.encode("latin-1"))
        with pytest.raises(ValueError, match=r"(one encoding|utf-8) throughout, got the byte b'\\xe4' in line 52"):
            read(path)
        path.write_bytes(b"x,y\n" + others.encode("latin-1") + some.encode())
        with pytest.raises(ValueError, match=r"one encoding throughout, got the byte b'\\xe4' in line 2.* in line 62"):
            read(path)
        assert read(path, encoding="latin-1").num_rows == 110
        for text in ("« Élysée\xa0»,1\n", "IRMÃO,1\n", "CAFÉ”,1\n"):  # some of which are letters of utf-8 by chance
            path.write_bytes(b"x,y\n" + (others + text + others).encode("cp1252"))
            assert read(path).column("x")[60].as_py() == text.partition(",")[0]


@pytest.mark.parametrize("line", ['1,"open', '"1,open', '1,"open ""', '1,"""open'])
@pytest.mark.parametrize("skip", [False, True])
def test_a_quote_that_nothing_closes_does_not_swallow_the_rows_after_it(tmp_path: Path, line: str, skip: bool) -> None:
    path = tmp_path / "rows.csv"
    rows = ["x,y", "0,a", '7,"two\nlines"', line, *["2,b"] * 300]
    path.write_text("\n".join(rows))
    with pytest.raises(ValueError, match=r"line 5 of .* must close the quote that it opens"):
        read(path, skip_bad_rows=skip)
    for end in ("", "\n", "\r\n"):
        path.write_text("\n".join(["x,y", "0,a", '7,"two\nlines"']) + end, newline="")
        assert read(path, skip_bad_rows=skip).column("y").to_pylist() == ["a", "two\nlines"]
    path.write_text('x,y\n0,a\n7,"two\nsaid ""lines"""\n')
    assert read(path, skip_bad_rows=skip).column("y").to_pylist() == ["a", 'two\nsaid "lines"']


@pytest.mark.parametrize(
    ("line", "values"),
    [
        (r'"say \"hi\" 0","plain"', ('say "hi" 0', "plain")),
        (r'"say \"hi\", 0","plain"', ('say "hi", 0', "plain")),
        (r'"\"hi\"","C:\new\tab"', ('"hi"', r"C:\new\tab")),
        (r'"\"a\" \\","\N"', ('"a" \\', r"\N")),
        (r'"C:\dir\","say ""hi"""', ("C:\\dir\\", 'say "hi"')),
        (r'"C:\dir\","C:\other\"', ("C:\\dir\\", "C:\\other\\")),
        (r'"C:\dir\" ,"plain"', ("C:\\dir\\ ", "plain")),
        (r'"a \""b"" c","plain"', (r'a \"b" c', "plain")),
        (r'a 5\" pipe,"plain"', (r"a 5\" pipe", "plain")),
        ('"say \\"hi\nyou\\"","plain"', ('say "hi\nyou"', "plain")),
    ],
)
@pytest.mark.parametrize("rows", [3, 300_000])  # more than are read at a time
def test_quotes_after_backslashes_and_paths_that_end_in_one_come_out_as_they_were(
    tmp_path: Path, line: str, values: tuple[str, str], rows: int
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a,b,c\n" + f"{line},y\n" * rows)
    table = read(path)
    assert table.num_rows == rows
    assert [column.unique().to_pylist() for column in table.columns] == [[values[0]], [values[1]], ["y"]]


@pytest.mark.parametrize("block", [2**20, 2**10])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_quotes_after_backslashes_may_come_late(tmp_path: Path, pack: Any, block: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(recognising, "_BLOCK", block)
    path = tmp_path / "rows.csv"
    rows = "x,y\n" + '"plain",a\n' * 3000
    path.write_bytes(pack((rows + r'"say \"hi\" 0",a' + "\r\n" + '"plain",a\n').encode()))
    assert read(path).column("x").to_pylist()[-2:] == ['say "hi" 0', "plain"]
    path.write_bytes(pack((rows + '"C:\\dir\\",a\r\n"a \\""b"" c",a\n').encode()))
    assert read(path).column("x").to_pylist()[-2:] == ["C:\\dir\\", 'a \\"b" c']


def test_a_malformed_line_is_named_with_its_number_and_text(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('a,b\n1,"two\nlines"\n3,4\n5,6,7\n8,9\n')
    with pytest.raises(ValueError, match=r"line 5 of .* must have 2 values, one per column, got 3 in '5,6,7'"):
        read(path)
    skipped = Skipped()
    table = pa.concat_tables(pieces(recognise(path, Reading(skip_bad_rows=True)), skipped))
    assert table.num_rows == 3 and skipped == Skipped(1, "5,6,7")


def test_a_title_above_the_names_of_columns_is_told_of_and_not_what_would_leave_out_all_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("Sales of 2024\n\nx,y\n1,a\n2,b\n")
    with pytest.raises(ValueError, match=r"line 3 of .* got 2 in 'x,y': remove what stands above the names of the col"):
        read(path)
    path.write_text("Sales,of 2024\n\nx,y,z\n1,a,0\n2,b,0\n")
    with pytest.raises(ValueError, match=r"at least one row, got none that .*: the names of the columns must be the f"):
        read(path, skip_bad_rows=True)
    path.write_text("Sales of 2024;;\nx;y;z\n1;a;0\n2;b;0\n")
    with pytest.raises(ValueError, match=r"names, got 2 of 3 without one: remove what stands above the names"):
        read(path)
    path.write_text("0.5,1,1\n0.7,1,0\n")
    with pytest.raises(ValueError, match=r"got '1' more than once: the first line must hold the names of the columns"):
        read(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(
    rows=st.lists(
        st.tuples(*[st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=6)] * 2),
        min_size=1,
        max_size=8,
    )
)
def test_quoted_text_comes_out_as_it_went_in(tmp_path: Path, rows: list[tuple[str, str]]) -> None:
    path = tmp_path / "rows.csv"
    quoted = [[f'"{value.replace(chr(34), chr(34) * 2)}"' for value in row] for row in rows]
    path.write_text("\n".join(";".join(line) for line in [["a", "b"], *quoted]) + "\n", encoding="utf-8")
    table = read(path, delimiter=";")
    found = [tuple(v or "" for v in row.values()) for row in table.to_pylist()]
    assert found == rows


def test_folders_globs_and_addresses_stand_for_their_tables(tmp_path: Path) -> None:
    (tmp_path / "days" / "more").mkdir(parents=True)
    for name in ("b.csv", "a.tsv", "more/c.csv.gz", "README.md", ".hidden.csv", "_SUCCESS"):
        content = b"x,y\n1,a\n"
        (tmp_path / "days" / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert [path.name for path in find_files([str(tmp_path / "days")])] == ["a.tsv", "b.csv", "c.csv.gz"]
    with opened([f"file://{tmp_path}/days/b.csv"]) as [source]:
        assert sum(piece.num_rows for piece in pieces(source)) == 1
    assert not source.path.exists()  # the copy is gone
    fsspec.filesystem("memory").pipe("/recollect/rows.csv", b"x,y\n1,a\n2,b\n")
    with opened(["memory://recollect/rows.csv"]) as [source]:
        assert sum(piece.num_rows for piece in pieces(source)) == 2
    for wrong in ("memory://recollect/nothing.csv", "nowhere://a/b.csv", f"file://{tmp_path}/none.csv"):
        with pytest.raises(ValueError, match=r"^[^\n]*$"), opened([wrong]):
            pass


def test_a_file_is_read_once_however_it_is_spelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fold").mkdir()
    (tmp_path / "q1.csv").write_text("x,y\n1,a\n")
    (tmp_path / "fold" / "latest.csv").symlink_to(tmp_path / "q1.csv")
    monkeypatch.chdir(tmp_path)
    spellings = ["q1.csv", str(tmp_path / "q1.csv"), "./fold/../q1.csv", "fold", "*.csv"]
    assert find_files(spellings) == [Path("q1.csv")]
    with opened(spellings) as sources:
        assert [source.name for source in sources] == ["q1.csv"]
    assert found_at(spellings) == [("q1.csv", tmp_path / "q1.csv", ())]


def test_folders_that_links_lead_to_are_looked_into_once(tmp_path: Path) -> None:
    days, other = tmp_path / "days", tmp_path / "elsewhere" / "deep"
    for folder in (days, other):
        folder.mkdir(parents=True)
    (days / "a.csv").write_text("x,y\n1,a\n")
    (other / "b.csv").write_text("x,y\n2,b\n")
    for name, target in (("linked", other.parent), ("again", other.parent), ("self", days), ("lost", tmp_path / "no")):
        (days / name).symlink_to(target)
    (other / "back").symlink_to(days)
    assert [path.relative_to(days).as_posix() for path in find_files([str(days)])] == ["a.csv", "again/deep/b.csv"]


def partitioned(folder: Path) -> Path:
    """A table as Hive and Spark write it, of which two files hold the same but for what their folders say."""
    rows = pa.table({"x": [1.5, 2.5] * 30, "y": ["a", "b", "c"] * 20})
    for year in (2023, 2024):
        for city in ("S%C3%A3o Paulo", "__HIVE_DEFAULT_PARTITION__"):
            (path := folder / "sales" / f"year={year}" / f"city={city}").mkdir(parents=True)
            pyarrow.parquet.write_table(rows.append_column("own", pa.array([str(year)] * 60)), path / "part.parquet")
    return folder / "sales"


def test_what_the_names_of_folders_say_becomes_columns(tmp_path: Path) -> None:
    sales = partitioned(tmp_path)
    for files in (sales, f"{sales}/year=*/*/*.parquet", f"{tmp_path}/*"):
        chosen = select(files, "y", 300, memory="reservoir")
        assert chosen.column_names == ["x", "y", "own", "year", "city", "row", "weight"] and len(chosen) == 240
        assert chosen.column("year").to_pylist() == chosen.column("own").to_pylist()
        assert set(chosen.column("city").to_pylist()) == {"São Paulo", None}
    note = "part.parquet: read as parquet, with year, city as the names of its folders say"
    assert note in list(columns(sales, "y").notes())
    [told] = columns(sales / "year=2024", "y").files.values()
    assert told == "parquet, with city as the names of its folders say, without what they say of year"
    alone = sales / "year=2024" / "city=S%C3%A3o Paulo" / "part.parquet"
    assert [column.name for column in columns(alone, "own").columns] == ["x", "y", "own"]
    assert columns(alone, "y").files == {
        "part.parquet": "parquet, without what the names of its folders say of year, city"
    }


def test_the_columns_of_a_file_come_before_what_its_folders_say(tmp_path: Path) -> None:
    (tmp_path / "x=9").mkdir()
    (tmp_path / "x=9" / "a.csv").write_text("x,y\n1,a\n2,b\n")
    [source] = opened_once(tmp_path)
    assert pa.concat_tables(pieces(source)).to_pydict() == {"x": ["1", "2"], "y": ["a", "b"]}


def test_files_that_differ_in_their_folders_alone_are_both_taken(tmp_path: Path) -> None:
    sales = partitioned(tmp_path)
    store = Store.create(tmp_path / "store", Settings("y", 300, "reservoir"))
    assert [done.seen for done in store.update(sales)] == [60, 120, 180, 240]
    assert [done.taken for done in store.update(sales)] == [None] * 4
    assert set(store.load().rows.column("year").to_pylist()) == {"2023", "2024"}


def opened_once(folder: Path) -> list[Source]:
    with opened([str(folder)]) as sources:
        return sources


def test_standard_input_is_read_like_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    content = gzip.compress(b'{"x": 1, "y": "a"}\n{"x": 2, "y": "b"}\n')
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
    with opened(["-"]) as [source]:
        assert source.name == "standard input" and str(source.dialect) == "ndjson, unpacked from gzip"
        assert sum(piece.num_rows for piece in pieces(source)) == 2


@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EDQUOT])
def test_a_copy_that_has_no_room_says_so_and_not_that_nothing_is_there(
    reason: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(reason, "no room")

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"x,y\n1,2\n")))
    monkeypatch.setattr("shutil.copyfileobj", full)
    with pytest.raises(OSError, match="no room") as caught, opened(["-"]):
        pass
    assert caught.value.errno == reason


def test_records_are_read_whatever_their_layout(tmp_path: Path) -> None:
    rows = [{"x": i, "text": "[{]}" * 9, "y": {"a": [i]}} for i in range(30_000)]
    for indent in (None, 1):
        path = tmp_path / "rows.json"
        path.write_text(json.dumps(rows, indent=indent))
        assert pa.concat_tables(pieces(path)).to_pylist() == rows
    for wrong in ("[1, 2]", '[{"x": 1}, {"x": ', '{"x": 1}', "[" * 200 + "]" * 200, '[{"x": ' + "[" * 200, "[]"):
        path.write_text(wrong)
        with pytest.raises(ValueError, match=r"^[^\n]*$"):
            list(pieces(path))


@pytest.mark.parametrize("form", ["rows.ndjson", "rows.json"])
@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([2**64 - 1, 1, None], pa.uint64()),
        ([2**63 - 1, -(2**63)], pa.int64()),
        ([1e300, 2**60, 0.5], pa.float64()),
        ([[2], [0.5], None], pa.list_(pa.float64())),
        ([[2**64 - 1], [1]], pa.list_(pa.uint64())),
        ([{"a": 1}, {"b": "x"}], pa.struct([("a", pa.int64()), ("b", pa.string())])),
    ],
)
def test_numbers_in_json_are_what_they_were(tmp_path: Path, form: str, values: list[Any], kind: pa.DataType) -> None:
    rows = [json.dumps({"x": value}) for value in values]
    (tmp_path / form).write_text(f"[{', '.join(rows)}]" if form == "rows.json" else "\n".join(rows))
    column = read(tmp_path / form).column("x")
    assert column.type == kind
    if not pa.types.is_struct(kind):  # where a field is missing, nothing is there
        assert column.to_pylist() == values


@pytest.mark.parametrize(
    ("wrong", "flaw"),
    [
        ('{"x": 1, "x": 2, "y": "b"}', "'x' twice"),
        ('{"x": {"a": 1, "a": 2}, "y": "b"}', "'a' twice"),
        (r'{"x": "\ud800", "y": "b"}', "half of"),
    ],
)
def test_a_name_with_two_values_and_half_a_letter_in_json_are_refused_or_left_out(
    tmp_path: Path, wrong: str, flaw: str
) -> None:
    path, good = tmp_path / "rows.ndjson", r'{"x": "\ud83d\ude00", "y": "a"}'
    path.write_text(f"{good}\n{wrong}\n")
    with pytest.raises(ValueError, match=rf"^line 2 of .* must be a JSON object, got {flaw}.* in .*: mend it, or pass"):
        read(path)
    assert read(path, skip_bad_rows=True).to_pylist() == [{"x": "\U0001f600", "y": "a"}]
    for document in (f"[{good}, {wrong}]", f'{{"rows": [{good}, {wrong}]}}'):
        (tmp_path / "rows.json").write_text(document)
        with pytest.raises(ValueError, match=rf"^[^\n]* must (have each name once|hold whole letters), got {flaw}"):
            read(tmp_path / "rows.json")


@pytest.mark.parametrize("values", [[2**64], [2**63, -1], [2**53 + 1, 0.5], [-(2**63) - 1], [10**400, 1]])
def test_whole_numbers_in_json_that_no_type_holds_are_refused(tmp_path: Path, values: list[Any]) -> None:
    path = tmp_path / "rows.ndjson"
    path.write_text("\n".join(json.dumps({"id": value}) for value in values))
    with pytest.raises(ValueError, match=r"^(column 'id' of .*rows.ndjson' must hold|.*Number too big)[^\n]*$"):
        read(path)


@pytest.mark.parametrize(
    ("rows", "name"),
    [
        ([{"t": {"span": 15432167890123456789}}, {"t": {"span": 0.5}}], "t.span"),
        ([{"t": {"span": -15432167890123456789}}], "t.span"),
        ([{"l": [9007199254740993, 0.5]}], "l"),
        ([{"l": [{"a": [2**60 + 1, None]}, None]}, {"l": [{"a": [0.5]}]}], "l.a"),
    ],
)
def test_whole_numbers_within_others_in_json_do_not_become_others(
    tmp_path: Path, rows: list[dict[str, Any]], name: str
) -> None:
    path = tmp_path / "rows.ndjson"
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ValueError, match=f"^column '{name}' of .*rows.ndjson' must hold whole numbers of 64 bits"):
        read(path)
    path.write_text(json.dumps({"t": {"span": 15432167890123456789, "l": [None, 2**63]}}))
    assert read(path).to_pylist() == [{"t": {"span": 15432167890123456789, "l": [None, 2**63]}}]


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("number", [2**60 + 1, 2**64 - 1])
def test_a_fraction_far_below_whole_numbers_in_json_does_not_change_them(
    tmp_path: Path, number: int, within: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recollect.tables.reading.records.BLOCK_BYTES", 1000)
    path = tmp_path / "rows.ndjson"
    values = [number] * 200 + [1] * 200 + [0.5]  # which no block has side by side
    path.write_text("\n".join(json.dumps({"id": {"a": value} if within else value}) for value in values))
    name = "id.a" if within else "id"
    with pytest.raises(ValueError, match=f"^column '{name}' of .* a float has, got {number}: write them as text"):
        read(path)
    values = [2**60] * 200 + [0.5]
    path.write_text("\n".join(json.dumps({"id": value}) for value in values))
    assert read(path).column("id").to_pylist() == values


@pytest.mark.parametrize("form", ["rows.ndjson", "rows.json"])
@pytest.mark.parametrize("first", [3, 10_000])
def test_text_among_numbers_in_json_is_refused_with_its_row(
    tmp_path: Path, form: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recollect.tables.reading.records.BLOCK_BYTES", 10_000)
    rows = ['{"x": 1, "y": "a"}'] * first + ['{"x": "n/a", "y": "a"}']
    (tmp_path / form).write_text(f"[{', '.join(rows)}]" if form == "rows.json" else "\n".join(rows))
    row = f"{first + 1:,}"
    with pytest.raises(ValueError, match=f'^column .x. of .* one kind, got text such as "n/a" in row {row} after numb'):
        read(tmp_path / form)


def test_a_column_in_json_may_become_what_its_first_rows_do_not_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recollect.tables.reading.records.BLOCK_BYTES", 1000)
    rows: list[dict[str, Any]] = [{"whole": i, "late": None} for i in range(200)]
    rows += [{"whole": 0.5, "late": "text", "new": 2**63}, {"new": 1}]
    (tmp_path / "rows.ndjson").write_text("\n".join(map(json.dumps, rows)))
    found = read(tmp_path / "rows.ndjson")
    assert found.schema.types == [pa.float64(), pa.string(), pa.uint64()]
    assert found.to_pylist() == [{"whole": None, "late": None, "new": None, **row} for row in rows]


def test_lines_may_end_in_carriage_returns(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes("x;y\r1,5;ä\r2;b\r".encode("latin-1"))
    assert read(path).to_pylist() == [{"x": "1,5", "y": "ä"}, {"x": "2", "y": "b"}]


@pytest.mark.parametrize("name", ["rows.arrows", "rows"])
def test_a_stream_of_arrow_is_known_by_its_content(tmp_path: Path, name: str) -> None:
    table = pa.table({"x": [1, 2], "y": ["a", None]})
    with pa.OSFile(str(tmp_path / name), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    assert read(tmp_path / name) == table
    if name != "rows":
        assert find_files([str(tmp_path)]) == [tmp_path / name]


@pytest.mark.parametrize("kind", [">i4", ">f8", "<M8[D]", ">M8[s]", ">U3"])
def test_arrays_may_have_any_byte_order(tmp_path: Path, kind: str) -> None:
    values = np.array([1, 20, 300]).astype(kind)
    np.savez(tmp_path / "rows.npz", x=values, z=np.stack([values, values], axis=1, dtype=kind))
    expected = pa.array(values.astype(values.dtype.newbyteorder("="))).to_pylist()
    assert all(column.to_pylist() == expected for column in read(tmp_path / "rows.npz").columns)


@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize(("claimed", "told"), [(2**40, "less"), (2**12, "less"), (3, "more")])
def test_what_an_array_says_of_its_length_is_not_believed(
    tmp_path: Path, by_columns: bool, claimed: int, told: str
) -> None:
    """Neither is room made for it."""
    header = {"descr": "<f8", "fortran_order": by_columns, "shape": (claimed, 2)}
    with zipfile.ZipFile(tmp_path / "rows.npz", "w") as archive, archive.open("x.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.write(bytes(8 * 2 * 1000))
    with pytest.raises(ValueError, match=f"^the array 'x' must be as long as it says, got {told}$"):
        read(tmp_path / "rows.npz")


@pytest.mark.parametrize("kind", ["c16", "M8[Y]", "V4", "O"])
def test_an_array_of_which_there_are_no_columns_is_named(tmp_path: Path, kind: str) -> None:
    np.savez(tmp_path / "rows.npz", x=np.zeros(3, kind), y=np.arange(3))
    with pytest.raises(ValueError, match=r"^the array 'x' must hold numbers, dates or text, got"):
        read(tmp_path / "rows.npz")


def test_an_old_workbook_is_refused_with_advice(tmp_path: Path) -> None:
    path = tmp_path / "rows.xls"
    path.write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600))
    with pytest.raises(ValueError, match=r"rows.xls' must be xlsx, .*: save it as xlsx or csv"):
        read(path)


def test_a_bomb_or_a_lie_in_a_workbook_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.xlsx"
    path.write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(ValueError, match="must be a readable table"):
        read(path)
    path.write_bytes((Path(__file__).parent / "files" / "sales.xlsx").read_bytes()[:3000])
    with pytest.raises(ValueError, match=r"^[^\n]*$"):
        read(path)


def workbook(path: Path, rows: str) -> Path:
    """One sheet, of rows in XML."""
    openpyxl.Workbook().save(path)
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    sheet = parts["xl/worksheets/sheet1.xml"]
    parts["xl/worksheets/sheet1.xml"] = re.sub(
        rb"<sheetData.*(?=</worksheet)", f"<sheetData>{rows}</sheetData>".encode(), sheet
    )
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return path


def cell(text: str) -> str:
    return f'<c t="inlineStr"><is><t>{text}</t></is></c>'


@pytest.mark.parametrize("number", ["1048577", "99999999999"])
def test_a_row_of_a_workbook_far_below_all_others_is_refused_at_once(tmp_path: Path, number: str) -> None:
    rows = f'<row>{cell("x")}</row><row r="{number}">{cell("a")}</row>'
    with pytest.raises(ValueError, match=r"must have at most 1,048,576 rows, got one with a higher number: save it"):
        read(workbook(tmp_path / "rows.xlsx", rows))
    rows = f'<row>{cell("x")}</row><row r="1048576">{cell("a")}</row>'
    assert read(workbook(tmp_path / "rows.xlsx", rows)).to_pylist() == [{"x": "a"}]


@pytest.mark.parametrize(
    "part", ["xl/styles.xml", "[Content_Types].xml", "xl/worksheets/more.xml", "xl/worksheets/sheet1.xml"]
)
def test_parts_of_a_workbook_that_are_no_sheets_must_not_unpack_to_much(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = workbook(tmp_path / "rows.xlsx", f"<row>{cell('x')}</row><row>{cell('a')}</row>")
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in ({part: b"<x/>"} | parts).items():
            archive.writestr(name, content + b" " * 100_000 * (name == part))
    assert read(path).to_pylist() == [{"x": "a"}]
    monkeypatch.setattr("recollect.tables.reading.sheets._MOST_BESIDE", 100_000)
    if part.endswith("sheet1.xml"):  # which is read a row at a time
        assert read(path).to_pylist() == [{"x": "a"}]
    else:
        with pytest.raises(ValueError, match=r"rows\.xlsx' must hold less beside its sheets, such as texts and styles"):
            read(path)


def test_the_first_sheet_that_people_see_and_that_is_no_chart_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.xlsx"
    book = openpyxl.Workbook()
    chart = book.create_chartsheet("chart", 0)
    for i, name in enumerate(("hidden", "shown", "last")):
        sheet = book.worksheets[0] if i == 0 else book.create_sheet()
        sheet.title, sheet.sheet_state = name, "hidden" if name == "hidden" else "visible"
        sheet.append(["x"])
        sheet.append([name])
    book.save(path)
    with pytest.raises(ValueError, match=r"must be a readable table, got .* from openpyxl: save the sheet alone, or"):
        read(path)
    chart.add_chart(BarChart())
    book.save(path)
    assert read(path).to_pylist() == [{"x": "shown"}]
    assert str(recognise(path).dialect) == "xlsx, the sheet 'shown' of 3"
    assert read(path, sheet="hidden").to_pylist() == [{"x": "hidden"}]
    with pytest.raises(ValueError, match=r"must be one of 'shown', 'last', 'hidden', got 'chart'"):
        read(path, sheet="chart")


def test_a_first_sheet_without_rows_is_told_of_with_what_reads_another(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    book.worksheets[0].title = "cover"
    book.worksheets[0].append(["Report of 2024"])
    for row in (["x"], [1]):
        (book["data"] if "data" in book.sheetnames else book.create_sheet("data")).append(row)
    book.save(tmp_path / "a.xlsx")
    with pytest.raises(ValueError, match=r"at least one row, got none in the sheet 'cover' of 2: pass .*sheet="):
        read(tmp_path / "a.xlsx")
    assert read(tmp_path / "a.xlsx", sheet="data").to_pylist() == [{"x": 1}]


def test_what_stands_above_the_names_of_a_sheet_is_told_with_the_rows_as_a_spreadsheet_numbers_them(
    tmp_path: Path,
) -> None:
    path = tmp_path / "rows.xlsx"
    book = openpyxl.Workbook()
    for row in (["Report"], [], [], ["x", "y"], [1, 2]):
        book.active.append(row)
    book.save(path)
    with pytest.raises(ValueError, match=r"^row 4 of .* must have one cell, one per name in row 1, got more: remove"):
        read(path)


def test_a_formula_that_nobody_has_computed_is_refused_with_its_cell(tmp_path: Path) -> None:
    path = tmp_path / "rows.xlsx"
    book = openpyxl.Workbook()
    for row in (["x", "twice"], [1, 2], [2, "=A3*2"]):
        book.active.append(row)
    book.create_sheet("plain").append(["y"])
    book["plain"].append([1])
    book.save(path)
    with pytest.raises(ValueError, match=r"^cell B3 of .* must have a value, got a formula .*: open it in a spread"):
        read(path)
    assert read(path, sheet="plain").to_pylist() == [{"y": 1}]
    computed = '<c><f>A3*2</f><v>4</v></c><c t="str"><f>IF(A3=2,"","x")</f><v></v></c>'
    rows = f"<row>{cell('twice')}{cell('empty')}</row><row>{computed}</row>"
    assert read(workbook(path, rows)).to_pylist() == [{"twice": 4, "empty": None}]


@pytest.mark.parametrize("groups", [[100] * 7, [300, 1, 1, 250], [40_000], [0, 5, 0]])
def test_parts_of_a_parquet_file_have_the_pieces_of_the_whole(
    tmp_path: Path, groups: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columnar, "_PART", 250)
    path, start = tmp_path / "rows.parquet", 0
    with pyarrow.parquet.ParquetWriter(path, pa.schema([("x", pa.int64())])) as writer:
        for rows in groups:
            writer.write_table(pa.table({"x": pa.array(range(start, start + rows), pa.int64())}))
            start += rows
    source = recognise(path)
    apart = [piece.column("x").to_pylist() for part in parts(source) for piece in pieces(part)]
    assert apart == [piece.column("x").to_pylist() for piece in pieces(source)]
    assert [x for piece in apart for x in piece] == list(range(sum(groups)))


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 500))), st.integers(1, 20), st.integers(1, 600))
def test_blocks_have_all_rows_in_order_and_as_many_as_they_may(
    sizes: list[tuple[int, int]], rows: int, most_bytes: int
) -> None:
    blocks = list(cut_blocks([(i, *size) for i, size in enumerate(sizes)], rows, most_bytes))
    found = [(piece, row) for block in blocks for piece, start, stop in block for row in range(start, stop)]
    assert found == [(i, row) for i, (length, _) in enumerate(sizes) for row in range(length)]
    counts = [sum(stop - start for _, start, stop in block) for block in blocks]
    assert all(0 < count <= rows for count in counts)
    if sum(size for _, size in sizes) < most_bytes:
        assert counts[:-1] == [rows] * (len(counts) - 1) if counts else not sizes


def test_pieces_of_wide_text_are_larger(tmp_path: Path) -> None:
    """Each piece of each column has its price."""
    line = ",".join(["1.234567"] * 2000) + "\n"
    (tmp_path / "wide.csv").write_text(",".join(f"c{i}" for i in range(2000)) + "\n" + 400 * line)  # 7.2 MB
    assert [piece.num_rows for piece in pieces(tmp_path / "wide.csv")] == [400]
