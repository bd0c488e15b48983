"""Lightning: a memory that is revised at the end of each fit, and goes into the checkpoints.

trainer = Trainer(callbacks=[RehearsalCallback(memory)])
trainer.fit(module, CombinedLoader({"new": DataLoader(task, 32), "kept": DataLoader(memory.dataset, 32)}))
"""

from collections.abc import Mapping
from typing import Any

from recollect.integrations.extras import needed_for
from recollect.memories import Memory

with needed_for("lightning"):
    from lightning.pytorch import Callback


class RehearsalCallback(Callback):  # type: ignore[misc]
    """Updates a memory after each fit, and saves it in checkpoints.

    A checkpoint that is written during a fit holds the memory as it was before the fit, so that the fit can be resumed.
    Under DDP every process updates its memory with the whole dataset, so that all memories stay equal.

    Args:
        memory: any memory of `recollect`.
        new: in a `CombinedLoader`, the name or the number of the loader whose examples are new. The memory is not
            updated with those of other loaders.

    Example:
        >>> from recollect import Reservoir
        >>> RehearsalCallback(Reservoir(10)).state_dict()["seen"]
        0
    """

    def __init__(self, memory: Memory, *, new: str | int = "new") -> None:
        if not isinstance(memory, Memory):
            raise ValueError(f"memory must be a recollect memory, got {type(memory).__name__}")
        self.memory, self.new = memory, new

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Update the memory with the new examples, each once and in their order, however the loader shuffles."""
        if trainer.state.status.value != "running":
            return  # it was stopped by an error or by the user: not all of the data may have been trained on
        if trainer.fast_dev_run:
            return  # a few batches, to see that all is well
        loader = trainer.train_dataloader
        if isinstance(loader, Mapping | list | tuple):  # what was given to a CombinedLoader
            try:
                loader = loader[self.new]  # type: ignore[index]
            except (KeyError, IndexError, TypeError):
                raise ValueError(
                    f"the new examples must be in the loader {self.new!r} of the CombinedLoader, got none of this "
                    "name: pass new= to RehearsalCallback"
                ) from None
        data = getattr(loader, "dataset", loader)
        self.memory.update(data, model=pl_module if self.memory.needs_model else None)

    def state_dict(self) -> dict[str, Any]:
        """The whole memory, for the checkpoint."""
        return self.memory.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue exactly where the memory stopped.

        Args:
            state_dict: what was in the checkpoint.
        """
        self.memory.load_state_dict(state_dict)
