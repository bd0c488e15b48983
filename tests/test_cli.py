import json
import os
import re
import signal
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
import rich.console
import torch

from recollect import files
from recollect.cli import main
from recollect.progress import progress_bar
from recollect.tables import Settings, Store
from tests.conftest import assert_refused


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "recollect", *arguments], capture_output=True, text=True, cwd=cwd, check=False
    )


def assert_shown(output: str, error: str, picture: Path) -> None:
    """What the demo leaves behind."""
    for memory in ("gradient matching", "k-means per class", "herding", "reservoir"):
        assert memory in output
    assert picture.name in output
    for line in error.splitlines():  # where nobody watches, a line every half minute
        assert re.fullmatch(r"learning digits: \d+%, (a few|about) .* left", line)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_demo_prints_a_table_and_saves_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two sizes and two seeds, which is a fifth of the work."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("recollect.demo.SIZES", (20, 50))
    monkeypatch.setattr("recollect.demo.SEEDS", (0, 1))
    assert stopped("demo", "--output", "picture.png") == 0
    told = capsys.readouterr()
    assert re.search(r"│ +50 │", told.out)
    assert_shown(told.out, told.err, tmp_path / "picture.png")


@pytest.mark.slow
def test_the_whole_demo_runs_where_nothing_is(tmp_path: Path) -> None:
    result = run("demo", "--output", "picture.png", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert_shown(result.stdout, result.stderr, tmp_path / "picture.png")


ROWS = str(Path(__file__).parent / "files" / "bank.csv")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--output", "picture.exe"], "the output must end in .png or .svg or .pdf, got 'picture.exe'"),
        (["demo", "--output", "nowhere/picture.png"], "must be a file in an existing folder"),
        (["demo", "--colour"], "no such option: --colour"),
        (["dream"], "no such command 'dream'"),
        (["select", "rows.csv"], "missing option '--target': see `recollect select --help`"),
        (["reproduce", "table-er", "--size", "5", "--size", "many"], "--size must be a whole number, got '5', 'many'"),
        (["reproduce", "table-er", "--size", "200", "500"], "as in --size 200 --size 500"),
        (["reproduce", "table-er", "--size=200,500", "--dry-run"], "as in --size 200 --size 500"),
        (["reproduce", "table-er", "--memory", "gmc,reservoir"], "as in --memory gmc --memory reservoir"),
        (["run", "--seed", "1", "2"], "as in --seed 1 --seed 2"),
        (["columns", ROWS, "--ignore", "a b", "c"], "got none: --ignore takes one value and may be repeated, as in"),
        (["columns", ROWS, "--ignore", "a b", "c"], "--ignore 'a b' --ignore c"),
        (["columns", ROWS, "--ignore", "age,job"], "as in --ignore age --ignore job"),
        (["columns", ROWS, "--as", "age=number,job=category"], "as in --as age=number --as job=category"),
    ],
)
def test_bad_input_gets_exit_code_2_and_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(arguments, message, capsys)


COMMANDS = ("demo", "columns", "select", "init", "set", "update", "export", "inspect", "recover", "run", "reproduce")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], *([command, "--help"] for command in COMMANDS)])
def test_help_and_version(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 0
    assert capsys.readouterr().out


def test_a_warning_is_one_line(tmp_path: Path) -> None:
    options = ["--rows", "60", "--size", "5", "--epochs", "1", "--results", str(tmp_path / "results.jsonl")]
    told = run("run", *options).stderr.splitlines()
    assert [line for line in told if "LostClassWarning" in line or "callback" in line] == []
    assert any(line.startswith("recollect: warning: each class should keep an example") for line in told)


def stopped(*arguments: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    return int(caught.value.code or 0)


def small_store(folder: Path, count: int = 3) -> list[Path]:
    """An empty store, and files for it."""
    Store.create(folder / "s", Settings("y", 5, memory="reservoir"))
    paths = [folder / f"{i}.parquet" for i in range(count)]
    for i, path in enumerate(paths):
        pa.parquet.write_table(pa.table({"x": [float(j + i) for j in range(20)], "y": [0, 1] * 10}), path)
    return paths


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "--memory-limit"),
        (pa.ArrowMemoryError("malloc of size 99 failed"), "--memory-limit"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "--memory-limit"),
        (ValueError("a name\nwith \x1b[31m colours \x07 and \u202e more"), r"a name\nwith \x1b[31m colours"),
        (OSError(28, "No space left on device", "a\x1bb"), "there must be room on the disk"),
    ],
)
def test_every_failure_is_one_line_that_cannot_act_on_the_terminal(
    tmp_path: Path, error: Exception, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(self: Store, *_: object, **__: object) -> None:
        raise error

    [path] = small_store(tmp_path, 1)
    monkeypatch.setattr(Store, "_update_one", failing)
    assert stopped("update", tmp_path / "s", path) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and told.rstrip("\n").isprintable() and message in told


def test_torch_says_that_memory_is_short_as_expected() -> None:
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        torch.empty(2**58, dtype=torch.uint8)


def test_names_with_brackets_and_control_characters_are_shown_as_they_are(tmp_path: Path, capsys: Any) -> None:
    folder = tmp_path / "[/] \x1b[31m"
    folder.mkdir(parents=True)
    [path] = small_store(folder, 1)
    assert stopped("update", folder / "s", path) == 0
    assert stopped("inspect", folder / "s", "--html", folder / "page.html") == 0
    assert stopped("export", folder / "s", "-o", folder / "out.csv") == 0
    told = capsys.readouterr()
    assert "\x1b[31m" not in told.out + told.err
    assert told.out.count("[/]") >= 3 and r"\x1b[31m" in told.out
    assert (folder / "out.csv").exists()


def test_the_report_may_lie_in_a_folder_with_brackets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "[/]").mkdir(parents=True)
    assert (
        stopped(
            "run",
            "--memory",
            "reservoir",
            "--size",
            10,
            "--epochs",
            1,
            "--rows",
            50,
            "--results",
            tmp_path / "[/]" / "r.jsonl",
        )
        == 0
    )
    assert str(tmp_path / "[/]" / "r.jsonl") in capsys.readouterr().out


