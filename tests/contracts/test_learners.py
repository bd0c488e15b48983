"""What holds for every learner."""

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import recollect as rc
from recollect import learners
from tests.contracts.test_memories import FACTORIES, examples, make_model

fast = {"epochs": 3, "batch_size": 10, "lr": 0.01}


def with_memory(kind: Callable[..., rc.Learner], memory: rc.Memory, **options: object) -> rc.Learner:
    return kind(make_model, memory, **{**fast, **options})


def without_memory(kind: Callable[..., rc.Learner], memory: rc.Memory, **options: object) -> rc.Learner:
    return kind(make_model, **{**fast, **options})


LEARNERS: dict[str, Callable[..., rc.Learner]] = {
    "GDumb": partial(with_memory, rc.GDumb),
    "ExperienceReplay": partial(with_memory, rc.ExperienceReplay),
    "ExperienceReplay, union": partial(with_memory, partial(rc.ExperienceReplay, mix="union")),
    "ExperienceReplay, halves": partial(with_memory, partial(rc.ExperienceReplay, mix="halves")),
    "ExperienceReplay, counts": partial(with_memory, partial(rc.ExperienceReplay, mix="counts")),
    "DarkExperienceReplay": partial(with_memory, rc.DarkExperienceReplay),
    "FineTune": partial(without_memory, rc.FineTune),
    "Joint": partial(without_memory, rc.Joint),
}


@pytest.fixture(params=LEARNERS)
def make(request: pytest.FixtureRequest) -> Callable[..., rc.Learner]:
    return LEARNERS[request.param]


def observe(learner: rc.Learner, batches: int = 3) -> rc.Learner:
    inputs, targets = examples(30 * batches)
    for x, y in zip(inputs.split(30), targets.split(30), strict=True):
        learner.observe(x, y)
    return learner


def test_every_learner_is_under_contract() -> None:
    public = {name for name in learners.__all__ if isinstance(getattr(learners, name), type)}
    assert {name.split(",")[0] for name in LEARNERS} == public - {"Learner", "Training", "Job"}


def test_predictions_are_outputs_and_determined_by_the_seed(make: Callable[..., rc.Learner]) -> None:
    inputs, _ = examples(20, seed=9)
    first, again = (observe(make(rc.Reservoir(12))).predict(inputs) for _ in range(2))
    other = observe(make(rc.Reservoir(12), seed=1)).predict(inputs)
    assert first.shape == (20, 3)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not first.requires_grad


@pytest.mark.parametrize("memory", FACTORIES)
def test_every_learner_works_with_every_memory(make: Callable[..., rc.Learner], memory: str) -> None:
    learner = observe(make(FACTORIES[memory](), epochs=1))
    assert torch.isfinite(learner.predict(examples(5)[0])).all()
    if learner.memory is not None:
        assert learner.memory.seen == 90


def test_a_bad_batch_changes_nothing(make: Callable[..., rc.Learner]) -> None:
    learner, untouched = (observe(make(rc.Reservoir(12))) for _ in range(2))
    inputs, targets = examples(30, seed=4)
    bad = [(inputs[:5], targets), (inputs * torch.nan, targets), (inputs[:0], targets[:0])]
    for x, y in bad:
        with pytest.raises(ValueError, match=r"^[^\n]*$"):
            learner.observe(x, y)
    for one in (learner, untouched):
        one.observe(inputs, targets)
    assert torch.equal(learner.predict(inputs), untouched.predict(inputs))


def test_labels_out_of_range_are_refused_in_one_sentence(make: Callable[..., rc.Learner]) -> None:
    learner = make(rc.Reservoir(12))
    inputs, targets = examples(30)
    with pytest.raises(ValueError, match="targets must be class numbers from 0 to 2"):
        learner.observe(inputs, targets + 1)
        learner.predict(inputs)


