"""The same task, turned."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from recollect.checks import check_seed
from recollect.datasets import Dataset, Examples
from recollect.randomness import generator
from recollect.streams.stream import Stream, part


def rotated(dataset: Dataset, angles: Sequence[float] = (0, 90, 180, 270), seed: int = 0) -> Stream:
    """A stream of images that are rotated by another angle in each batch (App. B.1).

    Args:
        dataset: images; each batch has its own random part of them, for training and for testing.
        angles: in degrees, one for each batch.
        seed: decides which image is in which batch.

    Example:
        >>> from recollect import datasets
        >>> stream = rotated(datasets.load("digits"), angles=(0, 180))
        >>> [len(targets) for _, targets in stream.batches], len(stream.test.targets)
        ([719, 718], 360)
    """
    if len(dataset.input_shape) != 3:
        raise ValueError(f"only images of shape (channels, height, width) can be rotated, got {dataset.input_shape}")
    seed, angles = check_seed(seed), _checked(angles)
    if not angles:
        raise ValueError("angles must hold at least one angle, got none")
    if len(angles) > len(dataset.train.targets):
        raise ValueError(f"angles must be at most as many as images, {len(dataset.train.targets)}, got {len(angles)}")

    def folds(examples: Examples, name: str) -> list[Examples]:
        order = torch.randperm(len(examples.targets), generator=generator(seed, "folds", name))
        pieces = [part(examples, rows.sort().values) for rows in order.tensor_split(len(angles))]
        return [
            Examples(_rotate(piece.inputs, angle), piece.targets) for piece, angle in zip(pieces, angles, strict=True)
        ]

    tests = folds(dataset.test, "test")
    test = Examples(torch.cat([piece.inputs for piece in tests]), torch.cat([piece.targets for piece in tests]))
    return Stream(folds(dataset.train, "train"), test, tests)


def _checked(angles: Sequence[float]) -> list[float]:
    try:
        numbers = [float(angle) for angle in angles]
    except (TypeError, ValueError):
        numbers = [math.nan]
    if not all(map(math.isfinite, numbers)):
        raise ValueError(f"angles must be a sequence of numbers of degrees, got {angles!r}")
    return numbers


def _rotate(images: Tensor, angle: float) -> Tensor:
    """Counterclockwise; quarter turns are exact, other angles are interpolated."""
    if angle % 90 == 0 and (angle % 180 == 0 or images.shape[-1] == images.shape[-2]):
        return images.rot90(int(angle // 90), dims=(-2, -1)).contiguous()
    cosine, sine = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    height, width = images.shape[-2:]  # from -1 to 1 it is as far down as across, whatever the shape
    turn = torch.tensor([[cosine, -sine * height / width, 0.0], [sine * width / height, cosine, 0.0]])
    grid = F.affine_grid(turn.expand(len(images), 2, 3), list(images.shape), align_corners=False)
    if images.is_floating_point():
        return F.grid_sample(images, grid.to(images.dtype), align_corners=False)
    return F.grid_sample(images.float(), grid, align_corners=False).round().to(images.dtype)
