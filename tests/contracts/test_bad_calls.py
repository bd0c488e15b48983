"""Calls that nobody should make: each ends well or in one sentence, and a refused one changes nothing.

Calls are put together at random from tables of odd things, so that they meet in ways that nobody thought of.
"""

import copy
import warnings
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import recollect as rc
from tests.contracts.test_memories import FACTORIES, examples, make_model, same, the_model

Draw = Callable[[Any], Any]

N = 9
X, Y = examples(N, seed=8)


def quietly(make: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


ARRAYS: dict[str, Callable[[], Any]] = {
    "good": lambda: X,
    "good, float64": lambda: X.double(),
    "good, numpy": lambda: X.numpy(),
    "lists": lambda: X.tolist(),
    "a list of tensors": lambda: list(X),
    "needs a gradient": lambda: X.clone().requires_grad_(),
    "a parameter": lambda: nn.Parameter(X.clone()),
    "fewer": lambda: X[:5],
    "none": lambda: X[:0],
    "one": lambda: X[:1],
    "narrow": lambda: X[:, :3],
    "no width": lambda: X[:, :0],
    "deep": lambda: X[:, :, None, None],
    "flat": lambda: X[:, 0],
    "a number": lambda: torch.tensor(3.0),
    "a numpy number": lambda: np.float64(3),
    "transposed": lambda: X.T,
    "nan": lambda: X * torch.nan,
    "infinite": lambda: X.index_fill(0, torch.tensor([2]), torch.inf),
    "huge": lambda: X * 1e37,
    "tiny": lambda: X * 1e-44,
    "zeros": lambda: X * 0,
    "half": lambda: X.half(),
    "bfloat": lambda: X.bfloat16(),
    "whole": lambda: X.long(),
    "bytes": lambda: X.abs().byte(),
    "bits": lambda: X > 0,
    "unsigned": lambda: X.abs().numpy().astype(np.uint64),
    "complex": lambda: X + 1j,
    "float8": lambda: X.to(torch.float8_e4m3fn),
    "sparse": lambda: X.to_sparse(),
    "compressed": lambda: quietly(X.to_sparse_csr),
    "quantised": lambda: quietly(lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.qint8)),
    "nested": lambda: quietly(lambda: torch.nested.nested_tensor([X[:2], X[2:]])),
    "meta": lambda: X.to("meta"),
    "objects": lambda: np.array([None] * N, dtype=object),
    "ragged": lambda: [[1.0]] * (N - 1) + [[1.0, 2.0]],
    "text": lambda: ["a"] * N,
    "one text": lambda: "a" * N,
    "raw": lambda: bytes(N),
    "a view": lambda: memoryview(bytes(N)),
    "dates": lambda: np.zeros((N, 4), dtype="M8[s]"),
    "records": lambda: np.zeros(N, dtype=[("a", int), ("b", float)]),
    "long double": lambda: np.zeros((N, 4), dtype=np.longdouble),
    "a range": lambda: range(N),
    "a set": lambda: {1.0, 2.0},
    "a generator": lambda: (row for row in X),
    "fractions": lambda: [Fraction(1, 3)] * N,
    "nothing": lambda: None,
    "a type": lambda: Tensor,
    "a function": lambda: len,
    "a model": the_model,
    "an empty dict": dict,
    "an empty tuple": tuple,
    "a dict": lambda: {"x": X},
    "a dict of a wrong name": lambda: {"z": X},
    "a dict of numbers": lambda: {0: X},
    "a dict of nothing": lambda: {"x": None},
    "a dict of lengths": lambda: {"left": X[:3], "right": X},
    "a tuple": lambda: (X,),
    "a long tuple": lambda: (X, X, X),
    "a tuple of tuples": lambda: ((X,),),
    "classes": lambda: Y,
    "floating classes": lambda: Y.float(),
    "a column of classes": lambda: Y[:, None],
    "one-hot": lambda: torch.eye(3)[Y],
    "whole one-hot": lambda: torch.eye(3)[Y].long(),
    "several classes": lambda: torch.ones(N, 3),
    "too many classes": lambda: Y + 100,
    "negative classes": lambda: Y - 5,
    "no labels": lambda: torch.full((N,), -100),
    "huge classes": lambda: Y + 2**62,
}

