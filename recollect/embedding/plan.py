"""How the gradients of each parameter are computed: decided once, on first sight of data."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import resolve_name

from recollect.batch import Inputs
from recollect.embedding.counted import Layers, counted_modules, owner
from recollect.embedding.layers import RULES, FactorRule, Use
from recollect.embedding.listening import Heard, Key, Layout, arranged, fits, key_of, listen
from recollect.embedding.plain import gradients_by_autograd
from recollect.embedding.probing import (
    Probe,
    check_alone,
    check_real,
    check_repeatable,
    check_sums,
    largest_of,
    probes_of,
)
from recollect.losses import LossFunction
from recollect.numerics import single


class Unit(NamedTuple):
    """A weight whose gradient is a sum of outer products, with the bias that goes with it."""

    n_out: int
    n_in: int  # the one for the bias included
    bias: str | None
    rows_are_outputs: bool


@dataclass(frozen=True)
class Plan:
    """Which gradients are computed how; the same for every draw. What is not in it has shown no gradient yet.

    Attributes:
        shapes: of the parameters that count, by name.
        layouts: where the examples are, for each parameter and the rule it is used by.
        units: weights that can be projected by their factors.
        free: parameters that are made anew for each example (`listening.made_for_each`).
        rest: parameters that are left to torch.func, and why.
        outer: whether each gradient is one outer product: of a linear layer that is used once for each example.
        channels_last: whether images pass with their channels last (`initialisations.put_channels_last`).
    """

    shapes: dict[str, tuple[int, ...]]
    layouts: dict[Key, Layout]
    units: dict[str, Unit]
    free: dict[str, int]
    rest: dict[str, str]
    outer: bool = False
    channels_last: bool = False

    @property
    def sizes(self) -> dict[str, int]:
        """Numbers in each parameter."""
        return {name: math.prod(shape) for name, shape in self.shapes.items()}

    @property
    def only_linear(self) -> bool:
        """Whether all there is are linear layers with the examples first: such networks can be stacked."""
        plain = all(rule == "linear" and layout.examples == "first" for (_, rule), layout in self.layouts.items())
        return plain and self.shapes.keys() == {*self.units, *(unit.bias for unit in self.units.values())} - {None}

    def check_used(self, used: bool) -> None:
        """Refuse examples that pass through none of the layers that count, as those of a task with another head."""
        if not used:
            layers = ", ".join(repr(name) for name in dict.fromkeys(map(owner, self.shapes)))
            raise ValueError(
                f"examples must pass through the layers whose gradients are matched, {layers}, got some that pass "
                "through none: pass layers='all'"
            )

    def as_data(self) -> dict[str, Any]:
        """Plain data, to be saved."""
        layouts = [[*key, *layout] for key, layout in self.layouts.items()]
        return {**vars(self), "layouts": layouts}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> "Plan":
        """What `as_data` gave."""
        return cls(
            shapes={name: tuple(shape) for name, shape in data["shapes"].items()},
            layouts={(name, rule): Layout(examples, rows) for name, rule, examples, rows in data["layouts"]},
            units={name: Unit(*unit) for name, unit in data["units"].items()},
            free=dict(data["free"]),
            rest=dict(data["rest"]),
            outer=data.get("outer", False) is True,
            channels_last=data.get("channels_last", False) is True,
        )


def make_plan(model: nn.Module, layers: Layers, inputs: Inputs, targets: Tensor, losses: LossFunction) -> Plan:
    """Decide for each parameter how its gradients are computed.

    A rule is used where it reproduces autograd's gradients of single examples on real data; else a parameter is made
    anew for each example, if that does; else it is left to torch.func. So a rule can be fast without having to foresee
    every model.
    """
    probes = probes_of(inputs, targets)
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trainable:
        raise ValueError("the model must have at least one trainable parameter, got none")
    owners = counted_modules(model, layers, probes)
    called: dict[int, set[str]] = {}  # the modules that have a parameter, of which a tied one has several
    for name, p in model.named_parameters(remove_duplicate=False):
        called.setdefault(id(p), set()).add(owner(name))
    names = [name for name, p in trainable.items() if not owners.isdisjoint(called[id(p)])]
    if not names:
        raise ValueError(f"layers must name modules with trainable parameters, got {layers!r}")
    check_real({name: trainable[name] for name in names})
    first = probes[0]
    check_repeatable(model, first.inputs, first.targets, losses)
    alone = check_alone(model, first.inputs, first.targets, losses)
    probes = [p.knowing(gradients_by_autograd(model, names, p.inputs, p.targets, losses)) for p in probes]
    probes = [probes[0], *(p for p in probes[1:] if p.is_finite())]  # who embeds the others can say which are not
    used = [name for name in names if any(example[name] is not None for p in probes for example in p.truth)]
    if not used:
        raise ValueError(
            "the loss must depend on the model's trainable parameters, got no gradient: "
            "does the model or the loss detach its result?"
        )
    if alone:
        check_sums(model, names, probes[0], losses)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return _Planner(model, names, losses, probes).plan(set(used))


class _Planner:
    """Tries ways of computing gradients on a few examples against the truth."""

    def __init__(
        self,
        model: nn.Module,
        names: list[str],
        losses: LossFunction,
        probes: Sequence[Probe],
    ) -> None:
        self._model, self._names, self._losses, self._probes = model, names, losses, probes
        self._shapes = {name: tuple(p.shape) for name, p in model.named_parameters() if name in names}
        if not probes[0].is_finite():
            raise ValueError(
                "gradients must be finite, got NaN or infinity for the first examples: "
                "scale the inputs or check the loss"
            )
        # Some gradients are zero but for rounding, such as those of an attention's key bias: what counts as rounding
        # is told by the largest gradient of all.
        self._rounding = 1e-6 * max((size for p in probes for size in p.largest.values()), default=0.0)

    def _listen(self, probe: Probe, **options: Any) -> Heard:
        def losses(outputs: Tensor, targets: Tensor) -> Tensor:
            return probe.weigh(self._losses(outputs, targets))

        return listen(self._model, self._names, probe.inputs, probe.targets, losses, **options)

    def plan(self, used: set[str]) -> Plan:
        layouts: dict[Key, Layout] = {}
        biases: set[str] = set()
        try:
            for probe in self._probes:
                heard = self._listen(probe)
                known = {name for name, _ in layouts} | biases
                for component in _components(heard):
                    if component.isdisjoint(heard.strange) and component.isdisjoint(known):
                        layouts |= next(self._layouts_for(component, heard, layouts, probe), {})
                biases |= _biases(heard, layouts)
        except (RuntimeError, ValueError) as error:  # as of what a checkpoint computes again, where nobody listens
            return self._by_torch(used, error)
        free = self._free(used - {name for name, _ in layouts} - biases, layouts)
        return self._confirmed(used, layouts, free)

    def _by_torch(self, used: set[str], error: Exception) -> Plan:
        """Everything is left to torch.func."""
        why = f"the model cannot be listened to, which ends in a {type(error).__name__}"
        return Plan(self._shapes, {}, {}, {}, {name: why for name in self._names if name in used})

    def _layouts_for(
        self, component: set[str], heard: Heard, others: dict[Key, Layout], probe: Probe
    ) -> Iterator[dict[Key, Layout]]:
        """Layouts by which the rules bring out the true gradients of parameters that are used together."""
        uses = [use for use in heard.uses if use.weight in component or use.bias in component]
        keys = list(dict.fromkeys(map(key_of, uses)))
        options = [[*_possible(uses, key, probe.n), Layout("nowhere")] for key in keys]
        for tried in itertools.islice(itertools.product(*options), 81):
            layouts = dict(zip(keys, tried, strict=True))
            try:
                if any(layout.examples == "nowhere" for layout in tried):
                    found = self._listen(probe, layouts={**others, **layouts})
                else:
                    found = arranged(Heard(uses, {}, {}), layouts, probe.n)
                right = self._agree(component, _gradients(found, probe.n), probe)
                if right and component.isdisjoint(found.strange):
                    yield layouts
            except (RuntimeError, ValueError):  # the rule, or the model, cannot do with that layout
                continue

    def _free(self, names: set[str], layouts: dict[Key, Layout]) -> dict[str, int]:
        """Parameters of which there may be one per example, and how many dimensions of length one follow."""
        free: dict[str, int] = {}
        for name in (name for name in self._names if name in names):
            shape = self._shapes[name]
            choices = range(4) if len(shape) <= 1 else [-1, 0] if shape[0] == 1 else [0]
            for ones in choices:
                tried = {**free, name: ones}
                try:
                    found = [self._listen(probe, layouts=layouts, free=tried).free for probe in self._probes]
                except (RuntimeError, ValueError, IndexError, AssertionError):  # it must not have another shape here
                    continue
                if all(self._agree([name], some, probe) for some, probe in zip(found, self._probes, strict=True)):
                    free = tried
                    break
        return free

    def _confirmed(self, used: set[str], layouts: dict[Key, Layout], free: dict[str, int]) -> Plan:
        """The plan, once all of it together has brought out the truth; what does not is left to torch.func."""
        covered, strange = set(used), dict[str, Any]()
        uses: list[Use] = []
        for probe in self._probes:
            try:
                heard = self._listen(probe, layouts=layouts, free=free)
            except (RuntimeError, ValueError) as error:
                return self._by_torch(used, error)
            found = {**_gradients(heard, probe.n), **heard.free}
            covered &= {name for name in used if name not in heard.strange and self._agree([name], found, probe)}
            strange |= heard.strange
            known = {key_of(use) for use in uses}
            uses += [use for use in heard.uses if key_of(use) not in known]
        # Parameters that are used together go together.
        for component in _components(Heard(uses, {}, {})):
            if not component <= covered:
                covered -= component
        rest = {name: _reason(strange.get(name)) for name in self._names if name in used - covered}
        uses = [use for use in uses if (use.weight or use.bias) in covered]
        kept = {key_of(use) for use in uses}
        return Plan(
            self._shapes,
            {key: layout for key, layout in layouts.items() if key in kept},
            _units(uses, self._shapes),
            {name: ones for name, ones in free.items() if name in covered},
            rest,
            outer=_is_outer(uses, self._shapes),
        )

    def _agree(self, names: Iterable[str], found: Mapping[str, Tensor], probe: Probe) -> bool:
        """Whether these are the true gradients of the probe's examples, to single precision."""
        for name in names:
            largest = probe.largest.get(name, 0.0)
            if name not in found:
                if largest > self._rounding:
                    return False
                continue
            atol = max(1e-4 * largest, self._rounding)
            for each, example in zip(found[name], probe.truth, strict=True):
                expected = torch.zeros_like(each) if (value := example[name]) is None else single(value)
                # In nearly all cases the first decides, in a tenth of the time.
                if not (largest_of(each - expected) <= atol or torch.allclose(each, expected, rtol=1e-3, atol=atol)):
                    return False
        return True


