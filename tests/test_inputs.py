"""What people pass in: taken where its meaning is plain, refused in one sentence where it is not."""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import recollect as rc
from recollect.batch import check_examples, forward
from recollect.losses import IGNORED, check_labels, check_losses, cross_entropy, get_loss

X = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 3
make_model = partial(rc.models.mlp, 4, 3, hidden=(8,))


def drawn(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        return make()


ODD_ARRAYS: dict[str, tuple[Callable[[], Any], str]] = {
    "sparse": (X.to_sparse, "inputs must be a dense tensor of numbers, got a sparse_coo one"),
    "meta": (lambda: X.to("meta"), "inputs must be a dense tensor of numbers, got a meta one"),
    "complex": (lambda: X + 1j, "inputs must be real numbers, got type torch.complex64"),
    "eight bits": (lambda: X.to(torch.float8_e4m3fn), "inputs must be real numbers, got type torch.float8_e4m3fn"),
    "ragged": (lambda: [[1.0]] * 11 + [[1.0, 2.0]], "inputs must be numbers in rows of equal length"),
    "objects": (lambda: np.array([None] * 12), "got an array of object"),
    "text": (lambda: ["cat"] * 12, "inputs must be numbers, got text such as 'cat': number it"),
    "dates": (lambda: np.zeros(12, dtype="M8[D]"), "got an array of datetime64[D]"),
    "too large": (lambda: np.full(12, 2**64 - 1, dtype=np.uint64), "must fit into 64 bits with a sign"),
    "a number": (lambda: 3.0, "inputs must be a tensor or an array, got float"),
    "a single number": (lambda: np.array(3.0), "the same length, got a single number and 12"),
    "nothing": (lambda: None, "inputs must be a tensor or an array, got NoneType"),
    "numbered names": (lambda: {1: X}, "inputs must be named by text, as the model's arguments are, got 1"),
    "an empty dict": (dict, "got an empty dict"),
    "an empty tuple": (tuple, "got an empty tuple"),
    "needs a gradient": (lambda: [X[0].clone().requires_grad_()] * 12, "inputs must be numbers in rows"),
}


@pytest.mark.parametrize("what", ODD_ARRAYS)
def test_odd_arrays_are_refused_in_one_sentence(what: str) -> None:
    make, message = ODD_ARRAYS[what]
    with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
        check_examples(make(), Y)
    assert message in str(caught.value)


@pytest.mark.parametrize("shape", [(12, 0), (12, 3, 0)])
def test_targets_without_numbers_are_refused(shape: tuple[int, ...]) -> None:
    for take in (
        partial(rc.select, make_model, X, torch.zeros(shape), 3, loss="squared_error"),
        partial(rc.Clustering(3).update, X, torch.zeros(shape)),
    ):
        with pytest.raises(ValueError, match=r"^targets must have at least one number per example, got shape \(12, "):
            take()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12)[::-1],
        np.arange(12, dtype=">i4"),
        np.arange(12, dtype=np.uint16),
        np.broadcast_to(np.float32(1), (12,)),
        memoryview(bytes(12)),
        range(12),
        X.clone().requires_grad_(),
    ],
    ids=["backwards", "swapped bytes", "16 bits", "read-only", "memoryview", "range", "needs a gradient"],
)
def test_plain_numbers_are_taken_however_they_are_stored(array: Any) -> None:
    inputs, _ = check_examples(array, Y)
    assert isinstance(inputs, Tensor)
    expected = array.detach().numpy() if isinstance(array, Tensor) else np.array(array)
    assert np.array_equal(inputs.numpy(), expected)
    assert not inputs.requires_grad


def test_arrays_are_not_copied_without_need() -> None:
    array = X.numpy()
    inputs, _ = check_examples(array, Y)
    assert isinstance(inputs, Tensor)
    assert inputs.data_ptr() == X.data_ptr()


ONE_HOT = torch.eye(3)[Y]
ODD_TARGETS: dict[str, tuple[Tensor, str, str]] = {
    "floating classes": (Y.float(), "cross_entropy", "pass class numbers as targets.long()"),
    "quantities": (Y + 0.5, "cross_entropy", "pass loss='squared_error' if they are quantities"),
    "a column": (
        Y[:, None],
        "cross_entropy",
        "got shape (1,) for an example with outputs of shape (3,): pass targets[:, 0]",
    ),
    "a floating column": (Y[:, None].float(), "cross_entropy", "pass class numbers as targets.long()"),
    "integer one-hot": (ONE_HOT.long(), "cross_entropy", "pass targets.argmax(1) if they are one-hot"),
    "several classes": ((ONE_HOT + ONE_HOT.flip(0)).clamp(max=1), "cross_entropy", "use loss='binary_cross_entropy'"),
    "no class": (torch.zeros(12, 3), "cross_entropy", "sums from 0 to 0"),
    "negative": (torch.tensor([[2.0, -1.0, 0.0]] * 12), "cross_entropy", "probabilities that add up to 1"),
    "other classes": (torch.full((12, 2), 0.5), "cross_entropy", "got shape (2,)"),
    "too high": (
        Y + 1,
        "cross_entropy",
        "targets must be class numbers from 0 to 2, as the model has 3 outputs, got 3",
    ),
    "too low": (Y - 1, "cross_entropy", "got -1"),
    "too low beside places without a label": (torch.where(Y > 0, Y - 2, IGNORED), "cross_entropy", "got -1"),
    "too few numbers": (
        Y.float(),
        "squared_error",
        "as many numbers per example as the model has outputs, got shape ()",
    ),
    "not from 0 to 1": (3 * ONE_HOT, "binary_cross_entropy", "must be from 0 to 1, got 0 to 3"),
}


