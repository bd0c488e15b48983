"""The examples are short, and they run."""

import ast
import runpy
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from recollect.randomness import seeded
from tests.test_docs import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def missing(path: Path) -> list[str]:
    """Packages that an example imports and that are not installed here."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    return sorted(name for name in {name.partition(".")[0] for name in names} if find_spec(name) is None)


def test_examples_are_numbered() -> None:
    numbers = [int(path.name[:2]) for path in EXAMPLES]
    assert len(set(numbers)) == len(numbers) >= 2


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs an example in an empty folder; a warning is an error, as everywhere."""

    def run(path: Path) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [str(path)])
        with seeded(0):  # examples seed the global state, or draw from it
            runpy.run_path(str(path), run_name="__main__")
        assert capsys.readouterr().out.strip()

    return run


def check_installed(path: Path) -> None:
    if absent := missing(path):
        pytest.skip(f"{', '.join(absent)} must be installed")


def shorten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a language model be trained for three steps, and choose at one draw: the rest only takes time."""
    from recollect.integrations import huggingface

    train = huggingface.WeightedTrainer.train

    def few_steps(self: Any) -> Any:
        self.args.max_steps = 3
        return train(self)

    monkeypatch.setattr(huggingface.WeightedTrainer, "train", few_steps)
    monkeypatch.setattr(huggingface, "select", partial(huggingface.select, inits=1))


LONG = {"03_language_model": shorten}


@pytest.mark.filterwarnings("ignore::Warning:lightning.*")  # Lightning's own, about the machine and about torch
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_runs(path: Path, monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    assert len(path.read_text().splitlines()) < 60
    check_installed(path)
    LONG.get(path.stem, lambda _: None)(monkeypatch)
    run(path)


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_an_example_that_takes_long_runs_to_its_end(name: str, run: Any) -> None:
    path = ROOT / "examples" / f"{name}.py"
    check_installed(path)
    run(path)
