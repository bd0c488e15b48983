"""Examples to gradient embeddings (Sec. 2.1).

Differs from the paper:
- Embeddings are divided by sqrt(S), so that inner products estimate k_GMC (Eq. 10) whatever S is.
- The projection is drawn anew for each initialisation; the paper writes one P for all.
- A gradient no longer than `dim` is not projected: that would only add noise.
- Fresh BatchNorm layers get the statistics of the stream's first examples.
- For the squared error, outputs are scaled and targets standardised by the stream's first examples (`scaling`).
"""

import copy
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from recollect.batch import (
    Inputs,
    check_device,
    check_examples,
    check_gradients_are_possible,
    check_weights,
    forward,
    map_inputs,
    named_tensors,
)
from recollect.checks import check_count, check_flag, check_seed
from recollect.dictionary import Dictionary, Factored, InMemory
from recollect.embedding.draws import Draw
from recollect.embedding.initialisations import (
    CALIBRATION_ROWS,
    Init,
    MakeModel,
    calibrate_norms,
    check_init,
    draw_model,
    plain_attention,
    put_channels_last,
    set_statistics,
    takes_channels_last,
    uncompiled,
)
from recollect.embedding.plan import Plan, make_plan
from recollect.embedding.prepared import OTHER_MODELS, Prepared, alike, check_draws, fingerprint_of
from recollect.embedding.projections import Identity, Kronecker, Projection, Sparse
from recollect.embedding.scaling import ScaledLoss, ScaleOutputs, TargetScale, check_scale_outputs, scaled_loss
from recollect.embedding.scaling import scales as scales_outputs
from recollect.embedding.stacked import LARGEST, StackedDraws, is_only_linear
from recollect.losses import LossFunction, check_labels, check_losses, get_loss, squared_error
from recollect.numerics import ExactSum, full_precision, lazy_zeros
from recollect.progress import progress_bar
from recollect.randomness import derive_seed, generator
from recollect.warning import warn

ProjectionName: TypeAlias = Literal["auto", "kronecker", "sparse"]

_BLOCK_ROWS = 4096
_BLOCK_BYTES = 2**27
_KEEP_BYTES = 2**29  # draws are kept between calls while they fit in this, and redrawn otherwise


