"""What `pursue` is given, checked before anything is computed."""

import math
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from recollect.arrays import as_tensor, column_names
from recollect.checks import check_flag, check_number
from recollect.dictionary import Dictionary, InMemory, Mapped
from recollect.pursuit.problem import Rule


def as_dictionary(embeddings: Any) -> Dictionary:
    if isinstance(embeddings, np.memmap):
        return Mapped(embeddings)
    if not isinstance(embeddings, Tensor):
        if hasattr(embeddings, "products") and column_names(embeddings) is None:  # a column may be called so, too
            return embeddings  # type: ignore[no-any-return]
        embeddings = as_tensor(embeddings, "embeddings")
    if embeddings.ndim != 2 or not len(embeddings) or not embeddings.shape[1]:
        raise ValueError(f"embeddings must be a matrix with one row per candidate, got shape {tuple(embeddings.shape)}")
    if embeddings.is_complex() or embeddings.is_meta or embeddings.layout != torch.strided:
        kind = f"{embeddings.dtype} on {embeddings.device}, {embeddings.layout}"
        raise ValueError(f"embeddings must be a dense matrix of real numbers, got {kind}")
    if embeddings.dtype not in (torch.float32, torch.float64):
        embeddings = embeddings.float()
    return InMemory(embeddings.detach())


def checked_norms(dictionary: Dictionary) -> Tensor:
    norms = dictionary.norms()
    if not bool(torch.isfinite(norms).all()):
        raise ValueError("embeddings must be finite, with norms below 1e150, got NaN, infinity or more")
    if not bool(norms.any()):
        raise ValueError("embeddings must not all be zero: there is nothing to match")
    return norms


def as_target(target: Tensor, dictionary: Dictionary) -> Tensor:
    try:
        g = torch.as_tensor(target).detach()
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"target must be a row of numbers, got {type(target).__name__}") from None
    if g.is_complex() or g.is_meta or g.layout != torch.strided:
        raise ValueError(f"target must be a dense row of real numbers, got {g.dtype} on {g.device}, {g.layout}")
    g = g.double()
    if g.shape != (dictionary.dim,):
        raise ValueError(f"target must have the {dictionary.dim} entries of a row, got shape {tuple(g.shape)}")
    if not math.isfinite(float(g.norm())):
        raise ValueError("target must be finite, with a norm below 1e150, got NaN, infinity or more")
    return g


def check_options(
    *,
    rule: object,
    regularization: object,
    relative: object,
    center: object,
    tolerance: object,
    nonnegative: object,
    hold_count: object,
    exact: object,
) -> None:
    """Refuse settings of the pursuit that cannot be, whatever the candidates are."""
    check_number("regularization", regularization)
    for name, value in {"relative": relative, "hold_count": hold_count, "exact": exact}.items():
        check_flag(name, value)
    if not isinstance(rule, str) or rule not in get_args(Rule):
        raise ValueError(f"rule must be 'least-squares' or 'inner-product', got {rule!r}")
    if not isinstance(center, str) or center not in ("uniform", "zero"):
        raise ValueError(f"center must be 'uniform' or 'zero', got {center!r}")
    if tolerance is not None:
        check_number("tolerance", tolerance)
    if not isinstance(nonnegative, bool | str) or nonnegative not in (True, False, "clip"):
        raise ValueError(f"nonnegative must be True, False or 'clip', got {nonnegative!r}")
