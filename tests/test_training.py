import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ConstantLR

import recollect as rc
from recollect.batch import Batch
from recollect.embedding import draw_model
from recollect.experiments.stacking import train_stack, train_together
from recollect.learners import Task, Training, predict, train
from recollect.learners.training import paired
from recollect.randomness import drawn_by_weight


def batches(sizes: list[int]) -> list[Batch]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for n in sizes:
        inputs = torch.randn(n, 1, 8, 8, generator=generator)
        batch = Batch.arriving(inputs, torch.randint(0, 3, (n,), generator=generator))
        made.append(Batch(batch.inputs, batch.targets, torch.rand(n, generator=generator) * 5 + 0.1, batch.ids))
    return made


def generators(n: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in range(n)]


def tasks(make_model: Callable[[], nn.Module], data: list[Batch]) -> list[Task]:
    models = [draw_model(make_model, seed) for seed in range(len(data))]
    return [*map(Task, models, data, generators(len(data)), [i % 2 == 1 for i in range(len(data))])]


def assert_equal_parameters(one: nn.Module, other: nn.Module, atol: float = 0.0) -> None:
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.isfinite(p).all()
        assert torch.allclose(p, q, rtol=0.0, atol=atol)


@pytest.mark.parametrize(
    "network", [partial(rc.models.mlp, 64, 3), partial(rc.models.mlp, 64, 3, ()), partial(rc.models.cnn, (1, 8, 8), 3)]
)
def test_training_together_gives_the_numbers_of_one_by_one(network: Callable[[], nn.Module]) -> None:
    data = batches([35, 10, 35, 61, 7])  # not full, several, and fewer steps than others
    training = Training(epochs=4, batch_size=10, lr=0.003)
    alone, together = tasks(network, data), tasks(network, data)
    for task in alone:
        train(task, training)
    for task in together:
        task.model.train()
    seconds = train_together(together, training)
    assert min(seconds) > 0
    for one, other in zip(alone, together, strict=True):
        assert_equal_parameters(one.model, other.model, atol=1e-4)
        assert not other.model.training


def test_a_stack_is_made_of_many_small_networks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    stacks: list[int] = []
    monkeypatch.setattr("recollect.experiments.stacking.train_stack", lambda some, training: stacks.append(len(some)))
    network, data = partial(rc.models.mlp, 64, 3), batches([5, 5])
    train_together([*tasks(network, data), *tasks(partial(rc.models.cnn, (1, 8, 8), 3), data)], Training(epochs=1))
    assert stacks == [2]
    train_together(tasks(network, data[:1]), Training(epochs=1))
    train_together(tasks(network, data), Training(epochs=1, optimizer=partial(torch.optim.SGD, lr=0.1)))
    train_together(tasks(network, data), Training(epochs=1, scheduler=lambda optimizer, _: ConstantLR(optimizer)))
    assert stacks == [2]


def test_what_several_want_alike_is_trained_once(monkeypatch: pytest.MonkeyPatch) -> None:
    network, training = partial(rc.models.mlp, 64, 3), Training(epochs=2, batch_size=10)
    data = batches([30, 30])
    seeds, batch_of = (0, 0, 1, 0), (0, 0, 0, 1)  # the first two are alike; then another network, and another batch
    alike = [
        Task(draw_model(network, seed), data[i], torch.Generator().manual_seed(0))
        for seed, i in zip(seeds, batch_of, strict=True)
    ]
    alone = [Task(copy.deepcopy(t.model), t.batch, torch.Generator().manual_seed(0)) for t in alike]
    trained: list[int] = []

    def counting(some: list[Task], training: Training) -> None:
        trained.append(len(some))
        train_stack(some, training)

    monkeypatch.setattr("recollect.experiments.stacking.train_stack", counting)
    seconds = train_together(alike, training)
    assert trained == [3]
    assert seconds[0] == seconds[1] > 0
    for one, other in zip(alone, alike, strict=True):
        train(one, training)
        assert_equal_parameters(one.model, other.model, atol=1e-4)
        assert not other.model.training
        assert torch.equal(one.generator.get_state(), other.generator.get_state())


def test_more_networks_than_fit_one_stack_are_trained_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recollect.experiments.stacking.AT_ONCE", 2)
    network, training = partial(rc.models.mlp, 64, 3), Training(epochs=2, batch_size=10)
    data = batches([25, 40, 31, 8, 40])
    alone, together = tasks(network, data), tasks(network, data)
    train_together(together, training)
    for one, other in zip(alone, together, strict=True):
        train(one, training)
        assert_equal_parameters(one.model, other.model, atol=1e-4)


