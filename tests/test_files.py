"""Tables as people have them, in tests/files: each is read as expected, and taken or refused in one sentence."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from recollect.cli import main
from recollect.tables import Store, pieces
from tests.files.make import FILES

FOLDER = Path(__file__).parent / "files"
EXPECTED: dict[str, dict[str, Any]] = tomllib.loads((FOLDER / "expected.toml").read_text())


def tell(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """The exit code of a command, and what it said."""
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    told = capsys.readouterr()
    return int(stop.value.code or 0), told.out, told.err


def as_written(column: dict[str, Any]) -> str:
    """A column of the account as `expected.toml` has it."""
    text = f"{column['name']} = {column['kind']}"
    text += f" {column['features']}" if column["features"] else ""
    text += f", {column['missing']} missing" if column["missing"] else ""
    return text + (f": {column['note']}" if column["note"] else "")


def test_there_are_files_enough_and_each_has_its_expectation() -> None:
    there = {path.name for path in FOLDER.iterdir()} - {"make.py", "expected.toml", "__init__.py", "__pycache__"}
    assert set(FILES) == set(EXPECTED) == there
    assert len(FILES) >= 40


@pytest.mark.parametrize("name", [name for name in FILES if not name.endswith((".xlsx", ".parquet", ".feather"))])
def test_the_script_makes_the_files_that_are_there(name: str) -> None:
    """All but those whose writers note their own version in them."""
    assert (FOLDER / name).read_bytes() == FILES[name]()


@pytest.mark.parametrize("name", EXPECTED)
def test_the_account_of_columns_is_as_expected(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    expected = EXPECTED[name]
    options = expected.get("options", [])
    code, out, err = tell(capsys, "columns", FOLDER / name, "--target", expected["target"], "--json", *options)
    if "read_as" not in expected:
        assert code == 2 and err.count("\n") == 1 and expected["refused"] in err
        return
    account = json.loads(out)
    assert code == 0 and account["files"] == {name: expected["read_as"]}
    assert account["task"] == expected["task"]
    if "columns" in expected:
        assert [as_written(column) for column in account["columns"]] == expected["columns"]
    assert account["features"] == expected.get("features", sum(c["features"] for c in account["columns"]))


@pytest.mark.parametrize("name", EXPECTED)
def test_a_file_is_taken_or_refused_in_one_sentence(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By select, and by a store; what is refused can be answered, if there is an answer."""
    expected = EXPECTED[name]
    before = (FOLDER / name).read_bytes()
    asked = ["--target", expected["target"], "--size", 5, "--memory", "reservoir"]
    suffix = ".parquet" if name.endswith(".parquet") else ".csv"  # which has no place for bytes
    output, store = tmp_path / f"out{suffix}", tmp_path / "s"
    options = expected.get("options", [])
    if "refused" in expected:
        assert tell(capsys, "init", store, *asked, *options)[0] == 0
        code, _, err = tell(capsys, "select", FOLDER / name, *asked, "-o", output, *options)
        assert code == 2 and err.count("\n") == 1 and expected["refused"] in err
        code, _, err = tell(capsys, "update", store, FOLDER / name)
        assert code == 2 and err.count("\n") == 1 and expected["refused"] in err
        assert not output.exists() and Store(store).number() == 0
        if "remedy" not in expected:
            return
        options = [*options, *expected["remedy"]]
        assert tell(capsys, "set", store, *options)[0] == 0
    else:
        assert tell(capsys, "init", store, *asked, *options)[0] == 0
    code, out, err = tell(capsys, "select", FOLDER / name, *asked, "-o", output, *options)
    assert code == 0 and err == "" and expected.get("says", "") in out
    assert sum(piece.num_rows for piece in pieces(output)) == 5
    code, out, err = tell(capsys, "update", store, FOLDER / name)
    assert code == 0 and err == "" and "5 kept" in out
    assert tell(capsys, "export", store, "-o", output)[0] == 0
    assert (FOLDER / name).read_bytes() == before
