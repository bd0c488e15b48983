import os
import random
import shutil
from collections.abc import Iterator
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch

from recollect import datasets
from recollect.cli import main

hypothesis.settings.register_profile("recollect", deadline=None, derandomize=True, max_examples=60)
hypothesis.settings.load_profile("recollect")
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def global_random_state_is_left_alone() -> Iterator[None]:
    """No code of ours may draw from, or reseed, the global generators."""
    before, before_numpy = torch.get_rng_state(), np.random.get_state(legacy=False)  # noqa: NPY002
    before_python = random.getstate()
    yield
    assert random.getstate() == before_python, "Python's global random state was changed"
    assert torch.equal(torch.get_rng_state(), before), "torch's global random state was changed"
    after = np.random.get_state(legacy=False)  # noqa: NPY002
    assert str(after) == str(before_numpy), "numpy's global random state was changed"


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def assert_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A command ends with exit code 2 and one line that says why."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def needs_data(name: str) -> pytest.MarkDecorator:
    missing = datasets.find(name) is None
    where = os.environ.get("RECOLLECT_DATA", "unset")
    return pytest.mark.skipif(missing, reason=f"{name}.npz is not there (RECOLLECT_DATA is {where})")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    executable = shutil.which("chromium")
    if executable is None:
        pytest.skip("no chromium on this machine: install Debian's package to test the page in a browser")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync", "--no-first-run"]
    with playwright.sync_playwright() as running:
        launched = running.chromium.launch(executable_path=executable, args=flags)
        yield launched
        launched.close()
