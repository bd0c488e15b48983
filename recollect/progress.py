"""Progress bars with the time left, silent where nobody watches."""

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


@contextmanager
def progress_bar(description: str, total: int | None, *, show: bool = True) -> Iterator[Bar]:
    """A bar on standard error, or in a notebook, for `total` steps; nothing at all where nobody watches.

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
        yield _RichBar(progress, progress.add_task(description, total=total))
