"""New and remembered examples together, in the loaders and samplers of torch."""

import inspect
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import recollect as rc
from tests.second_device import DEVICE, SecondDevice

OLD = torch.randn(90, 3, generator=torch.Generator().manual_seed(0)), torch.arange(90) % 3
NEW = torch.randn(20, 3, generator=torch.Generator().manual_seed(1)), torch.arange(20) % 3


class Plain(Dataset[Any]):
    """Arrays and Python's numbers, as people have them."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        return NEW[0][index].double().numpy(), int(NEW[1][index])


class Named(Plain):
    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return {"x": x, "label": y}


def remembered(capacity: int = 9) -> rc.Memory:
    memory = rc.Reservoir(capacity)
    memory.update(*OLD)
    return memory


def as_it_came(examples: list[Any]) -> list[Any]:
    return examples


def per_example(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(inputs), targets, reduction="none").detach()


@pytest.mark.parametrize("new", [Plain(), NEW, TensorDataset(*NEW)], ids=["dataset", "pair", "tensors"])
def test_a_pass_adds_up_to_the_loss_over_everything_that_the_memory_stands_for(new: Any) -> None:
    with torch.random.fork_rng():
        model = nn.Linear(3, 3)
    memory = remembered()
    loader = rc.rehearsal_loader(new, memory, batch_size=8, mix="weighted")
    total = weight = 0.0
    for inputs, targets, weights in loader:
        total += float((weights * per_example(model, inputs, targets)).sum())
        weight += float(weights.sum())
    held: Any = memory.batch
    by_hand = per_example(model, *NEW).sum() + (held.weights * per_example(model, held.inputs, held.targets)).sum()
    assert total == pytest.approx(float(by_hand), rel=1e-5)
    assert weight == pytest.approx(20 + 90)


def test_each_pass_has_another_order_and_the_same_seed_the_same_ones() -> None:
    first, second, other = (rc.rehearsal_loader(NEW, remembered(), 29, seed=seed) for seed in (0, 0, 1))
    orders = [[next(iter(loader))[0] for _ in range(2)] for loader in (first, second, other)]
    assert torch.equal(orders[0][0], orders[1][0])
    assert torch.equal(orders[0][1], orders[1][1])
    assert not torch.equal(orders[0][0], orders[0][1])
    assert not torch.equal(orders[0][0], orders[2][0])
    plain = next(iter(rc.rehearsal_loader(NEW, remembered(), 29, mix="weighted", shuffle=False)))
    assert torch.equal(plain[0][:20], NEW[0])


def test_loaders_for_each_epoch_bring_other_examples_and_go_on_from_a_checkpoint() -> None:
    memory = remembered()
    state = memory.state_dict()
    epochs = [next(iter(rc.rehearsal_loader(NEW, memory, 29))).inputs for _ in range(30)]
    new = {row.tobytes() for epoch in epochs for row in epoch.numpy()} & {row.tobytes() for row in NEW[0].numpy()}
    assert len(new) == 20  # five or six come in each
    memory.load_state_dict(state)
    assert torch.equal(next(iter(rc.rehearsal_loader(NEW, memory, 29))).inputs, epochs[0])


def test_what_is_mixed_in_is_what_the_memory_held_when_the_loader_was_made() -> None:
    memory = remembered()
    held = memory.batch.inputs
    loader = rc.rehearsal_loader(NEW, memory, 29, mix="weighted", shuffle=False)
    memory.update(*NEW)
    memory.update(*NEW)
    assert torch.equal(next(iter(loader))[0][20:], held)


def test_without_memories_there_are_new_examples_alone() -> None:
    inputs, targets, weights = next(
        iter(rc.rehearsal_loader(Plain(), rc.Reservoir(3), 20, mix="weighted", shuffle=False))
    )
    assert torch.equal(inputs, NEW[0].double())
    assert torch.equal(targets, NEW[1])
    assert weights.tolist() == [1.0] * 20


def test_dicts_are_mixed_by_the_name_of_their_target() -> None:
    memory = rc.Reservoir(5)
    memory.update({"x": OLD[0], "label": OLD[1]}, target="label")
    loader = rc.rehearsal_loader(Named(), memory, 25, target="label", mix="weighted", shuffle=False)
    inputs, targets, weights = next(iter(loader))
    assert torch.equal(inputs["x"], torch.cat([NEW[0], memory.batch.inputs["x"]]))
    assert torch.equal(targets, torch.cat([NEW[1], memory.batch.targets]))
    assert weights.tolist() == [1.0] * 20 + [18.0] * 5


def test_new_examples_of_another_form_are_refused_in_one_sentence() -> None:
    wide = torch.zeros(20, 4), NEW[1]
    with pytest.raises(ValueError, match=r"^inputs must keep the shape \(3,\) of earlier examples, got \(4,\)$"):
        rc.rehearsal_loader(wide, remembered(), 5)
    with pytest.raises(ValueError, match=r"^inputs must keep the shape \(3,\) of earlier examples, got \(4,\)$"):
        next(iter(rc.rehearsal_loader(ConcatDataset([TensorDataset(*wide)]), remembered(), 5)))
    with pytest.raises(ValueError, match=r"^targets must keep the type torch.int64 of earlier examples"):
        next(iter(rc.rehearsal_loader(ConcatDataset([TensorDataset(NEW[0], NEW[0][:, 0])]), remembered(), 5)))
    with pytest.raises(ValueError, match="new examples must be a map-style dataset or a pair"):
        rc.rehearsal_loader(iter([NEW]), remembered(), 5)
    with pytest.raises(ValueError, match="memory must be a recollect memory, got list"):
        rc.rehearsal_loader(NEW, [], 5)


@pytest.mark.parametrize(("target", "known"), [(300, torch.uint8), (-1, torch.uint8), (1e300, torch.float32)])
def test_numbers_that_the_type_of_remembered_ones_has_no_room_for_are_refused(target: float, known: Any) -> None:
    class Large(Plain):
        def __getitem__(self, index: int) -> Any:
            return NEW[0][index], target

    memory = rc.Reservoir(9)
    memory.update(OLD[0], OLD[1].to(known))
    with pytest.raises(ValueError, match=rf"^targets must keep the type {known} of earlier examples, got torch.\w+64$"):
        next(iter(rc.rehearsal_loader(Large(), memory, 5)))


def test_workers_give_what_the_process_itself_does() -> None:
    for mix in ("drawn", "weighted"):
        alone = list(rc.rehearsal_loader(Plain(), remembered(), 10, mix=mix))
        helped = list(rc.rehearsal_loader(Plain(), remembered(), 10, mix=mix, num_workers=2))
        for mine, theirs in zip(alone, helped, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_the_dataset_of_a_memory_works_with_workers_samplers_and_ranks() -> None:
    memory = remembered(10)
    held: Any = memory.batch
    source = torch.Generator()
    worked = list(DataLoader(memory.dataset, 4, num_workers=2, generator=source))
    assert torch.equal(torch.cat([part.inputs for part in worked]), held.inputs)
    ranks: list[Any] = [
        DistributedSampler(memory.dataset, num_replicas=2, rank=rank, shuffle=False) for rank in range(2)
    ]
    shares = [list(DataLoader(memory.dataset, 3, sampler=sampler, generator=source)) for sampler in ranks]
    both = torch.cat([part.inputs for share in shares for part in share])
    assert torch.equal(both, torch.cat([held.inputs[0::2], held.inputs[1::2]]))
    drawn = WeightedRandomSampler(held.weights, 6, generator=torch.Generator().manual_seed(0))
    inputs, _, weights = next(iter(DataLoader(memory.dataset, 6, sampler=drawn, generator=source)))
    assert inputs.shape == (6, 3) and weights.tolist() == [9.0] * 6


@pytest.mark.parametrize("mix", ["drawn", "weighted"])
def test_the_dataset_of_a_loader_has_the_weights_for_samplers_of_ones_own(mix: Any) -> None:
    memory, source = remembered(10), torch.Generator()
    under_ddp = rc.rehearsal_loader(NEW, memory, 5, mix=mix).dataset
    ranks: list[Any] = [DistributedSampler(under_ddp, num_replicas=3, rank=rank) for rank in range(3)]
    shares = [list(DataLoader(under_ddp, 4, sampler=sampler, generator=source)) for sampler in ranks]
    assert [sum(len(part[0]) for part in share) for share in shares] == [10, 10, 10]
    assert sum(float(part.weights.sum()) for share in shares for part in share) == 20 + 90


def test_loaders_mix_as_experience_replay_does_unless_told_otherwise() -> None:
    made: list[Any] = [rc.rehearsal_loader, rc.ExperienceReplay]
    assert {inspect.signature(one).parameters["mix"].default for one in made} == {"drawn"}


def test_examples_that_are_drawn_are_put_together_by_the_users_function() -> None:
    loader = rc.rehearsal_loader(NEW, remembered(), 29, collate_fn=as_it_came)
    (batch,) = loader
    assert len(batch) == 29 and all(float(weight) == 1 for _, _, weight in batch)


def test_a_memory_can_be_updated_from_the_dataset_that_is_rehearsed() -> None:
    memory, other = remembered(), remembered()
    memory.update(TensorDataset(*NEW))
    other.update(NEW[0].numpy(), NEW[1].tolist())
    assert torch.equal(memory.batch.inputs, other.batch.inputs)


@pytest.mark.parametrize("new", [Plain(), NEW], ids=["dataset", "pair"])
def test_examples_that_are_drawn_come_as_often_as_they_weigh(new: Any) -> None:
    memory = remembered(10)  # each stands for nine: 90 of 110, and so for 24.5 of the 30 that come
    loader = rc.rehearsal_loader(new, memory, batch_size=7, mix="drawn", seed=0)
    passes = [[*loader] for _ in range(2)]
    held: Any = memory.batch
    known = [row.tobytes() for row in held.inputs.numpy()]
    for batches in passes:
        inputs = torch.cat([inputs for inputs, _, _ in batches])
        assert len(inputs) == len(loader.dataset) == 30  # type: ignore[arg-type]
        assert all(bool((weights == 1).all()) for _, _, weights in batches)
        old = [row.tobytes() for row in inputs.numpy() if row.tobytes() in known]
        assert len(old) in (24, 25)
        assert all(old.count(row) in (2, 3) for row in known)
    assert not torch.equal(passes[0][0][0], passes[1][0][0])
    again = next(iter(rc.rehearsal_loader(new, memory, batch_size=7, mix="drawn", seed=0)))
    assert torch.equal(again[0], passes[0][0][0])


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="mix must be 'drawn' or 'weighted', got 'halves'"):
        rc.rehearsal_loader(NEW, remembered(), batch_size=8, mix="halves")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="got shuffle=False: leave it out, or pass mix='weighted'"):
        rc.rehearsal_loader(NEW, remembered(), batch_size=8, mix="drawn", shuffle=False)
    with pytest.raises(ValueError, match="drawn by a sampler of their own, got another: leave it out, or make a Da"):
        rc.rehearsal_loader(NEW, remembered(), batch_size=8, mix="drawn", sampler=range(29))
    assert len([*rc.rehearsal_loader(NEW, rc.Reservoir(3), batch_size=8, mix="drawn")]) == 3  # nothing is held


def test_a_memory_with_negative_weights_is_not_drawn_from() -> None:
    rows = torch.randn(400, 3, generator=torch.Generator().manual_seed(4)), torch.arange(400) % 3
    memory = rc.GradientMatching(partial(rc.models.mlp, 3, 3), 60, inits=2, nonnegative=False, regularization=0.0)
    memory.update(*rows)
    assert float(memory.batch.weights.min()) < 0
    with pytest.raises(ValueError, match=r"weights to draw by must be at least 0, got -.*: make the memory with"):
        list(rc.rehearsal_loader(NEW, memory, batch_size=8, mix="drawn"))
    make_model = partial(rc.models.mlp, 3, 3)
    learners = [
        rc.GDumb(make_model, memory, epochs=1),
        rc.DarkExperienceReplay(make_model, memory, epochs=1),
        *(rc.ExperienceReplay(make_model, memory, epochs=1, mix=mix) for mix in ("drawn", "weighted", "halves")),
    ]
    for learner in learners:
        with pytest.raises(ValueError, match=r"weights must be at least 0 to be trained with, got -"):
            _ = learner.model if isinstance(learner, rc.GDumb) else learner.observe(*NEW)
    assert memory.seen == 400
    rc.ExperienceReplay(make_model, memory, epochs=1, mix="union").observe(*NEW)  # which counts all alike


@pytest.mark.parametrize("new", [NEW, Plain()])
def test_examples_come_on_the_device_of_the_memory(new: Any) -> None:
    wanted = [batch.inputs for batch in rc.rehearsal_loader(new, remembered(), 10)]
    with SecondDevice():
        found = [*rc.rehearsal_loader(new, remembered().to(DEVICE), 10)]
        assert {t.device for batch in found for t in batch} == {DEVICE}
        assert all(torch.equal(batch.inputs.cpu(), x) for batch, x in zip(found, wanted, strict=True))
