"""Names of torchvision's operators, so that one that was built for another torch can be imported; none of them runs."""

import torch

REGIONS = ("roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool")
OPERATORS: tuple[str, ...] = ("nms", "qnms", "qroi_align", "deform_conv2d", "_deform_conv2d_backward")
OPERATORS += REGIONS + tuple(f"_{name}_backward" for name in REGIONS)


def define() -> torch.library.Library:
    """Keep what it returns: with it, the names go."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in OPERATORS:
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor x) -> Tensor")
    return library
