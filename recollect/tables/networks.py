"""The user's own network, found by its name."""

import importlib
import re
import sys
from collections.abc import Callable

from torch import nn

MakeNetwork = Callable[[int, int], nn.Module]


def load_network(name: str) -> MakeNetwork:
    """The user's own function, named as "module:function"; it is given the numbers of features and of outputs."""
    match = re.fullmatch(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)", name)
    if match is None:
        raise ValueError(f"the model must be given as module:function, got {name!r}")
    sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(match[1]), match[2], None)
    except ImportError as error:
        raise ValueError(f"the model's module must import, got {error}") from None
    finally:
        sys.path.remove("")
    if not callable(found):
        raise ValueError(f"the model must be a function of the module {match[1]}, got no {match[2]!r} there")
    return found  # type: ignore[no-any-return]