class GradientEmbedding:
    """Turns examples into vectors whose inner products estimate those of their loss gradients.

    An embedding holds the example's gradients at S freshly initialised models, each reduced to `dim` numbers and
    divided by sqrt(S). It depends on the example and the seed alone: not on training, not on the batch size, not on the
    other examples. Models are copies of what `make_model` returns, which is left as it was.

    Args:
        make_model: returns a freshly initialised model at each call.
        loss: "cross_entropy", "squared_error", "binary_cross_entropy", or a function of outputs and targets that
            returns one loss per example.
        inits: S, the number of initialisations.
        dim: numbers per initialisation; a gradient that is no longer is kept exactly.
        layers: whose gradients are matched: "last" (the last linear layer: a forward pass is enough), "all", names of
            modules, or "auto": the last one where targets are class numbers and the model ends in a linear layer,
            otherwise all.
        projection: "kronecker" (a projection of each layer's two factors, which never forms a gradient),
            "sparse" (random signs, App. A.1), None for the gradients themselves, or "auto": None where each is the
            outer product of two factors of no more than `dim` numbers together, otherwise "kronecker".
        init: "default" (as make_model leaves it), "kaiming_uniform", "kaiming_normal", or a function
            that redraws the parameters of the model it is given.
        init_scale: multiplies the initial parameters.
        calibrate: give fresh BatchNorm layers the statistics of the first examples; otherwise they do nothing.
        scale_outputs: let the outputs of each draw vary as the targets of the first examples do; "auto" does so for
            the squared error. True does so for a loss of your own that compares quantities.
        batch_size: examples per pass; bounds memory and changes nothing else.
        device: where to compute.
        seed: the same seed gives the same embeddings.

    Attributes:
        prepared: what was decided when the first data came, and never changes; None before.

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
        scale_outputs: ScaleOutputs = "auto",
        batch_size: int = 128,
        device: str | torch.device = "cpu",
        seed: int = 0,
    ) -> None:
        if not callable(make_model):
            raise ValueError(f"make_model must be a function that returns a new model, got {type(make_model).__name__}")
        if isinstance(make_model, nn.Module):
            raise ValueError("make_model must be a function that returns a new model, got a model: wrap its class")
        if not (projection is None or projection in get_args(ProjectionName)):
            raise ValueError(f"projection must be 'auto', 'kronecker', 'sparse' or None, got {projection!r}")
        self.init_scale = check_init(init, init_scale)
        self.make_model = make_model
        self.loss = loss
        self.inits = check_count("inits", inits)
        self.dim = check_count("dim", dim)
        self.layers = _check_layers(layers)
        self.projection = projection
        self.init = init
        self.calibrate = check_flag("calibrate", calibrate)
        check_scale_outputs(scale_outputs, loss)
        self.scale_outputs = scale_outputs
        self.batch_size = check_count("batch_size", batch_size)
        self.device = check_device(device)
        self.seed = check_seed(seed)
        self.prepared: Prepared | None = None
        self._loss = get_loss(loss)
        self._scale = 1 / math.sqrt(inits)

    def embed(self, inputs: Any, targets: Any, *, prepared: Prepared | None = None, progress: bool = False) -> Tensor:
        """The embeddings, one row per example: (n, inits * dim).

        Args:
            inputs: a tensor, or a dict or tuple of tensors, one row per example.
            targets: one row per example.
            prepared: what `prepare` returned; by default what the first examples that were embedded decided.
            progress: show a progress bar in a terminal.
        """
        inputs, targets = check_examples(inputs, targets)
        with self._knowing(prepared, inputs, targets) as known:
            return self._embedded(known, inputs, targets, progress)[0]

    def _embedded(self, prepared: Prepared, inputs: Inputs, targets: Tensor, progress: bool) -> tuple[Tensor, Tensor]:
        """The embeddings, and the losses of the examples, the mean over all draws."""
        n, width = len(targets), self._width(prepared.plan)
        out, losses = torch.empty(0), self._no_losses(n)
        stacked = self._by_factors(prepared.plan)
        for rows, draws, passing, examples in self._passes(prepared, stacked, inputs, targets, progress):
            if not len(out):
                out = lazy_zeros(n, self.inits * width, dtype=passing.dtype, device=self.device)
            found = passing.add(out[rows, draws.start * width : draws.stop * width], *examples, self._scale)
            losses[rows] += found / self.inits
        _check_gradients(out)
        return out, losses

    def _no_losses(self, n: int) -> Tensor:
        return torch.zeros(n, dtype=torch.float64, device=self.device)

    def dictionary(
        self, inputs: Any, targets: Any, *, prepared: Prepared | None = None, progress: bool = False
    ) -> Dictionary:
        """The embeddings as candidates for `pursue`: as factors if that is exact and smaller, else as rows.

        Unprojected gradients of one linear layer are kept as factors: those of `layers="last"` with
        `projection=None` or "auto", or where the layer has no more than `dim` weights. They know the losses of the
        examples, by which `GradientMatching` sees which of them stand out. Arguments are those of `embed`.
        """
        inputs, targets = check_examples(inputs, targets)
        with self._knowing(prepared, inputs, targets) as known:
            found = self._factors(known, inputs, targets, progress) if self._keeps_factors(known.plan) else None
            return found or InMemory(*self._embedded(known, inputs, targets, progress))

    def total(
        self,
        inputs: Any,
        targets: Any,
        *,
        weights: Any = None,
        prepared: Prepared | None = None,
        progress: bool = False,
    ) -> Tensor:
        """The sum of the embeddings in float64, (inits * dim,), without computing each of them: it costs plain passes.

        Args:
            inputs: a tensor, or a dict or tuple of tensors, one row per example.
            targets: one row per example.
            weights: by how much each example counts; by one if None.
            prepared: what `prepare` returned; by default what the first examples that were embedded decided.
            progress: show a progress bar in a terminal.
        """
        return self.total_and_losses(inputs, targets, weights=weights, prepared=prepared, progress=progress)[0]

    def total_and_losses(
        self,
        inputs: Any,
        targets: Any,
        *,
        weights: Any = None,
        prepared: Prepared | None = None,
        progress: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """As `total`, and the losses of the examples, the mean over all draws, which the same passes bring out."""
        total, losses = self.add_total(None, inputs, targets, weights=weights, prepared=prepared, progress=progress)
        return total.value().flatten().to(self.device), losses

    def add_total(
        self,
        before: ExactSum | None,
        inputs: Any,
        targets: Any,
        *,
        weights: Any = None,
        prepared: Prepared | None = None,
        progress: bool = False,
    ) -> tuple[ExactSum, Tensor]:
        """As `total_and_losses`, added to what others have added up, (inits, dim), in place.

        Whoever adds which examples, in whatever order, the sum is the same bit for bit, as long as each adds a multiple
        of `block_rows` consecutive ones, but for the last.
        """
        inputs, targets = check_examples(inputs, targets)
        counts = None if weights is None else check_weights(weights, len(targets)).to(self.device)
        with self._knowing(prepared, inputs, targets) as known:
            width = self._width(known.plan)
            total = ExactSum(self.inits, width) if before is None else before
            block = self.block_rows(inputs)
            sums: dict[int, dict[str, Tensor]] = {}
            losses = self._no_losses(len(targets))
            for rows, draws, passing, examples in self._passes(known, True, inputs, targets, progress):
                mine = sums.setdefault(draws.start, {})
                found = passing.summed(*examples, None if counts is None else counts[rows])
                losses[rows] += found.losses / self.inits
                for name, gradient in found.gradients.items():
                    mine[name] = mine[name].add_(gradient) if name in mine else gradient.double()
                if rows.stop == len(targets) or rows.stop % block == 0:
                    out = torch.zeros(draws.stop - draws.start, width, dtype=torch.float64, device=self.device)
                    passing.add_sums(out, sums.pop(draws.start), self._scale)
                    if not torch.isfinite(out).all():
                        raise ValueError(f"gradients {_NOT_FINITE}")
                    total.add(out, draws.start)
        return total, losses

    @contextmanager
    def _knowing(self, prepared: Prepared | None, inputs: Inputs, targets: Tensor) -> Iterator[Prepared]:
        """What is given, known, or decided on these examples, which is kept unless something fails meanwhile."""
        check_gradients_are_possible()
        with plain_attention(), full_precision():
            known = prepared or self.prepared or self.prepare(inputs, targets)
            yield known
        if prepared is None:
            self.prepared = known

    def block_rows(self, inputs: Inputs) -> int:
        """How many examples like these are summed up before their sum is projected: a multiple of `batch_size`.

        Whoever sees a stream in blocks of so many computes what is computed of all at once.
        """
        return math.ceil(_first_rows(inputs) / self.batch_size) * self.batch_size

    def check(self, inputs: Inputs, targets: Tensor, prepared: Prepared) -> None:
        """Refuse examples that could not be embedded, by a forward pass at the first draw: cheap, and nearly sure."""
        check_gradients_are_possible()
        draw = (
            prepared.draws[0] if prepared.draws else self._draw(0, prepared.plan, prepared.statistics, prepared.scales)
        )
        with torch.no_grad():
            losses = draw.losses(forward(draw.model, inputs), targets.to(self.device))
        if not (math.isfinite(losses.sum()) or bool(torch.isfinite(losses).all())):
            raise ValueError(f"losses {_NOT_FINITE}")

    def _factors(self, prepared: Prepared, inputs: Inputs, targets: Tensor, progress: bool) -> Factored | None:
        """Both factors of a linear layer's gradients; None if it is used more than once for some example after all."""
        n = len(targets)
        delta, h, bias = torch.empty(0), torch.empty(0), False
        losses = self._no_losses(n)
        for rows, draws, passing, examples in self._passes(prepared, True, inputs, targets, progress):
            heard = passing.listen(*examples, self._scale)
            losses[rows] += heard.losses / self.inits
            uses, count = heard.uses, rows.stop - rows.start
            if len(uses) != 1 or (found := uses[0].delta) is None or found.shape[-2:-1] != (count,):
                return None
            a = uses[0].input
            bias = uses[0].bias is not None
            if not len(delta):
                delta, h = found.new_empty(self.inits, n, found.shape[-1]), a.new_empty(self.inits, n, a.shape[-1])
            delta[draws, rows] = found
            h[draws, rows] = a
        _check_gradients(delta.transpose(0, 1).flatten(1))
        return Factored(delta, h, bias=bias, losses=losses)

    def _passes(
        self, prepared: Prepared, stacked: bool, inputs: Inputs, targets: Tensor, progress: bool
    ) -> Iterator[tuple[slice, slice, Draw | StackedDraws, tuple[Inputs, Tensor]]]:
        """Which rows and draws are computed together, by what, and these rows; chunk by chunk if possible."""
        n = len(targets)
        chunks = [slice(start, min(start + self.batch_size, n)) for start in range(0, n, self.batch_size)]

        def examples(rows: slice) -> tuple[Inputs, Tensor]:
            return map_inputs(lambda t: t[rows], inputs), targets[rows].to(self.device)

        together: Sequence[Draw | StackedDraws] = (stacked and prepared.stacks) or prepared.draws or ()
        steps = len(chunks) * (len(together) or self.inits)
        with progress_bar("computing gradients", steps, show=progress) as bar:
            for rows in chunks:
                first = 0
                for some in together:
                    count = len(some) if isinstance(some, StackedDraws) else 1
                    yield rows, slice(first, first + count), some, examples(rows)
                    first += count
                    bar.advance()
            if not together:  # the larger part of the work is to make a draw: each is made once
                for s in range(self.inits):
                    draw = self._draw(s, prepared.plan, prepared.statistics, prepared.scales)
                    if s == 0 and not alike(fingerprint_of(draw.model)[None], prepared.fingerprint):
                        raise ValueError(OTHER_MODELS)
                    for rows in chunks:
                        yield rows, slice(s, s + 1), draw, examples(rows)
                        bar.advance()

    # What is decided once

    def prepare(self, inputs: Any, targets: Any) -> Prepared:
        """Decide, on first sight of data, all that embeddings depend on; nothing of this object is changed."""
        check_gradients_are_possible()
        inputs, targets = check_examples(inputs, targets)
        with plain_attention(), full_precision():
            models = [self._model(s) for s in range(min(2, self.inits))]
            check_draws(models)
            statistics: tuple[dict[str, Tensor], ...] = ({},) * self.inits
            first = map_inputs(lambda t: t[:CALIBRATION_ROWS], inputs)
            if self.calibrate and calibrate_norms(models[0], first):
                statistics = tuple(calibrate_norms(self._model(s), first) for s in range(self.inits))
            scales = self._scales(statistics, inputs, targets)
            losses = scales[0] if scales else self._losses
            few = map_inputs(lambda t: t[:2], inputs)
            channels_last = self.device.type == "cpu" and takes_channels_last(models[0], few)
            rows = _first_rows(inputs)
            begin = map_inputs(lambda t: t[:rows], inputs)
            plan = self._planned(models[0], begin, targets[:rows].to(self.device), losses)
            plan = replace(plan, channels_last=channels_last)
            if plan.rest:
                warn(_slow(plan.rest))
            return self._assembled(plan, statistics, scales, inputs, targets)

    def _planned(self, model: nn.Module, inputs: Inputs, targets: Tensor, losses: LossFunction) -> Plan:
        """The plan for a model; tried in single precision, as half hides whether a rule is right."""
        if any(p.dtype in (torch.float16, torch.bfloat16) for p in model.parameters()):
            with suppress(ValueError):  # it may insist on its precision
                return make_plan(copy.deepcopy(model).float(), self.layers, inputs, targets, losses)
        return make_plan(model, self.layers, inputs, targets, losses)

    def _scales(
        self, statistics: Sequence[dict[str, Tensor]], inputs: Inputs, targets: Tensor
    ) -> tuple[ScaledLoss, ...]:
        """How the outputs of each draw are scaled, if they are."""
        if not scales_outputs(self.scale_outputs, self.loss):
            return ()
        first = _first_rows(inputs)  # who sees a stream in blocks has so many at hand
        inputs, targets = map_inputs(lambda t: t[:first], inputs), targets[:first]
        scale = TargetScale.of(targets)
        scales: list[ScaledLoss] = []
        for s in range(self.inits):
            model = self._model(s)
            set_statistics(model, statistics[s])
            if not scales:  # what does not fit at all has a sentence of its own
                with torch.no_grad():
                    few = forward(model, map_inputs(lambda t: t[:2], inputs))
                check_labels(few, targets[:2], self.loss)
            scales.append(scaled_loss(model, inputs, scale, self._losses, squared=self._loss is squared_error))
        return tuple(scales)

    def restore(self, tensors: Mapping[str, Tensor], *, trained: bool = False) -> Prepared:
        """What was prepared before, from `Prepared.tensors`; no data are needed.

        Refused if `make_model` draws other models than it did, unless these have been trained since.
        """
        about = json.loads(bytes(tensors["plan"].tolist()))
        statistics: tuple[dict[str, Tensor], ...] = tuple({} for _ in range(self.inits))
        for i, (s, name) in enumerate(about["statistics"]):
            statistics[s][name] = tensors[f"statistic {i}"].to(self.device)
        scales: tuple[ScaledLoss, ...] = ()
        if "output scales" in tensors:
            outputs, targets = (tensors[name].to(self.device) for name in ("output scales", "target scale"))
            scales = tuple(ScaledLoss(self._losses, one, targets) for one in outputs)
        prepared = self._assembled(Plan.from_data(about["plan"]), statistics, scales, stacked=about["stacked"])
        if not (trained or alike(prepared.fingerprint, tensors["fingerprint"])):
            raise ValueError(OTHER_MODELS)
        return prepared

    def _assembled(
        self,
        plan: Plan,
        statistics: tuple[dict[str, Tensor], ...],
        scales: tuple[ScaledLoss, ...],
        inputs: Inputs | None = None,
        targets: Tensor | None = None,
        *,
        stacked: bool | None = None,
    ) -> Prepared:
        """Draws and stacks, if they are to be kept; whether they can be stacked is tried on examples unless known."""
        draws: list[Draw] = []
        prints = []
        for s in range(self.inits):
            draw = self._draw(s, plan, statistics, scales)
            prints.append(fingerprint_of(draw.model))
            if self.inits * draw.nbytes() > _KEEP_BYTES:
                break
            draws.append(draw)
        stacks: list[StackedDraws] = []
        one_class = len({type(draw.model) for draw in draws}) == 1  # not if make_model defines it anew at each call
        if one_class and stacked is not False and plan.only_linear and is_only_linear(draws[0].model):
            for start in range(0, self.inits, LARGEST):
                stacks.append(StackedDraws(draws[start : start + LARGEST], named_loss=isinstance(self.loss, str)))
            if stacked is None:
                assert inputs is not None and targets is not None
                if not all(stack.agrees(inputs, targets.to(self.device)) for stack in stacks):
                    stacks = []
        kept = tuple(draws) or None
        return Prepared(plan, statistics, scales, torch.stack(prints), kept, tuple(stacks))

    def _model(self, s: int) -> nn.Module:
        model = draw_model(self.make_model, derive_seed(self.seed, "model", s), self.init, self.init_scale)
        return uncompiled(model).to(self.device)

    def _draw(self, s: int, plan: Plan, statistics: Sequence[dict[str, Tensor]], scales: Sequence[ScaledLoss]) -> Draw:
        model = self._model(s)
        found = {name: tuple(p.shape) for name, p in model.named_parameters() if name in plan.shapes}
        if found != plan.shapes:
            raise ValueError(OTHER_MODELS)
        set_statistics(model, statistics[s])
        if plan.channels_last:
            put_channels_last(model)
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        return Draw(model, self._make_projection(plan, s), plan, scales[s] if scales else self._losses)

    def _make_projection(self, plan: Plan, s: int) -> Projection:
        if not self._projects(plan):
            return Identity(plan.sizes)
        source = generator(self.seed, "projection", s)
        if self.projection == "sparse":
            return Sparse(plan.sizes, self.dim, source).to(self.device)
        return Kronecker(plan.sizes, plan.units, self.dim, source).to(self.device)

    def _projects(self, plan: Plan) -> bool:
        if self.projection is None or sum(plan.sizes.values()) <= self.dim:
            return False
        return not (self.projection == "auto" and plan.outer and sum(_factor_lengths(plan)) <= self.dim)

    def _by_factors(self, plan: Plan) -> bool:
        return self.projection != "sparse" and self._projects(plan)

    def _keeps_factors(self, plan: Plan) -> bool:
        return plan.outer and not self._projects(plan)

    def _width(self, plan: Plan) -> int:
        return self.dim if self._projects(plan) else sum(plan.sizes.values())

    def _losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        check_labels(outputs, targets, self.loss)
        return check_losses(self._loss(outputs, targets), len(targets))


