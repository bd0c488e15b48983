"""Warnings that point at the line of whoever uses the library, however deep inside they are given."""

import sys
import warnings
from pathlib import Path

_HERE = str(Path(__file__).parent)
_BETWEEN = ("contextlib.py", "functools.py")  # of decorators around what is public


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn, with the file and line from which the library was called."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _is_inside(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _is_inside(file: str) -> bool:
    return file.startswith(_HERE) or file.endswith(_BETWEEN)
