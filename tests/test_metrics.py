import pytest
import torch

from recollect import metrics

MATRIX = torch.tensor([[0.9, 0.1, 0.2], [0.5, 0.8, 0.3], [0.6, 0.4, 0.7]])


def test_metrics_by_hand() -> None:
    assert metrics.final_accuracy(MATRIX) == pytest.approx((0.6 + 0.4 + 0.7) / 3)
    assert metrics.average_accuracy(MATRIX) == pytest.approx((0.9 + (0.5 + 0.8) / 2 + (0.6 + 0.4 + 0.7) / 3) / 3)
    assert metrics.forgetting(MATRIX) == pytest.approx(((0.9 - 0.6) + (0.8 - 0.4)) / 2)
    assert metrics.backward_transfer(MATRIX) == pytest.approx(((0.6 - 0.9) + (0.4 - 0.8)) / 2)
    untrained = torch.tensor([0.0, 0.05, 0.1])
    assert metrics.forward_transfer(MATRIX, untrained) == pytest.approx(((0.1 - 0.05) + (0.3 - 0.1)) / 2)
    assert metrics.accuracy(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0])) == 0.5


def test_one_task_cannot_be_forgotten() -> None:
    one = torch.tensor([[0.5]])
    assert metrics.forgetting(one) == metrics.backward_transfer(one) == metrics.forward_transfer(one, one[0]) == 0


@pytest.mark.parametrize("shape", [(0, 0), (2, 3), (4,)])
def test_the_matrix_must_be_square(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="must have a row and a column per task"):
        metrics.final_accuracy(torch.zeros(shape))
    with pytest.raises(ValueError, match="accuracy needs at least one example"):
        metrics.accuracy(torch.zeros(0, 2), torch.zeros(0))
    with pytest.raises(ValueError, match="untrained must hold one accuracy for each of the 3 tasks"):
        metrics.forward_transfer(MATRIX, torch.zeros(2))
