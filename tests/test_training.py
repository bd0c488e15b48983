import pytest
import torch
from torch import nn

import recollect as rc
from recollect.batch import Batch
from recollect.embedding import draw_model
from recollect.learners import Training, predict, train, train_many


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


@pytest.mark.parametrize("network", [lambda: rc.models.mlp(64, 3), lambda: rc.models.cnn((1, 8, 8), 3)])
def test_a_stack_gives_the_numbers_of_one_by_one(network: "type[nn.Module]") -> None:
    sizes = [35, 10, 35, 61, 7]  # not full, several, and fewer steps than others
    data, training = batches(sizes), Training(epochs=4, batch_size=10, lr=0.003)
    alone = [draw_model(network, seed) for seed in range(5)]
    stacked = [draw_model(network, seed) for seed in range(5)]
    for model, batch, generator in zip(alone, data, generators(5), strict=True):
        train(model, batch, training, generator)
    train_many(stacked, data, training, generators(5))
    for one, other, batch in zip(alone, stacked, data, strict=True):
        assert torch.allclose(predict(one, batch.inputs), predict(other, batch.inputs), atol=1e-4)
        assert not other.training


def test_models_with_batchnorm_are_trained_one_by_one() -> None:
    def network() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))

    data, training = batches([25, 13]), Training(epochs=2, batch_size=10)
    alone, stacked = ([draw_model(network, seed) for seed in range(2)] for _ in range(2))
    for model, batch, generator in zip(alone, data, generators(2), strict=True):
        train(model, batch, training, generator)
    train_many(stacked, data, training, generators(2))
    for one, other, batch in zip(alone, stacked, data, strict=True):
        assert torch.equal(predict(one, batch.inputs), predict(other, batch.inputs))


def test_wrong_labels_are_refused_before_training() -> None:
    data = batches([10, 10])
    bad = Batch(data[0].inputs, data[0].targets + 1, data[0].weights, data[0].ids)
    models = [draw_model(lambda: rc.models.mlp(64, 3), seed) for seed in range(2)]
    before = [p.clone() for p in models[0].parameters()]
    with pytest.raises(ValueError, match="targets must be class numbers from 0 to 2"):
        train_many(models, [bad, data[1]], Training(epochs=1), generators(2))
    assert all(torch.equal(p, q) for p, q in zip(models[0].parameters(), before, strict=True))


def test_counts_must_agree() -> None:
    with pytest.raises(ValueError, match="models, batches and generators must be equally many, got 0, 1 and 2"):
        train_many([], batches([3]), Training(), generators(2))


def test_weights_count() -> None:
    """An example of weight zero is as if it were not there."""
    data = batches([20])[0]
    weights = torch.cat([torch.ones(10), torch.zeros(10)])
    half = Batch(data.inputs, data.targets, weights, data.ids)
    training = Training(epochs=5, batch_size=100)
    models = [draw_model(lambda: rc.models.mlp(64, 3), 0) for _ in range(2)]
    train(models[0], half, training, torch.Generator().manual_seed(0))
    train(models[1], half.take(torch.arange(10)), training, torch.Generator().manual_seed(0))
    for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.allclose(p, q, atol=1e-5)