def test_a_learner_learns_what_it_sees(make: Callable[..., rc.Learner]) -> None:
    learner = observe(make(rc.Reservoir(60), epochs=60))
    inputs, targets = examples(200, seed=3)
    assert rc.metrics.accuracy(learner.predict(inputs), targets) > 0.8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs must be a whole number of at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
        ({"lr": 0.0}, "lr must be a positive number, got 0.0"),
        ({"weight_decay": -1.0}, "weight_decay must be a number of at least 0"),
        ({"loss": "hinge"}, "loss must be one of"),
        ({"seed": -3}, "seed must be a whole number of at least 0, got -3"),
    ],
)
def test_bad_options_get_one_clear_sentence(
    make: Callable[..., rc.Learner], options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make(rc.Reservoir(12), **options)


def test_a_model_with_batchnorm_and_a_dict_of_inputs() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x)  # type: ignore[no-any-return]

    inputs, targets = examples(60)
    for kind in (rc.GDumb, rc.ExperienceReplay, rc.DarkExperienceReplay):
        learner = kind(Net, rc.GradientMatching(Net, 12, inits=2), epochs=2)
        for rows in (slice(0, 30), slice(30, 60)):
            learner.observe({"x": inputs[rows]}, targets[rows])
        assert learner.predict({"x": inputs}).shape == (60, 3)


fast_gdumb = partial(rc.GDumb, make_model, epochs=2)


def test_gdumb_trains_only_when_asked_and_only_when_the_memory_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def counting(*arguments: object) -> None:
        calls.append(1)
        learners.train(*arguments)

    monkeypatch.setattr("recollect.learners.training.train", counting)
    memory = rc.Reservoir(12)
    learner = fast_gdumb(memory)
    observe(learner)
    assert len(calls) == 0
    learner.predict(examples(3)[0])
    learner.predict(examples(3)[0])
    assert len(calls) == 1
    memory.update(*examples(30, seed=7))  # filled by another way
    learner.predict(examples(3)[0])
    assert len(calls) == 2


def test_replay_does_not_start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = rc.ExperienceReplay(make_model, rc.Reservoir(12), epochs=1, lr=1e-6)
    before = learner.predict(examples(5)[0])
    observe(learner)
    assert torch.allclose(learner.predict(examples(5)[0]), before, atol=1e-2)


def test_the_weighted_union_estimates_the_loss_over_everything_seen() -> None:
    """One full-batch step on new and remembered examples goes where a step on the weighted sum of losses goes."""
    memory = rc.Reservoir(10)
    learner = rc.ExperienceReplay(make_model, memory, epochs=1, batch_size=1000, lr=1e-3, weight_decay=0.0)
    inputs, targets = examples(40)
    learner.observe(inputs[:30], targets[:30])
    held = memory.batch
    by_hand = copy.deepcopy(learner.model)
    learner.observe(inputs[30:], targets[30:])
    optimizer = torch.optim.Adam(by_hand.parameters(), lr=1e-3)
    losses = [
        nn.functional.cross_entropy(by_hand(x), y, reduction="none")
        for x, y in ((inputs[30:], targets[30:]), (held.inputs, held.targets))
    ]
    ((losses[0].sum() + (held.weights * losses[1]).sum()) / 40).backward()
    optimizer.step()
    for ours, theirs in zip(learner.model.parameters(), by_hand.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=2e-5)


def test_dark_replay_keeps_the_outputs_of_what_is_kept_and_of_nothing_else() -> None:
    learner = rc.DarkExperienceReplay(make_model, rc.Reservoir(12), epochs=1)
    observe(learner)
    assert set(learner._outputs) == set(learner.memory.batch.ids.tolist())


def test_dark_replay_holds_outputs_in_place() -> None:
    """With a large alpha, the outputs on remembered examples stay nearer to what they were."""
    inputs, targets = examples(60)

    def drift(alpha: float) -> float:
        learner = rc.DarkExperienceReplay(make_model, rc.Reservoir(12), alpha=alpha, beta=0.0, epochs=40, lr=0.01)
        learner.observe(inputs[:30], targets[:30])
        held = learner.memory.batch
        before = learner.predict(held.inputs)
        learner.observe(inputs[30:], (targets[30:] + 1) % 3)
        return float((learner.predict(held.inputs) - before).norm())

    assert drift(10.0) < 0.7 * drift(0.0)
