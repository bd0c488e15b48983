"""Embedding against plain training passes over the same data, and against the peers' per-example gradients.

The claims, as multiples of S plain forward and backward passes at the same batch size: CNN at most 1.0, ResNet-18 at
most 1.2, MLP at most 1.5, transformers and recurrent networks at most 2; the last layer at most 1.2 of S forward
passes; and at least 3 times faster than vmap with a CSR product.

`python benchmarks/embedding.py [cnn] [mlp] [resnet] [sequences] [last]`; all of them by default.
"""

import copy
import math
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from measure import best_seconds, peer
from table import print_table
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

import recollect as rc
from recollect.embedding import draw_model

sys.path.append(str(Path(__file__).parents[1]))
from tests.networks import Decoder, Encoder

DIM = 1000
Data = tuple[Tensor, Tensor]


def plain_passes(models: list[nn.Module], data: Data, batch_size: int) -> None:
    """What training does: forward and backward, for each model once over the data."""
    for model in models:
        for x, y in zip(data[0].split(batch_size), data[1].split(batch_size), strict=True):
            model.zero_grad(set_to_none=True)
            F.cross_entropy(model(x), y).backward()


@torch.inference_mode()
def forward_passes(models: list[nn.Module], data: Data, batch_size: int) -> None:
    for model in models:
        for x in data[0].split(batch_size):
            model(x)


def vmap_csr(models: list[nn.Module], data: Data, batch_size: int, projections: list[Tensor]) -> None:
    """torch.func's per-example gradients, concatenated, times a sparse matrix."""
    for model, P in zip(models, projections, strict=True):
        parameters = {name: p.detach() for name, p in model.named_parameters()}

        def loss(p: dict[str, Tensor], x: Tensor, y: Tensor, model: nn.Module = model) -> Tensor:
            return F.cross_entropy(functional_call(model, p, (x[None],)), y[None])

        per_example = vmap(grad(loss), in_dims=(None, 0, 0))
        for x, y in zip(data[0].split(batch_size), data[1].split(batch_size), strict=True):
            gradients = per_example(parameters, x, y)
            flat = torch.cat([g.flatten(1) for g in gradients.values()], 1)
            (P @ flat.T).T.contiguous()


def csr_projection(D: int, generator: torch.Generator) -> Tensor:
    per_row = round(math.sqrt(D))
    columns = torch.randint(0, D, (DIM, per_row), generator=generator).sort(1).values
    values = (2.0 * torch.randint(0, 2, (DIM * per_row,), generator=generator) - 1) * D**0.25 / math.sqrt(DIM)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "Sparse CSR tensor support is in beta state"
        return torch.sparse_csr_tensor(torch.arange(DIM + 1) * per_row, columns.flatten(), values, (DIM, D))


def backpack_gradients(models: list[nn.Module], data: Data, batch_size: int) -> Callable[[], None] | str:
    """BackPACK's per-example gradients, not projected."""
    backpack, extensions = peer("backpack"), peer("backpack.extensions")
    if isinstance(backpack, str):
        return backpack
    extended = [backpack.extend(model) for model in models]
    loss = backpack.extend(nn.CrossEntropyLoss(reduction="sum"))

    def run() -> None:
        for model in extended:
            for x, y in zip(data[0].split(batch_size), data[1].split(batch_size), strict=True):
                with backpack.backpack(extensions.BatchGrad()):
                    loss(model(x), y).backward()
                model.zero_grad(set_to_none=True)
                for p in model.parameters():
                    del p.grad_batch

    return run


def opacus_gradients(models: list[nn.Module], data: Data, batch_size: int) -> Callable[[], None] | str:
    """Opacus's per-example gradients, not projected."""
    opacus = peer("opacus.grad_sample")
    if isinstance(opacus, str):
        return opacus
    try:
        wrapped = [opacus.GradSampleModule(model.train(), loss_reduction="sum") for model in models]
    except Exception as error:
        return f"refused the model: {type(error).__name__}"

    def run() -> None:
        for model in wrapped:
            for x, y in zip(data[0].split(batch_size), data[1].split(batch_size), strict=True):
                F.cross_entropy(model(x), y, reduction="sum").backward()
                model.zero_grad(set_to_none=True)
                for p in model.parameters():
                    p.grad_sample = None

    return run


def trak_projection(D: int, batch_size: int) -> Callable[[], None] | str:
    """TRAK's projector on the CPU, for one batch of ready-made gradients."""
    projectors = peer("trak.projectors")
    if isinstance(projectors, str):
        return projectors
    kind = projectors.ProjectionType.rademacher
    projector = projectors.BasicProjector(D, DIM, seed=0, proj_type=kind, device="cpu", block_size=100)
    gradients = torch.randn(batch_size, D, generator=torch.Generator().manual_seed(0))
    return lambda: projector.project(gradients, model_id=0)


