"""What to install when a framework is not there."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needed_for(extra: str) -> Iterator[None]:
    """Import a framework's modules; where one is missing, the error names the command that installs it.

    Example:
        >>> with needed_for("huggingface"):
        ...     import no_such_module
        Traceback (most recent call last):
        ...
        ModuleNotFoundError: recollect.integrations.huggingface needs the package no_such_module, which is not
        installed: pip install "recollect[huggingface]"
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"recollect.integrations.{extra} needs the package {error.name}, which is not installed: "
            f'pip install "recollect[{extra}]"',
            name=error.name,
        ) from None
