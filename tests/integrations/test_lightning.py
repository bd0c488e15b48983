"""Lightning: the memory follows the fits, goes into checkpoints, and its weights arrive in the loss of a step."""

import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import CombinedLoader
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import recollect as rc
from recollect.integrations.lightning import RehearsalCallback
from recollect.randomness import seeded

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning.*")


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2))


class Module(LightningModule):
    """Trains on new examples and, if there are any, remembered ones, as the guide shows."""

    def __init__(self, n_new: int, memory: rc.Memory) -> None:
        super().__init__()
        with seeded(0):
            self.model = make_model()
        self.n_new, self.n_old = n_new, memory.seen
        self.losses: list[float] = []

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        inputs, targets = batch["new"] if isinstance(batch, dict) else batch
        loss = F.cross_entropy(self.model(inputs), targets)
        if isinstance(batch, dict):
            inputs, targets, weights = batch["kept"]
            losses = F.cross_entropy(self.model(inputs), targets, reduction="none")
            remembered = (weights * losses).sum() / weights.sum()
            loss = (self.n_new * loss + self.n_old * remembered) / (self.n_new + self.n_old)
        self.losses.append(float(loss.detach()))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


def task(n: int, seed: int) -> TensorDataset:
    g = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(n, 3, generator=g), torch.randint(2, (n,), generator=g))


def make_memory() -> rc.GradientMatching:
    return rc.GradientMatching(make_model, 8, inits=2, dim=20)


def fitted(folder: Path, memory: rc.Memory, module: Module, data: Any, *, path: Any = None, **options: Any) -> Trainer:
    settings: dict[str, Any] = {"max_epochs": 1, "accelerator": "cpu", "devices": 1, "logger": False}
    settings |= {"enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": folder}
    with seeded(0), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's own, about the machine
        trainer = Trainer(callbacks=[RehearsalCallback(memory)], **{**settings, **options})
        trainer.fit(module, data, ckpt_path=path)
    return trainer


def both(new: TensorDataset, memory: rc.Memory) -> CombinedLoader:
    parts = {"new": DataLoader(new, 10, shuffle=True), "kept": DataLoader(memory.dataset, 8)}
    return CombinedLoader(parts, "max_size_cycle")


def test_the_memory_is_shown_each_fit_once_and_the_loss_equals_the_one_by_hand(tmp_path: Path) -> None:
    first, second, memory = task(30, 0), task(10, 1), make_memory()
    fitted(tmp_path, memory, Module(30, memory), DataLoader(first, 10, shuffle=True), max_epochs=2)
    by_hand = make_memory()
    by_hand.update(*first.tensors)
    assert memory.seen == 30 and torch.equal(memory.batch.weights, by_hand.batch.weights)

    module = Module(10, memory)
    start = [p.detach().clone().requires_grad_() for p in module.model.parameters()]
    fitted(tmp_path, memory, module, both(second, memory))
    total = torch.tensor(0.0)  # over all that was seen, one example after the other
    share = 30 / float(by_hand.batch.weights.sum())
    ones = torch.ones(10)
    for examples in (
        zip(*second.tensors, ones, strict=True),
        zip(by_hand.batch.inputs, by_hand.batch.targets, share * by_hand.batch.weights, strict=True),
    ):
        for x, y, w in examples:
            total = total + w * F.cross_entropy(x @ start[0].T + start[1], y)
    loss = total / 40
    loss.backward()
    assert len(module.losses) == 1 and module.losses[0] == pytest.approx(float(loss.detach()), rel=1e-5)
    for before, after in zip(start, module.model.parameters(), strict=True):
        torch.testing.assert_close(after.detach(), (before - 0.5 * before.grad).detach())
    by_hand.update(*second.tensors)  # what was remembered is not counted again
    assert memory.seen == 40 and torch.equal(memory.batch.ids, by_hand.batch.ids)


def test_a_trial_run_of_a_batch_leaves_the_memory_as_it_was(tmp_path: Path) -> None:
    memory = make_memory()
    fitted(tmp_path, memory, Module(30, memory), DataLoader(task(30, 0), 10), fast_dev_run=True)
    assert memory.seen == 0


def test_the_memory_goes_into_the_checkpoint_and_comes_back_whole(tmp_path: Path) -> None:
    memory = make_memory()
    trainer = fitted(tmp_path, memory, Module(30, memory), DataLoader(task(30, 0), 10))
    trainer.save_checkpoint(tmp_path / "after.ckpt")
    again = make_memory()
    with seeded(0):
        fitted(
            tmp_path, again, Module(30, again), DataLoader(task(30, 0), 10), path=tmp_path / "after.ckpt", max_epochs=1
        )
    # The fit was over, so that nothing was trained; the memory is that of the checkpoint, shown the data once more.
    expected = make_memory()
    expected.update(*task(30, 0).tensors)
    restored = make_memory()
    checkpoint = torch.load(tmp_path / "after.ckpt", weights_only=True)
    restored.load_state_dict(next(iter(v for k, v in checkpoint["callbacks"].items() if "RehearsalCallback" in k)))
    for one, other in ((restored, expected), (restored, memory)):
        assert torch.equal(one.batch.ids, other.batch.ids) and torch.equal(one.batch.weights, other.batch.weights)
    assert again.seen in (30, 60)


def test_a_checkpoint_of_the_middle_of_a_fit_holds_the_memory_before_it(tmp_path: Path) -> None:
    memory = make_memory()
    trainer = fitted(tmp_path, memory, Module(30, memory), DataLoader(task(30, 0), 10), enable_checkpointing=True)
    checkpoint = torch.load(trainer.checkpoint_callback.best_model_path, weights_only=True)
    (state,) = (v for k, v in checkpoint["callbacks"].items() if "RehearsalCallback" in k)
    assert state["seen"] == 0 and memory.seen == 30


def test_a_memory_that_looks_at_the_model_is_given_it(tmp_path: Path) -> None:
    class Seen(rc.Reservoir):
        needs_model = True

        def choose(self, held: Any, arrived: Any, model: Any) -> Any:
            self.model = model
            return super().choose(held, arrived, model)

    memory = Seen(5)
    module = Module(30, memory)
    fitted(tmp_path, memory, module, DataLoader(task(30, 0), 10))
    assert memory.model is module


def test_what_cannot_be_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="memory must be a recollect memory, got dict"):
        RehearsalCallback({})
    memory = make_memory()
    memory.update(*task(30, 0).tensors)
    loader = CombinedLoader({"fresh": DataLoader(task(10, 1), 10), "kept": DataLoader(memory.dataset, 8)}, "max_size")
    module = Module(10, memory)
    monkeypatch.setattr(module, "training_step", lambda batch, index=0: module.model(batch["fresh"][0]).sum())
    with pytest.raises(ValueError, match="must be in the loader 'new' of the CombinedLoader, got none"):
        fitted(tmp_path, memory, module, loader)
    assert memory.seen == 30
