"""A head of decision trees, which are stored as tensors: no pickle, no scikit-learn, and exportable.

Format (version 2), as tensors of the model file: the features are followed by features @ codes, which version 1 does
not have. From node i, an example goes to `branches[i, 0]` if the feature
`feature[i]` is at most `threshold[i]`, or if it is NaN and `missing[i]` is 1, and else to `branches[i, 1]`. Both
branches of a leaf are the leaf itself, and `value[i]` is its value. Tree t starts at `roots[t]` and adds the value of
its leaf to the sum `owner[t]`. The outputs are sums @ mix + offset.

Shapes: b batch, d width, e codes, n nodes of all trees, t trees, s sums, c outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput
from holdfast.core.tape import exporting
from holdfast.nn.backbones.base import Backbone

VERSION = 2
_DTYPES = {
    "codes": torch.float64,
    "threshold": torch.float64,
    "value": torch.float64,
    "mix": torch.float64,
    "offset": torch.float64,
}


@dataclass(frozen=True)
class Forest:
    """Arrays of the format above."""

    feature: np.ndarray  # (n,)
    threshold: np.ndarray  # (n,)
    missing: np.ndarray  # (n,)
    branches: np.ndarray  # (n, 2)
    value: np.ndarray  # (n,)
    roots: np.ndarray  # (t,)
    owner: np.ndarray  # (t,)
    mix: np.ndarray  # (s, c)
    offset: np.ndarray  # (c,)
    codes: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))  # (d, e); without rows there are no codes

    @staticmethod
    def constant(offset: np.ndarray) -> Forest:
        """Return a forest without trees."""
        none, outputs = np.zeros(0), len(offset)
        return Forest(none, none, none, np.zeros((0, 2)), none, none, none, np.zeros((1, outputs)), offset)


class Trees(nn.Module):
    """Sums of the leaf values of trees, one sum per output or one for two classes."""

    feature: Tensor
    threshold: Tensor
    missing: Tensor
    branches: Tensor
    value: Tensor
    roots: Tensor
    owner: Tensor
    mix: Tensor
    codes: Tensor

    def __init__(
        self,
        width: int,
        outputs: int,
        *,
        nodes: int = 0,
        trees: int = 0,
        sums: int = 1,
        codes: int = 0,
        version: int = VERSION,
    ) -> None:
        super().__init__()
        if not 1 <= version <= VERSION:
            raise BadInput(f"the trees have format {version}, this version reads 1 to {VERSION}: update holdfast")
        self.width, self.outputs, self.steps = width, outputs, 0
        shapes = {
            "feature": (nodes,), "threshold": (nodes,), "missing": (nodes,), "branches": (nodes, 2),
            "value": (nodes,), "roots": (trees,), "owner": (trees,), "mix": (sums, outputs),
            "codes": (width, codes),
        }  # fmt: skip
        for name, shape in shapes.items():
            self.register_buffer(name, torch.zeros(shape, dtype=_DTYPES.get(name, torch.int64)))
        self.offset = nn.Parameter(torch.zeros(outputs, dtype=torch.float64))

    @classmethod
    def build(cls, width: int, classes: Sequence[str], encoder: Backbone) -> Self:
        return cls(width, len(classes))

    @property
    def settings(self) -> dict[str, Any]:
        sizes = {"nodes": len(self.feature), "trees": len(self.roots), "sums": len(self.mix)}
        return {"width": self.width, "outputs": self.outputs, **sizes, "codes": self.codes.shape[1], "version": VERSION}

    def last_layer(self) -> nn.Linear:
        raise BadInput("trees have no linear layer: use head=linear or head=dense")

    def set(self, forest: Forest) -> None:
        """Replace the trees."""
        if not len(forest.codes):
            forest = replace(forest, codes=np.zeros((self.width, 0)))
        tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in vars(forest).items()}
        self.load_state_dict({name: tensor.to(_DTYPES.get(name, torch.int64)) for name, tensor in tensors.items()})

    def _load_from_state_dict(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, state_dict: Any, prefix: str, *args: Any
    ) -> None:
        if prefix + "mix" in state_dict:  # version 1 has no codes
            state_dict.setdefault(prefix + "codes", self.codes.new_zeros(self.width, 0))
        for name, buffer in list(self.named_buffers(recurse=False)):  # another number of trees is another size
            new = state_dict.get(prefix + name)
            if new is not None and new.shape != buffer.shape:
                self.register_buffer(name, torch.zeros(new.shape, dtype=buffer.dtype, device=buffer.device))
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.steps = self._depth()

    def _depth(self) -> int:
        """Return the longest path from a root to a leaf; raise if the arrays are not trees for this width."""
        nodes, sums = len(self.feature), len(self.mix)
        valid = all(
            len(values) == 0 or (int(values.min()) >= 0 and int(values.max()) < limit)
            for values, limit in (
                (self.feature, self.width + self.codes.shape[1]), (self.branches, nodes), (self.roots, nodes),
                (self.owner, sums),
            )
        )  # fmt: skip
        at, steps = self.roots.unique(), 0
        while valid and len(at):
            below = self.branches[at]
            at = below[below != at[:, None]].unique()
            steps += 1
            valid = steps <= nodes
        if not valid:
            raise BadInput("the trees of the model are damaged: fit the model again")
        return max(0, steps - 1)

    def forward(self, z: Tensor) -> Tensor:
        x = z.double()
        if self.codes.shape[1]:
            x = torch.cat([x, x @ self.codes], dim=1)  # (b, d + e)
        gaps = exporting() or bool(x.isnan().any())
        children, shape = self.branches.flatten(), (x.shape[0], len(self.roots))
        at = self.roots.repeat(x.shape[0])  # (bt,) current node per example and tree
        for _ in range(self.steps):
            values = x.gather(1, self.feature.index_select(0, at).view(shape)).flatten()
            right = ~(values <= self.threshold.index_select(0, at))
            if gaps:
                right = right & ~(values.isnan() & (self.missing.index_select(0, at) == 1))
            at = children.index_select(0, 2 * at + right)
        leaves = self.value.index_select(0, at).view(shape)
        sums = x.new_zeros(x.shape[0], len(self.mix)).index_add(1, self.owner, leaves)  # (b, s)
        return (sums @ self.mix + self.offset).float()  # (b, c)
