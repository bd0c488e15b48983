"""Tables that benchmarks print."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    table = Table(title=title)
    for i, name in enumerate(header):
        table.add_column(name, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*map(_text, row))
    Console(width=120).print(table)


def print_row(*cells: object) -> None:
    """One row of a table that grows while a long benchmark runs, in Markdown."""
    print("|", " | ".join(map(_text, cells)), "|", flush=True)


def _text(cell: object) -> str:
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)
