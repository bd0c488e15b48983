"""What holds for every memory."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import recollect as rc
from recollect.memories import MEMORIES

CAPACITY = 12


class Network(nn.Module):
    """Takes one tensor, or two by name of which it uses one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = rc.models.mlp(4, 3, hidden=(8,))

    def forward(self, x: Tensor | None = None, *, left: Tensor | None = None, right: Tensor | None = None) -> Tensor:
        return self.layers(right if x is None else x)  # type: ignore[no-any-return]


make_model = Network

FACTORIES: dict[str, Callable[..., rc.Memory]] = {
    "GradientMatching": partial(rc.GradientMatching, make_model, CAPACITY, inits=2, dim=40),
    "GradientMatching, last layer": partial(rc.GradientMatching, make_model, CAPACITY, inits=2, layers="last"),
    "GradientMatching, paper": partial(rc.GradientMatching, make_model, CAPACITY, **rc.PAPER),
    "LocalGradientMatching": partial(rc.LocalGradientMatching, CAPACITY, dim=100),
    "Reservoir": partial(rc.Reservoir, CAPACITY),
    "ClassBalanced": partial(rc.ClassBalanced, CAPACITY),
    "SlidingWindow": partial(rc.SlidingWindow, CAPACITY),
    "GSS": partial(rc.GSS, CAPACITY, dim=50),
    "Herding": partial(rc.Herding, CAPACITY),
}


