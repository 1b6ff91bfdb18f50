"""Stochastic depth (Huang et al., 2016): in training, branches of a layer are left out for some of the examples.

b batch, t tokens, d width
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput

# what a layer of transformers calls the last module of each branch, before it is added to what went around it
ENDS = (("drop_path",), ("dropout",), ("attention.output.dropout", "output.dropout"))


class DropBranch(nn.Module):
    """A branch (b, t, d) as it is, or in training nothing for a share of the examples and more of it for the others."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, branch: Tensor) -> Tensor:
        if not self.training or not self.share:
            return branch
        kept = torch.rand(len(branch), *[1] * (branch.dim() - 1), device=branch.device) >= self.share
        return branch * (kept / (1 - self.share)).to(branch.dtype)


def drop_branches(layers: nn.ModuleList, most: float) -> None:
    """Leave out none of the first layer's branches, a share of `most` of the last one's, and in between evenly more."""
    if not 0 <= most < 1:
        raise BadInput(f"drop_path, the share of branches that are left out, is at least 0 and below 1, not {most}")
    for i, layer in enumerate(layers if most else ()):
        names = {name for name, _ in layer.named_modules()}
        ends = next((ends for ends in ENDS if names.issuperset(ends)), None)
        if ends is None:
            raise BadInput(f"drop_path: {type(layer).__name__} has no branches of a known make: use a ViT or a DINOv2")
        share = most * i / max(1, len(layers) - 1)
        for end in ends:
            layer.set_submodule(end, nn.Sequential(layer.get_submodule(end), DropBranch(share)))
