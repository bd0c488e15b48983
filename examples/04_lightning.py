"""Digits arrive in three tasks; a memory of 40 goes with the trainer, into its checkpoints and into the loss."""

import logging

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import CombinedLoader
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import recollect as rc
from recollect.integrations.lightning import RehearsalCallback

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
dataset = rc.datasets.load("digits")
(inputs, targets), test = [(part[0].flatten(1), part[1]) for part in (dataset.train, dataset.test)]
tasks = [(inputs[rows], targets[rows]) for rows in (targets < 4, (targets >= 4) & (targets < 7), targets >= 7)]


def make_model() -> torch.nn.Module:
    return rc.models.mlp(64, 10, hidden=(32,))


class Classifier(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model, self.n_new, self.n_old = make_model(), 0, 0

    def training_step(self, batch: dict, index: int) -> torch.Tensor:
        x, y = batch["new"]
        loss = F.cross_entropy(self.model(x), y)
        if "kept" in batch:  # the weights arrive in the loss
            x, y, weights = batch["kept"]
            kept = (weights * F.cross_entropy(self.model(x), y, reduction="none")).sum() / weights.sum()
            loss = (self.n_new * loss + self.n_old * kept) / (self.n_new + self.n_old)  # over everything seen
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


torch.manual_seed(0)
module, memory = Classifier(), rc.GradientMatching(make_model, capacity=40)
for task in tasks:
    loaders = {"new": DataLoader(TensorDataset(*task), batch_size=32, shuffle=True)}
    if len(memory):
        loaders["kept"] = DataLoader(memory.dataset, batch_size=32, shuffle=True)
    module.n_new, module.n_old = len(task[1]), memory.seen
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    trainer = Trainer(max_epochs=8, accelerator="cpu", callbacks=[RehearsalCallback(memory)], **quiet)
    trainer.fit(module, CombinedLoader(loaders, "max_size_cycle"))
    accuracy = rc.metrics.accuracy(module.model(test[0]), test[1])
    print(f"{memory.seen:4} seen, {len(memory)} kept, accuracy on all digits {accuracy:.3f}")