def interrupting(monkeypatch: pytest.MonkeyPatch, at: int, *, committed: bool) -> None:
    """Let the user press Ctrl-C at a file, before or after it is in the store."""
    update, calls = Store._update_one, []

    def interrupted(self: Store, *arguments: Any) -> Any:
        calls.append(1)
        done = update(self, *arguments) if committed or len(calls) < at else None
        if len(calls) == at:
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(Store, "_update_one", interrupted)


@pytest.mark.parametrize("library", ["typer", "torch", "pyarrow"])
def test_an_interrupt_while_libraries_are_loaded_is_one_line(tmp_path: Path, library: str) -> None:
    (tmp_path / f"{library}.py").write_text("raise KeyboardInterrupt")
    (tmp_path / "a.csv").write_text("x,y\n1,a\n2,b\n")
    command = [sys.executable, "-m", "recollect", "columns", str(tmp_path / "a.csv")]
    root = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(root)])}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (130, "recollect: interrupted: nothing was changed\n")


@pytest.mark.parametrize(
    ("at", "committed", "message"),
    [
        (1, False, "recollect: interrupted: nothing was changed\n"),
        (1, True, "recollect: interrupted: 1 of 3 files was taken\n"),
        (3, False, "recollect: interrupted: 2 of 3 files were taken\n"),
    ],
)
def test_an_interrupt_says_what_was_done(
    tmp_path: Path, at: int, committed: bool, message: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    paths = small_store(tmp_path)
    interrupting(monkeypatch, at, committed=committed)
    assert stopped("update", tmp_path / "s", *paths) == 130
    assert capsys.readouterr().err == message


def test_a_signal_ends_a_waiting_command_with_one_line(tmp_path: Path) -> None:
    [path] = small_store(tmp_path, 1)
    command = [sys.executable, "-m", "recollect", "update", str(tmp_path / "s"), str(path)]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background ignores it
    with (
        files.locked(tmp_path / "s" / "lock"),
        subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
    ):
        signal.signal(signal.SIGINT, before)
        assert process.stderr is not None
        assert "waiting" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert process.stderr.read() == "recollect: interrupted: nothing was changed\n"


def test_json_tells_what_was_taken_before_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = small_store(tmp_path)
    paths[2].write_bytes(b"PAR1 it says")
    assert stopped("update", tmp_path / "s", *paths, "--json") == 2
    told = capsys.readouterr()
    assert [answer["seen"] for answer in json.loads(told.out)] == [20, 40]
    assert told.err.count("\n") == 1 and "2.parquet" in told.err


def test_progress_is_shown_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[object] = []

    class Output:
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...
        def clear_output(self, wait: bool = False) -> None: ...
        def close(self) -> None: ...

    for name, parts in {
        "IPython": {},
        "IPython.display": {"display": lambda *things, **_: shown.extend(things)},
        "ipywidgets": {"Output": Output},
    }.items():
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        for part, value in parts.items():
            setattr(module, part, value)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    with progress_bar("choosing", total=2) as bar:
        bar.advance()
    assert shown
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    monkeypatch.setattr("recollect.progress.find_spec", lambda name: None)
    shown.clear()
    with progress_bar("choosing", total=2) as bar:  # without widgets rich would warn, so there is no bar
        bar.advance()
    assert not shown


def test_a_log_gets_a_line_now_and_then_with_the_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr("recollect.progress.time.monotonic", lambda: now[0])
    with progress_bar("choosing", total=1000) as bar:
        for _ in range(100):
            now[0] += 1.0
            bar.advance()
    assert capsys.readouterr().err.splitlines() == [
        "choosing: 3%, about 16 minutes left",
        "choosing: 6%, about 16 minutes left",
        "choosing: 9%, about 15 minutes left",
    ]


def test_bars_within_bars_are_shown_in_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rich.console.Console, "is_terminal", True)
    with progress_bar("all", total=2) as outer, progress_bar("one", total=1) as inner:
        inner.advance()
        outer.advance()
    shown = capsys.readouterr().err
    assert "one" in shown and "1/1" in shown and "all" in shown and "1/2" in shown