def _gradients(heard: Heard, n: int) -> dict[str, Tensor]:
    """What the rules make of a pass of n examples, by parameter."""
    found: dict[str, Tensor] = {}
    for use in heard.uses:
        for name, piece in RULES[use.rule].gradients(use, n).items():
            found[name] = found[name] + piece if name in found else piece
    return found


def _components(heard: Heard) -> list[set[str]]:
    """Sets of parameters that are used together, directly or by way of others."""
    components: list[set[str]] = []
    for use in heard.uses:
        merged = {name for name in (use.weight, use.bias) if name is not None}
        apart = []
        for component in components:
            if component.isdisjoint(merged):
                apart.append(component)
            else:
                merged |= component
        components = [*apart, merged]
    return components


def _biases(heard: Heard, layouts: Mapping[Key, Layout]) -> set[str]:
    return {use.bias for use in heard.uses if use.bias is not None and key_of(use) in layouts}


def _possible(uses: Sequence[Use], key: Key, n: int) -> list[Layout]:
    """Layouts that fit all uses of a parameter."""
    mine = [use for use in uses if key_of(use) == key]
    rows = {len(use.input) // n for use in mine if use.input.ndim and len(use.input) % n == 0}
    layouts = [Layout("first", min(rows))] if len(rows) == 1 else []
    return [layout for layout in [*layouts, Layout("second")] if all(fits(use, layout, n) for use in mine)]


def _units(uses: Sequence[Use], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Unit]:
    """Weights with factors, in the order of the model's parameters."""
    units: dict[str, Unit] = {}
    for name in shapes:
        mine = [use for use in uses if use.weight == name]
        rules = [RULES[use.rule] for use in mine]
        if not mine or not all(isinstance(rule, FactorRule) for rule in rules):
            continue
        first = rules[0]
        assert isinstance(first, FactorRule)
        sizes = [rule.sizes(use, shapes[name]) for use, rule in zip(mine, rules, strict=True)]  # type: ignore[attr-defined]
        if sizes[0] is None or None in sizes:
            continue
        biases = {use.bias for use in mine if use.bias is not None}
        # A bias that goes with this weight alone is one more column of it.
        alone = len(biases) == 1 and not any(use.bias in biases and use.weight != name for use in uses)
        n_out, n_in = sizes[0]
        units[name] = Unit(n_out, n_in + alone, min(biases) if alone else None, first.rows_are_outputs(mine[0]))
    return units


def _is_outer(uses: Sequence[Use], shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether these are one use of one linear layer, whose parameters are all there are."""
    if len(uses) != 1:
        return False
    (use,) = uses
    plain = use.rule == "linear" and bool(use.settings) and use.delta is not None and use.delta.ndim == 2
    return plain and list(shapes) == [name for name in (use.weight, use.bias) if name is not None]


def _reason(strange: Any) -> str:
    if strange is None:
        return "its rule does not bring out autograd's gradients"
    if isinstance(strange, str):
        return f"not all examples go through it alike, as far as its rule ({strange}) can see"
    return (
        f"it is used by {resolve_name(strange) or getattr(strange, '__name__', 'another function')}, which has no rule"
    )
