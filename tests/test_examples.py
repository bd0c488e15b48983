"""The examples are short, and they run."""

import ast
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_runs(path: Path, tmp_path: Path) -> None:
    assert len(path.read_text().splitlines()) < 60
    if absent := missing(path):
        pytest.skip(f"{', '.join(absent)} must be installed")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:recollect", str(path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        timeout=600,
    )
    assert not done.returncode, done.stderr
    assert done.stdout.strip()
