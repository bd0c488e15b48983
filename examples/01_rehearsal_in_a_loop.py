"""A training loop of one's own that does not forget: digits arrive two classes at a time."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import recollect as rc

digits = rc.datasets.load("digits")
tasks = [TensorDataset(inputs, targets) for inputs, targets in rc.streams.class_incremental(digits).batches]


def make_model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))


def train(model: nn.Module, loader: DataLoader, epochs: int = 10) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        for inputs, targets, weights in loader:
            losses = nn.functional.cross_entropy(model(inputs), targets, reduction="none")
            optimizer.zero_grad()
            ((weights * losses).sum() / weights.sum()).backward()  # the weights arrive in the loss
            optimizer.step()


def accuracy(model: nn.Module) -> float:
    inputs, targets = digits.test
    with torch.no_grad():
        return rc.metrics.accuracy(model(inputs), targets)


memories = {
    "nothing kept": None,
    "20 at random": rc.Reservoir(capacity=20),
    "20 by gradient matching": rc.GradientMatching(make_model, capacity=20),
}
for name, memory in memories.items():
    torch.manual_seed(0)
    model = make_model()
    for task in tasks:
        # Each example comes as often as it weighs: new ones weigh one, remembered ones what they stand for.
        train(model, rc.rehearsal_loader(task, memory or rc.Reservoir(1), batch_size=50))
        if memory is not None:
            memory.update(task)  # a dataset or a loader: looked at once, all or nothing
    print(f"{name:25} {accuracy(model):.3f}")
