"""What holds for every memory."""

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import recollect as rc
from recollect.memories import MEMORIES, Choice, plain_options
from tests.second_device import DEVICE, SecondDevice

CAPACITY = 12


class Network(nn.Module):
    """Takes one tensor, or two by name of which it uses one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = rc.models.mlp(4, 3, hidden=(8,))

    def forward(self, x: Tensor | None = None, *, left: Tensor | None = None, right: Tensor | None = None) -> Tensor:
        return self.layers(right if x is None else x)  # type: ignore[no-any-return]


make_model = Network


class EveryOther(rc.Memory):
    """One that a user might write: keeps every second example, or what a function of the ids says, while it can."""

    counts_weights = True

    def __init__(self, capacity: int, *, step: int = 2, keep: Callable[[Tensor], Tensor] | None = None, seed: int = 0):
        super().__init__(capacity, seed=seed)
        self.step, self.keep = step, keep

    def choose(self, held: rc.Batch, arrived: rc.Batch, model: nn.Module | None) -> Choice:
        ids = torch.cat([held.ids, arrived.ids])
        rows = self._state.get("rows", torch.tensor(0)) + len(arrived)
        if len(ids) > self.capacity:
            ids = ids[((ids % self.step == 0) if self.keep is None else self.keep(ids)) | (ids < 3)]
        indices = torch.searchsorted(torch.cat([held.ids, arrived.ids]), ids[-self.capacity :])
        return Choice(indices, self._in_proportion(held, arrived, indices), {"rows": rows})

    def options(self) -> dict[str, Any]:
        return plain_options({"step": self.step} if self.keep is None else {"step": self.step, "keep": self.keep})


FACTORIES: dict[str, Callable[..., rc.Memory]] = {
    "GradientMatching": partial(rc.GradientMatching, make_model, CAPACITY, inits=2, dim=40),
    "GradientMatching, last layer": partial(rc.GradientMatching, make_model, CAPACITY, inits=2, layers="last"),
    "GradientMatching, paper": partial(rc.GradientMatching, make_model, CAPACITY, **rc.PAPER),
    "GradientMatching, by class": partial(
        rc.GradientMatching, make_model, CAPACITY, inits=2, dim=40, class_weight={}, min_per_class=2
    ),
    "Clustering": partial(rc.Clustering, CAPACITY),
    "LocalGradientMatching": partial(rc.LocalGradientMatching, CAPACITY, dim=100),
    "Reservoir": partial(rc.Reservoir, CAPACITY),
    "ClassBalanced": partial(rc.ClassBalanced, CAPACITY),
    "SlidingWindow": partial(rc.SlidingWindow, CAPACITY),
    "GSS": partial(rc.GSS, CAPACITY, dim=50),
    "Herding": partial(rc.Herding, CAPACITY),
    "one of a user's own": partial(EveryOther, CAPACITY, step=3),
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
    random = torch.equal(a._generator.get_state(), b._generator.get_state())
    return a.seen == b.seen and states and random and all(torch.equal(x, y) for x, y in pairs)


@pytest.fixture(params=FACTORIES)
def make(request: pytest.FixtureRequest) -> Callable[..., rc.Memory]:
    return FACTORIES[request.param]


def test_every_memory_is_under_contract() -> None:
    assert {*MEMORIES, "EveryOther"} == {type(make()).__name__ for make in FACTORIES.values()}


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


@pytest.mark.parametrize("batch_size", [7, 64])
def test_a_loader_is_one_update_as_if_all_of_it_arrived_at_once(
    make: Callable[..., rc.Memory], batch_size: int
) -> None:
    at_once, streamed = make(), make()
    for seed in (1, 2):
        inputs, targets = examples(400, seed)
        at_once.update(inputs, targets, model=the_model())
        streamed.update(
            DataLoader(TensorDataset(inputs, targets), batch_size, generator=torch.Generator()), model=the_model()
        )
    assert same(at_once, streamed)


def test_a_loader_that_fails_on_the_way_leaves_the_memory_as_it_was(make: Callable[..., rc.Memory]) -> None:
    memory, untouched = make(), make()
    for one in (memory, untouched):
        fill(one, [40])

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        yield from (examples(5000, seed) for seed in (1, 2))
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        memory.update(batches(), model=the_model())
    assert same(memory, untouched)


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
    "no numbers": (torch.zeros(3, 4), torch.zeros(3, 0), "targets must have at least one number per example"),
    "shape": (torch.zeros(3, 5), torch.zeros(3, dtype=torch.long), "must keep the shape (4,)"),
    "type": (torch.zeros(3, 4, dtype=torch.float64), torch.zeros(3, dtype=torch.long), "must keep the type"),
    "structure": ((torch.zeros(3, 4),), torch.zeros(3, dtype=torch.long), "must keep their structure"),  # type: ignore[dict-item]
}


def test_a_bad_batch_changes_nothing(make: Callable[..., rc.Memory]) -> None:
    memory, untouched = make(), make()
    for m in (memory, untouched):
        fill(m, [30])
    for bad, (inputs, targets, message) in BAD_BATCHES.items():
        with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
            memory.update(inputs, targets, model=the_model())
        assert message in str(caught.value), bad
        assert same(memory, untouched), bad
    for m in (memory, untouched):
        fill(m, [30], seed=5)
    assert same(memory, untouched)


def test_a_model_that_is_none_changes_nothing(make: Callable[..., rc.Memory]) -> None:
    memory, untouched = make(), make()
    for m in (memory, untouched):
        fill(m, [30])
    with pytest.raises(ValueError, match=r"^model must be a torch.nn.Module or None, got int$"):
        memory.update(*examples(30), model=3)  # type: ignore[arg-type]
    assert same(memory, untouched)


def test_inputs_by_name_may_come_in_any_order(make: Callable[..., rc.Memory]) -> None:
    straight, mixed = make(), make()
    for seed in range(3):
        right, targets = examples(10, seed)
        inputs = {"left": -right, "right": right}
        straight.update(inputs, targets, model=the_model())
        mixed.update(inputs if seed == 0 else dict(reversed(inputs.items())), targets, model=the_model())
    assert mixed.batch.ids.tolist() == straight.batch.ids.tolist()
    assert torch.equal(mixed.batch.inputs["left"], -mixed.batch.inputs["right"])  # type: ignore[call-overload]
    assert torch.equal(mixed.batch.inputs["left"], straight.batch.inputs["left"])  # type: ignore[call-overload]


def test_a_subclass_of_tensors_and_plain_ones_may_follow_each_other(make: Callable[..., rc.Memory]) -> None:
    class Image(Tensor):
        """As those of torchvision."""

    memory = make()
    for seed in range(2):
        inputs, targets = examples(10, seed)
        memory.update(inputs if seed else inputs.as_subclass(Image), targets, model=the_model())
    assert memory.seen == 20


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
    memory = make()
    memory.update((inputs,), targets, model=the_model())
    memory.save(tmp_path)
    loaded = rc.load_memory(tmp_path).batch.inputs
    assert isinstance(loaded, tuple)
    assert torch.equal(loaded[0], inputs[memory.batch.ids])


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


def test_a_loader_looks_at_the_memory_at_each_pass(make: Callable[..., rc.Memory]) -> None:
    memory = make()
    loader = memory.loader(4, shuffle=False)
    assert len(loader) == 0
    with pytest.raises(ValueError, match="the memory must have seen data"):
        next(iter(loader))
    for sizes in ([3], [40], [40]):
        fill(memory, sizes, seed=memory.seen)
        assert len(loader) == -(-len(memory) // 4)
        assert torch.equal(torch.cat([weights for _, _, weights in loader]), memory.batch.weights)
        assert torch.equal(torch.cat([inputs for inputs, _, _ in loader]), memory.batch.inputs)


def test_the_dataset_is_what_is_held(make: Callable[..., rc.Memory]) -> None:
    memory = make()
    dataset = memory.dataset
    assert len(dataset) == 0
    loader: Any = DataLoader(dataset, batch_size=5, generator=torch.Generator())
    for sizes in ([7], [40]):
        fill(memory, sizes)
        parts = list(loader)
        for name in ("inputs", "targets", "weights"):
            assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(memory.batch, name))
    one = dataset[-1]
    assert torch.equal(one.inputs, memory.batch.inputs[-1])
    memory.of_its_own = lambda: None  # cannot be pickled
    copied = pickle.loads(pickle.dumps(dataset))  # what other processes get: the examples, and nothing that made them
    assert len(copied) == len(memory)
    assert torch.equal(copied[0].inputs, dataset[0].inputs)


def test_the_dataset_of_structured_inputs(make: Callable[..., rc.Memory]) -> None:
    memory = make()
    inputs, targets = examples(40)
    memory.update({"left": inputs[:, :1], "right": inputs}, targets, model=the_model())
    part = next(iter(DataLoader(memory.dataset, batch_size=5, generator=torch.Generator())))
    assert torch.equal(part.inputs["left"], memory.batch.inputs["left"][:5])


def test_a_checkpoint_holds_the_whole_memory(make: Callable[..., rc.Memory]) -> None:
    steady, resumed = make(), make()
    for memory in (steady, resumed):
        fill(memory, [30])
        memory.sample(3)
    file = io.BytesIO()
    torch.save({"memory": resumed.state_dict(), "epoch": 3}, file)
    file.seek(0)
    resumed = make()
    resumed.load_state_dict(torch.load(file, weights_only=True)["memory"])
    assert same(steady, resumed)
    for memory in (steady, resumed):
        fill(memory, [20, 20], seed=1)
    assert same(steady, resumed)
    empty = make()
    empty.load_state_dict(make().state_dict())
    assert len(empty) == empty.seen == 0


def test_a_checkpoint_replaces_what_a_memory_has_seen(make: Callable[..., rc.Memory]) -> None:
    steady, other = make(), make()
    fill(steady, [30])
    fill(other, [25, 10], seed=2)
    other.load_state_dict(steady.state_dict())
    for memory in (steady, other):
        fill(memory, [20, 20], seed=1)
    assert same(steady, other)


def test_loading_a_checkpoint_copies_it(make: Callable[..., rc.Memory]) -> None:
    memory, loaded = make(), make()
    fill(memory, [30])
    state = memory.state_dict()
    loaded.load_state_dict(state)
    before = copy.deepcopy(loaded)
    for value in state["tensors"].values():
        value.zero_()
    assert same(loaded, before)


def damaged_states(state: dict[str, Any]) -> Iterator[Any]:
    """Checkpoints that this memory must not take."""
    yield None
    yield {}
    for name in ("memory", "capacity", "seed", "options"):
        yield {**state, name: "another"}
    for name in state:
        yield {key: value for key, value in state.items() if key != name}
    for seen in (-1, 2.0, None, 0, 5):
        yield {**state, "seen": seen}
    yield {**state, "inputs": None}
    tensors = state["tensors"]
    for name in ("generator", "inputs.", "targets", "weights", "ids"):
        for bad in (None, tensors[name][:2], torch.zeros(()), tensors[name].flip(0)[:3]):
            yield {**state, "tensors": {**tensors, name: bad}}
        yield {**state, "tensors": {key: value for key, value in tensors.items() if key != name}}
    yield {**state, "tensors": {**tensors, "weights": tensors["weights"] * torch.nan}}
    yield {**state, "tensors": {**tensors, "ids": tensors["ids"].flip(0)}}


def test_a_checkpoint_that_does_not_fit_changes_nothing(make: Callable[..., rc.Memory]) -> None:
    memory, untouched = make(), make()
    for one in (memory, untouched):
        fill(one, [30])
    for state in damaged_states(memory.state_dict()):
        with pytest.raises(ValueError, match=r"^[^\n]*$"):
            memory.load_state_dict(state)
        assert same(memory, untouched)
    with pytest.raises(ValueError, match="must be of a memory that was made with the same arguments, seed 3, got 0"):
        make(seed=3).load_state_dict(untouched.state_dict())


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy], ids=["deep", "shallow"])
def test_a_copy_goes_its_own_way(make: Callable[..., rc.Memory], copied: Callable[[rc.Memory], rc.Memory]) -> None:
    memory, steady = make(), make()
    for one in (memory, steady):
        fill(one, [30])
    clone = copied(memory)
    assert same(memory, clone)
    fill(clone, [30], seed=1)
    clone.sample(5)
    assert same(memory, steady)
    fill(memory, [30], seed=1)
    memory.sample(5)
    assert same(memory, clone)


def test_numpy_numbers_are_numbers(make: Callable[..., rc.Memory], tmp_path: Path) -> None:
    memory, plain = make(seed=np.int64(3)), make(seed=3)
    for one in (memory, plain):
        fill(one, [30])
    assert len(memory.sample(np.int32(4)).targets) == 4
    plain.sample(4)
    assert len(memory.loader(np.uint8(5))) == -(-len(memory) // 5)
    assert same(memory, plain)
    memory.save(tmp_path)
    assert same(rc.load_memory(tmp_path, make_model), plain)


def test_a_memory_tells_about_itself_in_one_line(make: Callable[..., rc.Memory]) -> None:
    memory = make()
    assert repr(memory) == f"{type(memory).__name__}(0 of 0 seen, capacity 12)"
    fill(memory, [30])
    name = type(memory).__name__
    assert repr(memory).startswith(f"{name}({len(memory)} of 30 seen, capacity 12, weights ")
    assert ("error 0.0" in repr(memory)) == hasattr(memory, "error")
    assert repr(memory.batch).startswith(f"Batch({len(memory)} examples, inputs (4,) float32, targets int64, weights ")
    assert "\n" not in repr(memory) + repr(memory.batch)


@pytest.mark.parametrize("name", FACTORIES)
def test_all_of_a_memory_is_on_one_device(name: str, tmp_path: Path) -> None:
    """On a second device, whose tensors refuse to meet others, a memory ends as on the first."""
    here = FACTORIES[name]()
    fill(here, [5, 30, 30])
    with SecondDevice():
        there = FACTORIES[name]()
        inputs, targets = examples(65)
        there.update(inputs[:5], targets[:5], model=the_model())
        assert there.to(DEVICE) is there
        for rows in (slice(5, 35), slice(35, 65)):
            x = inputs[rows] if rows.start == 5 else inputs[rows].to(DEVICE)  # from wherever
            there.update(x, targets[rows], model=the_model())
        everything = [there.batch.inputs, there.batch.targets, there.batch.weights, there.batch.ids]
        assert {t.device for t in [*everything, *there._state.values()]} == {DEVICE}
        assert there.sample(3).weights.device == DEVICE
        assert next(iter(there.loader(3))).inputs.device == DEVICE
        assert there.dataset[0].targets.device == DEVICE
        assert "weights" in repr(there)
        there.save(tmp_path)
        assert same(rc.load_memory(tmp_path, make_model).to(DEVICE).to("cpu"), copy.deepcopy(there.to("cpu")))
        loaded = FACTORIES[name]().to(DEVICE)
        loaded.load_state_dict(there.state_dict())
        assert loaded.batch.inputs.device == DEVICE
    here.sample(3)
    next(iter(here.loader(3)))
    assert same(here, there)


def test_only_a_device_that_holds_values_will_do(make: Callable[..., rc.Memory]) -> None:
    memory, untouched = make(), make()
    for one in (memory, untouched):
        fill(one, [30])
    for device in ("meta", "nowhere", "vulkan", None, 3.5):
        with pytest.raises(ValueError, match=r"^device must be one that [^\n]*$"):
            memory.to(device)
    assert same(memory, untouched)


# Examples that stand for several


def weights_for(n: int, seed: int = 0) -> Tensor:
    return torch.rand(n, generator=torch.Generator().manual_seed(seed)) * 4 + 0.1


def fill_weighted(memory: rc.Memory, sizes: list[int], seed: int = 0) -> Tensor:
    inputs, targets = examples(sum(sizes), seed)
    weights = weights_for(sum(sizes), seed)
    for x, y, w in zip(inputs.split(sizes), targets.split(sizes), weights.split(sizes), strict=True):
        memory.update(x, y, weights=w, model=the_model())
    return weights


def test_weights_of_one_are_the_same_as_none(make: Callable[..., rc.Memory]) -> None:
    given, plain = make(), make()
    for sizes in ([5], [30], [40]):
        inputs, targets = examples(*sizes, seed=sizes[0])
        given.update(inputs, targets, weights=[1] * sizes[0], model=the_model())
        plain.update(inputs, targets, model=the_model())
        assert same(given, plain)
        assert given.total_weight == given.seen


def test_everything_is_kept_with_the_weight_it_came_with_while_there_is_room(make: Callable[..., rc.Memory]) -> None:
    memory = make()
    weights = fill_weighted(memory, [5, 7])
    assert memory.batch.ids.tolist() == list(range(12))
    assert torch.allclose(memory.batch.weights, weights)


def test_weights_add_up_to_about_what_everything_stands_for(make: Callable[..., rc.Memory]) -> None:
    memory = make()
    weights = fill_weighted(memory, [50, 50])
    memory.update(*examples(50, seed=1), model=the_model())
    total = float(weights.double().sum()) + 50
    assert memory.seen == 150
    assert memory.total_weight == pytest.approx(total, rel=1e-9)
    assert float(memory.batch.weights.sum()) == pytest.approx(total, rel=0.4)
    assert int(memory.batch.ids.max()) < 150


def test_examples_that_stand_for_none_are_seen_and_not_kept(make: Callable[..., rc.Memory]) -> None:
    memory = make()
    inputs, targets = examples(60)
    weights = weights_for(60)
    weights[::3] = 0
    for rows in (slice(0, 6), slice(6, 60)):
        memory.update(inputs[rows], targets[rows], weights=weights[rows], model=the_model())
        assert memory.seen == rows.stop
        assert (memory.batch.ids % 3 != 0).all()
        assert torch.equal(memory.batch.inputs, inputs[memory.batch.ids])
    assert memory.total_weight == pytest.approx(float(weights.sum()))


BAD_WEIGHTS: dict[str, Any] = {
    "too few": [1.0, 2.0],
    "negative": [1.0, -1.0, 1.0],
    "nan": [1.0, float("nan"), 1.0],
    "infinite": [1.0, float("inf"), 1.0],
    "too large": [1.0, 1e39, 1.0],
    "a column": torch.ones(3, 1),
    "truth values": [True, True, True],
    "text": ["1", "1", "1"],
    "one number": 2.0,
    "nothing": [0, 0, 0],
}


def test_bad_weights_change_nothing(make: Callable[..., rc.Memory]) -> None:
    memory, untouched = make(), make()
    for one in (memory, untouched):
        fill_weighted(one, [30])
    for bad, weights in BAD_WEIGHTS.items():
        with pytest.raises(ValueError, match=r"^weights must [^\n]*$"):
            memory.update(*examples(3), weights=weights, model=the_model())
        assert same(memory, untouched), bad


def test_weights_come_with_whole_examples(make: Callable[..., rc.Memory]) -> None:
    memory = make()
    inputs, targets = examples(30)
    for source in ([(inputs, targets)], DataLoader(TensorDataset(inputs, targets), 10, generator=torch.Generator())):
        with pytest.raises(ValueError, match=r"^weights must come with examples that are there whole, got a stream"):
            memory.update(source, weights=torch.ones(30), model=the_model())
    assert memory.seen == 0
    memory.update(TensorDataset(inputs, targets), weights=torch.full((30,), 2.0), model=the_model())
    assert memory.total_weight == 60


def test_a_memory_of_weighted_examples_is_resumed_bit_for_bit(make: Callable[..., rc.Memory], tmp_path: Path) -> None:
    steady, resumed = make(), make()
    for seed, sizes in enumerate(([5], [30], [3, 3], [30])):
        for memory in (steady, resumed):
            fill_weighted(memory, sizes, seed)
        resumed.save(tmp_path / "memory")
        resumed = rc.load_memory(tmp_path / "memory", make_model)
        assert same(steady, resumed)
        checkpoint = resumed.state_dict()
        resumed = make()
        resumed.load_state_dict(checkpoint)
        assert same(steady, resumed)
        assert resumed.total_weight == steady.total_weight != steady.seen
    for memory in (steady, resumed):
        memory.update([examples(20, seed=9), examples(20, seed=10)], model=the_model())
    assert same(steady, resumed)


def test_what_is_forgotten_counts_as_it_came(make: Callable[..., rc.Memory]) -> None:
    for sizes in ([9], [40]):
        memory = make()
        weights = fill_weighted(memory, sizes)
        left = float(weights.double().sum())
        for count in (3, 1):
            gone = memory.batch.ids[:count]
            memory.forget(gone)
            left -= float(weights[gone].double().sum())
            assert memory.total_weight == pytest.approx(left, rel=1e-6)
            assert float(memory.batch.weights.sum()) == pytest.approx(left, rel=0.4)
        if sizes == [9]:
            assert torch.allclose(memory.batch.weights, weights[4:])
        memory.update(*examples(40, seed=1), model=the_model())
        assert memory.total_weight == pytest.approx(left + 40, rel=1e-6)
        assert float(memory.batch.weights.sum()) == pytest.approx(left + 40, rel=0.4)


@pytest.mark.parametrize("sizes", [(40, 30), (4, 5), (40, 3)])
def test_merged_memories_stand_for_what_both_do(make: Callable[..., rc.Memory], sizes: tuple[int, int]) -> None:
    first, second = make(), make() if isinstance(make(), rc.GradientMatching) else make(seed=1)
    weights = fill_weighted(first, [sizes[0]])
    fill(second, [sizes[1]])
    if type(first).merge is rc.Memory.merge:
        with pytest.raises(ValueError, match=r"^memories to be merged must be of gradient matching or reservoirs"):
            first.merge(second)
        return
    for a, b in ((first, second), (second, first)):
        merged = a.merge(b)
        assert merged.seen == sum(sizes)
        assert len(merged) == min(sum(sizes), CAPACITY)
        assert merged.total_weight == pytest.approx(float(weights.sum()) + sizes[1], rel=1e-6)
        assert float(merged.batch.weights.sum()) == pytest.approx(merged.total_weight, rel=0.4)
        before, place = merged.total_weight, int(merged.batch.ids[0])
        came = torch.cat([weights, torch.ones(sizes[1])] if a is first else [torch.ones(sizes[1]), weights])
        merged.forget([place])
        assert merged.total_weight == pytest.approx(before - float(came[place]), rel=1e-6)


@pytest.mark.parametrize("sizes", [[40], [5], [40, 3]])
def test_an_empty_memory_merges_as_nothing_in_either_order(make: Callable[..., rc.Memory], sizes: list[int]) -> None:
    """So that memories of many places can be merged one by one, beginning with none."""
    full, empty = make(), make() if isinstance(make(), rc.GradientMatching) else make(seed=1)
    if type(full).merge is rc.Memory.merge:
        return
    weights = fill_weighted(full, sizes)
    for merged in (full.merge(empty), empty.merge(full)):
        assert merged.seen == full.seen
        assert set(merged.batch.ids.tolist()) <= set(full.batch.ids.tolist())
        assert merged.total_weight == pytest.approx(float(weights.sum()), rel=1e-6)
        assert float(merged.batch.weights.sum()) == pytest.approx(merged.total_weight, rel=0.4)
        merged.update(*examples(30, seed=3))
        assert (merged.seen, len(merged)) == (full.seen + 30, CAPACITY)
    assert not empty.seen
    assert not empty.merge(make(seed=2) if not isinstance(empty, rc.GradientMatching) else make()).seen


@pytest.mark.parametrize("name", FACTORIES)
def test_weighted_examples_on_a_second_device(name: str) -> None:
    here = FACTORIES[name]()
    weights = fill_weighted(here, [5, 30])
    with SecondDevice():
        there = FACTORIES[name]().to(DEVICE)
        inputs, targets = examples(35)
        there.update(inputs[:5], targets[:5], weights=weights[:5], model=the_model())
        there.update(inputs[5:].to(DEVICE), targets[5:], weights=weights[5:].to(DEVICE), model=the_model())
        assert {t.device for t in [there.batch.weights, *there._state.values()]} == {DEVICE}
        assert there.total_weight == here.total_weight
        there.to("cpu")
    assert same(here, there)


# Memories that users write


def test_a_memory_that_does_not_count_weights_refuses_them() -> None:
    class Plain(EveryOther):
        counts_weights = False

    memory = Plain(12)
    with pytest.raises(ValueError, match="weights must be passed to a memory that counts them, got Plain"):
        memory.update(*examples(3), weights=[1.0, 2.0, 3.0])
    assert memory.seen == 0


class Derived(EveryOther):
    """Of a class that is itself derived."""


@pytest.mark.parametrize("kind", [EveryOther, Derived])
def test_a_memory_of_ones_own_is_found_by_its_name(kind: type[EveryOther], tmp_path: Path) -> None:
    memory = kind(12, step=3)
    fill(memory, [30])
    memory.save(tmp_path)
    assert f'"memory": "{kind.__module__}.{kind.__name__}"' in (tmp_path / "memory.json").read_text()
    assert type(rc.load_memory(tmp_path)) is kind
    assert rc.load_memory(tmp_path, kind=kind).step == 3


def test_nothing_is_imported_because_a_file_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Passing(EveryOther):
        pass

    memory = EveryOther(12)
    fill(memory, [30])

    def save_as(name: str) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("recollect.memories.memory.name_of", lambda kind: name)
            memory.save(tmp_path)

    for name in ("antigravity.Memory", "os.system", "Memory", "EveryOther", "tests.nowhere.EveryOther"):
        save_as(name)
        with pytest.raises(ValueError, match=f"no class '{name}' is known here: import it, or pass kind="):
            rc.load_memory(tmp_path)
    save_as("__main__.EveryOther")  # by a script
    assert same(rc.load_memory(tmp_path, kind=EveryOther), memory)
    with pytest.raises(ValueError, match=r"kind must be the class that was saved, '__main__.EveryOther', got"):
        rc.load_memory(tmp_path, kind=Passing)
    for kind in (dict, EveryOther(3), "EveryOther"):
        with pytest.raises(ValueError, match=r"kind must be a class derived from recollect.Memory"):
            rc.load_memory(tmp_path, kind=kind)


def test_functions_of_a_memory_of_ones_own_are_passed_again(tmp_path: Path) -> None:
    def keep(ids: Tensor) -> Tensor:
        return ids % 5 == 0

    memory = EveryOther(12, keep=keep)
    fill(memory, [30])
    memory.save(tmp_path)
    with pytest.raises(ValueError, match="keep must be passed to load_memory, as functions are not saved"):
        rc.load_memory(tmp_path)
    loaded = rc.load_memory(tmp_path, keep=keep)
    for one in (memory, loaded):
        fill(one, [30], seed=1)
    assert same(memory, loaded)


def test_what_could_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    class Forgetful(EveryOther):
        def __init__(self, capacity: int, tensor: Tensor, *, seed: int = 0) -> None:
            super().__init__(capacity, seed=seed)

        def options(self) -> dict[str, Any]:
            return {}

    class Secretive(EveryOther):
        def options(self) -> dict[str, Any]:
            return {"step": torch.tensor(2)}

    for memory in (Forgetful(3, torch.zeros(2)), Secretive(3)):
        for save in (memory.save, lambda _, m=memory: m.state_dict()):
            with pytest.raises(ValueError, match=r"^a memory must be made from capacity, seed and its options\(\)"):
                save(tmp_path / "memory")
    assert not (tmp_path / "memory").exists()


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (None, "choose must return a Choice, got NoneType"),
        (Choice(torch.arange(13), torch.ones(13)), "at most 12 whole numbers as indices"),
        (Choice(torch.tensor([0.0]), torch.ones(1)), "whole numbers as indices, got torch.float32"),
        (Choice(torch.tensor([2, 1]), torch.ones(2)), "ascending indices from 0 to 29"),
        (Choice(torch.tensor([1, 1]), torch.ones(2)), "ascending indices from 0 to 29"),
        (Choice(torch.tensor([-1, 1]), torch.ones(2)), "ascending indices from 0 to 29"),
        (Choice(torch.tensor([1, 30]), torch.ones(2)), "ascending indices from 0 to 29"),
        (Choice(torch.tensor([1, 2]), torch.ones(3)), "one finite weight for each of 2 indices"),
        (Choice(torch.tensor([1, 2]), torch.tensor([1.0, torch.nan])), "one finite weight for each of 2 indices"),
        (Choice(torch.tensor([1]), torch.tensor([1e300], dtype=torch.float64)), "one finite weight"),
    ],
)
def test_a_choice_that_cannot_be_kept_is_refused(choice: Any, message: str) -> None:
    class Wrong(rc.Memory):
        def choose(self, held: rc.Batch, arrived: rc.Batch, model: nn.Module | None) -> Choice:
            return choice  # type: ignore[no-any-return]

    memory = Wrong(12)
    with pytest.raises(ValueError, match=message):
        fill(memory, [30])
    assert memory.seen == len(memory) == 0


@pytest.mark.parametrize("capacity", [0, -1, 2.5, True])
def test_capacity_must_be_positive(capacity: int) -> None:
    for kind in MEMORIES.values():
        make = partial(kind, make_model) if kind is rc.GradientMatching else kind
        with pytest.raises(ValueError, match="capacity must be a whole number of at least 1"):
            make(capacity)


def test_forgotten_examples_are_gone_and_the_stream_goes_on(make: Callable[..., rc.Memory], tmp_path: Path) -> None:
    for sizes, count in (([7], 2), ([40], 3), ([40], CAPACITY)):
        memory = make()
        fill(memory, sizes)
        held = memory.batch.ids
        gone, absent = held[:count], [i for i in range(sum(sizes)) if i not in held][:1]
        assert memory.forget([*gone.tolist(), *absent]).tolist() == absent
        assert memory.seen == sum(sizes)
        assert not torch.isin(memory.batch.ids, gone).any()
        assert len(memory) <= len(held) - len(gone)
        if len(gone) < len(held):
            assert float(memory.batch.weights.sum()) == pytest.approx(sum(sizes) - len(gone), rel=0.4)
        memory.save(tmp_path)
        loaded = rc.load_memory(tmp_path, make_model)
        assert same(memory, loaded)
        for one in (memory, loaded):
            one.update(*examples(40, seed=3), model=the_model())
        assert same(memory, loaded)
        assert not torch.isin(memory.batch.ids, gone).any()


def test_a_memory_of_which_all_was_forgotten_has_no_minibatches(make: Callable[..., rc.Memory]) -> None:
    memory = make()
    fill(memory, [8])
    memory.forget(memory.batch.ids)
    assert len(memory.loader(4)) == len(list(memory.loader(4))) == 0


def test_ids_that_were_never_seen_cannot_be_forgotten(make: Callable[..., rc.Memory]) -> None:
    memory, untouched = make(), make()
    for one in (memory, untouched):
        fill(one, [30])
    for ids in ([30], [-1], [0.5], 3, "ids", [True]):
        with pytest.raises(ValueError, match=r"^ids must[^\n]*$"):
            memory.forget(ids)
    assert same(memory, untouched)


def test_memories_are_merged_or_refuse_in_one_sentence(make: Callable[..., rc.Memory]) -> None:
    gradients = isinstance(make(), rc.GradientMatching)
    first, second = make(), make() if gradients else make(seed=1)
    for memory, sizes in ((first, [40]), (second, [9, 30])):
        fill(memory, sizes, seed=sizes[0])
    if type(first).merge is rc.Memory.merge:
        with pytest.raises(ValueError, match=r"^memories to be merged must be of gradient matching or reservoirs"):
            first.merge(second)
        return
    merged = first.merge(second)
    assert merged.seen == 79
    assert len(merged) <= CAPACITY
    assert float(merged.batch.weights.sum()) == pytest.approx(79, rel=0.4)
    mine, other = first.batch, second.batch
    pairs = [(i, mine) if i < 40 else (i - 40, other) for i in merged.batch.ids.tolist()]
    for row, (own, batch) in zip(merged.batch.inputs, pairs, strict=True):
        assert torch.equal(row, batch.inputs[batch.ids == own][0])