@pytest.mark.parametrize("what", ODD_TARGETS)
def test_targets_that_do_not_fit_are_refused_before_torch_does(what: str) -> None:
    targets, loss, message = ODD_TARGETS[what]
    model = drawn(make_model)
    for call in (
        lambda: check_labels(model(X), targets, loss),
        lambda: rc.select(make_model, X, targets, 3, inits=2, loss=loss),
        lambda: rc.GradientMatching(make_model, 3, inits=2, loss=loss).update(X, targets),
        lambda: rc.GSS(3, loss=loss).update(X, targets, model=model),
    ):
        with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
            call()
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("targets", "loss"),
    [
        (ONE_HOT, "cross_entropy"),
        (ONE_HOT.double(), cross_entropy),
        (ONE_HOT, "squared_error"),
        (Y.to(torch.uint8), "cross_entropy"),
    ],
)
def test_targets_that_fit_are_taken(targets: Tensor, loss: Any) -> None:
    assert len(rc.select(make_model, X, targets, 3, inits=2, loss=loss)) == 3


class PerPlace(nn.Module):
    """Classes for each of the four places of an input."""

    def __init__(self, classes_second: bool = True) -> None:
        super().__init__()
        self.head = nn.Linear(1, 3)
        self.classes_second = classes_second

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.head(x[..., None])
        return outputs.movedim(-1, 1) if self.classes_second else outputs  # type: ignore[no-any-return]


def test_places_without_a_label_do_not_count() -> None:
    """The loss of an example is the sum over its labelled places, and so is its gradient."""
    model = drawn(PerPlace)
    targets = torch.randint(0, 3, (12, 4), generator=torch.Generator().manual_seed(1))
    targets[:, 2] = IGNORED
    targets[5] = IGNORED
    losses = cross_entropy(model(X), targets)
    places = [
        nn.functional.cross_entropy(model(X)[:, :, j], targets[:, j].clamp(min=0), reduction="none") for j in (0, 1, 3)
    ]
    expected = torch.stack(places).sum(0)
    expected[5] = 0
    assert torch.allclose(losses, expected)

    embedding = rc.GradientEmbedding(PerPlace, inits=2, projection=None)
    rows = embedding.embed(X, targets)
    assert not rows[5].any()
    labelled = [0, 1, 3]
    assert torch.allclose(rows, embedding.embed(X[:, labelled], targets[:, labelled]), atol=1e-6)


def test_classes_in_the_last_place_are_named_as_such() -> None:
    targets = torch.zeros(12, 4, dtype=torch.long)
    with pytest.raises(ValueError, match=r"classes come second, so let the model return outputs.movedim"):
        check_labels(drawn(partial(PerPlace, False))(X), targets, "cross_entropy")


# Models


