"""Importing what a package offers once somebody asks for it, so that a command can answer before torch is there."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def on_demand(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """A `__getattr__` for a package, which imports the module that a name is from, or that has it.

    Args:
        package: its name.
        homes: the names that each of its modules has for it.

    Example:
        >>> on_demand("recollect", {"pursuit": ["pursue"]})("pursue")  # doctest: +ELLIPSIS
        <function pursue at ...>
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def find(name: str) -> Any:
        if name in home_of:
            return getattr(import_module(f"{package}.{home_of[name]}"), name)
        if not name.startswith("_") and find_spec(f"{package}.{name}") is not None:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
