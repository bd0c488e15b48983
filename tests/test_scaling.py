import copy
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import recollect as rc
from recollect.embedding import draw_model
from recollect.embedding.scaling import TargetScale, scaled_loss
from recollect.losses import squared_error
from recollect.memories.local_embedding import embed_at
from recollect.randomness import derive_seed


class Odd(nn.Module):
    """A convolution, then outputs that no linear layer gives."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv1d(1, 2, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.softplus(self.head(self.conv(x[:, None]).flatten(1)))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mlp": partial(rc.models.mlp, 3, 2, hidden=(8,)),
    "another last layer": Odd,
}


def examples(n: int = 60, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n, 3, generator=generator)
    noise = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    targets = torch.stack([inputs.sum(1).sin(), inputs[:, 0] * inputs[:, 1]], 1).double() + 0.1 * noise
    return inputs, targets


def by_hand(make_model: Callable[[], nn.Module], inputs: Tensor, targets: Tensor, first: int, inits: int) -> Tensor:
    """Gradients of the squared error of standardised outputs and targets, example by example."""
    mean, deviation = targets[:first].mean(0), targets[:first].std(0, correction=0)
    unit = deviation.square().mean().sqrt()
    rows = []
    for s in range(inits):
        model = draw_model(make_model, derive_seed(0, "model", s))
        f = model(inputs[:first]).detach().double()
        for x, y in zip(inputs, targets, strict=True):
            output = (model(x[None])[0].double() - f.mean(0)) * deviation / f.std(0, correction=0)
            loss = ((output - (y - mean)) / unit).square().sum()
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            rows.append(torch.cat([g.flatten() for g in gradients]))
    each = torch.stack(rows).reshape(inits, len(inputs), -1)
    return each.transpose(0, 1).flatten(1).double() / math.sqrt(inits)


@pytest.mark.parametrize("name", NETWORKS)
def test_embeddings_are_gradients_of_draws_whose_outputs_vary_as_the_first_targets_do(name: str) -> None:
    inputs, targets = examples()
    embedding = rc.GradientEmbedding(NETWORKS[name], loss="squared_error", inits=3, projection=None)
    embedding.embed(inputs[:40], targets[:40])
    found = embedding.embed(inputs, 5 * targets)
    expected = by_hand(NETWORKS[name], torch.cat([inputs[:40], inputs]), torch.cat([targets[:40], 5 * targets]), 40, 3)
    assert torch.allclose(found.double(), expected[40:], rtol=1e-3, atol=1e-4)
    total = embedding.total(inputs, 5 * targets)
    assert torch.allclose(total, found.double().sum(0), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", NETWORKS)
def test_neither_scale_nor_offset_of_the_targets_changes_the_choice(name: str) -> None:
    inputs, targets = examples()
    chosen, errors = [], []
    for y in (targets, targets * 1e6 + 1e9, targets * 1e-6 - 1.0):
        memory = rc.GradientMatching(NETWORKS[name], 8, loss="squared_error", inits=3)
        for i in (0, 30):
            memory.update(inputs[i : i + 30], y[i : i + 30])
        once = rc.select(NETWORKS[name], inputs, y, 8, loss="squared_error", inits=3)
        chosen.append((memory.batch.ids.tolist(), once.indices.tolist()))
        errors.append(rc.matching_error(NETWORKS[name], (inputs, y), once, loss="squared_error", inits=2))
    assert chosen[0] == chosen[1] == chosen[2]
    assert errors == pytest.approx([errors[0]] * 3, rel=1e-3)


def test_the_first_examples_decide_for_the_whole_stream_also_if_it_is_resumed(tmp_path: Path) -> None:
    inputs, targets = examples()
    make_model = NETWORKS["mlp"]
    steady = rc.GradientMatching(make_model, 8, loss="squared_error", inits=2)
    steady.update(inputs[:30], targets[:30])
    steady.save(tmp_path)
    resumed = rc.load_memory(tmp_path, make_model)
    for memory in (steady, resumed):
        memory.update(inputs[30:], 100 * targets[30:] + 7)
    assert torch.equal(steady.batch.ids, resumed.batch.ids)
    assert torch.equal(steady.batch.weights, resumed.batch.weights)
    expected = by_hand(make_model, inputs, torch.cat([targets[:30], 100 * targets[30:] + 7]), 30, 2).sum(0)
    assert float((steady.target - expected).norm() / expected.norm()) < 1e-4


def test_examples_that_come_one_by_one_decide_together_once_there_is_a_choice_to_be_made() -> None:
    inputs, targets = examples()
    targets = targets * 1e6 + 1e9
    memory, once = (rc.GradientMatching(NETWORKS["mlp"], 32, loss="squared_error", inits=2) for _ in range(2))
    for x, y in zip(inputs[:33], targets[:33], strict=True):
        memory.update(x[None], y[None])
    once.update(inputs[:33], targets[:33])
    assert torch.equal(memory._state["target scale"], once._state["target scale"])
    assert torch.allclose(memory.target, once.target, rtol=1e-4, atol=1e-6)


def test_a_dataset_and_any_batch_size_give_the_choice_of_tensors() -> None:
    inputs, targets = examples(5000)
    inputs, targets = inputs, targets * torch.linspace(1, 30, 5000)[:, None]
    whole, other = (
        rc.select(NETWORKS["mlp"], inputs, targets, 8, loss="squared_error", inits=2, batch_size=n) for n in (128, 100)
    )
    dataset = torch.utils.data.TensorDataset(inputs, targets)
    passing = rc.select(NETWORKS["mlp"], dataset, size=8, loss="squared_error", inits=2)
    assert whole.indices.tolist() == other.indices.tolist() == passing.indices.tolist()
    assert torch.equal(whole.weights, passing.weights)


@pytest.mark.parametrize("first", [1, 2, 20])
def test_targets_without_any_spread_and_outputs_that_are_all_zero_are_borne(first: int) -> None:
    def zero() -> nn.Module:
        model = rc.models.mlp(3, 1, hidden=(8,))
        nn.init.zeros_(model[-1].weight)  # type: ignore[arg-type]
        nn.init.zeros_(model[-1].bias)  # type: ignore[arg-type]
        return model

    inputs, targets = examples()
    usual = partial(rc.models.mlp, 3, 1, hidden=(8,))
    for make_model, values in ((zero, [5.0]), (usual, [0.0, 5.0])):
        for value in values:
            memory = rc.GradientMatching(make_model, 8, loss="squared_error", inits=2)
            memory.update(inputs[:first], torch.full((first, 1), value, dtype=torch.float64))
            memory.update(inputs[first:], targets[first:, :1])
            assert len(memory) == 8
            assert memory.error < 1


def test_a_loss_of_one_s_own_sees_targets_as_they_are_and_outputs_brought_to_them() -> None:
    seen: list[tuple[Tensor, Tensor]] = []

    def absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
        seen.append((outputs.detach(), targets))
        return (outputs - targets).abs().sum(1)

    inputs, targets = examples(200)
    targets = 3 * targets + 100
    embedding = rc.GradientEmbedding(
        NETWORKS["another last layer"], loss=absolute_error, scale_outputs=True, inits=1, batch_size=200
    )
    embedding.embed(inputs, targets)
    outputs, given = seen[-1]
    assert torch.equal(given, targets.float())
    assert torch.allclose(outputs.mean(0), targets.mean(0).float(), atol=0.01)
    assert torch.allclose(outputs.std(0, correction=0), targets.std(0, correction=0).float(), rtol=1e-3)


def test_losses_of_classes_and_memories_that_look_at_the_learner_are_not_scaled() -> None:
    inputs, targets = examples()
    for loss, y in [("cross_entropy", torch.arange(60) % 2), ("binary_cross_entropy", (targets > 0).double())]:
        found = [
            rc.GradientEmbedding(NETWORKS["mlp"], loss=loss, inits=2, scale_outputs=option).embed(inputs, y)  # type: ignore[arg-type]
            for option in ("auto", False)
        ]
        assert torch.equal(*found)
    model = draw_model(NETWORKS["mlp"], 0)
    batch = rc.Batch.arriving(inputs, targets)
    local, _ = embed_at(model, batch.take(torch.arange(0)), batch, {}, seed=0, loss="squared_error", projection=None)
    plain = rc.GradientEmbedding(
        lambda: copy.deepcopy(model), loss="squared_error", inits=1, projection=None, scale_outputs=False
    )
    assert torch.equal(local, plain.embed(inputs, targets))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"scale_outputs": "yes"}, "scale_outputs must be True, False or 'auto', got 'yes'"),
        ({"scale_outputs": True}, "scale_outputs must be False or 'auto' where outputs are no quantities"),
        (
            {"scale_outputs": True, "loss": lambda outputs, targets: (outputs.sum(1) - targets[:, 0]) ** 2},
            "as many numbers per example as the model has outputs for these to be scaled, got 1 and 2",
        ),
    ],
)
def test_odd_options_are_refused_in_one_sentence(options: dict[str, Any], sentence: str) -> None:
    inputs, targets = examples()
    with pytest.raises(ValueError, match=sentence):
        rc.select(NETWORKS["mlp"], inputs, targets[:, :1], 3, **options)


def test_everything_matches_itself_and_a_choice_matches_better_than_a_sample() -> None:
    inputs, targets = examples(300)
    make_model, options = NETWORKS["mlp"], {"loss": "squared_error", "inits": 3}
    everything = rc.Coreset(torch.arange(300), torch.ones(300, dtype=torch.float64), 0.0)
    assert rc.matching_error(make_model, (inputs, targets), everything, **options) == 0.0  # type: ignore[arg-type]
    sample = rc.Coreset(torch.arange(30), torch.full((30,), 10.0, dtype=torch.float64), 0.0)
    chosen = rc.select(make_model, inputs, targets, 30, **options)  # type: ignore[arg-type]
    errors = [rc.matching_error(make_model, (inputs, targets), c, **options) for c in (chosen, sample)]  # type: ignore[arg-type]
    assert errors[0] < 0.5 * errors[1]


def test_outputs_are_scaled_by_examples_of_however_many_there_are() -> None:
    model, scale = draw_model(lambda: nn.Linear(3, 1), 0), TargetScale.of(torch.tensor([1.0, 2.0]))
    few = torch.ones(300, 3)
    for many in (few, few[:1].expand(2**25 + 4, 3)):  # more than float32 counts
        found = scaled_loss(model, many, scale, squared_error, squared=True)
        assert found.outputs.tolist() == scaled_loss(model, few, scale, squared_error, squared=True).outputs.tolist()
