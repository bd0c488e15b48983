from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recollect.numerics import ExactSum

NUMBERS = st.floats(-1e30, 1e30, allow_subnormal=False)


@given(st.lists(st.lists(NUMBERS, min_size=2, max_size=2), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_an_exact_sum_is_the_same_whoever_adds_which_in_whatever_order(rows: list[list[float]], random: object) -> None:
    values = torch.tensor(rows, dtype=torch.float64)
    in_order = ExactSum(1, 2)
    for value in values:
        in_order.add(value[None])
    parts = [ExactSum(1, 2) for _ in range(3)]
    for i in random.sample(range(len(rows)), len(rows)):
        random.choice(parts).add(values[i][None])
    merged = ExactSum(1, 2)
    for part in parts:
        merged.merge(part)
    assert torch.equal(merged.value(), in_order.value())
    largest = float(values.abs().max())
    for column, found in enumerate(in_order.value()[0].tolist()):
        exactly = sum(Fraction(row[column]) for row in rows)
        assert abs(found - float(exactly)) <= 2**-52 * abs(float(exactly)) + 2**-75 * largest * len(rows)


def test_rows_of_an_exact_sum_are_added_to_one_by_one() -> None:
    random = np.random.default_rng(0)
    values = torch.from_numpy(random.normal(size=(20, 4, 5)) * 10.0 ** random.integers(-20, 20, size=(20, 4, 1)))
    whole, halves = ExactSum(4, 5), ExactSum(4, 5)
    for value in values:
        whole.add(value)
        halves.add(value[2:], 2)
        halves.add(value[:2])
    assert torch.equal(whole.value(), halves.value())


def test_what_is_not_finite_cannot_be_added_up() -> None:
    total = ExactSum(1, 2)
    with pytest.raises(ValueError, match="finite numbers, got NaN"):
        total.add(torch.tensor([[1.0, torch.nan]]))
