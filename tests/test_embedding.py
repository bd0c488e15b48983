import copy
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import recollect as rc
from recollect.dictionary import Factored, InMemory
from recollect.embedding import ProjectionName, draws
from recollect.embedding.initialisations import draw_model, plain_attention
from recollect.embedding.layers import Use
from recollect.embedding.plan import Unit
from recollect.embedding.probing import PROBES
from recollect.embedding.projections import Kronecker, Projection, Sparse
from tests.networks import LABELS, NETWORKS, Bilinear
from tests.oracles import dense, gradients_by_torch_func


def relative_difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


slow_path = pytest.mark.filterwarnings("ignore:some gradients are computed", "ignore:There is a performance drop")


@pytest.fixture(autouse=True)
def plain_attention_everywhere() -> Iterator[None]:
    """The fused forms of attention have no second derivative and no rule of batching, which the oracle needs."""
    with plain_attention(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        yield


@slow_path
@pytest.mark.parametrize("network", NETWORKS)
def test_unprojected_embeddings_equal_the_gradients_of_torch_func(network: str) -> None:
    make_model, inputs = NETWORKS[network]
    embedding = rc.GradientEmbedding(make_model, inits=2, projection=None, batch_size=4)
    embeddings = embedding.embed(inputs, LABELS)
    truth = gradients_by_torch_func(embedding, inputs, LABELS)
    assert embeddings.shape == truth.shape
    assert relative_difference(embeddings, truth) < 1e-5


PROJECTIONS: list[tuple[str, ProjectionName, int]] = [
    *((name, "sparse", 40) for name in NETWORKS if name not in ("mlp", "cnn", "resnet")),
    *((name, "kronecker", 40) for name in NETWORKS if name not in ("mlp", "cnn", "resnet")),
    # wide enough for sides that are only given signs
    *((name, "kronecker", dim) for name, dim in (("convolutions", 120), ("encoder", 250), ("tokens", 250))),
]


@slow_path
@pytest.mark.parametrize(("network", "projection", "dim"), PROJECTIONS)
def test_embeddings_are_the_dense_projection_of_the_gradients(
    network: str, projection: ProjectionName, dim: int
) -> None:
    """What was drawn, written out as a matrix, applied to gradients that were formed by torch.func."""
    make_model, inputs = NETWORKS[network]
    embedding = rc.GradientEmbedding(make_model, inits=2, dim=dim, projection=projection, batch_size=4)
    embeddings = embedding.embed(inputs, LABELS)
    assert embedding.prepared is not None and embedding.prepared.draws is not None
    plan = embedding.prepared.plan
    gradients = gradients_by_torch_func(embedding, inputs, LABELS).unflatten(1, (2, -1))
    expected = [gradients[:, s] @ dense(draw.projection, plan) for s, draw in enumerate(embedding.prepared.draws)]
    assert relative_difference(embeddings, torch.cat(expected, 1)) < 1e-5


@slow_path
@pytest.mark.parametrize("projection", ["sparse", "kronecker", None])
@pytest.mark.parametrize("network", [name for name in NETWORKS if name not in ("cnn", "resnet")])
def test_the_total_is_the_sum_of_rows_that_are_never_formed(network: str, projection: ProjectionName | None) -> None:
    make_model, inputs = NETWORKS[network]
    embedding = rc.GradientEmbedding(make_model, inits=2, dim=40, projection=projection, batch_size=4)
    total = embedding.total(inputs, LABELS)
    assert total.dtype == torch.float64
    rows = embedding.embed(inputs, LABELS).double()
    assert relative_difference(total, rows.sum(0)) < 1e-5
    weights = torch.arange(len(LABELS)) + 0.5
    assert relative_difference(embedding.total(inputs, LABELS, weights=weights), weights.double() @ rows) < 1e-5


@pytest.mark.parametrize(
    "network", [name for name in NETWORKS if name not in ("bilinear", "experts", "routed", "late")]
)
def test_common_networks_never_take_the_slow_way(network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> dict[str, Tensor]:
        raise AssertionError("gradients were left to torch.func")

    monkeypatch.setattr(draws, "gradients_by_func", refuse)
    make_model, inputs = NETWORKS[network]
    embedding = rc.GradientEmbedding(make_model, inits=1, dim=60, batch_size=4)
    embedding.embed(inputs, LABELS)
    assert embedding.prepared is not None and embedding.prepared.plan.rest == {}


def test_the_slow_way_is_said_with_the_layer_and_the_reason() -> None:
    make_model, inputs = NETWORKS["bilinear"]
    with pytest.warns(UserWarning, match=r"pairs\.weight, pairs\.bias \(it is used by .*bilinear, which has no rule\)"):
        rc.GradientEmbedding(make_model, inits=1).prepare(inputs, LABELS)


class Attending(nn.Module):
    def __init__(self, **options: object) -> None:
        super().__init__()
        self.words, self.attention, self.head = (
            nn.Embedding(20, 8),
            nn.MultiheadAttention(8, 2, **options),
            nn.Linear(8, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x).transpose(0, 1)
        return self.head(self.attention(h, h, h)[0].mean(0))  # type: ignore[no-any-return]


@slow_path
@pytest.mark.parametrize("options", [{"add_zero_attn": True}, {"add_bias_kv": True}])
def test_attention_in_other_forms_is_left_to_torch_func_alone(options: dict[str, object]) -> None:
    inputs = NETWORKS["transformer"][1]
    embedding = rc.GradientEmbedding(partial(Attending, **options), inits=1, projection=None)
    embeddings = embedding.embed(inputs, LABELS)
    assert relative_difference(embeddings, gradients_by_torch_func(embedding, inputs, LABELS)) < 1e-5
    assert embedding.prepared is not None
    assert {name.partition(".")[0] for name in embedding.prepared.plan.rest} == {"attention"}


class Cut(nn.Module):
    """Learned positions, fewer than there are examples in a batch, that are cut into pieces and put together again."""

    def __init__(self, cut: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.cut, self.words, self.head = cut, nn.Embedding(20, 8), nn.Linear(8, 3)
        self.positions = nn.Parameter(torch.randn(5, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.words(x) + self.cut(self.positions)).tanh().mean(1))  # type: ignore[no-any-return]


@slow_path
@pytest.mark.parametrize(
    "cut",
    [
        lambda p: torch.cat(p.split(5)),
        lambda p: torch.cat(p.tensor_split(2)),
        lambda p: torch.cat(p.chunk(2)),
        lambda p: torch.stack(torch.unbind(p)),
        lambda p: torch.stack(list(p)),
    ],
)
def test_a_parameter_that_is_cut_is_left_to_torch_func(cut: Callable[[Tensor], Tensor]) -> None:
    inputs = NETWORKS["transformer"][1]
    embedding = rc.GradientEmbedding(partial(Cut, cut), inits=1, projection=None)
    embeddings = embedding.embed(inputs, LABELS)
    assert relative_difference(embeddings, gradients_by_torch_func(embedding, inputs, LABELS)) < 1e-5
    assert embedding.prepared is not None and set(embedding.prepared.plan.rest) == {"positions"}


def test_candidates_are_decided_on_once() -> None:
    make_model, inputs = NETWORKS["bilinear"]
    embedding = rc.GradientEmbedding(make_model, inits=1, layers=["pairs", "head"])
    with pytest.warns(UserWarning) as said:
        embedding.dictionary(inputs, LABELS)
        embedding.dictionary(inputs, LABELS)
    assert len([one for one in said if "some gradients are computed" in str(one.message)]) == 1
    assert embedding.prepared is not None


@slow_path
@pytest.mark.parametrize("network", ["experts", "routed", "late"])
def test_a_layer_that_the_first_examples_do_not_reach_counts(network: str) -> None:
    """Whatever comes first in the stream: the same examples have the same embeddings."""
    make_model, inputs = NETWORKS[network]
    order = torch.tensor([3, 5, 0, 1, 2, 4, 6])
    for projection in (None, "kronecker"):
        options = {"inits": 2, "dim": 60, "projection": projection}
        embeddings = rc.GradientEmbedding(make_model, **options).embed(inputs, LABELS)
        if projection is None:  # a projection is drawn by what is known of the layers
            turned = rc.GradientEmbedding(make_model, **options).embed(inputs[order], LABELS[order])
            assert relative_difference(turned, embeddings[order]) < 1e-5
        right = embeddings[inputs[:, 0] > 2]
        assert (right.norm(dim=1) > 0.1 * embeddings.norm(dim=1).mean()).all()


def test_the_last_layer_is_the_closed_form() -> None:
    """App. A.2, with the gradient of cross-entropy as softmax minus one-hot."""
    make_model, inputs = NETWORKS["mlp"]
    embedding = rc.GradientEmbedding(make_model, inits=3, layers="last", projection=None)
    embeddings = embedding.embed(inputs, LABELS)
    blocks = []
    for s in range(3):
        model = embedding._model(s)
        assert isinstance(model, nn.Sequential)
        with torch.no_grad():
            h = model[:-1](inputs)
            delta = torch.softmax(model(inputs), 1) - nn.functional.one_hot(LABELS, 3)
        blocks += [(delta[:, :, None] * h[:, None, :]).flatten(1), delta]
    assert relative_difference(embeddings, torch.cat(blocks, 1) / math.sqrt(3)) < 1e-6


class Ending(nn.Module):
    """Ends in a linear layer, and then in something else."""

    def __init__(self, then: Callable[[Tensor], Tensor], outputs: int = 3) -> None:
        super().__init__()
        self.hidden, self.head, self.then = nn.Linear(4, 5), nn.Linear(5, outputs), then

    def forward(self, x: Tensor) -> Tensor:
        return self.then(self.head(self.hidden(x).relu()))


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    return model


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    model[2].requires_grad_(False)
    return model


class ByHand(nn.Module):
    """A linear layer that is never called, as those of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.layer.weight) + self.layer.bias


def convolution() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 3, 4), nn.Flatten())


@pytest.mark.parametrize(
    ("make_model", "layers"),
    [
        (lambda: Ending(lambda x: x), "last"),
        (lambda: Ending(lambda x: x.view(-1, 3)), "last"),
        (lambda: Ending(lambda x: 2 * x), "all"),
        (lambda: Ending(lambda x: x[:, :3], outputs=4), "all"),
        (tied, "all"),
        (frozen, "all"),
        (convolution, "all"),
        (ByHand, "all"),
    ],
)
def test_auto_is_the_last_layer_where_the_model_ends_in_one(make_model: Any, layers: str) -> None:
    inputs = torch.randn(len(LABELS), 4, generator=torch.Generator().manual_seed(0))
    options: dict[str, Any] = {"inits": 2, "projection": None}
    found = rc.GradientEmbedding(make_model, layers="auto", **options).embed(inputs, LABELS % 3)
    assert torch.equal(found, rc.GradientEmbedding(make_model, layers=layers, **options).embed(inputs, LABELS % 3))


def test_auto_is_all_layers_for_quantities_and_where_each_part_of_an_example_has_a_class() -> None:
    inputs = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
    parts = torch.randn(12, 2, 4, generator=torch.Generator().manual_seed(0))
    for make_model, x, y, loss in (
        (lambda: Ending(lambda out: out, outputs=4), inputs, inputs, "squared_error"),
        (lambda: Ending(lambda out: out.mT), parts, torch.arange(24).view(12, 2) % 3, "cross_entropy"),
    ):
        auto, every = (
            rc.GradientEmbedding(make_model, loss=loss, layers=layers, inits=2, projection=None).embed(x, y)
            for layers in ("auto", "all")
        )
        assert torch.equal(auto, every)


def test_the_last_layer_needs_no_backward_pass_through_the_rest() -> None:
    graphs = []

    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(6, 5), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.body(x)
            graphs.append(h.requires_grad)
            return self.head(h)  # type: ignore[no-any-return]

    embedding = rc.GradientEmbedding(Watched, inits=1, layers="last")
    embedding.embed(NETWORKS["mlp"][1], LABELS)
    graphs.clear()
    embedding.embed(NETWORKS["mlp"][1], LABELS)
    assert graphs == [False]


def test_layers_can_be_named() -> None:
    make_model, inputs = NETWORKS["mlp"]
    last = rc.GradientEmbedding(make_model, inits=1, layers="last", projection=None).embed(inputs, LABELS)
    named = rc.GradientEmbedding(make_model, inits=1, layers="5", projection=None).embed(inputs, LABELS)
    assert torch.equal(last, named)
    two = rc.GradientEmbedding(make_model, inits=1, layers=["1", "5"], projection=None).embed(inputs, LABELS)
    assert two.shape[1] == 7 * 128 + last.shape[1]
    nested = rc.GradientEmbedding(lambda: nn.Sequential(nn.Sequential(nn.Linear(6, 5)), nn.Linear(5, 3)), layers="0")
    assert nested.embed(inputs, LABELS).shape[1] == 10 * 35
    with pytest.raises(ValueError, match=r"layers must be 'auto', 'all', 'last' or among '0'.* got 'head'"):
        rc.GradientEmbedding(make_model, layers="head").embed(inputs, LABELS)


@pytest.mark.parametrize(("network", "layer"), [("strange", "twice"), ("tokens", "mix"), ("mlp", "5")])
def test_candidates_of_one_layer_are_its_gradients_however_often_it_is_used(network: str, layer: str) -> None:
    make_model, inputs = NETWORKS[network]
    embedding = rc.GradientEmbedding(make_model, inits=2, layers=[layer], projection=None, batch_size=4)
    rows, dictionary = embedding.embed(inputs, LABELS), embedding.dictionary(inputs, LABELS)
    assert isinstance(dictionary, Factored) == (network == "mlp")
    found = dictionary.rows(torch.arange(7))
    assert relative_difference(found @ found.T, rows @ rows.T) < 1e-5


@pytest.mark.parametrize("projection", ["kronecker", "sparse", None])
@pytest.mark.parametrize("place", [3, 4, 5, 6])  # also where rules are tried
def test_gradients_that_are_not_finite_are_refused(projection: ProjectionName | None, place: int) -> None:
    make_model, inputs = NETWORKS["mlp"]
    inputs = inputs.clone()
    inputs[place] = 1e38
    options = {"loss": "squared_error", "scale_outputs": False}
    embedding = rc.GradientEmbedding(make_model, inits=2, projection=projection, **options)
    targets = torch.zeros(7, 3)
    with pytest.raises(ValueError, match=rf"gradients must be finite.* 1 of 7 examples, the first at position {place}"):
        embedding.embed(inputs, targets)
    with pytest.raises(ValueError, match=r"gradients must be finite, got NaN or infinity"):
        embedding.total(inputs, targets)
    assert embedding.prepared is None


def test_a_layer_may_be_named_by_any_of_its_names() -> None:
    make_model, inputs = NETWORKS["strange"]  # in which `tied` has the weight of `first`, after a gain of six numbers
    everything = rc.GradientEmbedding(make_model, inits=1, projection=None).embed(inputs, LABELS)
    tied = rc.GradientEmbedding(make_model, inits=1, layers=["tied"], projection=None).embed(inputs, LABELS)
    assert relative_difference(tied, everything[:, 6:42]) < 1e-6


class Sorting(nn.Module):
    """Sorts the examples of a batch, as some models do by length, and puts what comes out back in order."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        order = x[:, 0].argsort(stable=True)
        return self.out(self.first(x[order]).tanh())[order.argsort()]  # type: ignore[no-any-return]


def test_a_model_that_sorts_examples_is_seen_though_the_first_are_in_order() -> None:
    inputs = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    inputs[:3, 0] = -9
    targets = torch.arange(40) % 3
    embedding = rc.GradientEmbedding(Sorting, inits=1, projection=None)
    with pytest.warns(UserWarning, match=r"computed by torch.func"):
        rows = embedding.embed(inputs, targets)
    assert relative_difference(rows, gradients_by_torch_func(embedding, inputs, targets)) < 1e-5


class Heads(nn.Module):
    """One head for each task; all examples of a batch are of one."""

    def __init__(self, backbone: bool) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(6, 8), nn.Tanh()) if backbone else nn.Identity()
        self.heads = nn.ModuleList([nn.Linear(8 if backbone else 6, 3) for _ in range(2)])

    def forward(self, x: Tensor, task: Tensor) -> Tensor:
        return self.heads[int(task[0])](self.backbone(x))  # type: ignore[no-any-return]


@slow_path
@pytest.mark.parametrize("backbone", [True, False])
def test_heads_of_later_tasks_are_not_overlooked(backbone: bool) -> None:
    x = torch.randn(2, 30, 6, generator=torch.Generator().manual_seed(0))
    first, second = ({"x": x[t], "task": torch.full((30,), t)} for t in range(2))
    embedding = rc.GradientEmbedding(partial(Heads, backbone), inits=2, layers="auto", projection=None)
    for inputs in (first, second):
        rows = embedding.embed(inputs, torch.arange(30) % 3)
        assert relative_difference(rows, gradients_by_torch_func(embedding, inputs, torch.arange(30) % 3)) < 1e-5
    memory = rc.GradientMatching(partial(Heads, backbone), 12, inits=2, layers="last")
    memory.update(first, torch.arange(30) % 3)
    with pytest.raises(ValueError, match=r"^examples must pass through the layers .*, 'heads.0', got some .* none"):
        memory.update(second, torch.arange(30) % 3)
    assert memory.seen == 30


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_layer_with_as_many_outputs_as_there_are_probes() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.both = nn.Bilinear(6, 6, PROBES)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.both(a, b)  # type: ignore[no-any-return]

    inputs = torch.randn(2, 20, 6, generator=torch.Generator().manual_seed(0))
    targets = torch.arange(20) % 3
    embedding = rc.GradientEmbedding(Pair, inits=1, projection=None)
    with pytest.warns(UserWarning, match=r"computed by torch.func"):
        rows = embedding.embed((inputs[0], inputs[1]), targets)
    assert rows.shape == (20, 6 * 6 * PROBES + PROBES)


def test_examples_that_no_parameter_has_a_say_in_have_no_gradient() -> None:
    class Sometimes(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            outputs, some = super().forward(input), (input > 0).any(1, keepdim=True)
            return torch.where(some, outputs, outputs.detach()) if bool(some.any()) else outputs.detach()

    inputs = NETWORKS["mlp"][1].abs()
    inputs[4:] *= -1
    embedding = rc.GradientEmbedding(partial(Sometimes, 6, 3), inits=2, projection=None, batch_size=2)
    rows = embedding.embed(inputs, LABELS)
    assert rows[:4].any(1).all() and not rows[4:].any()
    assert relative_difference(embedding.total(inputs, LABELS), rows.double().sum(0)) < 1e-6


@pytest.mark.parametrize("loss", ["cross_entropy", "squared_error", "own"])
def test_any_loss_per_example(loss: str) -> None:
    make_model, inputs = NETWORKS["mlp"]
    targets = LABELS if loss == "cross_entropy" else torch.randn(7, 3, generator=torch.Generator().manual_seed(2))

    def own(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).abs().pow(1.5).mean(1)

    given = own if loss == "own" else loss
    embedding = rc.GradientEmbedding(make_model, loss=given, inits=2, projection=None, scale_outputs=False)
    embeddings = embedding.embed(inputs, targets)
    assert relative_difference(embeddings, gradients_by_torch_func(embedding, inputs, targets)) < 1e-5


def test_frozen_parameters_do_not_count() -> None:
    def make_model() -> nn.Module:
        model = rc.models.mlp(6, 3)
        model[1].requires_grad_(False)
        return model

    embeddings = rc.GradientEmbedding(make_model, inits=1, projection=None).embed(NETWORKS["mlp"][1], LABELS)
    assert embeddings.shape[1] == 128 * 129 + 3 * 129


def test_inputs_may_be_a_dict_or_a_tuple() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(2, 3), nn.Linear(4, 3)

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return self.a(left) + self.b(right)  # type: ignore[no-any-return]

    left, right = NETWORKS["mlp"][1][:, :2], NETWORKS["mlp"][1][:, 2:]
    by_name = rc.GradientEmbedding(Two, inits=2).embed({"left": left, "right": right}, LABELS)
    by_place = rc.GradientEmbedding(Two, inits=2).embed((left, right), LABELS)
    assert torch.equal(by_name, by_place)


@pytest.mark.parametrize("projection", ["sparse", "kronecker", None])
@pytest.mark.parametrize("network", ["mlp", "convolutions", "transformer", "strange"])
def test_the_batch_size_changes_nothing(network: str, projection: "str | None") -> None:
    make_model, inputs = NETWORKS[network]
    embed = partial(rc.GradientEmbedding, make_model, inits=2, dim=50, projection=projection, seed=3)
    whole = embed(batch_size=100).embed(inputs, LABELS)
    for batch_size in (1, 3):
        assert relative_difference(embed(batch_size=batch_size).embed(inputs, LABELS), whole) < 1e-5


def as_matrix(projection: Projection, sizes: dict[str, int]) -> Tensor:
    """The projection as a dense matrix, D x d: one unit vector for each entry of each parameter."""
    D = sum(sizes.values())
    out = torch.zeros(D, projection.width)
    start = 0
    for name, size in sizes.items():
        unit = torch.zeros(D, size)
        unit[start : start + size] = torch.eye(size)
        projection.add_parameter(out, name, unit)
        start += size
    return out


def kronecker_as_matrix(projection: Kronecker) -> Tensor:
    """The same for a linear layer with bias: each unit vector as an outer product of its factors."""
    out = torch.zeros(24, projection.width)
    for row in range(24):
        a, delta = torch.eye(6)[row % 6 : row % 6 + 1, :5], torch.eye(4)[row // 6 : row // 6 + 1]
        projection.add_use(out[row : row + 1], Use("linear", "fc.weight", "fc.bias", a, True, delta))
    # The one for the bias comes with every input, so it is taken off the rows of the weights again.
    bias = out.reshape(4, 6, -1)[:, 5:]
    return torch.cat([out.reshape(4, 6, -1)[:, :5] - bias, bias], dim=1).reshape(24, -1)


@pytest.mark.parametrize("kind", ["sparse", "kronecker", "kronecker, outputs as they are", "hashed"])
def test_projections_keep_inner_products_in_expectation(kind: str, generator: torch.Generator) -> None:
    """E[P^T P] = I: the mean over many draws is within five standard errors of the identity, entry by entry."""
    draws, dim = 800, 5 if kind in ("sparse", "hashed") else 20
    sizes = {"fc.weight": 20, "fc.bias": 4}
    units = {"fc.weight": Unit(4, 6, "fc.bias", True)}
    products = []
    for _ in range(draws):
        if kind == "sparse":
            P = as_matrix(Sparse(sizes, dim, generator), sizes)
        elif kind == "hashed":
            P = as_matrix(Kronecker(sizes, {}, dim, generator), sizes)
        else:
            widening = 0.2 if kind == "kronecker" else 0.6  # 1 x 2 or so, or 4 x 3, of 4 x 6
            P = kronecker_as_matrix(Kronecker(sizes, units, dim, generator, widening))
        products.append(P @ P.T)
    stacked = torch.stack(products)
    error = stacked.std(0) / math.sqrt(draws)
    assert ((stacked.mean(0) - torch.eye(24)).abs() <= 5 * error + 1e-6).all()


@pytest.mark.parametrize(("projection", "spread"), [("sparse", 1.5), ("kronecker", 4.0)])
def test_inner_products_are_kept_within_the_expected_spread(projection: str, spread: float) -> None:
    """The spread of an inner product over draws is about sqrt((|x|^2 |y|^2 + <x, y>^2) / d)."""
    make_model, inputs = NETWORKS["mlp"]
    exact = rc.GradientEmbedding(make_model, inits=1, projection=None).embed(inputs, LABELS)
    K = exact @ exact.T
    norms = K.diagonal()
    expected = ((norms[:, None] * norms + K**2) / 500).sqrt()
    errors = []
    for seed in range(40):
        embedding = rc.GradientEmbedding(make_model, inits=1, dim=500, projection=projection, seed=seed)  # type: ignore[arg-type]
        # The same model at every seed, so that only the projection varies.
        embedding._model = lambda s: draw_model(make_model, _first_model_seed)  # type: ignore[method-assign]
        embeddings = embedding.embed(inputs, LABELS)
        errors.append((embeddings @ embeddings.T - K) / expected)
    stacked = torch.stack(errors)
    assert float(stacked.square().mean().sqrt()) < spread
    assert (stacked.mean(0).abs() < 5 * stacked.std(0) / math.sqrt(40) + 1e-6).all()


_first_model_seed = rc.randomness.derive_seed(0, "model", 0)  # type: ignore[attr-defined]


def test_sparse_density_and_memory_are_those_of_the_paper(generator: torch.Generator) -> None:
    D, dim = 40_000, 100
    projection = Sparse({"w": D}, dim, generator)
    columns, _, values = projection._blocks["w"]
    expected = dim * math.sqrt(D)
    assert abs(len(columns) - expected) < 5 * math.sqrt(expected)
    assert values.abs().unique().tolist() == pytest.approx([1 / math.sqrt(dim / math.sqrt(D))])
    assert abs(float(values.sign().mean())) < 5 / math.sqrt(len(values))


def test_short_gradients_are_kept_exactly() -> None:
    make_model, inputs = NETWORKS["mlp"]
    exact = rc.GradientEmbedding(make_model, inits=2, layers="last", projection=None).embed(inputs, LABELS)
    kept = rc.GradientEmbedding(make_model, inits=2, layers="last", dim=1000).embed(inputs, LABELS)
    assert torch.equal(exact, kept)


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others() -> None:
    make_model, inputs = NETWORKS["mlp"]
    first, again, other = (
        rc.GradientEmbedding(make_model, inits=2, seed=seed).embed(inputs, LABELS) for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert relative_difference(other, first) > 0.1


@pytest.mark.parametrize("init", ["kaiming_uniform", "kaiming_normal", "own"])
def test_initialisations_have_the_right_spread(init: str) -> None:
    def own(model: nn.Module) -> None:
        for p in model.parameters():
            nn.init.normal_(p, std=1 / math.sqrt(3 * 400))

    model = draw_model(lambda: nn.Linear(400, 400), 0, own if init == "own" else init, scale=2.0)
    for parameter in model.parameters():
        assert float(parameter.detach().std()) == pytest.approx(2 / math.sqrt(3 * 400), rel=0.1)


def test_scaling_the_initialisation_leaves_gains_of_normalisations_alone() -> None:
    model = draw_model(lambda: nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.BatchNorm1d(3)), 0, scale=0.5)
    assert isinstance(model, nn.Sequential)
    assert (model[1].weight == 1).all()
    assert (model[2].weight == 1).all()


def test_fresh_batchnorm_layers_get_the_statistics_of_the_first_examples() -> None:
    make_model, inputs = NETWORKS["resnet"]
    embedding = rc.GradientEmbedding(make_model, inits=2, dim=50)
    embedding.embed(inputs, LABELS)
    assert embedding.prepared is not None
    for s in (1, 0):
        mean = embedding.prepared.statistics[s]["bn1.running_mean"]
        with torch.no_grad():
            model = embedding._model(s)
            assert isinstance(model, rc.models.ResNet)
            h = model.conv1(inputs)
        assert torch.allclose(mean, h.mean((0, 2, 3)), atol=1e-5)
        variance = embedding.prepared.statistics[s]["bn1.running_var"]
        assert torch.allclose(variance, h.var((0, 2, 3)), rtol=1e-4)
        assert embedding.prepared.draws is not None
        assert torch.equal(embedding.prepared.draws[s].model.bn1.running_var, variance)
    first = embedding.embed(inputs, LABELS)
    embedding.embed(inputs + 5, LABELS)  # later examples do not move them
    assert torch.equal(embedding.embed(inputs, LABELS), first)
    assert torch.equal(embedding.prepared.statistics[0]["bn1.running_mean"], mean)


def test_double_precision_inputs_and_arrays_are_accepted() -> None:
    make_model, inputs = NETWORKS["mlp"]
    reference = rc.GradientEmbedding(make_model, inits=1).embed(inputs, LABELS)
    arrays = rc.GradientEmbedding(make_model, inits=1).embed(inputs.double().numpy(), LABELS.int().numpy())
    assert relative_difference(arrays, reference) < 1e-5


@pytest.mark.parametrize("projection", ["kronecker", "sparse", None])
@pytest.mark.parametrize("network", ["mlp", "cnn"])
def test_a_model_in_double_precision_is_embedded_in_it(
    network: str, projection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model, inputs = NETWORKS[network]
    options: dict[str, Any] = {"inits": 2, "dim": 30, "projection": projection}
    single = rc.GradientEmbedding(make_model, **options).embed(inputs, LABELS)
    for kept in (True, False):  # are the draws
        if not kept:
            monkeypatch.setattr("recollect.embedding.gradients._KEEP_BYTES", 0)
        embedding = rc.GradientEmbedding(lambda: make_model().double(), **options)
        rows = embedding.embed(inputs, LABELS)
        assert rows.dtype == torch.float64
        assert relative_difference(rows, single) < 1e-5
        assert relative_difference(embedding.total(inputs, LABELS), rows.sum(0)) < 1e-12


def scalar_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets)


class Detached(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).detach()


SHARED = nn.Linear(6, 3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rc.GradientEmbedding(SHARED), "make_model must be a function that returns a new model"),
        (lambda: rc.GradientEmbedding(3), "make_model must be a function that returns a new model, got int"),  # type: ignore[arg-type]
        (lambda: rc.GradientEmbedding(lambda: 3), "make_model must return a torch.nn.Module, got int"),  # type: ignore[arg-type, return-value]
        (lambda: rc.GradientEmbedding(nn.Flatten), "at least one trainable parameter, got none"),
        (lambda: rc.GradientEmbedding(lambda: Detached(6, 3)), "the loss must depend on the model's trainable"),
        (lambda: rc.GradientEmbedding(NETWORKS["mlp"][0], loss=scalar_loss), "one value per example, got shape ()"),
        (lambda: rc.GradientEmbedding(NETWORKS["mlp"][0], loss="hinge"), "loss must be one of 'cross_entropy'"),
        (lambda: rc.GradientEmbedding(lambda: nn.Linear(6, 2)), "class numbers from 0 to 1, as the model has 2"),
        (lambda: rc.GradientEmbedding(NETWORKS["mlp"][0], inits=0), "inits must be a whole number of at least 1"),
        (lambda: rc.GradientEmbedding(NETWORKS["mlp"][0], projection="dense"), "projection must be 'auto'"),  # type: ignore[arg-type]
        (lambda: rc.GradientEmbedding(NETWORKS["mlp"][0], init="xavier"), "init must be one of 'default'"),
        (lambda: rc.GradientEmbedding(NETWORKS["mlp"][0], init_scale=0.0), "init_scale must be a positive"),
        (lambda: rc.GradientEmbedding(NETWORKS["mlp"][0], seed=-1), "seed must be a whole number of at least 0"),
        (lambda: rc.GradientEmbedding(lambda: nn.Conv1d(1, 3, 1), layers="last"), "needs a model with a linear"),
    ],
)
def test_bad_input_gets_one_clear_sentence(make: "partial[rc.GradientEmbedding]", message: str) -> None:
    inputs = NETWORKS["mlp"][1]
    with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
        embedding = make()
        embedding.embed(inputs[:, None] if "linear" in message else inputs, LABELS)
    assert message in str(caught.value)


@pytest.mark.parametrize("layers", ["all", "last"])
def test_nothing_of_a_failed_first_batch_remains(layers: str) -> None:
    make_model, inputs = NETWORKS["resnet"]
    options = {"inits": 1, "dim": 50, "batch_size": 4, "layers": layers}
    embedding = rc.GradientEmbedding(make_model, **options)
    for use in (embedding.embed, embedding.dictionary):
        with pytest.raises(ValueError, match="class numbers"):
            use(inputs * 3, torch.tensor([0, 1, 2, 0, 1, 2, 9]))
    expected = rc.GradientEmbedding(make_model, **options).embed(inputs, LABELS)
    assert torch.equal(embedding.embed(inputs, LABELS), expected)


def test_no_warnings_from_attention() -> None:
    make_model, inputs = NETWORKS["transformer"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rc.GradientEmbedding(make_model, inits=1).embed(inputs, LABELS)


@slow_path
def test_a_model_that_vmap_cannot_batch_is_still_right() -> None:
    class Branching(Bilinear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(2 * x) if float(x.detach().sum()) > 1e9 else super().forward(x)

    inputs = NETWORKS["bilinear"][1]
    plain = rc.GradientEmbedding(Bilinear, inits=1, projection=None).embed(inputs, LABELS)
    branching = rc.GradientEmbedding(Branching, inits=1, projection=None).embed(inputs, LABELS)
    assert relative_difference(branching, plain) < 1e-5


class Backbone(nn.Module):
    """A backbone that others use too, below a head of its own."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x).relu())  # type: ignore[no-any-return]


@pytest.mark.parametrize("fails", [False, True])
def test_what_make_model_returns_is_left_as_it_was(fails: bool) -> None:
    with torch.random.fork_rng():
        live = Backbone(nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)))
    live.backbone[0].bias.requires_grad_(False)  # frozen by the user: does not count
    before = copy.deepcopy(live.state_dict())
    make_model = partial(Backbone, live.backbone)
    inputs, labels = NETWORKS["mlp"][1], LABELS.clone()
    if fails:
        with pytest.raises(ValueError, match="class numbers"):
            rc.GradientEmbedding(make_model, inits=2).embed(inputs, labels + 3)
    else:
        first = rc.select(make_model, inputs, labels, 3, inits=2)
        assert torch.equal(first.indices, rc.select(make_model, inputs, labels, 3, inits=2).indices)
        exact = rc.GradientEmbedding(make_model, inits=1, projection=None)
        assert exact.embed(inputs, labels).shape[1] == 36 + 12 + 21
    assert all(module.training for module in live.modules())
    assert [p.requires_grad for p in live.parameters()] == [True, False, True, True, True, True]
    assert all(torch.equal(value, before[name]) for name, value in live.state_dict().items())


def test_a_model_that_cannot_be_copied_is_refused() -> None:
    class Computed(nn.Linear):
        """Keeps a weight that was computed from another, as the older weight_norm does."""

        def __init__(self) -> None:
            super().__init__(6, 3)
            self.doubled = 2 * self.weight

    with pytest.raises(ValueError, match=r"must return a model that copy\.deepcopy can copy, got RuntimeError \(Only"):
        rc.GradientEmbedding(Computed).embed(NETWORKS["mlp"][1], LABELS)


def test_draws_that_are_all_the_same_are_noticed() -> None:
    with pytest.warns(UserWarning, match="make_model should draw new weights at each call, got the same ones twice"):
        rc.GradientEmbedding(lambda: SHARED, inits=2).prepare(NETWORKS["mlp"][1], LABELS)


class Noisy(nn.Module):
    """Draws random numbers in evaluation mode, as a variational auto-encoder may."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.head, self.scale = nn.Linear(6, 3), scale

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.scale * torch.randn_like(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize("scale", [1.0, 1e-5])
def test_a_model_that_draws_random_numbers_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match=r"must give the same for the same examples.*evaluation mode"):
        rc.GradientEmbedding(partial(Noisy, scale)).embed(NETWORKS["mlp"][1], LABELS)


@pytest.mark.parametrize("network", ["mlp", "resnet", "decoder", "translation"])
def test_what_was_prepared_is_restored_without_data(network: str) -> None:
    make_model, inputs = NETWORKS[network]
    options = {"inits": 2, "dim": 60}
    embedding = rc.GradientEmbedding(make_model, **options)
    before = embedding.embed(inputs, LABELS)
    assert embedding.prepared is not None
    elsewhere = rc.GradientEmbedding(make_model, **options)
    prepared = elsewhere.restore(embedding.prepared.tensors)
    assert torch.equal(elsewhere.embed(inputs, LABELS, prepared=prepared), before)
    assert elsewhere.prepared is None
    with pytest.raises(ValueError, match="make_model must draw the models that were drawn before, got others"):
        rc.GradientEmbedding(make_model, seed=1, **options).restore(embedding.prepared.tensors)


class Pretrained(nn.Module):
    """A large backbone that is always the same, a small head, and a buffer."""

    def __init__(self, shift: float = 0.0) -> None:
        super().__init__()
        self.backbone, self.head = nn.Linear(6, 20_000, bias=False), nn.Linear(20_000, 3, bias=False)
        nn.init.constant_(self.backbone.weight, 0.1)
        self.register_buffer("shift", torch.tensor(shift))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x - self.shift))  # type: ignore[no-any-return]


@pytest.mark.parametrize(("seed", "shift"), [(1, 0.0), (0, 5.0)])
def test_another_head_or_buffer_is_seen_beside_a_large_backbone_that_is_the_same(seed: int, shift: float) -> None:
    embedding = rc.GradientEmbedding(Pretrained, inits=2, dim=60)
    embedding.embed(NETWORKS["mlp"][1], LABELS)
    assert embedding.prepared is not None
    rc.GradientEmbedding(Pretrained, inits=2, dim=60).restore(embedding.prepared.tensors)
    other = rc.GradientEmbedding(partial(Pretrained, shift), inits=2, dim=60, seed=seed)
    with pytest.raises(ValueError, match="make_model must draw the models that were drawn before, got others"):
        other.restore(embedding.prepared.tensors)


def test_unprojected_last_layer_gradients_are_kept_as_factors() -> None:
    make_model, inputs = NETWORKS["cnn"]
    options = {"inits": 3, "layers": "last", "projection": None, "batch_size": 3}
    factored = rc.GradientEmbedding(make_model, **options).dictionary(inputs, LABELS)
    assert isinstance(factored, Factored)
    dense = rc.GradientEmbedding(make_model, **options).embed(inputs, LABELS)
    assert relative_difference(factored.rows(torch.arange(7)), dense) < 1e-5  # entry by entry: targets may be dense
    assert relative_difference(factored.sum(), dense.double().sum(0)) < 1e-5
    short = rc.GradientEmbedding(make_model, inits=3, layers="last", dim=10_000).dictionary(inputs, LABELS)
    assert isinstance(short, Factored)
    long = rc.GradientEmbedding(make_model, inits=3, layers="last", dim=20).dictionary(inputs, LABELS)
    assert isinstance(long, InMemory)


def test_factored_candidates_match_a_target_that_was_summed_without_rows() -> None:
    """As they do wherever there is a shortlist: some are kept as factors, and all are in the sum."""
    inputs, targets = torch.randn(300, 6, generator=torch.Generator().manual_seed(0)), torch.arange(300) % 3
    make_model = partial(rc.models.mlp, 6, 3)
    few, many = (
        rc.select(make_model, inputs, targets, 20, layers="last", shortlist=shortlist) for shortlist in (5.0, None)
    )
    assert few.error < 1.5 * many.error
    rows = rc.GradientEmbedding(make_model, layers="last").embed(inputs, targets).double()
    missing = few.weights @ rows[few.indices] - rows.sum(0)
    assert float(missing.norm() / rows.sum(0).norm()) == pytest.approx(few.error, rel=1e-4)


def test_memory_with_factored_last_layer_gradients_matches_the_one_without() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(90, 6, generator=generator), torch.arange(90) % 3
    exact = rc.GradientMatching(NETWORKS["mlp"][0], 12, layers="last", projection=None, inits=2)
    kept = rc.GradientMatching(NETWORKS["mlp"][0], 12, layers="last", projection=None, inits=2)
    assert kept.embedding is not None
    for rows in torch.arange(90).split(30):
        exact.update(inputs[rows], targets[rows])
        formed = InMemory(kept.embedding.embed(inputs[rows], targets[rows]))
        kept.update(inputs[rows], targets[rows], candidates=formed)
    assert torch.equal(exact.batch.ids, kept.batch.ids)
    assert torch.allclose(exact.batch.weights, kept.batch.weights, rtol=1e-3)


class Habits(nn.Module):
    """May overwrite a layer's output or look at its values: neither can be batched over draws."""

    def __init__(self, habit: str) -> None:
        super().__init__()
        self.habit = habit
        self.body, self.head = nn.Linear(12, 30), nn.Linear(30, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x)
        hidden = hidden.relu_() if self.habit == "overwrites" else hidden.relu()
        if self.habit == "looks" and float(hidden.detach().sum()) < 0:
            raise RuntimeError("never so")
        return self.head(hidden)  # type: ignore[no-any-return]


class TwicePerExample(nn.Module):
    """A linear layer over several positions, and one without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 40), nn.Linear(40, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x.reshape(-1, 4, 3))).mean(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("make_model", [partial(rc.models.mlp, 12, 3), TwicePerExample])
@pytest.mark.parametrize("layers", ["all", "last"])
def test_draws_in_a_stack_give_what_each_gives_alone(make_model: type[nn.Module], layers: str) -> None:
    inputs = torch.randn(20, 12, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(20) % 3
    stacked = rc.GradientEmbedding(make_model, inits=18, dim=60, layers=layers, batch_size=7)
    together = stacked.embed(inputs, labels)
    assert stacked.prepared is not None and [len(stack) for stack in stacked.prepared.stacks] == [16, 2]
    alone = replace(stacked.prepared, stacks=())
    torch.testing.assert_close(together, stacked.embed(inputs, labels, prepared=alone))


def test_models_that_cannot_be_stacked_are_taken_one_by_one() -> None:
    inputs = torch.randn(20, 12, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(20) % 3
    embeddings = {}
    for habit in ("none", "overwrites", "looks"):
        embedding = rc.GradientEmbedding(partial(Habits, habit), inits=2, dim=60)
        embeddings[habit] = embedding.embed(inputs, labels)
        assert embedding.prepared is not None and bool(embedding.prepared.stacks) == (habit == "none")
    torch.testing.assert_close(embeddings["overwrites"], embeddings["none"])
    torch.testing.assert_close(embeddings["looks"], embeddings["none"])


class Images(nn.Module):
    """A small network of convolutions; one that views what they return cannot have their channels last."""

    def __init__(self, *, views: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 3, 3), nn.Conv2d(3, 4, 3)
        self.head, self.views = nn.Linear(16, 3), views

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.second(nn.functional.max_pool2d(self.first(x), 2)))
        return self.head(x.view(len(x), -1) if self.views else x.flatten(1))  # type: ignore[no-any-return]


def test_images_pass_with_the_channels_last_where_the_model_gets_along_with_it() -> None:
    inputs = torch.randn(10, 1, 10, 10, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(10) % 3
    embeddings = [rc.GradientEmbedding(partial(Images, views=views), inits=2, dim=60) for views in (False, True)]
    rows = [embedding.embed(inputs, labels) for embedding in embeddings]
    prepared = [embedding.prepared for embedding in embeddings]
    assert prepared[0] is not None and prepared[0].draws and prepared[1] is not None
    assert [known.plan.channels_last for known in (prepared[0], prepared[1])] == [True, False]
    network = prepared[0].draws[1].model
    assert network.first.weight.stride() == (9, 1, 3, 1) and network.second.weight.stride() == (27, 1, 9, 3)
    torch.testing.assert_close(rows[0], rows[1])
    for embedding, some in zip(embeddings, rows, strict=True):
        torch.testing.assert_close(embedding.total(inputs, labels).float(), some.sum(0), rtol=1e-4, atol=1e-5)
    assert embeddings[0].restore(prepared[0].tensors).plan.channels_last
