# ruff: noqa: E402
"""Avalanche: a memory is a storage policy, and its weights arrive in the loss. Run by `make test-avalanche`."""

import runpy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import recollect as rc
from recollect.randomness import seeded
from tests.integrations.torchvision_operators import define

if find_spec("avalanche") is None:
    pytest.skip("Avalanche has an environment of its own: make test-avalanche", allow_module_level=True)
LIBRARY = define()  # before Avalanche imports torchvision
pytest.importorskip("avalanche")  # which lets it warn, as of solvers that are not there

from avalanche.benchmarks import tensors_benchmark
from avalanche.benchmarks.utils import AvalancheDataset
from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin, SupervisedPlugin
from avalanche.training.supervised import Naive

from recollect.integrations.avalanche import MemoryBuffer, WeightedGDumbPlugin, WeightedReplayPlugin

pytestmark = pytest.mark.filterwarnings("ignore::Warning:avalanche.*", "ignore:.*deprecated.*", "ignore:No loggers")
EXAMPLE = Path(__file__).parents[2] / "examples" / "05_avalanche.py"


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4))


def data(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=g)
    return x, x.argmax(1)


def stream(tasks: tuple[int, ...] = (0, 0)) -> Any:
    parts = [data(40 + 20 * i, seed=i) for i in range(len(tasks))]
    return tensors_benchmark(parts, [data(10, seed=9)], task_labels=[*tasks], complete_test_set_only=True)


class Watch(SupervisedPlugin):
    """Notes each minibatch, its outputs and its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[list[torch.Tensor], torch.Tensor, float]] = []

    def before_backward(self, strategy: Any, **kwargs: Any) -> None:
        self.seen.append(([*strategy.mbatch], strategy.mb_output.detach(), float(strategy.loss.detach())))


def trained(plugins: list[Any], benchmark: Any, **options: Any) -> Any:
    with seeded(0):
        model = make_model()
        strategy = Naive(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            criterion=nn.CrossEntropyLoss(),
            train_mb_size=10,
            train_epochs=1,
            eval_mb_size=10,
            plugins=plugins,
            evaluator=EvaluationPlugin(),
            **options,
        )
        for experience in benchmark.train_stream:
            strategy.train(experience)
            strategy.eval(benchmark.test_stream)
    return strategy


MEMORIES: dict[str, Any] = {
    "GradientMatching": lambda: rc.GradientMatching(make_model, 12, inits=2, dim=20),
    "LocalGradientMatching": lambda: rc.LocalGradientMatching(12),
    "Reservoir": lambda: rc.Reservoir(12),
    "ClassBalanced": lambda: rc.ClassBalanced(12),
    "SlidingWindow": lambda: rc.SlidingWindow(12),
    "GSS": lambda: rc.GSS(12),
    "Clustering": lambda: rc.Clustering(12),
    "Herding": lambda: rc.Herding(12),
}


def test_the_loss_of_a_minibatch_equals_the_one_by_hand() -> None:
    watch, memory = Watch(), MEMORIES["GradientMatching"]()
    trained([WeightedReplayPlugin(memory, batch_size_mem=6), watch], stream())
    assert memory.seen == 100 and len(watch.seen) == 4 + 6
    for batch, outputs, loss in watch.seen[:4]:  # nothing is remembered yet
        assert loss == pytest.approx(float(F.cross_entropy(outputs, batch[1])), rel=1e-5)
    first = MEMORIES["GradientMatching"]()
    first.update(*data(40, seed=0))
    weight_of = {tuple(x.tolist()): float(w) for x, w in zip(first.batch.inputs, first.batch.weights, strict=True)}
    for (inputs, targets, weights, tasks), outputs, loss in watch.seen[4:]:
        assert len(inputs) == 16 and (weights[:10] == 1).all() and (tasks == 0).all()
        # Each pass shows all 60 new ones once, and 6 of 12 remembered in each of 6 steps: 3 times each.
        by_hand = [weight_of[tuple(x.tolist())] / 3 for x in inputs[10:]]
        assert weights[10:].tolist() == pytest.approx(by_hand, rel=1e-5)
        total = sum(float(w) * float(F.cross_entropy(o, t)) for w, o, t in zip(weights, outputs, targets, strict=True))
        assert loss == pytest.approx(total / float(weights.sum()), rel=1e-4)
    assert torch.cat([batch[2] for batch, _, _ in watch.seen[4:]]).sum() == pytest.approx(100, rel=0.2)


@pytest.mark.parametrize("name", MEMORIES)
def test_every_memory_is_a_storage_policy_of_avalanches_own_replay(name: str) -> None:
    memory = MEMORIES[name]()
    buffer = MemoryBuffer(memory)
    trained([ReplayPlugin(mem_size=12, storage_policy=buffer)], stream((0, 1)))
    assert memory.seen == 100 and isinstance(buffer.buffer, AvalancheDataset) and len(buffer.buffer) == len(memory)
    for (x, y, task), kept, target, i in zip(
        buffer.buffer, memory.batch.inputs, memory.batch.targets, memory.batch.ids, strict=True
    ):
        torch.testing.assert_close(torch.as_tensor(x), kept)
        assert int(y) == int(target) and int(task) == int(i >= 40)
    assert [*buffer.buffer.weights] == memory.batch.weights.tolist()


def test_gdumb_trains_on_what_is_kept_with_its_weights() -> None:
    watch, memory = Watch(), MEMORIES["GradientMatching"]()
    trained([WeightedGDumbPlugin(memory), watch], stream())
    assert len(watch.seen) == 2 + 2
    (_, targets, weights, _), outputs, loss = watch.seen[-1]
    by_hand = (weights * F.cross_entropy(outputs, targets, reduction="none")).sum() / weights.sum()
    assert weights.std() > 0.1 and loss == pytest.approx(float(by_hand), rel=1e-4)
    assert sum(float(batch[2].sum()) for batch, _, _ in watch.seen[2:]) == pytest.approx(
        float(memory.batch.weights.sum())
    )


def test_the_criterion_is_left_as_it_was_found() -> None:
    strategy = trained([WeightedReplayPlugin(MEMORIES["Reservoir"]())], stream())
    assert isinstance(strategy._criterion, nn.CrossEntropyLoss) and strategy._criterion.reduction == "mean"


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="memory must be a recollect memory, got int"):
        WeightedReplayPlugin(200)
    with pytest.raises(ValueError, match="keeps its capacity of 12, got 5"):
        MemoryBuffer(rc.Reservoir(12)).resize(None, 5)
    with seeded(0), pytest.raises(ValueError, match=r"criterion must have a reduction.*pass loss="):
        model = make_model()
        strategy = Naive(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            criterion=lambda o, t: F.cross_entropy(o, t),
            plugins=[WeightedReplayPlugin(rc.Reservoir(12))],
            evaluator=EvaluationPlugin(),
        )
        for experience in stream().train_stream:
            strategy.train(experience)


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with seeded(0):
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert "weighted" in capsys.readouterr().out