def examples(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(0, 3, (n,), generator=generator)
    return torch.randn(n, 4, generator=generator) + 4 * torch.eye(4)[targets], targets


def the_model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make_model()


def fill(memory: rc.Memory, sizes: list[int], seed: int = 0) -> tuple[Tensor, Tensor]:
    inputs, targets = examples(sum(sizes), seed)
    for x, y in zip(inputs.split(sizes), targets.split(sizes), strict=True):
        memory.update(x, y, model=the_model())
    return inputs, targets


def same(a: rc.Memory, b: rc.Memory) -> bool:
    pairs = [(getattr(a.batch, name), getattr(b.batch, name)) for name in ("inputs", "targets", "weights", "ids")]
    states = a._state.keys() == b._state.keys() and all(torch.equal(a._state[k], b._state[k]) for k in a._state)
    return a.seen == b.seen and states and all(torch.equal(x, y) for x, y in pairs)


@pytest.fixture(params=FACTORIES)
def make(request: pytest.FixtureRequest) -> Callable[..., rc.Memory]:
    return FACTORIES[request.param]


def test_every_memory_is_under_contract() -> None:
    assert set(MEMORIES) == {type(make()).__name__ for make in FACTORIES.values()}


def test_kept_examples_are_the_originals_and_ids_their_places(make: Callable[..., rc.Memory]) -> None:
    memory = make()
    sizes = [5, 20, 1, 30]
    inputs, targets = examples(sum(sizes))
    for end, (x, y) in zip([5, 25, 26, 56], zip(inputs.split(sizes), targets.split(sizes), strict=True), strict=True):
        memory.update(x, y, model=the_model())
        batch = memory.batch
        assert isinstance(batch.inputs, Tensor)
        assert memory.seen == end
        assert len(memory) == len(batch) == len(batch.ids.unique()) <= CAPACITY
        assert (batch.ids.sort().values == batch.ids).all()
        assert int(batch.ids.max()) < end
        assert torch.equal(batch.inputs, inputs[batch.ids])
        assert torch.equal(batch.targets, targets[batch.ids])
        assert (batch.weights >= 0).all()
        assert batch.weights.dtype == torch.float32


def test_everything_is_kept_with_weight_one_while_there_is_room(make: Callable[..., rc.Memory]) -> None:
    memory = make()
    fill(memory, [5, 7])
    assert memory.batch.ids.tolist() == list(range(12))
    assert memory.batch.weights.tolist() == [1.0] * 12


def test_weights_add_up_to_about_what_was_seen(make: Callable[..., rc.Memory]) -> None:
    memory = make()
    fill(memory, [50, 50, 50])
    assert float(memory.batch.weights.sum()) == pytest.approx(150, rel=0.4)


def test_the_same_seed_gives_the_same_memory(make: Callable[..., rc.Memory]) -> None:
    first, second, other = make(seed=1), make(seed=1), make(seed=2)
    for memory in (first, second, other):
        fill(memory, [40, 40])
    assert same(first, second)
    assert len(other) <= CAPACITY


def test_a_resumed_memory_ends_bit_identical(make: Callable[..., rc.Memory], tmp_path: Path) -> None:
    inputs, targets = examples(120)
    steady, resumed = make(), make()
    for i in range(0, 120, 30):
        x, y = inputs[i : i + 30], targets[i : i + 30]
        steady.update(x, y, model=the_model())
        resumed.update(x, y, model=the_model())
        assert torch.equal(steady.sample(5).targets, resumed.sample(5).targets)
        resumed.save(tmp_path / "memory")
        resumed = rc.load_memory(tmp_path / "memory", make_model)
        assert same(steady, resumed)
    assert torch.equal(steady.sample(5).targets, resumed.sample(5).targets)


def test_an_empty_memory_can_be_saved(make: Callable[..., rc.Memory], tmp_path: Path) -> None:
    make().save(tmp_path)
    memory = rc.load_memory(tmp_path, make_model)
    assert len(memory) == memory.seen == 0
    fresh = make()
    fill(memory, [30])
    fill(fresh, [30])
    assert same(memory, fresh)


BAD_BATCHES: dict[str, tuple[Tensor, Tensor, str]] = {
    "empty": (torch.zeros(0, 4), torch.zeros(0, dtype=torch.long), "at least one example, got none"),
    "nan": (torch.full((3, 4), torch.nan), torch.zeros(3, dtype=torch.long), "inputs must be finite, got NaN"),
    "infinite": (torch.full((3, 4), torch.inf), torch.zeros(3, dtype=torch.long), "inputs must be finite"),
    "lengths": (torch.zeros(3, 4), torch.zeros(2, dtype=torch.long), "must have the same length, got 3 and 2"),
    "shape": (torch.zeros(3, 5), torch.zeros(3, dtype=torch.long), "must keep the shape (4,)"),
    "type": (torch.zeros(3, 4, dtype=torch.float64), torch.zeros(3, dtype=torch.long), "must keep the type"),
    "structure": ((torch.zeros(3, 4),), torch.zeros(3, dtype=torch.long), "must keep their structure"),  # type: ignore[dict-item]
}


@pytest.mark.parametrize("bad", BAD_BATCHES)
def test_a_bad_batch_changes_nothing(make: Callable[..., rc.Memory], bad: str) -> None:
    memory, untouched = make(), make()
    for m in (memory, untouched):
        fill(m, [30])
    inputs, targets, message = BAD_BATCHES[bad]
    with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
        memory.update(inputs, targets, model=the_model())
    assert message in str(caught.value)
    assert same(memory, untouched)
    for m in (memory, untouched):
        fill(m, [30], seed=5)
    assert same(memory, untouched)


def test_the_memory_does_not_share_storage_with_what_it_was_given(make: Callable[..., rc.Memory]) -> None:
    memory = make()
    inputs, targets = examples(8)
    memory.update(inputs, targets, model=the_model())
    before = inputs.clone()
    inputs.zero_()
    assert isinstance(memory.batch.inputs, Tensor)
    assert torch.equal(memory.batch.inputs, before)


def test_the_model_passed_in_is_left_as_it_was(make: Callable[..., rc.Memory]) -> None:
    model = the_model()
    model.train()
    for p in model.parameters():
        p.grad = torch.full_like(p, 7.0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    memory = make()
    inputs, targets = examples(60)
    memory.update(inputs[:30], targets[:30], model=model)
    memory.update(inputs[30:], targets[30:], model=model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is not None and (p.grad == 7).all() and p.requires_grad for p in model.parameters())
    assert model.training


def test_structured_inputs_are_kept_and_saved(make: Callable[..., rc.Memory], tmp_path: Path) -> None:
    memory = make()
    inputs, targets = examples(40)
    memory.update({"left": inputs[:, :1], "right": inputs}, targets, model=the_model())
    memory.save(tmp_path)
    loaded = rc.load_memory(tmp_path).batch.inputs
    assert isinstance(loaded, dict)
    assert torch.equal(loaded["right"], inputs[memory.batch.ids])


def test_sampling_and_loading(make: Callable[..., rc.Memory]) -> None:
    memory = make()
    with pytest.raises(ValueError, match="the memory must have seen data"):
        memory.sample(3)
    fill(memory, [40])
    n = len(memory)
    assert len(memory.sample(5).targets) == 5
    assert len(memory.sample(1000).targets) == n
    generator = torch.Generator().manual_seed(3)
    again = torch.Generator().manual_seed(3)
    assert torch.equal(memory.sample(4, generator).weights, memory.sample(4, again).weights)
    loader = memory.loader(5)
    passes = [torch.cat([inputs for inputs, _, _ in loader]) for _ in range(2)]  # type: ignore[misc]
    assert len(loader) == -(-n // 5)
    assert not torch.equal(*passes)
    assert torch.equal(passes[0].sort(0).values, passes[1].sort(0).values)
    plain = torch.cat([inputs for inputs, _, _ in memory.loader(5, shuffle=False)])  # type: ignore[misc]
    assert isinstance(memory.batch.inputs, Tensor)
    assert torch.equal(plain, memory.batch.inputs)
    with pytest.raises(ValueError, match="n must be a whole number of at least 1, got 0"):
        memory.sample(0)
    with pytest.raises(ValueError, match="batch_size must be a whole number of at least 1, got 0"):
        memory.loader(0)


@pytest.mark.parametrize("capacity", [0, -1, 2.5, True])
def test_capacity_must_be_positive(capacity: int) -> None:
    for kind in MEMORIES.values():
        make = partial(kind, make_model) if kind is rc.GradientMatching else kind
        with pytest.raises(ValueError, match="capacity must be a whole number of at least 1"):
            make(capacity)