NUMBERS: dict[str, Callable[[], Any]] = {
    "two": lambda: 2,
    "a numpy two": lambda: np.int64(2),
    "zero": lambda: 0,
    "minus one": lambda: -1,
    "true": lambda: True,
    "a half": lambda: 0.5,
    "a numpy half": lambda: np.float32(0.5),
    "nan": lambda: float("nan"),
    "infinity": lambda: float("inf"),
    "huge": lambda: 10**30,
    "huger": lambda: 10**400,
    "a fraction": lambda: Fraction(5, 2),
    "a decimal": lambda: Decimal("2"),
    "complex": lambda: 2j,
    "text": lambda: "2",
    "nothing": lambda: None,
    "a list": lambda: [2],
    "an array": lambda: np.array(2),
    "a vector": lambda: np.array([1, 2]),
    "a tensor": lambda: torch.tensor(2),
    "tensors": lambda: torch.tensor([1, 2]),
    "a dict": dict,
    "an object": object,
    "a type": lambda: int,
}


def rows(outputs: Tensor) -> Tensor:
    return outputs.reshape(len(outputs), -1).sum(1)


LOSSES: dict[str, Any] = {
    "by name": "cross_entropy",
    "of a number": "squared_error",
    "of questions": "binary_cross_entropy",
    "nothing": lambda o, t: None,
    "a tuple": lambda o, t: (rows(o), o),
    "a scalar": lambda o, t: o.sum(),
    "a number": lambda o, t: 1.0,
    "a list": lambda o, t: list(rows(o)),
    "too few": lambda o, t: rows(o)[1:],
    "a column": lambda o, t: rows(o)[:, None],
    "detached": lambda o, t: rows(o).detach(),
    "constant": lambda o, t: torch.ones(len(o)),
    "whole": lambda o, t: rows(o).long(),
    "complex": lambda o, t: rows(o) + 1j,
    "nan": lambda o, t: rows(o) * torch.nan,
    "infinite": lambda o, t: rows(o) / 0,
    "an array": lambda o, t: rows(o).detach().numpy(),
    "a wrong name": "hinge",
    "none": None,
    "a number itself": 3,
    "names": ["cross_entropy"],
    "a class": nn.CrossEntropyLoss,
    "a mean": lambda o, t: o.mean(),
}


