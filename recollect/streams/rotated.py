"""The same task, turned."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from recollect.datasets import Dataset, Examples
from recollect.randomness import generator
from recollect.streams.stream import Stream, part


def rotated(dataset: Dataset, angles: Sequence[float] = (0, 90, 180, 270), seed: int = 0) -> Stream:
    """One random fold of the images per angle in degrees, in training and in test part alike (App. B.1).

    Example:
        >>> from recollect import datasets
        >>> stream = rotated(datasets.load("digits"), angles=(0, 180))
        >>> [len(targets) for _, targets in stream.batches], len(stream.test.targets)
        ([719, 718], 360)
    """
    if len(dataset.input_shape) != 3:
        raise ValueError(f"only images of shape (channels, height, width) can be rotated, got {dataset.input_shape}")
    if not angles:
        raise ValueError("angles must hold at least one angle, got none")

    def folds(examples: Examples, name: str) -> list[Examples]:
        order = torch.randperm(len(examples.targets), generator=generator(seed, "folds", name))
        pieces = [part(examples, rows.sort().values) for rows in order.tensor_split(len(angles))]
        return [
            Examples(_rotate(piece.inputs, angle), piece.targets) for piece, angle in zip(pieces, angles, strict=True)
        ]

    tests = folds(dataset.test, "test")
    test = Examples(torch.cat([piece.inputs for piece in tests]), torch.cat([piece.targets for piece in tests]))
    return Stream(folds(dataset.train, "train"), test, tests)


def _rotate(images: Tensor, angle: float) -> Tensor:
    """Counterclockwise; quarter turns are exact, other angles are interpolated."""
    if angle % 90 == 0 and (angle % 180 == 0 or images.shape[-1] == images.shape[-2]):
        return images.rot90(int(angle // 90), dims=(-2, -1)).contiguous()
    cosine, sine = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    turn = torch.tensor([[cosine, -sine, 0.0], [sine, cosine, 0.0]]).expand(len(images), 2, 3)
    grid = F.affine_grid(turn, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)
