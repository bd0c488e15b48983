"""What is decided once, on first sight of data, and how draws are told from others."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from recollect.embedding.draws import Draw
from recollect.embedding.initialisations import check_not_lazy
from recollect.embedding.plan import Plan
from recollect.embedding.scaling import ScaledLoss
from recollect.embedding.stacked import StackedDraws
from recollect.warning import warn


@dataclass(frozen=True)
class Prepared:
    """All that is decided on first sight of data; embeddings depend on it and on nothing that comes later.

    Attributes:
        plan: how the gradients of each parameter are computed.
        statistics: what BatchNorm layers were set to, by draw and name.
        scales: how the outputs of each draw, and the targets, are scaled; empty if they are not.
        fingerprint: a few numbers of each draw, or of the first if they are large, to tell others from them.
        draws: the models with their projections; None if they are too large to keep and made again for each pass.
        stacks: the same in stacks, if their passes are made together.
    """

    plan: Plan
    statistics: tuple[dict[str, Tensor], ...]
    scales: tuple[ScaledLoss, ...]
    fingerprint: Tensor
    draws: tuple[Draw, ...] | None
    stacks: tuple[StackedDraws, ...]

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """What must be saved of it, so that `GradientEmbedding.restore` can make the rest without looking at data."""
        places = [(s, name) for s, some in enumerate(self.statistics) for name in some]
        about = {"plan": self.plan.as_data(), "stacked": bool(self.stacks), "statistics": places}
        text = torch.tensor(list(json.dumps(about).encode()), dtype=torch.uint8)
        values = {f"statistic {i}": self.statistics[s][name] for i, (s, name) in enumerate(places)}
        if self.scales:
            values["output scales"] = torch.stack([scale.outputs for scale in self.scales])  # (inits, 2, outputs)
            values["target scale"] = self.scales[0].targets
        return {"plan": text, "fingerprint": self.fingerprint, **values}


_SHOWN = 4  # numbers of each parameter that tell draws apart

OTHER_MODELS = (
    "make_model must draw the models that were drawn before, got others: "
    "use the same architecture, options and torch version, and no weights that are being trained, or start anew"
)


def check_draws(models: Sequence[nn.Module]) -> None:
    """Tell of a `make_model` whose draws are all the same: one of them would do."""
    check_not_lazy(models[0])
    trainable = [[p for p in model.parameters() if p.requires_grad] for model in models]
    if len(models) == 2 and trainable[0] and all(map(torch.equal, *trainable)):
        warn(
            "make_model should draw new weights at each call, got the same ones twice: "
            "gradients are matched at one model only; initialise inside make_model, or pass inits=1"
        )


def fingerprint_of(model: nn.Module) -> Tensor:
    """Of each parameter and buffer: how many numbers it has, how large they are, and a few of them.

    So a small head that was drawn anew is seen beside a large backbone that was not.
    """
    told = []
    for tensor in (t.detach() for t in (*model.parameters(), *model.buffers()) if t.numel()):
        tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor  # as rotations are
        some = tensor.flatten()[:: max(1, tensor.numel() // _SHOWN)][:_SHOWN].double().cpu()
        size = tensor.double().abs().sum().cpu()
        told += [torch.tensor([tensor.numel()], dtype=torch.float64), size[None], some]
    return torch.cat(told)


def alike(now: Tensor, before: Tensor) -> bool:
    """Whether these are fingerprints of the same draws, up to rounding."""
    return now.shape == before.shape and torch.allclose(now, before.cpu(), rtol=1e-4, atol=1e-6)
