"""Progress bars with the time left, silent where nobody watches."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class Bar:
    """Something to tell how far the work has come."""

    def advance(self, steps: float = 1) -> None:
        """Report `steps` more steps as done."""

    def describe(self, description: str) -> None:
        """Say what is being done now."""


class _RichBar(Bar):
    def __init__(self, progress: Progress, task: int) -> None:
        self._progress, self._task = progress, task

    def advance(self, steps: float = 1) -> None:
        self._progress.advance(self._progress.tasks[self._task].id, steps)

    def describe(self, description: str) -> None:
        self._progress.update(self._progress.tasks[self._task].id, description=description)


@contextmanager
def progress_bar(description: str, total: int, *, show: bool = True) -> Iterator[Bar]:
    """A bar on standard error for `total` steps; nothing at all if that is not a terminal.

    Example:
        >>> with progress_bar("choosing", total=2, show=False) as bar:
        ...     bar.advance()
    """
    console = Console(stderr=True)
    if not (show and console.is_terminal):
        yield Bar()
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
        task = progress.add_task(description, total=total)
        yield _RichBar(progress, progress.task_ids.index(task))
