"""What was chosen before must be chosen again: the same seeds give the same rows, whatever was rebuilt inside.

`python tests/test_stored_choices.py` writes the file anew, which is only right where a choice is meant to change.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

import recollect as rc

PATH = Path(__file__).with_name("stored_choices.json")
PAPER = {**rc.PAPER, "inits": 4}
OLD = {
    "inits": 4,
    "layers": "all",
    "projection": "kronecker",
    "rule": "inner-product",
    "shortlist": None,
    "hold_count": False,
}
OLD_LOCAL = {"rule": "inner-product", "hold_count": False}
"""What were the defaults when these choices were stored."""


def _digits(n: int = 600) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, targets = rc.datasets.load("digits").train
    return inputs[:n], targets[:n]


def _once(make_model: Callable[[], torch.nn.Module], size: int, n: int = 600, **options: object) -> list[int]:
    return rc.select(make_model, *_digits(n), size, **{**OLD, **options}).indices.tolist()


def _stream(make_memory: Callable[[], rc.Memory]) -> list[int]:
    memory = make_memory()
    model = rc.embedding.draw_model(_mlp, 0) if memory.needs_model else None
    for inputs, targets in rc.streams.class_incremental(rc.datasets.load("digits")).batches:
        memory.update(inputs[:150], targets[:150], model=model)
    return memory.batch.ids.tolist()


_mlp = partial(rc.models.mlp, 64, 10)
_cnn = partial(rc.models.cnn, (1, 8, 8), 10)
_resnet = partial(rc.models.ResNet, [1, 1, 1, 1], 10, in_channels=1)

CHOICES: dict[str, Callable[[], list[int]]] = {
    "mlp": partial(_once, _mlp, 60),
    "mlp, default": lambda: rc.select(_mlp, *_digits(), 60, inits=4).indices.tolist(),
    "mlp, gradients themselves": partial(_once, _mlp, 20, n=100, projection=None),
    "mlp, paper": partial(_once, _mlp, 60, **PAPER),
    "mlp, last layer": partial(_once, _mlp, 60, layers="last"),
    "mlp, last layer, paper": partial(_once, _mlp, 60, **{**PAPER, "layers": "last"}),
    "mlp, zero centre": partial(_once, _mlp, 60, center="zero", exact=True),
    "cnn": partial(_once, _cnn, 40, n=300),
    "cnn, paper": partial(_once, _cnn, 40, n=300, **PAPER),
    "resnet": partial(_once, _resnet, 20, n=150, dim=500),
    "GradientMatching": partial(_stream, lambda: rc.GradientMatching(_mlp, 30, **OLD)),
    "GradientMatching, default": partial(_stream, lambda: rc.GradientMatching(_mlp, 30, inits=4)),
    "GradientMatching, paper": partial(_stream, lambda: rc.GradientMatching(_mlp, 30, **PAPER)),
    "GradientMatching, last layer": partial(
        _stream, lambda: rc.GradientMatching(_mlp, 30, **{**OLD, "layers": "last"})
    ),
    "LocalGradientMatching": partial(_stream, lambda: rc.LocalGradientMatching(30, **OLD_LOCAL)),
    "Reservoir": partial(_stream, lambda: rc.Reservoir(30)),
    "ClassBalanced": partial(_stream, lambda: rc.ClassBalanced(30)),
    "GSS": partial(_stream, lambda: rc.GSS(30)),
    "Clustering": partial(_stream, lambda: rc.Clustering(30)),
    "Herding": partial(_stream, lambda: rc.Herding(30)),
}


@pytest.mark.parametrize("name", CHOICES)
def test_choices_are_those_of_before(name: str) -> None:
    assert CHOICES[name]() == json.loads(PATH.read_text())[name]


if __name__ == "__main__":
    torch.set_num_threads(1)
    lines = [f"{json.dumps(name)}: {json.dumps(choose())}" for name, choose in CHOICES.items()]
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n")
