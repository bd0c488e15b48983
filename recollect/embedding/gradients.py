"""Examples to gradient embeddings (Sec. 2.1).

Differs from the paper:
- Embeddings are divided by sqrt(S), so that inner products estimate k_GMC (Eq. 10) whatever S is.
- The projection is drawn anew for each initialisation; the paper writes one P for all.
- A gradient no longer than `dim` is not projected: that would only add noise.
- Fresh BatchNorm layers get the statistics of the stream's first examples.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypedDict

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from recollect.batch import Inputs, check_examples, forward, map_inputs
from recollect.dictionary import Dictionary, Factored, InMemory, lazy_zeros
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
from recollect.embedding.layers import RULES, Call, LinearRule, Rule, Tap
from recollect.embedding.projections import Identity, Kronecker, Projection, Sparse
from recollect.losses import LossFunction, check_labels, check_losses, get_loss
from recollect.progress import progress_bar
from recollect.randomness import check_seed, derive_seed, generator

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
class _Plan:
    """Which gradients are computed how; the same for every draw."""

    sizes: dict[str, int]  # parameter -> entries
    rules: dict[str, Rule]  # layer -> its rule
    rest: list[str]  # parameters without a rule, left to torch.func


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
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
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
        self._plan: _Plan | None = None
        self._draws: dict[int, _Draw] = {}

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
        self.statistics, self._plan = None, None
        self._draws.clear()

    def _embed(self, inputs: Inputs, targets: Tensor, progress: bool) -> Tensor:
        n = len(targets)
        with plain_attention():
            plan, statistics = self._prepared(inputs, targets)
            out: Tensor | None = None
            chunks = math.ceil(n / self.batch_size)
            with progress_bar("computing gradients", self.inits * chunks, show=progress) as bar:
                for s in range(self.inits):
                    draw = self._draw(s, plan, statistics)
                    width = draw.projection.width
                    if out is None:
                        dtype = next(draw.model.parameters()).dtype
                        out = lazy_zeros(n, self.inits * width, dtype=dtype, device=self.device)
                    for rows in _chunks(n, self.batch_size):
                        part = map_inputs(lambda t, r=rows: t[r], inputs)  # type: ignore[misc]
                        self._project(out[rows, s * width : (s + 1) * width], draw, plan, part, targets[rows])
                        bar.advance()
        assert out is not None
        _check_gradients(out)
        self._plan, self.statistics = plan, statistics  # only now: nothing changes if anything failed
        return out

    def dictionary(self, inputs: Any, targets: Any, *, progress: bool = False) -> Dictionary:
        """The embeddings as candidates for `pursue`: as factors where that is exact and smaller, else in memory.

        Unprojected gradients of one linear layer, `layers="last", projection=None`, are kept as factors.
        """
        if self.projection is None and self.layers != "all":
            inputs, targets = check_examples(inputs, targets)
            with plain_attention():
                plan, statistics = self._prepared(inputs, targets)
                if not plan.rest and [type(rule) for rule in plan.rules.values()] == [LinearRule]:
                    factored = self._factors(plan, statistics, inputs, targets, progress)
                    if factored is not None:
                        self._plan, self.statistics = plan, statistics
                        return factored
        return InMemory(self.embed(inputs, targets, progress=progress))

    def _factors(
        self, plan: _Plan, statistics: list[dict[str, Tensor]], inputs: Inputs, targets: Tensor, progress: bool
    ) -> Factored | None:
        """Both factors of a linear layer's gradients; None if it is used more than once per example."""
        layer = next(iter(plan.rules))
        deltas, activations = [], []
        n = len(targets)
        chunks = [*_chunks(n, self.batch_size)]
        with progress_bar("computing gradients", self.inits * len(chunks), show=progress) as bar:
            for s in range(self.inits):
                draw = self._draw(s, plan, statistics)
                module = draw.model.get_submodule(layer)
                for rows in chunks:
                    part = map_inputs(lambda t, r=rows: t[r], inputs)  # type: ignore[misc]
                    own, scale = targets[rows].to(self.device), 1 / math.sqrt(self.inits)
                    calls = self._calls(draw.model, plan.rules, part, own, scale)
                    count = rows.stop - rows.start
                    if len(calls) != 1 or calls[0][1].delta is None or calls[0][1].delta.shape[:-1] != (count,):
                        return None
                    deltas.append(calls[0][1].delta)
                    activations.append(calls[0][1].input)
                    bar.advance()
        delta, h = torch.cat(deltas).reshape(self.inits, n, -1), torch.cat(activations).reshape(self.inits, n, -1)
        if module.bias is not None:
            h = torch.cat([h, torch.ones_like(h[:, :, :1])], dim=2)
        _check_gradients(delta.transpose(0, 1).flatten(1))
        return Factored(delta, h)

    def fingerprint(self) -> Tensor:
        """A few numbers by which a later `make_model` can be known to draw the same models."""
        parameters = list(self._model(0).parameters())
        sums = [p.double().abs().sum() for p in parameters]
        return torch.stack([torch.tensor(float(p.numel()), dtype=torch.float64) for p in parameters] + sums).cpu()

    # How draws are made

    def _model(self, s: int) -> nn.Module:
        model = draw_model(self.make_model, derive_seed(self.seed, "model", s), self.init, self.init_scale)
        return model.to(self.device)

    def _draw(self, s: int, plan: _Plan, statistics: list[dict[str, Tensor]]) -> _Draw:
        if s in self._draws:
            return self._draws[s]
        model = self._model(s)
        set_statistics(model, statistics[s])
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        draw = _Draw(model, self._make_projection(plan, model, s))
        if (len(self._draws) + 1) * draw.nbytes() <= _KEEP_BYTES:
            self._draws[s] = draw
        return draw

    def _make_projection(self, plan: _Plan, model: nn.Module, s: int) -> Projection:
        if self.projection is None or sum(plan.sizes.values()) <= self.dim:
            return Identity(plan.sizes)
        source = generator(self.seed, "projection", s)
        if self.projection == "sparse":
            return Sparse(plan.sizes, self.dim, source).to(self.device)
        factor_sizes = {
            layer: sizes
            for layer, rule in plan.rules.items()
            if (sizes := rule.factor_sizes(model.get_submodule(layer))) is not None
        }
        return Kronecker(plan.sizes, factor_sizes, self.dim, source).to(self.device)

    # How one pass is made

    def _project(self, out: Tensor, draw: _Draw, plan: _Plan, inputs: Inputs, targets: Tensor) -> None:
        """Add the projected gradients of a few examples at one draw, over sqrt(S), to `out` (n, width)."""
        model, n = draw.model, len(targets)
        targets = targets.to(self.device)
        if plan.rules:
            for layer, call in self._calls(model, plan.rules, inputs, targets, 1 / math.sqrt(self.inits)):
                if call.delta is not None:
                    module = model.get_submodule(layer)
                    draw.projection.add_call(out, layer, plan.rules[layer], module, call)
        if plan.rest:
            for name, gradient in self._rest_gradients(model, plan.rest, inputs, targets).items():
                draw.projection.add_parameter(out, name, gradient.reshape(n, -1) / math.sqrt(self.inits))

    def _losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        check_labels(outputs, targets, self.loss)
        return check_losses(self._loss(outputs, targets), len(targets))

    def _calls(
        self, model: nn.Module, layers: dict[str, Rule], inputs: Inputs, targets: Tensor, scale: float = 1.0
    ) -> list[tuple[str, Call]]:
        """One forward and one backward pass that note what flows through the layers; the loss is scaled."""
        calls: list[tuple[str, Call]] = []
        anchor = torch.zeros((), device=self.device, requires_grad=True)

        def listen(layer: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
            def hook(_module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
                call = Call(args[0].detach())
                calls.append((layer, call))
                return Tap.apply(output, anchor, call)  # type: ignore[no-any-return, no-untyped-call]

            return hook

        hooks = [model.get_submodule(layer).register_forward_hook(listen(layer)) for layer in layers]
        try:
            with torch.enable_grad():
                losses = self._losses(forward(model, inputs), targets)
                if losses.requires_grad:
                    torch.autograd.grad(losses.sum() * scale, anchor, allow_unused=True)
        finally:
            for hook in hooks:
                hook.remove()
        return calls

    def _rest_gradients(self, model: nn.Module, names: list[str], inputs: Inputs, targets: Tensor) -> dict[str, Tensor]:
        """Per-example gradients of the named parameters through torch.func: right for any model, if slower."""
        with torch.no_grad():
            self._losses(forward(model, inputs), targets)  # labels cannot be looked at inside vmap
        parameters = dict(model.named_parameters())
        chosen = {name: parameters[name] for name in names}
        one = _FunctionalLoss(model, self._loss)
        try:
            with sdpa_kernel(SDPBackend.MATH):  # the one form of attention that vmap can batch
                return vmap(grad(one), in_dims=(None, 0, 0))(chosen, inputs, targets)  # type: ignore[no-any-return]
        except RuntimeError:  # something that vmap cannot batch: one example at a time
            n = len(targets)
            pieces = [grad(one)(chosen, map_inputs(lambda t, i=i: t[i], inputs), targets[i]) for i in range(n)]  # type: ignore[misc]
            return {name: torch.stack([piece[name] for piece in pieces]) for name in names}

    # What is decided once

    def _prepared(self, inputs: Inputs, targets: Tensor) -> tuple[_Plan, list[dict[str, Tensor]]]:
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
        return self._make_plan(model, map_inputs(lambda t: t[:3], inputs), targets[:3].to(self.device)), statistics

    def _make_plan(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> _Plan:
        """Decide for each parameter how its gradients are computed.

        A layer's rule is used where it reproduces autograd's gradients of single examples on real data. Tied
        or reused parameters, layers that are bypassed or mix examples, and whatever has no rule, are
        left to torch.func. So a rule can be fast without having to foresee every model.
        """
        trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not trainable:
            raise ValueError("the model must have at least one trainable parameter, got none")
        owners = self._selected_layers(model, inputs)
        names = [name for name in trainable if _owner(name) in owners]
        if not names:
            raise ValueError(f"layers must name modules with trainable parameters, got {self.layers!r}")
        sizes = {name: trainable[name].numel() for name in names}

        truth = [self._true_gradients(model, names, inputs, targets, i) for i in range(len(targets))]
        used = [name for name in names if any(example[name] is not None for example in truth)]
        if not used:
            raise ValueError(
                "the loss must depend on the model's trainable parameters, got no gradient: "
                "does the model or the loss detach its result?"
            )
        tied = {id(p) for _, p in _duplicates(model)}

        candidates: dict[str, Rule] = {}
        for layer, module in model.named_modules():
            own = dict(module.named_parameters(prefix=layer, recurse=False))
            if (
                type(module) in RULES
                and RULES[type(module)].applies(module)
                and any(name in used for name in own)
                and all(name in trainable for name in own)
                and not any(id(p) in tied for p in own.values())
            ):
                candidates[layer] = RULES[type(module)]
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        rules = self._verified(model, candidates, inputs, targets, truth)
        rest = [name for name in used if _owner(name) not in rules]
        return _Plan(sizes, rules, rest)

    def _selected_layers(self, model: nn.Module, inputs: Inputs) -> set[str]:
        """Names of the modules whose own parameters count."""
        modules = dict(model.named_modules())
        if self.layers == "all":
            return set(modules)
        if self.layers == "last":
            return {_last_linear(model, inputs)}
        wanted = [self.layers] if isinstance(self.layers, str) else self.layers
        for name in wanted:
            if name not in modules:
                close = ", ".join(repr(m) for m in modules if m)
                raise ValueError(f"layers must be 'all', 'last' or among {close}, got {name!r}")
        return {name for name in modules if any(name == w or name.startswith(f"{w}.") for w in wanted)}

    def _true_gradients(
        self, model: nn.Module, names: list[str], inputs: Inputs, targets: Tensor, i: int
    ) -> dict[str, Tensor | None]:
        parameters = dict(model.named_parameters())
        with torch.enable_grad():
            outputs = forward(model, map_inputs(lambda t: t[i : i + 1], inputs))
            loss = self._losses(outputs, targets[i : i + 1]).sum()
            if not loss.requires_grad:
                return dict.fromkeys(names)
            gradients = torch.autograd.grad(loss, [parameters[name] for name in names], allow_unused=True)
        return dict(zip(names, gradients, strict=True))

    def _verified(
        self,
        model: nn.Module,
        candidates: dict[str, Rule],
        inputs: Inputs,
        targets: Tensor,
        truth: list[dict[str, Tensor | None]],
    ) -> dict[str, Rule]:
        """The candidates whose rules give the true gradients."""
        n = len(targets)
        found: dict[str, Tensor] = {}
        failed: set[str] = set()
        for layer, call in self._calls(model, candidates, inputs, targets):
            if call.delta is None or layer in failed:
                continue
            try:
                pieces = candidates[layer].gradient(model.get_submodule(layer), call.input, call.delta, n)
            except RuntimeError:  # a layout that the rule does not know, such as examples not first
                failed.add(layer)
                continue
            for short, piece in pieces.items():
                name = f"{layer}.{short}" if layer else short
                found[name] = found.get(name, torch.zeros_like(piece)) + piece
        rules = {}
        for layer, rule in candidates.items():
            own = [name for name in truth[0] if _owner(name) == layer]
            if layer not in failed and all(_agrees(found.get(name), name, truth) for name in own):
                rules[layer] = rule
        return rules


class _FunctionalLoss:
    """One example's loss as a function of some parameters."""

    def __init__(self, model: nn.Module, loss: LossFunction) -> None:
        self._model, self._loss = model, loss

    def __call__(self, parameters: Mapping[str, Tensor], inputs: Inputs, target: Tensor) -> Tensor:
        batch = map_inputs(lambda t: t[None], inputs)
        wrapped = _Wrapped(self._model)
        outputs = functional_call(wrapped, {f"model.{k}": v for k, v in parameters.items()}, (batch,))
        return check_losses(self._loss(outputs, target[None]), 1)[0]


class _Wrapped(nn.Module):
    """Lets `functional_call` reach `forward` of the batch module, which fits inputs to the model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Inputs) -> Tensor:
        return forward(self.model, inputs)


def _owner(parameter: str) -> str:
    return parameter.rpartition(".")[0]


def _duplicates(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Parameters that appear under more than one name."""
    seen: set[int] = set()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in seen:
            yield name, parameter
        seen.add(id(parameter))


def _agrees(found: Tensor | None, name: str, truth: list[dict[str, Tensor | None]]) -> bool:
    for i, example in enumerate(truth):
        true = example[name]
        if true is None:
            if found is not None and found[i].any():
                return False
        elif found is None or not torch.allclose(found[i], true, rtol=1e-3, atol=1e-5 + 1e-4 * float(true.abs().max())):
            return False
    return True


def _last_linear(model: nn.Module, inputs: Inputs) -> str:
    """The linear layer that is called last."""
    order: list[str] = []
    hooks = [
        module.register_forward_hook(lambda *_, name=name: order.append(name))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    try:
        with torch.no_grad():
            forward(model, inputs)
    finally:
        for hook in hooks:
            hook.remove()
    if not order:
        raise ValueError("layers='last' needs a model with a linear layer, got none: name the layers to use")
    return order[-1]


def _chunks(n: int, size: int) -> Iterator[slice]:
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))


def _check_gradients(embeddings: Tensor) -> None:
    if torch.isfinite(embeddings.sum()):
        return
    bad = (~torch.isfinite(embeddings)).any(1).nonzero().flatten()
    if len(bad):
        raise ValueError(
            f"gradients must be finite, got NaN or infinity for {len(bad)} of {len(embeddings)} examples, "
            f"the first at position {int(bad[0])}: scale the inputs or check the loss"
        )
