"""Examples to gradient embeddings (Sec. 2.1).

Differs from the paper:
- Embeddings are divided by sqrt(S), so that inner products estimate k_GMC (Eq. 10) whatever S is.
- The projection is drawn anew for each initialisation; the paper writes one P for all.
- A gradient no longer than `dim` is not projected: that would only add noise.
- Fresh BatchNorm layers get the statistics of the stream's first examples.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias, TypedDict

import torch
from torch import Tensor, nn

from recollect.batch import Inputs, check_examples, forward, map_inputs
from recollect.checks import check_count, check_seed
from recollect.dictionary import Dictionary, Factored, InMemory
from recollect.embedding.initialisations import (
    CALIBRATION_ROWS,
    Init,
    MakeModel,
    calibrate,
    check_init,
    draw_model,
    plain_attention,
    set_statistics,
)
from recollect.embedding.layers import Call, LinearRule
from recollect.embedding.passes import gradients_by_func, listen
from recollect.embedding.plan import Plan, make_plan
from recollect.embedding.projections import Identity, Kronecker, Projection, Sparse
from recollect.embedding.stacked import LARGEST, StackedDraws
from recollect.losses import LossFunction, check_labels, check_losses, get_loss
from recollect.numerics import lazy_zeros
from recollect.progress import progress_bar
from recollect.randomness import derive_seed, generator

ProjectionName: TypeAlias = Literal["sparse", "kronecker"]

_KEEP_BYTES = 2**29  # draws are kept between calls while they fit in this, and redrawn otherwise


class EmbeddingOptions(TypedDict, total=False):
    """Keyword arguments of `GradientEmbedding`, for those who pass them on."""

    loss: str | LossFunction
    inits: int
    dim: int
    layers: str | Sequence[str]
    projection: ProjectionName | None
    init: Init
    init_scale: float
    calibrate: bool
    batch_size: int
    device: str | torch.device


@dataclass(frozen=True)
class _Draw:
    model: nn.Module
    projection: Projection

    def nbytes(self) -> int:
        return 3 * sum(p.nbytes for p in self.model.parameters())  # the projection is of the same order


class GradientEmbedding:
    """Maps labelled examples to vectors whose inner products estimate those of their loss gradients.

    An embedding is the example's gradient at each of S freshly initialised models, projected to `dim`
    numbers each, one after the other, over sqrt(S). It depends on the seed alone: not on training, not on the
    batch size, not on the other examples.

    Args:
        make_model: returns a freshly initialised model at each call.
        loss: a name or a function of outputs and targets that returns one loss per example.
        inits: S, the number of initialisations.
        dim: numbers per initialisation; a gradient that is no longer is kept exactly.
        layers: which parameters' gradients: "all", "last" (the last linear layer: a forward pass is enough), or
            names of modules.
        projection: "kronecker" (a projection of each layer's two factors, which never forms a gradient),
            "sparse" (random signs, App. A.1), or None for the gradients themselves.
        init: "default" (as make_model leaves it), "kaiming_uniform", "kaiming_normal", or a function
            that redraws the parameters of the model it is given.
        init_scale: multiplies what was drawn.
        calibrate: give fresh BatchNorm layers the statistics of the first examples; otherwise they do nothing.
        batch_size: examples per pass; bounds memory and changes nothing else.
        device: where to compute.
        seed: the same seed gives the same embeddings.

    Example:
        >>> make_model = lambda: nn.Linear(3, 2)
        >>> embedding = GradientEmbedding(make_model, inits=4, dim=8, projection=None)
        >>> embedding.embed(torch.ones(5, 3), torch.zeros(5, dtype=torch.long)).shape
        torch.Size([5, 32])
    """

    def __init__(
        self,
        make_model: MakeModel,
        *,
        loss: str | LossFunction = "cross_entropy",
        inits: int = 10,
        dim: int = 1000,
        layers: str | Sequence[str] = "all",
        projection: ProjectionName | None = "kronecker",
        init: Init = "default",
        init_scale: float = 1.0,
        calibrate: bool = True,
        batch_size: int = 128,
        device: str | torch.device = "cpu",
        seed: int = 0,
    ) -> None:
        if not callable(make_model):
            raise ValueError(f"make_model must be a function that returns a new model, got {type(make_model).__name__}")
        if isinstance(make_model, nn.Module):
            raise ValueError("make_model must be a function that returns a new model, got a model: wrap its class")
        for name, value in (("inits", inits), ("dim", dim), ("batch_size", batch_size)):
            check_count(name, value)
        if projection not in ("sparse", "kronecker", None):
            raise ValueError(f"projection must be 'sparse', 'kronecker' or None, got {projection!r}")
        if not (math.isfinite(init_scale) and init_scale > 0):
            raise ValueError(f"init_scale must be a positive number, got {init_scale!r}")
        check_init(init)
        self.make_model = make_model
        self.loss = loss
        self.inits = inits
        self.dim = dim
        self.layers: str | tuple[str, ...] = layers if isinstance(layers, str) else tuple(layers)
        self.projection = projection
        self.init = init
        self.init_scale = init_scale
        self.calibrate = calibrate
        self.batch_size = batch_size
        self.device = torch.device(device)
        self.seed = check_seed(seed)
        self.statistics: list[dict[str, Tensor]] | None = None
        """What BatchNorm layers were set to, per draw; None until the first examples came."""
        self._loss = get_loss(loss)
        self._plan: Plan | None = None
        self._draws: dict[int, _Draw] = {}
        self._stacks: list[StackedDraws] | None = None
        self._scale = 1 / math.sqrt(inits)

    def embed(self, inputs: Any, targets: Any, *, progress: bool = False) -> Tensor:
        """The embeddings, one row per example: (n, inits * dim)."""
        inputs, targets = check_examples(inputs, targets)
        try:
            return self._embed(inputs, targets, progress)
        except BaseException:
            if self.statistics is None:
                self.forget()  # draws may hold statistics of the examples that failed
            raise

    def forget(self) -> None:
        """Be as before the first examples came."""
        self.statistics, self._plan, self._stacks = None, None, None
        self._draws.clear()

    def _embed(self, inputs: Inputs, targets: Tensor, progress: bool) -> Tensor:
        n = len(targets)
        with plain_attention():
            plan, statistics = self._prepared(inputs, targets)
            first = self._draw(0, plan, statistics)
            width, dtype = first.projection.width, next(first.model.parameters()).dtype
            out = lazy_zeros(n, self.inits * width, dtype=dtype, device=self.device)
            by_factors = isinstance(first.projection, Kronecker)
            stacks = self._make_stacks(plan, statistics, inputs, targets) if by_factors else []
            chunks = [*_chunks(n, self.batch_size)]
            steps = len(chunks) * (len(stacks) or self.inits)
            with progress_bar("computing gradients", steps, show=progress) as bar:
                for rows, draws, add in self._passes(chunks, plan, statistics, stacks):
                    part = map_inputs(lambda t, r=rows: t[r], inputs)  # type: ignore[misc]
                    add(out[rows, draws.start * width : draws.stop * width], part, targets[rows].to(self.device))
                    bar.advance()
        _check_gradients(out)
        self._plan, self.statistics = plan, statistics  # only now: nothing changes if anything failed
        return out

    def dictionary(self, inputs: Any, targets: Any, *, progress: bool = False) -> Dictionary:
        """The embeddings as candidates for `pursue`: as factors where that is exact and smaller, else in memory.

        Unprojected gradients of one linear layer are kept as factors: those of `layers="last"` with
        `projection=None`, or where the layer has no more than `dim` weights.
        """
        if self.layers != "all":
            inputs, targets = check_examples(inputs, targets)
            with plain_attention():
                plan, statistics = self._prepared(inputs, targets)
                one = not plan.rest and [type(rule) for rule in plan.rules.values()] == [LinearRule]
                if one and not self._projects(plan):
                    factored = self._factors(plan, statistics, inputs, targets, progress)
                    if factored is not None:
                        self._plan, self.statistics = plan, statistics
                        return factored
        return InMemory(self.embed(inputs, targets, progress=progress))

    def _factors(
        self, plan: Plan, statistics: list[dict[str, Tensor]], inputs: Inputs, targets: Tensor, progress: bool
    ) -> Factored | None:
        """Both factors of a linear layer's gradients; None if it is used more than once per example."""
        layer = next(iter(plan.rules))
        n, count = len(targets), 0
        delta = h = torch.empty(0)
        stacks = self._make_stacks(plan, statistics, inputs, targets)
        chunks = [*_chunks(n, self.batch_size)]
        with progress_bar("computing gradients", len(chunks) * (len(stacks) or self.inits), show=progress) as bar:
            for rows, draws, hear in self._hearings(chunks, plan, statistics, stacks):
                part = map_inputs(lambda t, r=rows: t[r], inputs)  # type: ignore[misc]
                calls = hear(part, targets[rows].to(self.device))
                count = rows.stop - rows.start
                if len(calls) != 1 or (found := calls[0][1].delta) is None or found.shape[-2:-1] != (count,):
                    return None
                a = calls[0][1].input
                if not len(delta):  # with room for a one after the layer's input, for its bias
                    module = self._draw(0, plan, statistics).model.get_submodule(layer)
                    delta = found.new_empty(self.inits, n, found.shape[-1])
                    h = a.new_ones(self.inits, n, a.shape[-1] + (module.bias is not None))
                delta[draws, rows] = found
                h[draws, rows, : a.shape[-1]] = a
                bar.advance()
        _check_gradients(delta.transpose(0, 1).flatten(1))
        return Factored(delta, h)

    def _hearings(
        self, chunks: list[slice], plan: Plan, statistics: list[dict[str, Tensor]], stacks: list[StackedDraws]
    ) -> Iterator[tuple[slice, slice, Callable[[Inputs, Tensor], list[tuple[str, Call]]]]]:
        """As `_passes`, of what flows through the layers instead of projected gradients."""
        for rows, draws, stack in _stacked(chunks, stacks):
            yield rows, draws, partial(stack.listen, scale=self._scale)
        for s in range(0 if stacks else self.inits):
            model = self._draw(s, plan, statistics).model
            for rows in chunks:
                hear = partial(listen, model, plan.rules, losses=self._losses, scale=self._scale)
                yield rows, slice(s, s + 1), hear

    def fingerprint(self) -> Tensor:
        """A few numbers by which a later `make_model` can be known to draw the same models."""
        parameters = list(self._model(0).parameters())
        sums = [p.double().abs().sum() for p in parameters]
        return torch.stack([torch.tensor(float(p.numel()), dtype=torch.float64) for p in parameters] + sums).cpu()

    # How draws are made

    def _model(self, s: int) -> nn.Module:
        model = draw_model(self.make_model, derive_seed(self.seed, "model", s), self.init, self.init_scale)
        return model.to(self.device)

    def _draw(self, s: int, plan: Plan, statistics: list[dict[str, Tensor]]) -> _Draw:
        if s in self._draws:
            return self._draws[s]
        model = self._model(s)
        set_statistics(model, statistics[s])
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        draw = _Draw(model, self._make_projection(plan, model, s))
        if self._keeps(draw):
            self._draws[s] = draw
        return draw

    def _keeps(self, draw: _Draw) -> bool:
        return self.inits * draw.nbytes() <= _KEEP_BYTES

    def _make_stacks(
        self, plan: Plan, statistics: list[dict[str, Tensor]], inputs: Inputs, targets: Tensor
    ) -> list[StackedDraws]:
        """All draws in stacks, if they can be computed together; else none. Decided once."""
        if self._stacks is not None:
            return self._stacks
        self._stacks = []
        first = self._draw(0, plan, statistics)
        if not self._keeps(first) or not StackedDraws.suit(plan, first.model):
            return self._stacks
        draws = [self._draw(s, plan, statistics) for s in range(self.inits)]
        stacks = []
        for start in range(0, self.inits, LARGEST):
            some = draws[start : start + LARGEST]
            projections = [draw.projection for draw in some if isinstance(draw.projection, Kronecker)]
            stacks.append(StackedDraws([draw.model for draw in some], projections, plan, self._losses))
        if all(stack.agrees(inputs, targets.to(self.device)) for stack in stacks):
            self._stacks = stacks
        return self._stacks

    def _make_projection(self, plan: Plan, model: nn.Module, s: int) -> Projection:
        if not self._projects(plan):
            return Identity(plan.sizes)
        source = generator(self.seed, "projection", s)
        if self.projection == "sparse":
            return Sparse(plan.sizes, self.dim, source).to(self.device)
        modules = {layer: model.get_submodule(layer) for layer in plan.rules}
        factored = {
            layer: (*sizes, rule.has_bias(modules[layer]))
            for layer, rule in plan.rules.items()
            if (sizes := rule.factor_sizes(modules[layer])) is not None
        }
        return Kronecker(plan.sizes, factored, self.dim, source).to(self.device)

    def _projects(self, plan: Plan) -> bool:
        return self.projection is not None and sum(plan.sizes.values()) > self.dim

    # How one pass is made

    def _passes(
        self, chunks: list[slice], plan: Plan, statistics: list[dict[str, Tensor]], stacks: list[StackedDraws]
    ) -> Iterator[tuple[slice, slice, Callable[[Tensor, Inputs, Tensor], None]]]:
        """Which rows and draws are computed together, and how; chunks of rows are finished one by one if possible."""
        if stacks:
            for rows, draws, stack in _stacked(chunks, stacks):
                yield rows, draws, partial(stack.add, scale=self._scale)
        elif self._keeps(self._draw(0, plan, statistics)):
            for rows in chunks:
                for s in range(self.inits):
                    yield rows, slice(s, s + 1), partial(self._project, self._draw(s, plan, statistics), plan)
        else:  # the larger part of the work is to make a draw: each is made once
            for s in range(self.inits):
                draw = self._draw(s, plan, statistics)
                for rows in chunks:
                    yield rows, slice(s, s + 1), partial(self._project, draw, plan)

    def _project(self, draw: _Draw, plan: Plan, out: Tensor, inputs: Inputs, targets: Tensor) -> None:
        """Add the projected gradients of a few examples at one draw, over sqrt(S), to `out` (n, width)."""
        model, n, scale = draw.model, len(targets), self._scale
        if plan.rules:
            calls = listen(model, plan.rules, inputs, targets, self._losses, scale)
            uses = [(layer, plan.rules[layer], model.get_submodule(layer), call) for layer, call in calls]
            draw.projection.add_pass(out, [use for use in uses if use[-1].delta is not None])
        if plan.rest:
            if not plan.rules:
                with torch.no_grad():  # labels cannot be looked at inside vmap
                    self._losses(forward(model, inputs), targets)
            for name, gradient in gradients_by_func(model, plan.rest, inputs, targets, self._loss).items():
                draw.projection.add_parameter(out, name, gradient.reshape(n, -1) * scale)

    def _losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        check_labels(outputs, targets, self.loss)
        return check_losses(self._loss(outputs, targets), len(targets))

    # What is decided once

    def _prepared(self, inputs: Inputs, targets: Tensor) -> tuple[Plan, list[dict[str, Tensor]]]:
        """The plan and the BatchNorm statistics, made on first sight of data."""
        if self._plan is not None and self.statistics is not None:
            return self._plan, self.statistics
        statistics = self.statistics
        if statistics is None:
            first = map_inputs(lambda t: t[:CALIBRATION_ROWS], inputs)
            models = [self._model(s) for s in range(2 if self.inits > 1 else 1)]
            if len(models) == 2 and models[0] is models[1]:
                raise ValueError(
                    "make_model must return a new model at each call, got the same object twice: build it inside"
                )
            statistics = [{} for _ in range(self.inits)]
            if self.calibrate:
                for s in range(self.inits):
                    statistics[s] = calibrate(models[s] if s < len(models) else self._model(s), first)
                    if not statistics[s]:
                        break  # no BatchNorm layers
        model = self._model(0)
        set_statistics(model, statistics[0])
        return make_plan(model, self.layers, inputs, targets.to(self.device), self._losses), statistics


def _chunks(n: int, size: int) -> Iterator[slice]:
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))


def _stacked(chunks: list[slice], stacks: list[StackedDraws]) -> Iterator[tuple[slice, slice, StackedDraws]]:
    for rows in chunks:
        first = 0
        for stack in stacks:
            yield rows, slice(first, first + len(stack)), stack
            first += len(stack)


def _check_gradients(embeddings: Tensor) -> None:
    if torch.isfinite(embeddings.sum()):
        return
    bad = (~torch.isfinite(embeddings)).any(1).nonzero().flatten()
    if len(bad):
        raise ValueError(
            f"gradients must be finite, got NaN or infinity for {len(bad)} of {len(embeddings)} examples, "
            f"the first at position {int(bad[0])}: scale the inputs or check the loss"
        )
