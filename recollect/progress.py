"""Progress with the time left: a bar where somebody watches, a line now and then in a log."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # rich is imported when there is something to show
    from rich.progress import Progress, TaskID


class Bar:
    """Something to tell how far the work has come."""

    def advance(self, steps: float = 1) -> None:
        """Report `steps` more steps as done."""


class _RichBar(Bar):
    def __init__(self, progress: "Progress", task: "TaskID") -> None:
        self._progress, self._task = progress, task

    def advance(self, steps: float = 1) -> None:
        self._progress.advance(self._task, steps)


EVERY = 30.0
"""Seconds between lines, where there is no terminal."""


class _Lines(Bar):
    """Says now and then how far it is; nothing of what is over soon."""

    def __init__(self, description: str, total: int | None) -> None:
        self._description, self._total, self._done = description, total, 0.0
        self._start = self._last = time.monotonic()

    def advance(self, steps: float = 1) -> None:
        self._done += steps
        now = time.monotonic()
        if now - self._last < EVERY:
            return
        from recollect.terminal import lasting

        self._last = now
        told = f"{self._done:,.0f} so far"
        if self._total:
            share = min(self._done / self._total, 1.0)
            left = (now - self._start) * (1 - share) / share if share else 0.0
            told = f"{share:.0%}, {lasting(left)} left"
        print(f"{self._description}: {told}", file=sys.stderr, flush=True)


@contextmanager
def progress_bar(description: str, total: int | None, *, show: bool = True) -> Iterator[Bar]:
    """A bar on standard error, or in a notebook, for `total` steps; in a log, a line every half minute.

    Example:
        >>> with progress_bar("choosing", total=2, show=False) as bar:
        ...     bar.advance()
    """
    if not show:
        yield Bar()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    # In a notebook rich draws by way of ipywidgets, and warns at every step where there are none.
    watched = find_spec("ipywidgets") is not None if console.is_jupyter else console.is_terminal
    if not watched:
        yield _Lines(description, total)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield _RichBar(progress, progress.add_task(description, total=total))
