"""A framework that is not installed is named, with the command that installs it."""

import importlib
import sys

import pytest

FIRST_OF = {
    "sklearn": "sklearn.base",
    "huggingface": "datasets",
    "lightning": "lightning.pytorch",
    "avalanche": "avalanche",
}


@pytest.mark.parametrize("extra", FIRST_OF)
def test_a_missing_package_names_the_command_that_installs_it(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("recollect.integrations.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, FIRST_OF[extra], None)
    with pytest.raises(ModuleNotFoundError, match=rf'pip install "recollect\[{extra}\]"'):
        importlib.import_module(f"recollect.integrations.{extra}")


def test_the_package_itself_imports_no_framework() -> None:
    assert not any(name.startswith("recollect.integrations") for name in vars(importlib.import_module("recollect")))