def test_bytes_are_taken_as_the_numbers_they_are() -> None:
    images = torch.randint(0, 256, (12, 1, 12, 12), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    make = partial(rc.models.cnn, (1, 12, 12), 3)
    raw, floating = (rc.select(make, x, Y, 3, inits=2) for x in (images, images.float()))
    assert torch.equal(raw.indices, floating.indices)
    assert torch.equal(raw.weights, floating.weights)
    memory = rc.Reservoir(5)
    memory.update(images, Y)
    assert memory.batch.inputs.dtype == torch.uint8  # a quarter of the memory
    learner = rc.GDumb(make, memory, epochs=1)
    assert learner.predict(images).shape == (12, 3)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        assert mask.dtype == torch.uint8
        return self.head(x * mask)  # type: ignore[no-any-return]


def test_bytes_beside_other_inputs_are_left_alone() -> None:
    assert forward(drawn(Masked), (X, (X > 0).byte())).shape == (12, 3)


class Returning(nn.Module):
    """Makes something else of a network's outputs."""

    def __init__(self, change: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layers = make_model()
        self.change = change

    def forward(self, x: Tensor) -> Any:
        return self.change(self.layers(x))


class WithLogits(OrderedDict[str, Any]):
    """As Hugging Face's models return."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__(hidden_states=None, logits=logits)
        self.logits = logits


@pytest.mark.parametrize(
    "change",
    [WithLogits, lambda o: {"logits": o}, lambda o: (o, o.sum()), lambda o: [o]],
    ids=["an object", "a dict", "a tuple", "a list"],
)
def test_the_output_is_found_in_what_a_model_returns(change: Callable[[Tensor], Any]) -> None:
    plain, wrapped = (rc.select(partial(Returning, c), X, Y, 3, inits=2) for c in (lambda o: o, change))
    assert torch.equal(plain.indices, wrapped.indices)
    assert torch.allclose(plain.weights, wrapped.weights)
    learner = rc.ExperienceReplay(partial(Returning, change), rc.Reservoir(5), epochs=1)
    learner.observe(X, Y)
    assert learner.predict(X).shape == (12, 3)


def fail(_: Tensor) -> None:
    raise RuntimeError("first line\nsecond line")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda o: None,
            "the model must return a tensor, a tuple that starts with one, or an object with logits, got None",
        ),
        (lambda o: (), "got tuple"),
        (lambda o: {"hidden": o}, "got dict"),
        (lambda o: o.sum(), r"the model must return one output per example, got shape \(\) for \d+ example"),
        (lambda o: o.T, r"the model must return one output per example, got shape \(3, \d+\)"),
        (fail, r"the model must accept examples of \(4,\) float32, got RuntimeError from it \(first line\)"),
    ],
)
def test_a_model_that_does_not_fit_gets_one_sentence(change: Callable[[Tensor], Any], message: str) -> None:
    make = partial(Returning, change)
    model = drawn(make)
    for call in (
        lambda: rc.select(make, X, Y, 3, inits=2),
        lambda: rc.ExperienceReplay(make, rc.Reservoir(5), epochs=1).observe(X, Y),
        lambda: rc.GSS(3).update(X, Y, model=model),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (X[:, :3], r"examples of \(3,\) float32, got RuntimeError from it \(mat1 and mat2 shapes cannot be multiplied"),
        (X.long(), "if it wants floating-point numbers, pass inputs.float"),
        ({"y": X}, "got TypeError from it .*unexpected keyword argument 'y'"),
        ((X, X), "got TypeError from it .*positional argument"),
    ],
)
def test_inputs_that_the_model_does_not_take_get_one_sentence(inputs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rc.select(make_model, inputs, Y, 3, inits=2)


def test_one_example_is_too_few_for_batchnorm() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))

    with pytest.raises(ValueError, match="the model's BatchNorm layers need at least two examples at a time, got one"):
        forward(drawn(make).train(), X[:1])
    with pytest.raises(ValueError, match="the first examples must be 2 or more, as BatchNorm"):
        rc.GradientMatching(make, 3, inits=2).update(X[:1], Y[:1])


# Losses


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        (None, "loss must return a tensor with one value per example, got NoneType"),
        ((torch.zeros(3),), "loss must return a tensor with one value per example, got tuple"),
        (torch.tensor(1.0), r"got shape \(\) for 3 examples: use reduction='none'"),
        (torch.zeros(3, 1), r"got shape \(3, 1\) for 3 examples: add up what belongs to one example, as by .flatten"),
        (torch.zeros(3, 1) - torch.zeros(3), r"got shape \(3, 3\) for 3 examples: give outputs and targets one shape"),
        (torch.zeros(2), r"got shape \(2,\) for 3 examples"),
        (torch.zeros(3, dtype=torch.long), "loss must return floating-point numbers, got torch.int64"),
    ],
)
def test_a_loss_is_one_number_per_example(losses: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_losses(losses, 3)


@pytest.mark.parametrize("loss", ["hinge", None, 3, ["cross_entropy"], nn.CrossEntropyLoss])
def test_a_loss_is_a_name_or_a_function(loss: Any) -> None:
    with pytest.raises(ValueError, match="loss must be one of 'cross_entropy'"):
        get_loss(loss)
    with pytest.raises(ValueError, match="loss must be one of 'cross_entropy'"):
        rc.GSS(3, loss=loss)


def test_a_class_of_losses_is_told_how_to_be_passed() -> None:
    with pytest.raises(ValueError, match=r"got <class .*>: pass CrossEntropyLoss\(reduction='none'\)"):
        get_loss(nn.CrossEntropyLoss)  # type: ignore[arg-type]


def test_a_tensor_of_a_tuple_has_one_name_in_all_sentences() -> None:
    held, far, text = torch.zeros(2, 3), torch.full((2, 3), torch.inf), ["a", "b"]
    memory = rc.Reservoir(2)
    memory.update((held, held), torch.zeros(2))
    assert repr(memory.batch).startswith("Batch(2 examples, inputs[0] (3,) float32, inputs[1] (3,)")
    for other, trouble in (
        (far, "finite"),
        (text, "numbers"),
        (held[:1], "and targets"),
        (held[:, :1], "keep the shape"),
    ):
        with pytest.raises(ValueError, match=rf"inputs\[1\] (must be |must )?{trouble}"):
            memory.update((held, other), torch.zeros(2))
