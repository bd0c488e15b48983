"""Tables that benchmarks print."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    table = Table(title=title)
    for i, name in enumerate(header):
        table.add_column(name, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*[f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row])
    Console(width=120).print(table)