def test_wrong_labels_are_refused_before_training() -> None:
    data = batches([10, 10])
    data[0] = Batch(data[0].inputs, data[0].targets + 1, data[0].weights, data[0].ids)
    some = tasks(partial(rc.models.mlp, 64, 3), data)
    before = copy.deepcopy(some[0].model)
    with pytest.raises(ValueError, match="targets must be class numbers from 0 to 2"):
        train_stack(some, Training(epochs=1))
    assert_equal_parameters(some[0].model, before)


def test_a_minibatch_without_weight_is_passed_over() -> None:
    """Alone and in a stack: as if the network had never been shown it."""
    network, training = partial(rc.models.mlp, 64, 3), Training(epochs=3, batch_size=5, lr=0.003)
    data = batches([40, 15, 6])
    for batch, start in zip(data, (4, 0, 6), strict=True):
        batch.weights[start:] = 0  # of 40, four have weight; of 15, none; of 6, all
    alone, together = tasks(network, data), tasks(network, data)
    for task in alone:
        train(task, training)
    train_stack(together, training)
    for one, other in zip(alone, together, strict=True):
        assert_equal_parameters(one.model, other.model, atol=1e-4)
    assert_equal_parameters(alone[1].model, draw_model(network, 1))
    steps: list[int] = []

    class Counting(torch.optim.SGD):
        def step(self) -> None:
            steps.append(1)

    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    with_weight = sum(bool((part < 4).any()) for part in order.split(5))
    train(
        Task(alone[0].model, data[0], torch.Generator().manual_seed(0)), Training(1, batch_size=5, optimizer=Counting)
    )
    assert len(steps) == with_weight < 8


@pytest.mark.parametrize("kind", [partial(rc.ExperienceReplay, mix="counts"), rc.DarkExperienceReplay])
def test_remembered_examples_without_weight_leave_the_new_ones_to_be_learned(kind: Callable[..., rc.Learner]) -> None:
    learner, data = kind(partial(rc.models.mlp, 64, 3), rc.Reservoir(12), epochs=2), batches([30, 30])
    learner.observe(data[0].inputs, data[0].targets)
    learner.memory.batch.weights.zero_()
    before = learner.predict(data[1].inputs)
    learner.observe(data[1].inputs, data[1].targets)
    after = learner.predict(data[1].inputs)
    assert torch.isfinite(after).all()
    assert not torch.equal(after, before)


@pytest.mark.parametrize("kind", [rc.FineTune, partial(rc.ExperienceReplay, mix="halves"), rc.DarkExperienceReplay])
def test_batchnorm_is_never_left_alone_with_one_example(kind: Callable[..., rc.Learner]) -> None:
    def network() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))

    data = batches([21, 21])
    memory = [] if kind is rc.FineTune else [rc.Reservoir(12)]
    learner = kind(network, *memory, epochs=2, batch_size=10)
    for batch in data:
        learner.observe(batch.inputs, batch.targets)
    assert torch.isfinite(learner.predict(data[0].inputs)).all()
    with pytest.raises(ValueError, match="need at least two examples at a time, got one"):
        learner.observe(data[0].inputs[:1], data[0].targets[:1])


@pytest.mark.parametrize(("batchnorm", "expected"), [(True, [10, 11]), (False, [10, 10, 1])])
def test_minibatches_of_other_networks_stay_as_they_were(batchnorm: bool, expected: list[int]) -> None:
    sizes: list[int] = []

    class Noting(nn.Flatten):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            sizes.append(len(x))
            return super().forward(x)

    with torch.random.fork_rng():
        model = nn.Sequential(Noting(), nn.Linear(64, 3), nn.BatchNorm1d(3) if batchnorm else nn.ReLU())
    train(Task(model, batches([21])[0], generators(1)[0]), Training(1, batch_size=10))
    assert sizes == expected
    assert not batchnorm or model[2].num_batches_tracked == 2  # trained in training mode


def test_an_optimizer_of_ones_own_takes_the_place_of_adam() -> None:
    (data,), network = batches([30]), partial(rc.models.mlp, 64, 3)
    by_hand, model = draw_model(network, 0), draw_model(network, 0)
    train(Task(model, data, generators(1)[0]), Training(1, optimizer=partial(torch.optim.SGD, lr=0.5)))
    losses = nn.functional.cross_entropy(by_hand(data.inputs), data.targets, reduction="none")
    ((losses * data.weights).sum() / data.weights.sum()).backward()
    torch.optim.SGD(by_hand.parameters(), lr=0.5).step()
    assert_equal_parameters(model, by_hand, atol=1e-6)
    for optimizer, message in ((7, "must be a function of parameters, got 7"), (list, "must return a torch.optim")):
        with pytest.raises(ValueError, match=message):
            train(Task(model, data, generators(1)[0]), Training(1, optimizer=optimizer))
    with pytest.raises(ValueError, match=r"a function of parameters, got SGD: pass what makes one of them$"):
        Training(1, optimizer=torch.optim.SGD(model.parameters(), lr=0.5))  # type: ignore[arg-type]


