"""Draws from p(theta): freshly initialised models, ready for gradients."""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import is_lazy

from recollect.batch import Inputs, forward, named_tensors
from recollect.checks import check_number
from recollect.randomness import seeded
from recollect.sharing import Shared

MakeModel: TypeAlias = Callable[[], nn.Module]
"""A function of no arguments that returns a freshly initialised model: each call is one draw."""

Init: TypeAlias = str | Callable[[nn.Module], object]
"""How to initialise: a name, or a function that redraws the parameters of the model it is given."""

CALIBRATION_ROWS = 256
"""How many examples of the stream set the statistics of BatchNorm layers."""

_NORMALISATIONS = (_BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def _kaiming_uniform(module: nn.Linear | _ConvNd, fan_in: int) -> None:
    nn.init.kaiming_uniform_(module.weight, a=math.sqrt(5))
    if module.bias is not None:
        nn.init.uniform_(module.bias, -1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in))


def _kaiming_normal(module: nn.Linear | _ConvNd, fan_in: int) -> None:
    nn.init.kaiming_normal_(module.weight, a=math.sqrt(5))
    if module.bias is not None:
        nn.init.normal_(module.bias, std=1 / math.sqrt(3 * fan_in))  # the variance of the uniform one


_INITIALISERS = {"kaiming_uniform": _kaiming_uniform, "kaiming_normal": _kaiming_normal}


def check_not_lazy(model: nn.Module) -> None:
    """Refuse a model of which some parameters are not drawn before it has seen data."""
    if any(is_lazy(parameter) for parameter in model.parameters()):
        raise ValueError(
            "make_model must return a model whose parameters are there, got one with lazy layers: name their sizes, or "
            "pass a batch through it in make_model"
        )


def check_init(init: Init, scale: object) -> float:
    """The scale, if draws can be made so."""
    if not callable(init) and not (isinstance(init, str) and init in ("default", *_INITIALISERS)):
        names = ", ".join(map(repr, ["default", *_INITIALISERS]))
        raise ValueError(f"init must be one of {names} or a function of a model, got {init!r}")
    if not (number := check_number("init_scale", scale)):
        raise ValueError(f"init_scale must be a positive number, got {scale!r}")
    return number


def draw_model(make_model: MakeModel, seed: int, init: Init = "default", scale: float = 1.0) -> nn.Module:
    """One draw from p(theta), in evaluation mode; the global random state is left as found.

    It is a copy, since what `make_model` returns may share modules with other models, which must stay as they are.
    """
    with seeded(seed), torch.inference_mode(False):
        model = make_model()
        if not isinstance(model, nn.Module):
            raise ValueError(f"make_model must return a torch.nn.Module, got {type(model).__name__}")
        _check_kind(model)
        model = _copied(model)
        with torch.no_grad():
            if callable(init):
                init(model)
            elif init != "default":
                for module in model.modules():
                    if isinstance(module, nn.Linear | _ConvNd):
                        _INITIALISERS[init](module, module.weight[0].numel())
            if scale != 1.0:
                _scale_draws(model, scale)
    return model.eval()


def _check_kind(model: nn.Module) -> None:
    """Refuse a model that nobody can look into, or in which there is nothing."""
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise ValueError(
            "make_model must return a model of Python code, got one of TorchScript: return the module that it was made "
            "from"
        )
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise ValueError(
            "make_model must return a model whose parameters are there, got some on the device 'meta', which holds no "
            "values: make it on another"
        )


def copied(model: nn.Module) -> nn.Module:
    """A copy of a model that has been in use: of what passes left in it, as an activation that it keeps, the values."""
    left = [value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor)]
    return copy.deepcopy(model, {id(value): value.detach().clone() for value in left if not value.is_leaf})


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:  # whatever a part of the model raises that cannot be copied
        reason = str(error).partition("\n")[0].partition(".  ")[0]
        raise ValueError(
            f"make_model must return a model that copy.deepcopy can copy, got {type(error).__name__} ({reason}): "
            "use torch.nn.utils.parametrizations if it is of weight_norm"
        ) from None


def uncompiled(model: nn.Module) -> nn.Module:
    """The modules themselves in the place of what `torch.compile` made of them, in place.

    Gradients are the same. Compiling takes longer than all passes of a draw, and once more for each of them; and layers
    have their own names.
    """
    for module in model.modules():
        for name, child in module._modules.items():
            if child is not None:
                module._modules[name] = _original(child)
    return _original(model)


def _original(module: nn.Module) -> nn.Module:
    inner = module._modules.get("_orig_mod")
    return module if inner is None else inner


def _scale_draws(model: nn.Module, scale: float) -> None:
    """Multiply what was drawn; the gains and shifts of normalisations are constants, not draws."""
    for module in model.modules():
        if not isinstance(module, _NORMALISATIONS):
            for parameter in module.parameters(recurse=False):
                parameter.mul_(scale)


def untrained_batchnorms(model: nn.Module) -> dict[str, _BatchNorm]:
    """BatchNorm layers that keep statistics and have not seen data yet, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.num_batches_tracked is not None and not module.num_batches_tracked
    }


def calibrate_norms(model: nn.Module, inputs: Inputs) -> dict[str, Tensor]:
    """Give fresh BatchNorm layers the statistics of these examples; returns what was set, by name.

    At initialisation the running statistics are zero and one, so that in evaluation mode the layers do
    nothing and a deep network's activations grow block by block. They are taken once and then
    frozen, because embeddings must stay constant over the stream.
    """
    layers = untrained_batchnorms(model)
    if not layers:
        return {}
    n = len(next(iter(named_tensors(inputs).values())))
    if n < 2:
        raise ValueError(
            "the first examples must be 2 or more, as BatchNorm layers take their statistics from them, "
            f"got {n}: begin with more, or pass calibrate=False"
        )
    momenta = {name: layer.momentum for name, layer in layers.items()}
    for layer in layers.values():
        layer.momentum = None  # a plain average, so that one pass sets the statistics fully
        layer.train()
    with torch.no_grad():
        forward(model, inputs)
    for name, layer in layers.items():
        layer.momentum = momenta[name]
        layer.eval()
    return {
        f"{name}.{statistic}": getattr(layer, statistic).clone()
        for name, layer in layers.items()
        for statistic in ("running_mean", "running_var")
    }


def set_statistics(model: nn.Module, statistics: dict[str, Tensor]) -> None:
    """Put back what `calibrate_norms` returned."""
    buffers = dict(model.named_buffers())
    for name, value in statistics.items():
        buffers[name].copy_(value)


def put_channels_last(model: nn.Module, form: torch.memory_format = torch.channels_last) -> None:
    """Lie the filters of convolutions with the channels last, so that images pass in that order; no number changes.

    Pooling, above all, is several times faster so on a processor: a pass of the paper's network takes a third less.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            # A copy: of a single channel both orders are contiguous, and only the strides tell torch which is meant.
            module.weight.data = module.weight.data.clone(memory_format=form)


def takes_channels_last(model: nn.Module, inputs: Inputs) -> bool:
    """Whether there are convolutions, and the model gets along with that order, in which it is left if so.

    One that calls `view` on what a convolution returns does not, for example.
    """
    if not any(isinstance(module, nn.Conv2d) for module in model.modules()):
        return False
    put_channels_last(model)
    try:
        with torch.no_grad():
            forward(model, inputs)
    except ValueError:
        put_channels_last(model, torch.contiguous_format)
        return False
    return True


@Shared
@contextmanager
def plain_attention() -> Iterator[None]:
    """Switch off the fused inference path of transformers, which bypasses the layers we listen to."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
