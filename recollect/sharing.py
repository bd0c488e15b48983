"""State of the whole process that several threads borrow at once."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from threading import Lock


class Shared:
    """A context that is entered with the first thread that asks for it, and left with the last.

    If each thread entered it by itself, one could put back what another had changed.

    Example:
        >>> @Shared
        ... @contextmanager
        ... def quiet():
        ...     print("begin")
        ...     yield
        ...     print("end")
        >>> with quiet(), quiet():
        ...     pass
        begin
        end
    """

    def __init__(self, context: Callable[[], AbstractContextManager[object]]) -> None:
        self._context, self._lock, self._inside, self._stack = context, Lock(), 0, ExitStack()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if not self._inside:
                self._stack.enter_context(self._context())
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    self._stack.close()
