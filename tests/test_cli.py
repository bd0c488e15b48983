import subprocess
import sys
from pathlib import Path

import pytest

from recollect.cli import main
from tests.conftest import assert_refused


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "recollect", *arguments], capture_output=True, text=True, cwd=cwd, check=False
    )


def test_the_demo_prints_a_table_and_saves_a_picture(tmp_path: Path) -> None:
    result = run("demo", "--output", "picture.png", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "gradient matching" in result.stdout
    assert "picture.png" in result.stdout
    assert result.stderr == ""  # no progress bar where nobody watches
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--output", "picture.exe"], "the output must end in .png or .svg or .pdf, got 'picture.exe'"),
        (["demo", "--output", "nowhere/picture.png"], "must be a file in an existing folder"),
        (["demo", "--colour"], "No such option"),
        (["dream"], "No such command 'dream'"),
    ],
)
def test_bad_input_gets_exit_code_2_and_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(arguments, message, capsys)


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"], ["--version"]])
def test_help_and_version(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 0
    assert capsys.readouterr().out
