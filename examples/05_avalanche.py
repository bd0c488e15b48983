"""Replay in Avalanche with the weights of the memory in the loss: three tasks of digits, one head."""

import torch
from avalanche.benchmarks import tensors_benchmark
from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin
from avalanche.training.supervised import Naive

import recollect as rc
from recollect.integrations.avalanche import WeightedReplayPlugin

dataset = rc.datasets.load("digits")
(inputs, targets), test = [(part[0].flatten(1), part[1]) for part in (dataset.train, dataset.test)]
tasks = [(inputs[rows], targets[rows]) for rows in (targets < 4, (targets >= 4) & (targets < 7), targets >= 7)]


def make_model() -> torch.nn.Module:
    return rc.models.mlp(64, 10, hidden=(32,))


def accuracy(plugin: object) -> float:
    torch.manual_seed(0)
    model = make_model()
    strategy = Naive(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=3e-3),
        criterion=torch.nn.CrossEntropyLoss(),
        train_mb_size=32,
        train_epochs=8,
        plugins=[plugin],
        evaluator=EvaluationPlugin(),
    )
    benchmark = tensors_benchmark(tasks, [test], task_labels=[0, 0, 0], complete_test_set_only=True)
    for experience in benchmark.train_stream:
        strategy.train(experience)
    return float((model.eval()(test[0]).argmax(1) == test[1]).float().mean())


print(f"Avalanche's replay        {accuracy(ReplayPlugin(mem_size=40)):.3f}")
memory = rc.GradientMatching(make_model, capacity=40)
print(f"chosen and weighted       {accuracy(WeightedReplayPlugin(memory)):.3f}")
print(memory)
