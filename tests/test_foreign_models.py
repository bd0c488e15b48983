"""Models and losses as people have them: gradients are those that autograd gives of each example alone, or none."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import recollect as rc
from recollect.batch import forward


def examples(n: int = 12) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(n, 8, generator=torch.Generator().manual_seed(0))
    return inputs, inputs[:, :3].argmax(1)


def tokens(n: int = 12) -> tuple[Tensor, Tensor]:
    inputs = torch.randint(0, 20, (n, 5), generator=torch.Generator().manual_seed(0))
    return inputs, inputs[:, 0] % 3


def one_by_one(embedding: rc.GradientEmbedding, inputs: Tensor, targets: Tensor) -> Tensor:
    """Unprojected embeddings the plainest way: each example passes alone, and autograd is asked for its gradient."""
    blocks = []
    for s in range(embedding.inits):
        model = embedding._model(s)
        parameters = [p for p in model.parameters() if p.requires_grad]
        rows = []
        for i in range(len(targets)):
            loss = embedding._loss(forward(model, inputs[i : i + 1]), targets[i : i + 1]).sum()
            gradients = torch.autograd.grad(loss, parameters)
            rows.append(torch.cat([g.to_dense().double().flatten() for g in gradients]))
        blocks.append(torch.stack(rows))
    return torch.cat(blocks, 1) / math.sqrt(embedding.inits)


def deviation(make_model: Any, inputs: Tensor, targets: Tensor, *, first: int = 0, **options: Any) -> float:
    """How far embeddings, and their sum, are from the truth; so many examples may have been seen first."""
    embedding = rc.GradientEmbedding(make_model, inits=2, projection=None, **options)
    if first:
        embedding.embed(inputs[:first], targets[:first])
    rows, total = embedding.embed(inputs, targets).double(), embedding.total(inputs, targets)
    truth = one_by_one(embedding, inputs, targets)
    return max(float((rows - truth).norm()), float((total - truth.sum(0)).norm())) / float(truth.norm())


class Mixed(nn.Module):
    """A body and a head of other precisions, which it insists on."""

    def __init__(self, body: torch.dtype, head: torch.dtype) -> None:
        super().__init__()
        self.types = body, head
        self.body, self.head = nn.Linear(8, 16, dtype=body), nn.Linear(16, 3, dtype=head)

    def forward(self, x: Tensor) -> Tensor:
        body, head = self.types
        return self.head(self.body(x.to(body)).relu().to(head)).float()  # type: ignore[no-any-return]


@pytest.mark.parametrize("half_first", [False, True])
def test_half_and_single_precision_may_be_in_one_model(half_first: bool) -> None:
    types = (torch.float16, torch.float32) if half_first else (torch.float32, torch.float16)
    assert deviation(lambda: Mixed(*types), *examples()) < 2e-3
    coreset = rc.select(lambda: Mixed(*types), *examples(60), 10, inits=2, layers="all")
    assert len(coreset) == 10 and coreset.error < 0.5


@pytest.mark.parametrize(
    "loss",
    [
        lambda outputs, targets: ((outputs - targets) ** 2).mean(1),  # (n, 1) and (n,) become (n, n)
        lambda outputs, targets: (outputs[:, 0] - targets) ** 2 / len(targets),
        lambda outputs, targets: (outputs[:, 0] - targets - outputs.mean()) ** 2,
    ],
)
def test_a_loss_that_mixes_examples_is_refused(loss: Any) -> None:
    inputs, _ = examples(60)
    sentence = r"the loss must look at each example by itself, .* outputs of shape \(3, 1\) and targets of shape \(3,\)"
    with pytest.raises(ValueError, match=sentence):
        rc.select(lambda: rc.models.mlp(8, 1), inputs, inputs[:, 0], 10, loss=loss, inits=2)
    memory = rc.GradientMatching(lambda: rc.models.mlp(8, 1), 10, loss=loss, inits=2)
    with pytest.raises(ValueError, match=sentence):
        memory.update(inputs, inputs[:, 0])
    assert not memory.seen


def test_a_model_that_mixes_examples_is_told_of() -> None:
    class Centred(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input - input.mean(0))

    with (
        pytest.warns(UserWarning, match="each example should pass through the model by itself"),
        pytest.warns(UserWarning, match="computed by torch.func"),
    ):
        rc.GradientEmbedding(lambda: Centred(8, 3), inits=2).embed(*examples())


def test_a_table_that_divides_gradients_by_how_often_rows_are_used_is_told_of() -> None:
    """Losses of some examples together do not show it, and neither do gradients of a few with no row in common."""

    def make_model() -> nn.Module:
        table = nn.Embedding(60, 8, scale_grad_by_freq=True)
        return nn.Sequential(table, nn.Flatten(), nn.Linear(40, 3))

    inputs = torch.arange(60).reshape(12, 5)
    with (
        pytest.warns(UserWarning, match=r"should add up to that of all, got others in '0\.weight'"),
        pytest.warns(UserWarning, match="computed by torch.func"),
    ):
        rc.GradientEmbedding(make_model, inits=2).embed(inputs, inputs[:, 0] % 3)


class Checkpointed(nn.Module):
    """Computes its body again on the way back."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = checkpoint(lambda some: self.body(some).relu(), x, use_reentrant=False)
        return self.head(hidden)  # type: ignore[no-any-return]


