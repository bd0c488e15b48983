"""Split MNIST in Avalanche: its own replay buffers, and memories with their weights in the loss.

    .venv-avalanche/bin/python benchmarks/avalanche_replay.py --sizes 200 1000 --seeds 3

Five tasks of two digits, one head, no task labels. Prints the accuracy on all digits after the last task as it comes.
The training part is a subset of 10,000 images unless said otherwise.
"""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.append(str(Path(__file__).parent.parent))
import recollect as rc
from recollect.randomness import seeded
from tests.integrations.torchvision_operators import define

LIBRARY = define()  # where torchvision was built for another torch
from avalanche.benchmarks import tensors_benchmark  # noqa: E402
from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin  # noqa: E402
from avalanche.training.storage_policy import ClassBalancedBuffer, ReservoirSamplingBuffer  # noqa: E402
from avalanche.training.supervised import Naive  # noqa: E402

from recollect.integrations.avalanche import WeightedReplayPlugin  # noqa: E402

make_model = partial(rc.models.mlp, 784, 10)

PLUGINS: dict[str, Callable[[int, int], Any]] = {
    "Avalanche, reservoir": lambda n, seed: ReplayPlugin(n, storage_policy=ReservoirSamplingBuffer(n)),
    "Avalanche, class-balanced": lambda n, seed: ReplayPlugin(n, storage_policy=ClassBalancedBuffer(n)),
    "weighted, reservoir": lambda n, seed: WeightedReplayPlugin(rc.Reservoir(n, seed=seed)),
    "weighted, clustering": lambda n, seed: WeightedReplayPlugin(rc.Clustering(n, seed=seed)),
    "weighted, gradient matching": lambda n, seed: WeightedReplayPlugin(
        rc.GradientMatching(make_model, n, layers="all", seed=seed)
    ),
}


def accuracy(plugin: Any, parts: list[Any], test: Any, epochs: int) -> float:
    model = make_model()
    strategy = Naive(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-3),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=32,
        train_epochs=epochs,
        plugins=[plugin],
        evaluator=EvaluationPlugin(),
    )
    benchmark = tensors_benchmark(parts, [test], task_labels=[0] * len(parts), complete_test_set_only=True)
    for experience in benchmark.train_stream:
        strategy.train(experience)
    with torch.no_grad():
        return 100 * float((strategy.model.eval()(test[0]).argmax(1) == test[1]).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[200, 1000])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=4)
    arguments = parser.parse_args()
    dataset = rc.datasets.load("mnist")
    for seed in range(arguments.seeds):
        rows = torch.randperm(len(dataset.train[1]), generator=torch.Generator().manual_seed(seed))[: arguments.rows]
        inputs, targets = dataset.train[0][rows].flatten(1), dataset.train[1][rows]
        parts = [(inputs[targets // 2 == task], targets[targets // 2 == task]) for task in range(5)]
        test = (dataset.test[0].flatten(1), dataset.test[1])
        for size in arguments.sizes:
            for name, make in PLUGINS.items():
                start = time.perf_counter()
                with seeded(seed):
                    found = accuracy(make(size, seed), parts, test, arguments.epochs)
                seconds = time.perf_counter() - start
                print(f"seed {seed}  replay {size:5}  {name:28} {found:5.1f}  {seconds:6.1f} s", flush=True)


if __name__ == "__main__":
    main()
