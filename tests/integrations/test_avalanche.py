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
from avalanche.training.plugins import EvaluationPlugin, EWCPlugin, GEMPlugin, ReplayPlugin, SupervisedPlugin
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


def strategy_of(plugins: list[Any], **options: Any) -> Any:
    with seeded(0):
        model = make_model()
    return Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        train_mb_size=10,
        train_epochs=1,
        eval_mb_size=10,
        plugins=plugins,
        evaluator=EvaluationPlugin(),
        **{"criterion": nn.CrossEntropyLoss(), **options},
    )


def trained(plugins: list[Any], benchmark: Any, **options: Any) -> Any:
    with seeded(0):
        strategy = strategy_of(plugins, **options)
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


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("other", [lambda: EWCPlugin(1.0), lambda: GEMPlugin(20, 0.5)], ids=["EWC", "GEM"])
def test_other_plugins_ask_for_losses_of_examples_without_weights(other: Any, place: int) -> None:
    """GEM remembers 20 examples, as many as a minibatch has, so that their losses could be weighted in error."""
    plugin, asked = other(), []
    plugins: list[Any] = [WeightedReplayPlugin(MEMORIES["GradientMatching"](), batch_size_mem=10)]
    plugins.insert(place, plugin)

    class Noted(nn.CrossEntropyLoss):
        def forward(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            asked.append(self.reduction)
            return super().forward(input, target)

    strategy = trained(plugins, stream(), criterion=Noted())
    assert isinstance(strategy._criterion, Noted) and strategy._criterion.reduction == "mean"
    weighted = asked.count("none")
    assert weighted == 6 and asked.count("mean") > 4  # a loss for each minibatch of the second task, and others


def test_a_training_that_was_interrupted_goes_on() -> None:
    class Stop(SupervisedPlugin):
        left = 6

        def after_training_iteration(self, strategy: Any, **kwargs: Any) -> None:
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt

    memory, benchmark = MEMORIES["Reservoir"](), stream()
    strategy = strategy_of([WeightedReplayPlugin(memory), Stop()])
    first, second = benchmark.train_stream
    with seeded(0):
        strategy.train(first)
        with pytest.raises(KeyboardInterrupt):
            strategy.train(second)
        assert memory.seen == 40
        strategy.eval(benchmark.test_stream)
        strategy.train(second)
    assert memory.seen == 100 and isinstance(strategy._criterion, nn.CrossEntropyLoss)


@pytest.mark.parametrize("kind", [WeightedReplayPlugin, WeightedGDumbPlugin, MemoryBuffer])
def test_a_memory_that_holds_something_already_counts_as_of_task_0(kind: Any) -> None:
    memory = MEMORIES["Reservoir"]()
    memory.update(*data(30, seed=3))
    plugin = kind(memory)
    trained([ReplayPlugin(12, storage_policy=plugin) if kind is MemoryBuffer else plugin], stream())
    assert memory.seen == 130
    with pytest.raises(ValueError, match="the 12 examples that the memory holds must have come by this plugin"):
        plugin = kind(memory)
        trained([ReplayPlugin(12, storage_policy=plugin) if kind is MemoryBuffer else plugin], stream((1, 2)))
    assert memory.seen == 130


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="got others of a later plugin: put the plugin with the memory last"):
        trained([WeightedReplayPlugin(rc.Reservoir(12)), ReplayPlugin(12)], stream())
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
