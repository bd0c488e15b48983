"""What holds for every learner."""

import copy
import dataclasses
import inspect
import io
import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import recollect as rc
from recollect import learners
from tests.contracts.test_memories import FACTORIES, examples, make_model
from tests.second_device import DEVICE, SecondDevice

sgd = partial(torch.optim.SGD, lr=0.3)  # steps that tell how large a gradient is
fast = {"epochs": 3, "batch_size": 10, "lr": 0.01}


def with_memory(kind: Callable[..., rc.Learner], memory: rc.Memory, **options: object) -> rc.Learner:
    return kind(make_model, memory, **{**fast, **options})


def without_memory(kind: Callable[..., rc.Learner], memory: rc.Memory, **options: object) -> rc.Learner:
    return kind(make_model, **{**fast, **options})


LEARNERS: dict[str, Callable[..., rc.Learner]] = {
    "GDumb": partial(with_memory, rc.GDumb),
    "ExperienceReplay": partial(with_memory, rc.ExperienceReplay),
    "ExperienceReplay, drawn": partial(with_memory, partial(rc.ExperienceReplay, mix="drawn")),
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
    assert {name.split(",")[0] for name in LEARNERS} == public - {"Learner", "Training", "Task"}


def test_every_option_is_shown_with_its_default_and_its_meaning(make: Callable[..., rc.Learner]) -> None:
    kind = type(make(rc.Reservoir(12)))
    signature, shown = inspect.signature(kind), inspect.getdoc(kind) or ""
    assert {"epochs", "lr", "weight_decay", "batch_size", "loss", "optimizer", "scheduler", "progress", "seed"} <= {
        *signature.parameters
    }
    for name, parameter in signature.parameters.items():
        assert parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        assert (parameter.default is parameter.empty) == (name in ("make_model", "memory"))
        assert f"    {name}: " in shown


def test_a_learner_is_told_in_one_line(make: Callable[..., rc.Learner]) -> None:
    learner = make(rc.Reservoir(12), seed=7)
    assert "\n" not in repr(learner)
    assert repr(learner).startswith(type(learner).__name__)
    assert repr(learner).endswith("epochs=3, seed=7)")
    assert learner.memory is None or repr(learner.memory) in repr(learner)


def test_predictions_are_outputs_and_determined_by_the_seed(make: Callable[..., rc.Learner]) -> None:
    inputs, _ = examples(20, seed=9)
    first, again = (observe(make(rc.Reservoir(12))).predict(inputs) for _ in range(2))
    other = observe(make(rc.Reservoir(12), seed=1)).predict(inputs)
    assert first.shape == (20, 3)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not first.requires_grad
    drawn = [make(rc.Reservoir(12), seed=seed)._fresh_model().state_dict() for seed in (0, 1)]
    assert not all(torch.equal(value, drawn[1][name]) for name, value in drawn[0].items())


def test_one_number_per_example_is_learned_with_or_without_a_column(make: Callable[..., rc.Learner]) -> None:
    inputs, _ = examples(60)
    quantities, predicted = inputs.sum(1), []
    for shape in ((-1,), (-1, 1)):

        def column(shape: tuple[int, ...] = shape) -> nn.Module:
            return nn.Sequential(nn.Linear(4, 1), nn.Unflatten(1, (1,)) if len(shape) == 2 else nn.Flatten(0))

        learner = dataclasses.replace(make(rc.Reservoir(12)), make_model=column, loss="squared_error", epochs=2)
        for x, y in zip(inputs.split(20), quantities.reshape(shape).split(20), strict=True):
            learner.observe(x, y)
        predicted.append(learner.predict(inputs))
    assert predicted[0].shape == (60,) and torch.equal(predicted[0], predicted[1][:, 0])


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


def test_what_would_be_trained_next_can_be_trained_elsewhere(
    make: Callable[..., rc.Learner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asking changes nothing, and a learner that is handed what it asked for is the one that trained by itself."""
    learner, alone = make(rc.GSS(12)), make(rc.GSS(12))  # a memory that looks at the model
    monkeypatch.setattr(learner, "_train", None)  # what it is handed it does not train again
    wanted, orders = 0, set()
    for x, y in zip(*(part.split(30) for part in examples(90)), strict=True):
        for _ in range(2):
            task = learner.pending(x, y)
        if task is not None:
            learners.train(task, learner.training)
            wanted += 1
            orders.add(task.generator.initial_seed())
        learner.observe(x, y, trained=None if task is None else task.model)
        alone.observe(x, y)
    final = learner.pending()
    if final is not None:
        learner.accept(learners.train(final, learner.training))
        wanted += 1
    assert learner.pending() is None
    assert torch.equal(learner.predict(x), alone.predict(x))
    assert not alone.model.training
    in_pairs = isinstance(learner, rc.DarkExperienceReplay) or getattr(learner, "mix", "") in ("halves", "counts")
    assert wanted == (1 if in_pairs or isinstance(learner, rc.Joint | rc.GDumb) else 3)
    assert len(orders) == (wanted if isinstance(learner, rc.FineTune | rc.ExperienceReplay) else len(orders))


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda losses: None, "loss must return a tensor with one value per example, got NoneType"),
        (lambda losses: (losses, losses), "loss must return a tensor with one value per example, got tuple"),
        (lambda losses: losses.mean(), r"loss must return one value per example, got shape \(\)"),
        (lambda losses: losses[:-1], "loss must return one value per example, got shape"),
    ],
)
def test_a_loss_that_fails_late_changes_nothing(
    make: Callable[..., rc.Learner], returned: Callable[[Tensor], object], message: str
) -> None:
    broken = [False]

    def loss(outputs: Tensor, targets: Tensor) -> object:
        losses = nn.functional.cross_entropy(outputs, targets, reduction="none")
        return returned(losses) if broken[0] and 1 < len(targets) < 10 else losses  # the last minibatch of an epoch

    inputs, targets = examples(36)
    learner, untouched = (observe(make(rc.Reservoir(7), loss=loss)) for _ in range(2))
    broken[0] = True
    with pytest.raises(ValueError, match=message):
        learner.observe(inputs, targets)
        learner.observe(inputs, targets)  # those that train only when asked
        learner.predict(inputs)
    broken[0] = False
    if isinstance(learner, rc.GDumb | rc.Joint):
        for _ in range(2):
            untouched.observe(inputs, targets)
    elif learner.memory is not None:
        assert learner.memory.seen == 90
    assert torch.equal(learner.predict(inputs), untouched.predict(inputs))


def test_a_loss_that_is_a_mean_is_refused_at_once(make: Callable[..., rc.Learner]) -> None:
    learner = make(rc.Reservoir(7), loss=nn.functional.cross_entropy)
    with pytest.raises(ValueError, match=r"loss must return one value per example, got shape \(\)"):
        learner.observe(*examples(36))
    assert learner.memory is None or learner.memory.seen == 0


def test_a_memory_that_fails_changes_nothing(make: Callable[..., rc.Learner], monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*arguments: object) -> None:
        raise ValueError("no")

    learner, untouched = (observe(make(rc.Reservoir(12))) for _ in range(2))
    if learner.memory is None:
        return
    inputs, targets = examples(30, seed=4)
    with monkeypatch.context() as patch, pytest.raises(ValueError, match="no"):
        patch.setattr(rc.Reservoir, "choose", failing)
        learner.observe(inputs, targets)
    for one in (learner, untouched):
        one.observe(inputs, targets)
    assert torch.equal(learner.predict(inputs), untouched.predict(inputs))


def test_a_learner_does_not_share_storage_with_what_it_was_given(make: Callable[..., rc.Learner]) -> None:
    learner, (inputs, targets) = make(rc.Reservoir(60)), examples(30)
    wanted = observe(make(rc.Reservoir(60)), batches=1).predict(inputs)
    given = inputs.clone()
    learner.observe(given, targets)
    given.zero_()
    assert torch.equal(learner.predict(inputs), wanted)


def test_models_that_share_parts_with_a_live_one_leave_it_as_it_is(make: Callable[..., rc.Learner]) -> None:
    with torch.random.fork_rng():
        backbone = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
        backbone[0].bias.requires_grad_(False)
    before = copy.deepcopy(backbone)
    learner = make(rc.Reservoir(12))
    learner = type(learner)(
        lambda: nn.Sequential(backbone, nn.Linear(8, 3)), *([] if learner.memory is None else [learner.memory]), **fast
    )
    observe(learner).predict(examples(5)[0])
    assert backbone.training and backbone[1].training
    assert [p.requires_grad for p in backbone.parameters()] == [True, False, True, True]
    for name, value in backbone.state_dict().items():
        assert torch.equal(value, before.state_dict()[name])
    assert not torch.equal(learner.model[0][0].weight, backbone[0].weight)


def test_a_learner_learns_what_it_sees(make: Callable[..., rc.Learner]) -> None:
    learner = observe(make(rc.Reservoir(60), epochs=60))
    inputs, targets = examples(200, seed=3)
    assert rc.metrics.accuracy(learner.predict(inputs), targets) > 0.8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs must be a whole number of at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
        ({"lr": 0.0}, "lr must be more than 0, got 0.0"),
        ({"weight_decay": -1.0}, "weight_decay must be a number of at least 0"),
        ({"lr": "fast"}, "lr must be a number of at least 0, got 'fast'"),
        ({"loss": "hinge"}, "loss must be one of"),
        ({"optimizer": 3}, "optimizer must be a function of parameters, got 3"),
        ({"scheduler": 3}, "scheduler must be a function of an optimizer and steps, got 3"),
        ({"seed": -3}, "seed must be a whole number of at least 0, got -3"),
    ],
)
def test_bad_options_get_one_clear_sentence(
    make: Callable[..., rc.Learner], options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make(rc.Reservoir(12), **options)


def test_a_scheduler_of_ones_own_sets_the_rate_of_every_step(make: Callable[..., rc.Learner]) -> None:
    made: list[tuple[int, torch.optim.Optimizer]] = []
    rates: list[list[float]] = []

    class Noting(torch.optim.SGD):
        def step(self, closure: None = None) -> None:  # type: ignore[override]
            rates[-1].append(self.param_groups[0]["lr"])
            super().step(closure)

    def scheduler(optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
        made.append((steps, optimizer))
        rates.append([])
        return torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)

    learner = make(rc.Reservoir(12), optimizer=partial(Noting, lr=0.1), scheduler=scheduler, batch_size=8)
    assert observe(learner).predict(examples(5)[0]).shape == (5, 3)
    assert made
    for (steps, _), seen in zip(made, rates, strict=True):
        assert seen == pytest.approx([0.1 * (1 - i / steps) for i in range(steps)])


def test_what_is_no_scheduler_for_every_step_is_refused(make: Callable[..., rc.Learner]) -> None:
    for wrong, got in ((torch.optim.lr_scheduler.ReduceLROnPlateau, "ReduceLROnPlateau"), (None, "NoneType")):
        learner = make(rc.Reservoir(12), scheduler=lambda optimizer, _, wrong=wrong: wrong and wrong(optimizer))
        with pytest.raises(ValueError, match=f"scheduler must return one of torch.optim.lr_scheduler .* got {got}"):
            observe(learner).predict(examples(5)[0])


def test_a_memory_may_be_on_another_device_than_what_arrives(make: Callable[..., rc.Learner]) -> None:
    inputs, here = examples(5)[0], observe(make(rc.Reservoir(12)))
    with SecondDevice():
        there = observe(make(rc.Reservoir(12).to(DEVICE)))
        assert torch.allclose(there.predict(inputs), here.predict(inputs), atol=1e-5)


@pytest.mark.parametrize("batches", [0, 2])
def test_a_learner_goes_on_bit_for_bit_from_a_checkpoint(make: Callable[..., rc.Learner], batches: int) -> None:
    steady, file = make(rc.Reservoir(12)), io.BytesIO()
    if batches:
        observe(steady, batches)
    torch.save(steady.state_dict(), file)
    file.seek(0)
    resumed = make(rc.Reservoir(12))
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for learner in (steady, resumed):
        learner.observe(*examples(30, seed=5))
    assert torch.equal(steady.predict(examples(20)[0]), resumed.predict(examples(20)[0]))


def test_a_state_that_does_not_fit_changes_nothing(make: Callable[..., rc.Learner]) -> None:
    learner, untouched = (observe(make(rc.Reservoir(12))) for _ in range(2))
    good = observe(make(rc.Reservoir(12)), 2).state_dict()
    wrong = [{}, None, 3, {**good, "seed": 1}, {**good, "learner": "GRumb"}]
    wrong += [{**good, key: {}} for key in ("model", "memory", "seen") if key in good]
    if "model" in good:
        wrong.append({**good, "model": {name: value[:1] for name, value in good["model"].items()}})
    for state in wrong:
        with pytest.raises(ValueError, match=r"^(state must be|a learner's state must|a saved memory must)[^\n]*$"):
            learner.load_state_dict(state)
    assert torch.equal(learner.predict(examples(20)[0]), untouched.predict(examples(20)[0]))
    assert learner.memory is None or learner.memory.seen == 90


def test_options_that_are_changed_later_count(make: Callable[..., rc.Learner]) -> None:
    changed, told = make(rc.Reservoir(12)), make(rc.Reservoir(12), epochs=7, lr=0.02)
    changed.epochs, changed.lr = 7, 0.02
    inputs = examples(5)[0]
    assert torch.equal(observe(changed).predict(inputs), observe(told).predict(inputs))


HUGE = 10**400
EXOTIC = st.sampled_from(
    [None, True, -1, 0, HUGE, math.inf, math.nan, -0.5, "3", b"3", (), [], {}, 1j, Decimal(3), Fraction(1, 3), object(),
     np.float32(0.1), np.int64(2), np.array([1, 2]), torch.tensor(3), print, nn.Linear(1, 1).to("meta")]
)  # fmt: skip


@settings(max_examples=300)
@given(st.sampled_from(sorted(LEARNERS)), st.sampled_from([*inspect.signature(rc.GDumb).parameters]), EXOTIC)
def test_exotic_options_are_taken_or_refused_in_one_sentence(learner: str, option: str, value: object) -> None:
    kind = {name.split(",")[0]: getattr(rc, name.split(",")[0]) for name in LEARNERS}[learner.split(",")[0]]
    arguments = {"make_model": make_model, "memory": rc.Reservoir(5), **fast}
    if "memory" not in inspect.signature(kind).parameters:
        del arguments["memory"]
    if option not in inspect.signature(kind).parameters or (option == "epochs" and value is HUGE):
        return
    try:
        made = kind(**{**arguments, option: value})
    except ValueError as error:
        assert "\n" not in str(error)
        return
    if callable(value):
        return  # what it does is up to the user
    made.observe(*examples(30))
    assert made.predict(examples(5)[0]).shape == (5, 3)


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

    def counting(*arguments: object) -> nn.Module:
        calls.append(1)
        return learners.train(*arguments)

    monkeypatch.setattr("recollect.learners.learner.train", counting)
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


def test_gdumb_shows_a_memory_the_untrained_model_that_training_would_start_from() -> None:
    shown: list[nn.Module] = []

    class Watching(rc.Reservoir):
        needs_model = True

        def choose(self, held: rc.Batch, arrived: rc.Batch, model: nn.Module | None) -> object:
            assert model is not None
            shown.append(model)
            return super().choose(held, arrived, model)

    learner = fast_gdumb(Watching(12))
    for x, y in zip(*(part.split(30) for part in examples(90)), strict=True):
        learner.observe(x, y)
        task = learner.pending()
        assert task is not None
        for ours, first in zip(shown[-1].parameters(), task.model.parameters(), strict=True):
            assert torch.equal(ours, first)
        assert not torch.equal(next(learner.model.parameters()), next(shown[-1].parameters()))  # which training leaves
    assert len(shown) == 3


def test_joint_trains_on_everything_seen() -> None:
    learner = observe(rc.Joint(make_model))
    assert torch.equal(learner.pending().batch.inputs, examples(90)[0])
    with pytest.raises(ValueError, match="inputs must keep the type"):
        learner.observe(examples(30)[0].double(), examples(30)[1])
    assert len(learner.pending().batch) == 90


@pytest.mark.parametrize("kind", ["ExperienceReplay", "ExperienceReplay, halves", "DarkExperienceReplay", "FineTune"])
def test_replay_does_not_start_again(kind: str) -> None:
    learner = LEARNERS[kind](rc.Reservoir(12), epochs=30)
    inputs, targets = examples(60)
    untrained = learner.predict(inputs)
    learner.observe(inputs[:30], targets[:30])
    trained = learner.predict(inputs)
    learner.epochs, learner.lr = 1, 1e-7  # hardly moves what it starts from
    learner.observe(inputs[30:], targets[30:])
    assert torch.allclose(learner.predict(inputs), trained, atol=1e-3)
    assert not torch.allclose(trained, untrained, atol=0.1)


def test_the_weighted_union_estimates_the_loss_over_everything_seen() -> None:
    """One full-batch step on new and remembered examples goes where a step on the weighted sum of losses goes."""
    memory = rc.Reservoir(10)
    options = {"mix": "weighted", "batch_size": 1000, "lr": 1e-3, "weight_decay": 0.0}
    learner = rc.ExperienceReplay(make_model, memory, epochs=1, **options)
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


@pytest.mark.parametrize("mix", ["halves", "counts"])
def test_pairs_are_weighed_by_halves_or_by_counts(mix: str) -> None:
    """One step on ten new and all ten remembered examples, by hand."""
    learner = rc.ExperienceReplay(make_model, rc.Reservoir(10), mix=mix, epochs=1, optimizer=sgd)
    inputs, targets = examples(40)
    learner.observe(inputs[:30], targets[:30])
    held = learner.memory.batch
    held.weights[:5] *= 4
    by_hand = copy.deepcopy(learner.model)
    learner.observe(inputs[30:], targets[30:])
    new = nn.functional.cross_entropy(by_hand(inputs[30:]), targets[30:])
    old = nn.functional.cross_entropy(by_hand(held.inputs), held.targets, reduction="none")
    share = 0.5 if mix == "halves" else 0.25
    (share * new + (1 - share) * (held.weights * old).sum() / held.weights.sum()).backward()
    sgd([*by_hand.parameters()]).step()
    for ours, theirs in zip(learner.model.parameters(), by_hand.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_examples_may_be_drawn_as_often_as_they_weigh() -> None:
    """One step on twenty of ten new and ten remembered examples, by hand: each comes as often as its weight says."""
    learner = rc.ExperienceReplay(make_model, rc.Reservoir(10), mix="drawn", epochs=1, batch_size=20, optimizer=sgd)
    inputs, targets = examples(40)
    learner.observe(inputs[:30], targets[:30])
    learner.memory.batch.weights[:] = torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0])
    held, by_hand = learner.memory.batch, copy.deepcopy(learner.model)
    learner.observe(inputs[30:], targets[30:])
    assert isinstance(held.inputs, Tensor)
    both, labels = torch.cat([inputs[30:], held.inputs]), torch.cat([targets[30:], held.targets])
    losses = nn.functional.cross_entropy(by_hand(both), labels, reduction="none")
    (torch.cat([torch.ones(10), held.weights]) * losses).mean().backward()  # the weights add up to 20: none is rounded
    sgd([*by_hand.parameters()]).step()
    for ours, theirs in zip(learner.model.parameters(), by_hand.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_the_union_may_be_taken_without_weights() -> None:
    inputs, targets = examples(40)
    for mix, weight in (("weighted", 3.0), ("union", 1.0)):
        learner = rc.ExperienceReplay(make_model, rc.Reservoir(10), mix=mix, epochs=1)
        learner.observe(inputs[:30], targets[:30])
        assert learner.pending(inputs[30:], targets[30:]).batch.weights.tolist() == [1.0] * 10 + [weight] * 10


def test_dark_replay_by_hand() -> None:
    """Three steps on ten new and all ten remembered examples: labels of both, and former outputs, with weights."""
    learner = rc.DarkExperienceReplay(make_model, rc.Reservoir(10), alpha=3.0, beta=0.7, epochs=3, optimizer=sgd)
    inputs, targets = examples(40)
    learner.observe(inputs[:30], targets[:30])
    held = learner.memory.batch
    held.weights[:5] *= 4
    former = learner.predict(held.inputs)
    by_hand = copy.deepcopy(learner.model)
    optimizer = sgd([*by_hand.parameters()])
    learner.observe(inputs[30:], targets[30:])
    weights = held.weights / held.weights.sum()
    for _ in range(3):
        outputs = by_hand(held.inputs)
        loss = nn.functional.cross_entropy(by_hand(inputs[30:]), targets[30:])
        loss = loss + 3.0 * (weights * (outputs - former).square().mean(1)).sum()
        loss = loss + 0.7 * (weights * nn.functional.cross_entropy(outputs, held.targets, reduction="none")).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for ours, theirs in zip(learner.model.parameters(), by_hand.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_dark_replay_keeps_the_outputs_of_what_is_kept_and_of_nothing_else() -> None:
    learner = rc.DarkExperienceReplay(make_model, rc.Reservoir(12), epochs=1)
    observe(learner)
    before = dict(learner._outputs)
    inputs, targets = examples(30, seed=4)
    learner.observe(inputs, targets)
    assert set(learner._outputs) == set(learner.memory.batch.ids.tolist())
    stayed = before.keys() & learner._outputs.keys()
    assert 0 < len(stayed) < 12
    assert all(torch.equal(before[i], learner._outputs[i]) for i in stayed)
    new = learner.predict(inputs)
    assert all(torch.allclose(new[i - 90], learner._outputs[i], atol=1e-6) for i in learner._outputs.keys() - stayed)


def test_dark_replay_goes_on_with_a_memory_that_was_filled_by_another_way() -> None:
    memory = rc.Reservoir(12)
    learner = rc.DarkExperienceReplay(make_model, memory, epochs=1)
    memory.update(*examples(30))
    learner.observe(*examples(30, seed=4))
    assert set(learner._outputs) == set(memory.batch.ids.tolist())


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