def test_models_that_compute_parts_again_on_the_way_back_are_right_the_slow_way() -> None:
    with pytest.warns(UserWarning, match="the model cannot be listened to, which ends in a CheckpointError"):
        assert deviation(Checkpointed, *examples()) < 1e-5


def test_tables_with_sparse_gradients_are_tables() -> None:
    def make_model() -> nn.Module:
        return nn.Sequential(nn.Embedding(20, 8, sparse=True), nn.Flatten(), nn.Linear(40, 3))

    assert deviation(make_model, *tokens()) < 1e-5
    data = tokens(60)
    coreset = rc.select(make_model, *data, 20, inits=2, layers="all")
    assert rc.matching_error(make_model, data, coreset, inits=2) < 1


class Places(nn.Module):
    """A learned vector for each place, without a dimension for the examples."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(20, 8), nn.Linear(8, 3)
        self.places, self.gains = nn.Parameter(torch.randn(5, 8)), nn.Parameter(torch.randn(5, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.words(x) + self.places).tanh().mul(self.gains).mean(1))  # type: ignore[no-any-return]


def test_vectors_for_each_place_are_on_the_fast_path() -> None:
    assert deviation(Places, *tokens()) < 1e-5  # a warning would be an error


class Halves(nn.Module):
    """Both halves of all inputs pass through one layer, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.body(torch.cat([x[:, :4], x[:, 4:]])).relu().chunk(2)
        return self.head(torch.cat([left, right], 1))  # type: ignore[no-any-return]


class Gain(nn.Module):
    """A number that multiplies all outputs, and one that is added to each."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)
        self.gain, self.shift = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.gain + self.shift  # type: ignore[no-any-return]


class Pooled(nn.Module):
    """A gain for each number of a sequence, here of one step, over which the mean is taken."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.gains, self.head = nn.Linear(8, 6), nn.Parameter(torch.randn(6)), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.body(x)[:, None] * self.gains).mean(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize("make_model", [Halves, Gain, Pooled])
@pytest.mark.filterwarnings("ignore:some gradients are computed by torch.func")
def test_gradients_are_right_whatever_few_examples_came_first(make_model: Any, first: int) -> None:
    assert deviation(make_model, *examples(), first=first) < 1e-5


def plain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def compiled() -> Any:
    return torch.compile(plain(), backend=never)


def inside() -> Any:
    body: Any = torch.compile(plain()[:2], backend=never)
    return nn.Sequential(body, nn.Linear(16, 3))


def never(*about: Any) -> Any:
    raise AssertionError("compiled")


def test_what_torch_would_compile_passes_as_it_is() -> None:
    for make_model in (compiled, inside):
        assert deviation(make_model, *examples()) < 1e-5
    options: dict[str, Any] = {"inits": 2, "layers": ["2"], "projection": None}
    rows = rc.GradientEmbedding(compiled, **options).embed(*examples())
    assert torch.equal(rows, rc.GradientEmbedding(plain, **options).embed(*examples()))


@pytest.mark.parametrize(
    ("make_model", "sentence"),
    [
        (lambda: torch.jit.trace(plain(), examples()[0]), "a model of Python code, got one of TorchScript"),
        (lambda: plain().to("meta"), "a model whose parameters are there, got some on the device 'meta'"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_models_without_values_or_code_are_refused(make_model: Any, sentence: str) -> None:
    data = examples(60)
    for use in (
        lambda: rc.select(make_model, *data, 10, inits=2),
        lambda: rc.matching_error(make_model, data, rc.Coreset(torch.arange(3), torch.ones(3), 0.0)),
        lambda: rc.FineTune(make_model),
    ):
        with pytest.raises(ValueError, match=f"make_model must return {sentence}"):
            use()


class Spectral(nn.Module):
    """A Fourier layer with complex weights, or with pairs of real ones."""

    def __init__(self, real: bool) -> None:
        super().__init__()
        weight = 0.3 * torch.randn(6, 3, dtype=torch.cfloat)
        self.weight, self.head = nn.Parameter(torch.view_as_real(weight) if real else weight), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight if self.weight.is_complex() else torch.view_as_complex(self.weight)
        return self.head((torch.fft.fft(x)[:, :6] @ weight).real)  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:some gradients are computed")
def test_complex_parameters_are_refused_with_what_works_instead() -> None:
    data, sentence = examples(60), r"must be real, got torch\.complex64 in 'weight': make it of torch\.view_as_real"
    coreset = rc.select(partial(Spectral, False), *data, 10, inits=2)  # of the last layer alone
    for use in (
        lambda: rc.select(partial(Spectral, False), *data, 10, layers="all", inits=2),
        lambda: rc.matching_error(partial(Spectral, False), data, coreset),
    ):
        with pytest.raises(ValueError, match=sentence):
            use()
    projected = rc.GradientEmbedding(partial(Spectral, False), layers="last", inits=2, dim=5).embed(*data)
    assert projected.dtype == torch.float32  # as the parameters that count are
    assert deviation(partial(Spectral, True), *data) < 1e-5