class Odd(nn.Module):
    """A model that makes something odd of its outputs."""

    def __init__(self, change: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layers = rc.models.mlp(4, 3, hidden=(8,))
        self.change = change

    def forward(self, x: Tensor) -> Any:
        return self.change(self.layers(x))


def fail(_: Tensor) -> None:
    raise KeyError("two\nlines")


def frozen() -> nn.Module:
    return make_model().requires_grad_(False)


MODELS: dict[str, Callable[[], Any]] = {
    "good": make_model,
    "returns a tuple": partial(Odd, lambda o: (o, None)),
    "returns nothing": partial(Odd, lambda o: None),
    "returns an empty tuple": partial(Odd, lambda o: ()),
    "returns text": partial(Odd, lambda o: "outputs"),
    "returns a scalar": partial(Odd, lambda o: o.sum()),
    "returns a vector": partial(Odd, lambda o: o[:, 0]),
    "returns too few": partial(Odd, lambda o: o[1:]),
    "returns no classes": partial(Odd, lambda o: o[:, :0]),
    "returns images": partial(Odd, lambda o: o[:, :, None, None]),
    "returns whole numbers": partial(Odd, lambda o: o.long()),
    "returns complex numbers": partial(Odd, lambda o: o + 1j),
    "returns nan": partial(Odd, lambda o: o * torch.nan),
    "returns a detached tensor": partial(Odd, lambda o: o.detach()),
    "returns an array": partial(Odd, lambda o: o.detach().numpy()),
    "returns a sparse tensor": partial(Odd, lambda o: o.to_sparse()),
    "returns a meta tensor": partial(Odd, lambda o: o.to("meta")),
    "fails": partial(Odd, fail),
    "without parameters": lambda: nn.Flatten(),
    "frozen": frozen,
    "narrow": partial(rc.models.mlp, 3, 3),
    "of tokens": lambda: nn.Embedding(5, 3),
    "nothing": lambda: None,
    "text": lambda: "model",
    "a type": lambda: nn.Linear,
}


def drawn(make: Callable[[], Any]) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make()


@cache
def filled(name: str) -> tuple[rc.Memory, rc.Memory]:
    """A memory that has seen data, and what it was like before anything was done to it."""
    memory = FACTORIES[name]()
    memory.update(*examples(30), model=the_model())
    return memory, copy.deepcopy(memory)


def refused(call: Callable[[], Any]) -> bool:
    """Make the call; whether it was refused, which must be in one sentence."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call()
        except ValueError as error:
            message = str(error)
            assert message and "\n" not in message, f"not one line: {message!r}"
            assert not message[0].isupper(), f"not a sentence of ours: {message!r}"
            return True
    return False


# Each of these draws its arguments and returns a call. Half of the arguments are good, so that the odd ones get far.


def pick(draw: Draw, table: dict[str, Any]) -> Any:
    good = next(iter(table))
    return table[draw(st.one_of(st.just(good), st.sampled_from(sorted(table))))]


def update(memory: rc.Memory, draw: Draw) -> Callable[[], Any]:
    inputs, targets = pick(draw, ARRAYS)(), pick(draw, {"classes": lambda: Y, **ARRAYS})()
    model = drawn(pick(draw, MODELS))
    return lambda: memory.update(inputs, targets, model=model)


def sample(memory: rc.Memory, draw: Draw) -> Callable[[], Any]:
    n, generator = pick(draw, NUMBERS)(), pick(draw, {"none": lambda: None, **NUMBERS})()
    return lambda: memory.sample(n, generator)


def load(memory: rc.Memory, draw: Draw) -> Callable[[], Any]:
    batch_size, shuffle = pick(draw, NUMBERS)(), pick(draw, {"yes": lambda: True, **NUMBERS})()
    return lambda: list(memory.loader(batch_size, shuffle))


def move(memory: rc.Memory, draw: Draw) -> Callable[[], Any]:
    device = pick(draw, {"cpu": lambda: "cpu", "meta": lambda: "meta", **NUMBERS})()
    return lambda: memory.to(device)


def save(memory: rc.Memory, draw: Draw) -> Callable[[], Any]:
    folder = pick(draw, {name: make for name, make in NUMBERS.items() if name != "text"})()
    return lambda: memory.save(folder)


def merge(memory: rc.Memory, draw: Draw) -> Callable[[], Any]:
    if not isinstance(memory, rc.Reservoir):
        return lambda: None
    others: dict[str, Any] = {name: lambda name=name: filled(name)[1] for name in FACTORIES}
    other = pick(draw, {"itself": lambda: memory, **others, **NUMBERS})()
    return lambda: memory.merge(other)


def restore(memory: rc.Memory, draw: Draw) -> Callable[[], Any]:
    state = memory.state_dict()
    key = draw(st.sampled_from(sorted(state) + sorted(state["tensors"])))
    value = pick(draw, NUMBERS | ARRAYS)()
    if key in state["tensors"]:
        state["tensors"] = {**state["tensors"], key: value}
    else:
        state[key] = value
    # What the tensors of a memory's own state mean is known to that memory alone.
    return lambda: None if key.startswith("state.") else memory.load_state_dict(state)


METHODS = (update, update, update, sample, load, move, save, merge, restore)


def check_a_call_of_a_memory(data: st.DataObject) -> None:
    memory, before = filled(data.draw(st.sampled_from(sorted(FACTORIES))))
    call = data.draw(st.sampled_from(METHODS))(memory, data.draw)
    assert same(memory, before)
    if refused(call):
        assert same(memory, before)
    else:
        memory.load_state_dict(before.state_dict())


OPTIONS: dict[Callable[..., rc.Memory], tuple[str, ...]] = {
    rc.Reservoir: (),
    rc.SlidingWindow: (),
    rc.ClassBalanced: (),
    rc.GSS: ("comparisons", "dim", "loss"),
    rc.Herding: ("features",),
    rc.Clustering: ("features", "standardize"),
}


def check_a_new_memory(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(list(OPTIONS)))
    table: dict[str, dict[str, Any]] = {
        "loss": LOSSES | {name: make() for name, make in NUMBERS.items()},
        "features": {"none": None} | FEATURES | {name: make() for name, make in NUMBERS.items()},
    }
    numbers = {name: make() for name, make in NUMBERS.items()}
    options = {name: pick(data.draw, table.get(name, numbers)) for name in ("capacity", "seed", *OPTIONS[kind])}

    def make() -> None:
        memory = kind(**options)
        for _ in range(2):
            if refused(lambda: memory.update(X, Y, model=the_model())):
                assert memory.seen == len(memory) == 0

    refused(make)


FEATURES: dict[str, Any] = {
    "good": lambda x: x**2,
    "nothing": lambda x: None,
    "too few": lambda x: x[1:],
    "flat": lambda x: x[:, 0],
    "whole": lambda x: x.long(),
    "complex": lambda x: x + 1j,
    "nan": lambda x: x * torch.nan,
    "an array": lambda x: x.numpy(),
    "sparse": lambda x: x.to_sparse(),
    "meta": lambda x: x.to("meta"),
}

# Selecting, measuring and learning


def without(table: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name not in names}


def select(draw: Draw) -> Callable[[], Any]:
    inputs, targets = pick(draw, ARRAYS)(), pick(draw, {"classes": lambda: Y, **ARRAYS})()
    make = pick(draw, MODELS)
    loss, size = pick(draw, LOSSES), pick(draw, NUMBERS)()
    return lambda: rc.select(make, inputs, targets, size, inits=2, dim=20, loss=loss)


def pursue(draw: Draw) -> Callable[[], Any]:
    arrays = without(ARRAYS, "quantised", "nested", "long double")
    rows, target = pick(draw, arrays)(), pick(draw, {"none": lambda: None, **arrays})()
    size, regularization = pick(draw, NUMBERS)(), pick(draw, NUMBERS)()
    return lambda: rc.pursue(rows, size, target=target, regularization=regularization)


def measure(draw: Draw) -> Callable[[], Any]:
    names = ("final_accuracy", "average_accuracy", "forgetting", "backward_transfer", "accuracy", "forward_transfer")
    name = draw(st.sampled_from(names))
    arrays = without(ARRAYS, "nested")
    first = pick(draw, {"square": lambda: X[:4], **arrays})()
    second = pick(draw, {"classes": lambda: Y, **arrays})()
    arguments = (first, second) if name in ("accuracy", "forward_transfer") else (first,)
    return lambda: getattr(rc.metrics, name)(*arguments)


def check_a_function(data: st.DataObject) -> None:
    refused(data.draw(st.sampled_from((select, select, pursue, measure)))(data.draw))


LEARNERS: tuple[Callable[..., Any], ...] = (rc.GDumb, rc.ExperienceReplay, rc.DarkExperienceReplay)


def check_a_learner(data: st.DataObject) -> None:
    """What a learner is given, and what it is made of."""
    make = data.draw(st.sampled_from(LEARNERS))
    model = pick(data.draw, without(MODELS, "returns a detached tensor"))
    loss = pick(data.draw, without(LOSSES, "detached", "constant"))
    inputs, targets = pick(data.draw, ARRAYS)(), pick(data.draw, {"classes": lambda: Y, **ARRAYS})()
    made: list[Any] = []
    if refused(lambda: made.append(make(model, rc.Reservoir(5), epochs=1, loss=loss))):
        return
    learner = made[0]
    if refused(lambda: learner.observe(X, Y)):
        assert learner.memory.seen == 0
        return
    before, weights = copy.deepcopy(learner.memory), None
    if not isinstance(learner, rc.GDumb):  # which trains only when it is asked
        weights = copy.deepcopy(learner.model.state_dict())
    if refused(lambda: learner.observe(inputs, targets)):
        assert same(learner.memory, before)
        if weights is not None:
            now = learner.model.state_dict()
            assert all(torch.allclose(now[name], weights[name], 0, 0, equal_nan=True) for name in weights)
    refused(lambda: learner.predict(X))


quick, thorough = settings(max_examples=150), settings(max_examples=2_500, derandomize=False)
CHECKS = (check_a_call_of_a_memory, check_a_new_memory, check_a_function, check_a_learner)


@pytest.mark.parametrize("check", CHECKS)
@quick
@given(data=st.data())
def test_a_bad_call_ends_in_one_sentence_and_changes_nothing(
    check: Callable[[st.DataObject], None], data: st.DataObject
) -> None:
    check(data)


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
@thorough
@given(data=st.data())
def test_ten_thousand_bad_calls_end_in_one_sentence_and_change_nothing(
    check: Callable[[st.DataObject], None], data: st.DataObject
) -> None:
    check(data)
