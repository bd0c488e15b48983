"""What people see in a terminal: plain lines, in which nothing that came from outside can act."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.markup import escape


class Interrupted(Exception):  # noqa: N818  # nothing went wrong
    """The user stopped a command; says what had been done by then."""


def printable(text: object) -> str:
    r"""Text with its control characters written out, so that they reach no terminal.

    Example:
        >>> print(printable("a name\n\x1b[31m"))
        a name\n\x1b[31m
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def cell(text: object) -> str:
    """The same for a cell of a table, where brackets have a meaning of their own."""
    return escape(printable(text))


def say(*lines: object, err: bool = False) -> None:
    """Print lines as they are, whatever is in them."""
    for line in lines:
        typer.echo(printable(line), err=err)


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Show warnings to users as a line each, without the place in the code that Python adds."""
    with warnings.catch_warnings():
        shown = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, UserWarning):
                say(f"recollect: warning: {message}", err=True)
            else:
                shown(message, category, *where, **more)

        warnings.showwarning = show
        yield


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun, in the right number.

    Example:
        >>> counted(1, "row"), counted(2000, "row"), counted(2, "class", "classes")
        ('1 row', '2,000 rows', '2 classes')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def lasting(seconds: float) -> str:
    """A duration for people, rounded as they would.

    Example:
        >>> lasting(3.2), lasting(48), lasting(200), lasting(5000)
        ('a few seconds', 'about 50 seconds', 'about 3 minutes', 'about 1 hour 25 minutes')
    """
    if seconds < 8:
        return "a few seconds"
    if seconds < 55:
        return f"about {round(seconds, -1):.0f} seconds"
    minutes = round(seconds / 60) if seconds < 3600 else 5 * round(seconds / 300)
    hours, minutes = divmod(max(minutes, 1), 60)
    parts = [counted(hours, "hour")] if hours else []
    return " ".join(["about", *parts, *([counted(minutes, "minute")] if minutes or not hours else [])])
