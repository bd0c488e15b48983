"""Writes docs/reference/command-line.md from the commands themselves; `make docs` runs it, and a test compares."""

from pathlib import Path
from typing import Any

import typer

from recollect.cli import app

PAGE = Path(__file__).parent / "reference" / "command-line.md"

OPENING = """# Command line

<!-- Written by docs/commands.py: do not edit. -->

All commands begin with `recollect`. For those about tables, [tables in files](../tables.md) is a tutorial. Bad input
ends with one sentence and exit code 2, an interrupt with exit code 130.

"""


def write_page() -> str:
    """A table of all commands, then a section on each."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    first = [f"| [`{name}`](#recollect-{name}) | {_sentences(one)[0]} |" for name, one in commands.items()]
    return OPENING + "\n".join(["| | |", "|---|---|", *first, "", *map(_section, commands.items())])


def _section(named: tuple[str, Any]) -> str:
    name, command = named
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    usage = " ".join([f"recollect {name}", *(_usage(one) for one in arguments), "[OPTIONS]"])
    lines = [f"## recollect {name}", "", f"`{usage}`", "", " ".join(_sentences(command)), ""]
    rows = [_row(one) for one in command.params if one.name != "help"]
    return "\n".join([*lines, *["| | what it does |", "|---|---|"][: 2 * bool(rows)], *rows, ""])


def _usage(argument: Any) -> str:
    name = argument.name.upper() + ("..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def _row(one: Any) -> str:
    shown = _usage(one) if one.param_type_name == "argument" else ", ".join([*one.opts, *one.secondary_opts])
    default = one.default
    if one.required:
        told = " Required."
    elif default is None or isinstance(default, bool) or default in ("", ()) or callable(default):
        told = ""
    else:
        told = f" Default: `{default}`."
    return f"| `{shown}` | {one.help}{told} |"


def _sentences(command: Any) -> list[str]:
    first, _, rest = " ".join(command.help.split()).partition(". ")
    return [first.rstrip(".") + ".", rest] if rest else [first]


if __name__ == "__main__":
    PAGE.write_text(write_page())
