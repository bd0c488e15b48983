"""What selecting will cost; how well that is foretold is measured by benchmarks/estimating.py."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import recollect as rc

X = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(300) % 3
make_model = partial(rc.models.mlp, 4, 3, hidden=(8,))
cost_of = partial(rc.estimate, make_model, layers="all", inits=2, dim=40, batch_size=20)


def loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(X, Y), 50, generator=torch.Generator(), **options)


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (X, {"targets": Y}),
        (X, {}),
        ((X, Y), {}),
        ((300, 4), {}),
        (X[:60], {"targets": Y[:60], "rows": 300}),
        (X[:3], {"rows": 300}),
        (TensorDataset(X, Y), {}),
        (loader(), {}),
        ([(X[:100], Y[:100])], {"rows": 300}),
    ],
    ids=["examples", "inputs", "pair", "shape", "first rows", "three rows", "dataset", "loader", "batches"],
)
def test_the_cost_of_anything_that_can_be_selected_from(data: Any, options: Any) -> None:
    for size in (5, 5 / 300):
        cost = cost_of(data, size=size, **options)
        assert cost.rows == 300 and cost.candidates == 50
        assert cost.seconds == pytest.approx(sum(cost.parts.values()))
        assert all(seconds > 0 for seconds in cost.parts.values()) and cost.bytes > 50 * 80 * 4
        assert str(cost).endswith("beside the examples, for 300 examples and 50 candidates")


def test_all_are_candidates_under_the_papers_settings() -> None:
    cost = rc.estimate(make_model, (300, 4), size=5, **{**rc.PAPER, "inits": 2})
    assert cost.candidates == 300 and cost.parts["summing"] == 0
    assert set(cost.parts) == {"preparing", "summing", "embedding", "choosing"}


def test_memory_grows_with_the_candidates_and_not_with_the_rows() -> None:
    few, many, longer = cost_of((10_000, 4), size=5), cost_of((10_000, 4), size=50), cost_of((1_000_000, 4), size=5)
    assert many.bytes - few.bytes >= 450 * 80 * 4
    assert longer.bytes == few.bytes


def test_seconds_are_what_starting_takes_and_as_much_more_for_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that runs for 10 ms and another 10 microseconds for each row that it sees."""

    def clock(call: Callable[[], object]) -> float:
        call()
        return 0.01 + 1e-5 * (len(call.args[0]) if isinstance(call, partial) else 0)

    monkeypatch.setattr("recollect.estimating._seconds", clock)
    for rows in (10_000, 1_000_000):
        assert cost_of((rows, 4), size=5).parts["summing"] == pytest.approx(0.01 + 1e-5 * rows)


def test_targets_are_made_up_for_every_named_loss_and_for_each_place() -> None:
    class PerPlace(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(1, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x[..., None]).transpose(1, 2)  # type: ignore[no-any-return]

    assert rc.estimate(PerPlace, (100, 4), size=2, inits=1).rows == 100
    for loss in ("squared_error", "binary_cross_entropy"):
        assert cost_of((100, 4), size=2, loss=loss).rows == 100


def test_what_cannot_be_estimated_is_refused_in_one_sentence() -> None:
    with pytest.raises(ValueError, match="options must be those of select, got 'sise'"):
        cost_of(X, size=5, sise=3)
    with pytest.raises(ValueError, match="inputs must not be an iterator, which would be used up"):
        cost_of(iter([(X, Y)]), size=5)
    with pytest.raises(ValueError, match="rows must be given where nobody knows how many"):
        cost_of([(X, Y)], size=5)
    with pytest.raises(ValueError, match="targets must be given where the loss is a function"):
        cost_of(X, size=5, loss=lambda outputs, targets: outputs.sum(1))
    with pytest.raises(ValueError, match="size must be between 1 and the 300 examples, got 301"):
        cost_of(X, size=301, targets=Y)