def _first_rows(inputs: Inputs) -> int:
    """How many examples like these are seen before anything need be decided."""
    size = sum(value[:1].nbytes for value in named_tensors(inputs).values())
    return max(CALIBRATION_ROWS, min(_BLOCK_ROWS, _BLOCK_BYTES // max(1, size)))


def _factor_lengths(plan: Plan) -> tuple[int, int]:
    """Of the gradient at a linear layer's outputs, and of its inputs."""
    n_out, n_in = next(iter(plan.shapes.values()))
    return n_out, n_in


def _check_layers(layers: Any) -> str | tuple[str, ...]:
    if isinstance(layers, str):
        return layers
    if isinstance(layers, Sequence) and layers and all(isinstance(name, str) for name in layers):
        return tuple(layers)
    raise ValueError(f"layers must be 'auto', 'all', 'last' or names of modules, got {layers!r}")


_NOT_FINITE = "must be finite, got NaN or infinity: scale the inputs or check the loss"


def _slow(rest: Mapping[str, str]) -> str:
    """Which parameters take the slow way, and why."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in rest.items():
        by_reason.setdefault(reason, []).append(name)
    told = [f"{', '.join(names[:3])}{' and others' * (len(names) > 3)} ({why})" for why, names in by_reason.items()]
    return f"some gradients are computed by torch.func, which is several times slower: {'; '.join(told)}"


def _check_gradients(embeddings: Tensor) -> None:
    if math.isfinite(embeddings.sum()):
        return
    bad = (~torch.isfinite(embeddings)).any(1).nonzero().flatten()
    if len(bad):
        raise ValueError(
            f"gradients must be finite, got NaN or infinity for {len(bad)} of {len(embeddings)} examples, "
            f"the first at position {int(bad[0])}: scale the inputs or check the loss"
        )
