"""What to pass and what to call, in the words of who asks: options and commands in a shell, arguments in Python.

Sentences are written once. Who runs a command says so, with `in_shell`; everybody else is in Python.
"""

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields
from functools import wraps
from inspect import isgeneratorfunction
from pathlib import Path
from typing import Any

_shell: ContextVar[bool] = ContextVar("recollect_shell", default=False)

_COMMANDS = {"init": "create", "set": "change", "update": "update", "recover": "recover"}
_ARGUMENTS = {"model": "make_network", "cluster": "workers"}  # whose values are others in Python


@contextmanager
def in_shell() -> Iterator[None]:
    """Meanwhile sentences name the options of commands."""
    token = _shell.set(True)
    try:
        yield
    finally:
        _shell.reset(token)


def option(name: str, *values: Any) -> str:
    """An option, with its value if one is advised.

    Args:
        name: as an argument in Python.
        *values: its value, or ... for any; a column for "ignore"; a column and what it is, if that is known, for
            "kinds"; True for a switch.

    Example:
        >>> print(option("min_per_class", 1), option("skip_bad_rows", True), option("kinds", "my day", "date"))
        min_per_class=1 reading=Reading(skip_bad_rows=True) kinds={'my day': 'date'}
        >>> with in_shell():
        ...     print(option("min_per_class", 1), option("skip_bad_rows", True), option("kinds", "my day", "date"))
        --min-per-class 1 --skip-bad-rows --as 'my day=date'
    """
    return _for_shell(name, values) if _shell.get() else _for_python(name, values)


def _for_shell(name: str, values: tuple[Any, ...]) -> str:
    if name == "kinds":
        return " ".join(["--as", *([shlex.quote("=".join([*values, "KIND"][:2]))] if values else [])])
    given = [shlex.quote(str(value)) for value in values if value is not True and value is not ...]
    return " ".join([f"--{name.replace('_', '-')}", *given])


def _for_python(name: str, values: tuple[Any, ...]) -> str:
    from recollect.tables.reading.dialect import Reading

    if name == "kinds" and values:
        column, kind = [*map(repr, values), "..."][:2]
        return f"kinds={{{column}: {kind}}}"
    if name == "ignore" and values:
        return f"ignore=[{values[0]!r}]"
    value = "..." if not values or values[0] is ... else repr(values[0])
    if name in {field.name for field in fields(Reading)}:
        return f"reading=Reading({name}={value})"
    return f"{name}={value}" if values else _ARGUMENTS.get(name, name)


def command(name: str, folder: Path | None = None, advised: str = "") -> str:
    """A command, or the method of a store that does the same.

    Args:
        name: of the command.
        folder: of the store, where it is to be named.
        advised: an option that it should have.

    Example:
        >>> print(command("init"))
        `Store.create`
        >>> with in_shell():
        ...     print(command("init"))
        `recollect init`
    """
    if _shell.get():
        words = ["recollect", name, *([shlex.quote(str(folder))] if folder else []), *([advised] if advised else [])]
        return f"`{' '.join(words)}`"
    return f"`Store.{_COMMANDS[name]}`" + (f" with {advised}" if advised else "")


def spoken(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same for another process, where it speaks as this one does."""
    shell = _shell.get()

    @wraps(function)
    def answers(*arguments: Any) -> Any:
        from recollect.tables.wording import speak  # that process's own, as no context can be sent

        speak(shell)
        return function(*arguments)

    @wraps(function)
    def yields(*arguments: Any) -> Iterator[Any]:
        yield from answers(*arguments)

    return yields if isgeneratorfunction(function) else answers


def speak(shell: bool) -> None:
    """From now on, in this process."""
    _shell.set(shell)
