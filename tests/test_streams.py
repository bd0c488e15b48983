from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import recollect as rc
from recollect.datasets import Dataset, Examples
from recollect.streams.rotated import _rotate


def table(n: int = 50) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, 5, (n, 3), generator=generator).float()
    return Dataset(Examples(inputs, torch.arange(n) % 4), Examples(inputs[:20], torch.arange(20) % 4), 4)


def test_sorted_batches_follow_the_feature_and_keep_ties_in_order() -> None:
    dataset = table()
    stream = rc.streams.sorted_by_feature(dataset, feature=1, batches=7)
    values = torch.cat([batch.inputs[:, 1] for batch in stream.batches])
    assert (values.diff() >= 0).all()
    rows = dataset.train.inputs[:, 1].numpy().argsort(kind="stable")
    assert torch.equal(torch.cat([batch.inputs for batch in stream.batches]), dataset.train.inputs[rows])
    sizes = [len(batch.targets) for batch in stream.batches]
    assert max(sizes) - min(sizes) <= 1
    assert stream.test is dataset.test
    assert sum(len(test.targets) for test in stream.tests) == 20


def test_class_incremental_tasks_hold_their_classes_in_order() -> None:
    dataset = table()
    stream = rc.streams.class_incremental(dataset, classes_per_task=3)
    assert [sorted(set(batch.targets.tolist())) for batch in stream.batches] == [[0, 1, 2], [3]]
    assert sum(len(batch.targets) for batch in stream.batches) == 50
    assert [sorted(set(test.targets.tolist())) for test in stream.tests] == [[0, 1, 2], [3]]


def test_rotated_folds_are_disjoint_and_turned() -> None:
    digits = rc.datasets.load("digits")
    stream = rc.streams.rotated(digits)
    assert sum(len(batch.targets) for batch in stream.batches) == len(digits.train.targets)
    upright = {image.numpy().tobytes() for image in digits.train.inputs}
    for turns, batch in enumerate(stream.batches):
        back = torch.rot90(batch.inputs, -turns, dims=(-2, -1)).contiguous()
        assert all(image.numpy().tobytes() in upright for image in back)
    again = rc.streams.rotated(digits)
    other = rc.streams.rotated(digits, seed=1)
    assert torch.equal(stream.batches[2].inputs, again.batches[2].inputs)
    assert not torch.equal(stream.batches[2].inputs, other.batches[2].inputs)
    assert len(stream.test.targets) == len(digits.test.targets)


def test_any_angle_turns_the_same_way_as_quarter_turns() -> None:
    image = rc.datasets.load("digits").train.inputs[:1]
    smooth = torch.nn.functional.interpolate(image, scale_factor=8, mode="bilinear")
    nearly, exactly = _rotate(smooth, 89.9), _rotate(smooth, 90)
    assert float((nearly - exactly).abs().mean()) < 0.02


def test_a_stream_leaves_its_data_set_alone() -> None:
    dataset = table()
    before = dataset.train.inputs.clone()
    stream = rc.streams.sorted_by_feature(dataset)
    stream.batches[0].inputs.zero_()
    assert torch.equal(dataset.train.inputs, before)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: rc.streams.class_incremental(table(), 0),
            "classes_per_task must be a whole number of at least 1, got 0",
        ),
        (lambda: rc.streams.class_incremental(table(), 5), "classes_per_task must be between 1 and the 4"),
        (lambda: rc.streams.sorted_by_feature(table(), 3), "feature must be between 0 and 2, got 3"),
        (lambda: rc.streams.sorted_by_feature(table(), batches=51), "batches must be between 1 and the 50 rows"),
        (lambda: rc.streams.rotated(table()), "only images of shape"),
        (lambda: rc.streams.rotated(rc.datasets.load("digits"), angles=()), "angles must hold at least one angle"),
    ],
)
def test_bad_input_gets_one_clear_sentence(make: "type[rc.streams.Stream]", message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_images_that_are_not_square_are_turned_without_shear() -> None:
    image = torch.zeros(1, 1, 20, 40)
    image[0, 0, 8:12, 14:26] = 1
    upright = _rotate(image, 90)[0, 0] > 0.5
    assert (int(upright.any(1).sum()), int(upright.any(0).sum())) == (12, 4)
    wide = torch.rand(1, 1, 14, 22, generator=torch.Generator().manual_seed(0))
    padded = torch.nn.functional.pad(wide, (0, 0, 4, 4))  # square
    assert torch.allclose(_rotate(wide, 30), _rotate(padded, 30)[:, :, 4:-4], atol=1e-5)
    whole = (wide * 255).to(torch.uint8)
    assert torch.allclose(_rotate(whole, 30).float(), _rotate(whole.float(), 30), atol=0.501)


def test_classes_without_examples_are_passed_over() -> None:
    dataset = replace(table(), n_classes=9)
    stream = rc.streams.class_incremental(dataset)
    assert [sorted(set(batch.targets.tolist())) for batch in stream.batches] == [[0, 1], [2, 3]]
    assert [sorted(set(test.targets.tolist())) for test in stream.tests] == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: rc.streams.class_incremental(d, 2.5), "classes_per_task must be a whole number"),
        (lambda d: rc.streams.class_incremental(d, True), "classes_per_task must be a whole number"),
        (
            lambda d: rc.streams.class_incremental(replace(d, train=Examples(d.train.inputs, d.train.targets / 2))),
            "targets must be class numbers to come class by class, got torch.float32",
        ),
        (lambda d: rc.streams.sorted_by_feature(d, 0, 2.5), "batches must be a whole number"),
        (lambda d: rc.streams.sorted_by_feature(d, 1.5), "feature must be between 0 and 2, got 1.5"),
        (lambda d: rc.streams.sorted_by_feature(d, "a"), "feature must be between 0 and 2, got 'a'"),
    ],
)
def test_streams_refuse_numbers_that_are_none(call: Callable[[Dataset], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(table())


@pytest.mark.parametrize("angles", [90, ("a",), (float("inf"),), (float("nan"),)])
def test_angles_must_be_numbers(angles: Any) -> None:
    with pytest.raises(ValueError, match="angles must be a sequence of numbers of degrees"):
        rc.streams.rotated(rc.datasets.load("digits"), angles)


def test_angles_may_be_an_array() -> None:
    digits = rc.datasets.load("digits")
    for angles in (torch.tensor([0, 90]), np.array([0.0, 90.0])):
        assert len(rc.streams.rotated(digits, angles).batches) == 2  # type: ignore[arg-type]