def compare(name: str, make_model: "partial[nn.Module]", data: Data, S: int, *, peers: bool) -> None:
    n, batch_size = len(data[1]), 128
    generator = torch.Generator().manual_seed(0)
    models = [draw_model(make_model, seed) for seed in range(S)]
    D = sum(p.numel() for p in models[0].parameters())

    def ours(projection: str) -> Callable[[], object]:
        embedding = rc.GradientEmbedding(make_model, inits=S, dim=DIM, projection=projection, batch_size=batch_size)
        embedding.embed(data[0][:300], data[1][:300])  # draws are made once per stream
        return lambda: embedding.embed(*data)

    functions: dict[str, Callable[[], object]] = {
        f"{S} plain forward and backward passes": lambda: plain_passes(models, data, batch_size),
        "recollect, kronecker": ours("kronecker"),
        "recollect, sparse": ours("sparse"),
    }
    notes: list[list[object]] = []
    if peers:
        projections = [csr_projection(D, generator) for _ in range(S)]
        functions["torch.func vmap, then a CSR product"] = lambda: vmap_csr(models, data, batch_size, projections)
        others = {
            "BackPACK BatchGrad, not projected": backpack_gradients(copy.deepcopy(models), data, batch_size),
            "Opacus GradSampleModule, not projected": opacus_gradients(copy.deepcopy(models), data, batch_size),
        }
        for title, made in others.items():
            if isinstance(made, str):
                notes.append([title, made, "", ""])
            else:
                functions[title] = made
    seconds = best_seconds(functions)
    plain = seconds[next(iter(functions))]
    rows: list[list[object]] = [
        [title, seconds[title], seconds[title] / plain, 1e6 * seconds[title] / (n * S)] for title in functions
    ]
    if peers:
        made = trak_projection(D, batch_size)
        if isinstance(made, str):
            notes.append(["TRAK BasicProjector", made, "", ""])
        else:
            one = best_seconds({"": made}, 1)[""] * S * n / batch_size
            rows.append(["TRAK BasicProjector alone, from one batch", one, one / plain, 1e6 * one / (n * S)])
    header = ["", "seconds", "of the plain passes", "us per example and model"]
    print_table(f"{name}: {n:,} examples, S={S}, d={DIM}, batches of {batch_size}, D={D:,}", header, rows + notes)


def sample(name: str, n: int) -> Data:
    train = rc.datasets.load(name).train
    rows = torch.randperm(len(train.targets), generator=torch.Generator().manual_seed(0))[:n]
    return train.inputs[rows], train.targets[rows]


def cnn() -> None:
    compare("CNN", partial(rc.models.cnn, (1, 28, 28), 10), sample("fashion-mnist", 1000), 10, peers=True)


def mlp() -> None:
    compare("MLP", partial(rc.models.mlp, 54, 7), sample("covertype", 10_000), 10, peers=True)


def resnet() -> None:
    compare("ResNet-18", partial(rc.models.resnet18, 10), sample("cifar-10", 384), 2, peers=False)


class Layers(nn.Module):
    """torch's own transformer, with learned positions."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(1000, 64), nn.Embedding(64, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x) + self.positions(torch.arange(x.shape[1]))
        return self.head(self.layers(h)[:, 0])  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer, self.head = getattr(nn, kind)(16, 64, batch_first=True), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])  # type: ignore[no-any-return]


def sequences(S: int = 3, n: int = 512, batch_size: int = 128) -> None:
    generator = torch.Generator().manual_seed(0)
    tokens, numbers = torch.randint(0, 1000, (n, 64), generator=generator), torch.randn(n, 64, 16, generator=generator)
    rows: list[list[object]] = []
    for title, make_model, inputs, classes in (
        ("encoder like BERT, one layer", partial(Encoder, 64, 64, 1000), tokens, 3),
        ("torch's TransformerEncoder, two layers", Layers, tokens, 10),
        ("decoder like GPT, two layers, tied", partial(Decoder, 64, 60, 1000), tokens, 1000),
        ("LSTM", partial(Recurrent, "LSTM"), numbers, 10),
        ("GRU", partial(Recurrent, "GRU"), numbers, 10),
    ):
        data = inputs, torch.arange(n) % classes
        models = [draw_model(make_model, seed) for seed in range(S)]
        embedding = rc.GradientEmbedding(make_model, inits=S, dim=DIM, batch_size=batch_size)
        embedding.embed(data[0][:8], data[1][:8])
        functions: dict[str, Callable[[], object]] = {
            "plain": lambda m=models, d=data: plain_passes(m, d, batch_size),  # type: ignore[misc]
            "ours": lambda e=embedding, d=data: e.embed(*d),  # type: ignore[misc]
        }
        seconds = best_seconds(functions, repeats=5, clock=time.process_time)
        rows.append([title, seconds["plain"], seconds["ours"] / seconds["plain"]])
    header = ["", f"{S} plain forward and backward passes [s of processor time]", "recollect, kronecker, times that"]
    print_table(f"Sequences: {n} of 64 steps, d={DIM}, batches of {batch_size}", header, rows)


def last(S: int = 10) -> None:
    rows: list[list[object]] = []
    for title, make_model, data in (
        ("CNN", partial(rc.models.cnn, (1, 28, 28), 10), sample("fashion-mnist", 2000)),
        ("MLP", partial(rc.models.mlp, 54, 7), sample("covertype", 20_000)),
        ("ResNet-18", partial(rc.models.resnet18, 10), sample("cifar-10", 512)),
    ):
        models = [draw_model(make_model, seed) for seed in range(S)]
        options = {"inits": S, "layers": "last", "batch_size": 128}
        projected = rc.GradientEmbedding(make_model, **options)
        factored = rc.GradientEmbedding(make_model, projection=None, **options)
        for embedding in (projected, factored):
            embedding.dictionary(data[0][:300], data[1][:300])
        functions: dict[str, Callable[[], object]] = {
            "forward": lambda m=models, d=data: forward_passes(m, d, 128),  # type: ignore[misc]
            "projected": lambda e=projected, d=data: e.embed(*d),  # type: ignore[misc]
            "factored": lambda e=factored, d=data: e.dictionary(*d),  # type: ignore[misc]
        }
        seconds = best_seconds(functions)
        ratios = [seconds[key] / seconds["forward"] for key in ("projected", "factored")]
        rows.append([title, seconds["forward"], *ratios])
    header = ["", f"{S} forward passes [s]", "projected, times that", "as exact factors, times that"]
    print_table("Last-layer embedding", header, rows)


if __name__ == "__main__":
    for name in sys.argv[1:] or ["cnn", "mlp", "resnet", "sequences", "last"]:
        globals()[name]()
