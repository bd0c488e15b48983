import math
from functools import partial

import numpy as np
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


def test_the_best_may_have_been_before_the_task_was_learned() -> None:
    """A task that was better by chance than after learning it (Chaudhry et al. take the maximum over all l < k)."""
    matrix = torch.tensor([[0.9, 0.7, 0.1], [0.9, 0.5, 0.1], [0.9, 0.4, 0.9]])
    assert metrics.forgetting(matrix) == pytest.approx((0.0 + (0.7 - 0.4)) / 2)


def test_lists_and_arrays_are_as_good_as_tensors() -> None:
    for values in (MATRIX.tolist(), MATRIX.numpy(), MATRIX.tolist() and tuple(map(tuple, MATRIX.tolist()))):
        for measure in (
            metrics.final_accuracy,
            metrics.average_accuracy,
            metrics.forgetting,
            metrics.backward_transfer,
        ):
            assert measure(values) == pytest.approx(measure(MATRIX))
        assert metrics.forward_transfer(values, [0.0, 0.05, 0.1]) == pytest.approx(0.125)
    assert metrics.accuracy([[1.0, 0.0], [0.0, 1.0]], [0, 0]) == 0.5
    assert metrics.accuracy(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([0, 0])) == 0.5
    assert metrics.accuracy([[True, False], [False, True]], [0, 0]) == 0.5


@pytest.mark.parametrize("bad", [None, "text", [[1.0], [1.0, 2.0]], object(), [["a"]], torch.eye(2).to_sparse(), {}])
def test_what_is_not_a_matrix_is_refused_in_one_sentence(bad: object) -> None:
    calls = [partial(metrics.accuracy, bad, [0]), partial(metrics.accuracy, [[1.0]], bad)]
    calls += [partial(metrics.forward_transfer, MATRIX, bad), partial(metrics.forward_transfer, bad, [0.0])]
    for call in [*calls, *(partial(measure, bad) for measure in (metrics.final_accuracy, metrics.forgetting))]:
        with pytest.raises(ValueError, match=r"^[^\n]+$"):
            call()


def test_one_task_cannot_be_forgotten() -> None:
    one = torch.tensor([[0.5]])
    assert metrics.forgetting(one) == metrics.backward_transfer(one) == metrics.forward_transfer(one, one[0]) == 0


@pytest.mark.parametrize("shape", [(0, 0), (2, 3), (4,)])
def test_the_matrix_must_be_square(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="must have a row and a column per task"):
        metrics.final_accuracy(torch.zeros(shape))
    with pytest.raises(ValueError, match="accuracy needs at least one example"):
        metrics.accuracy(torch.zeros(0, 2), torch.zeros(0))
    with pytest.raises(ValueError, match=r"outputs must have a row and .*, got shapes \(2, 3\) and \(3,\)"):
        metrics.accuracy(torch.zeros(2, 3), torch.zeros(3))
    with pytest.raises(ValueError, match="untrained must hold one accuracy for each of the 3 tasks"):
        metrics.forward_transfer(MATRIX, torch.zeros(2))


def test_tasks_that_were_not_measured_before_they_were_learned_count_from_then_on() -> None:
    matrix = [[0.9, math.nan, math.nan], [0.7, 0.8, math.nan], [0.6, 0.4, 0.9]]
    assert metrics.forgetting(matrix) == pytest.approx(((0.9 - 0.6) + (0.8 - 0.4)) / 2)


def test_a_single_column_of_outputs_has_no_accuracy() -> None:
    with pytest.raises(ValueError, match=r"a column for each of several classes, got one: .* compare outputs"):
        metrics.accuracy([[0.3], [-0.2]], [1, 0])


def test_tasks_that_were_measured_at_the_end_alone_are_not_counted_as_forgotten() -> None:
    nan = math.nan
    assert metrics.forgetting([[nan, 0.1, 0.1], [nan, 0.5, 0.1], [0.5, 0.25, 0.5]]) == 0.25
    assert metrics.forgetting([[nan, nan], [0.5, 0.5]]) == 0.0


def test_nested_lists_lose_no_digit() -> None:
    assert metrics.final_accuracy([[0.5, 0.5, 0.7]] * 3) == pytest.approx(17 / 30, abs=1e-15)


def test_types_that_torch_can_store_and_not_compute_with_are_refused() -> None:
    outputs = torch.eye(3).to(torch.float8_e4m3fn)
    with pytest.raises(ValueError, match=r"^outputs must be real numbers, got type torch.float8_e4m3fn$"):
        metrics.accuracy(outputs, torch.arange(3))