def test_remembered_examples_are_drawn_at_random_for_each_step() -> None:
    (arrived, held), model = batches([12, 10]), nn.Flatten()
    drawn = [old.ids.tolist() for _, old in paired(model, arrived, held, Training(batch_size=4), generators(1)[0])]
    assert [len(set(ids)) for ids in drawn] == [4, 4, 4]
    assert drawn != [[0, 1, 2, 3]] * 3


def test_predicting_takes_pieces_and_leaves_the_mode_of_a_model_as_it_was() -> None:
    with torch.random.fork_rng():
        model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    for training in (True, False):
        model.train(training)
        inputs = torch.arange(12.0).reshape(4, 3)
        assert torch.allclose(predict(model, inputs), predict(model, inputs, batch_size=3), atol=1e-5)
        assert model.training == model[1].training == training


def test_a_step_is_adams_with_the_rate_and_the_decay_that_were_asked_for() -> None:
    (data,), network = batches([30]), partial(rc.models.mlp, 64, 3)
    by_hand, model = draw_model(network, 0), draw_model(network, 0)
    train(Task(model, data, generators(1)[0]), Training(1, lr=0.01, weight_decay=0.3))
    losses = nn.functional.cross_entropy(by_hand(data.inputs), data.targets, reduction="none")
    ((losses * data.weights).sum() / data.weights.sum()).backward()
    torch.optim.Adam(by_hand.parameters(), lr=0.01, weight_decay=0.3).step()
    assert_equal_parameters(model, by_hand, atol=2e-5)


def test_only_what_is_trainable_is_trained() -> None:
    (data,), model = batches([30]), draw_model(partial(rc.models.mlp, 64, 3), 0)
    given: list[nn.Parameter] = []

    def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        given.extend(parameters)
        return torch.optim.SGD(parameters, lr=0.1)

    model[1].requires_grad_(False)
    train(Task(model, data, generators(1)[0]), Training(1, optimizer=optimizer))
    assert len(given) == len(list(model.parameters())) - 2
    with pytest.raises(ValueError, match="the model must have at least one trainable parameter, got none"):
        train(Task(model.requires_grad_(False), data, generators(1)[0]), Training(1))


def test_weights_count() -> None:
    """An example of weight zero is as if it were not there."""
    data = batches([20])[0]
    weights = torch.cat([torch.ones(10), torch.zeros(10)])
    half = Batch(data.inputs, data.targets, weights, data.ids)
    training = Training(epochs=5, batch_size=100)
    models = [draw_model(lambda: rc.models.mlp(64, 3), 0) for _ in range(2)]
    train(Task(models[0], half, torch.Generator().manual_seed(0)), training)
    train(Task(models[1], half.take(torch.arange(10)), torch.Generator().manual_seed(0)), training)
    for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.allclose(p, q, atol=1e-5)


def test_each_row_is_drawn_as_often_as_its_weight_says_rounded_up_or_down() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = torch.cat(
        [torch.rand(50, generator=generator) * 9, torch.zeros(5), torch.tensor([300.0]), torch.zeros(2)]
    )
    n, counts = 40, []
    for _ in range(2000):
        rows = drawn_by_weight(weights, n, generator)
        assert len(rows) == n and bool((rows.diff() >= 0).all())
        counts.append(rows.bincount(minlength=len(weights)))
    expected = n * weights.double() / weights.double().sum()
    assert all(bool(((count - expected).abs() < 1 + 1e-9).all()) for count in counts)
    found = torch.stack(counts).double().mean(0)
    assert torch.allclose(found, expected, atol=0.05)  # a share of 0.5 deviates by 0.011
    assert not found[weights == 0].any()


def test_drawing_by_weight_estimates_the_weighted_loss() -> None:
    """The mean over what was drawn is, on average, sum(w * l) / sum(w)."""
    generator = torch.Generator().manual_seed(1)
    weights, losses = torch.rand(30, generator=generator) ** 4, torch.rand(30, generator=generator)
    means = [losses[drawn_by_weight(weights, 30, generator)].mean() for _ in range(2000)]
    assert torch.stack(means).mean() == pytest.approx(float(weights @ losses / weights.sum()), abs=2e-3)


@pytest.mark.parametrize("drawn", [False, True])
def test_examples_that_are_all_without_weight_train_nothing(drawn: bool) -> None:
    [batch] = batches([12])
    model = draw_model(partial(rc.models.mlp, 64, 3), 0)
    before = copy.deepcopy(model)
    weightless = Batch(batch.inputs, batch.targets, torch.zeros(12), batch.ids)
    train(Task(model, weightless, generators(1)[0], drawn), Training(2))
    assert_equal_parameters(model, before)
