"""A model: backbone, neck and head. Memories and expert layers are necks.

Shapes: b batch, d width, c classes.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn

from holdfast.accel.cast import weights_cast_once
from holdfast.core.inputs import Inputs
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.graft.insert import InsertingNeck
from holdfast.nn.memory.recall import Recall
from holdfast.nn.tuning import eval_frozen

ENCODER = "encoder"  # its rate is that of the run


@runtime_checkable
class TiedHead(Protocol):
    """A head that shares parameters with the backbone."""

    def tie(self, backbone: Backbone) -> None: ...


class OutputScale(NamedTuple):
    """Mean and scale of a numeric target: a prediction is mean + scale * output."""

    mean: float
    scale: float


class Model(nn.Module):
    """Backbone, neck and head; with precision `bf16` backbone and neck run under autocast."""

    backbone: nn.Module
    head: nn.Module
    neck: nn.Module

    def __init__(self, backbone: nn.Module, neck: nn.Module, head: nn.Module, *, precision: str = "fp32") -> None:
        super().__init__()
        if isinstance(neck, InsertingNeck) and isinstance(backbone, Backbone):
            neck.attach(backbone)
        if isinstance(head, TiedHead) and isinstance(backbone, Backbone):
            head.tie(backbone)
        self.backbone, self.neck, self.head = backbone, neck, head
        self.precision = precision
        self.recall: Recall | None = None  # a memory that only predictions read
        self.scale: OutputScale | None = None  # of the outputs of a regression

    @property
    def width(self) -> int:
        """Width of the features after the neck."""
        return int(self.neck.width)  # pyright: ignore[reportArgumentType]

    @property
    def prediction_batch(self) -> tuple[int, int] | None:
        """Batch size and shuffle seed of predictions if a part, which declares them, compares examples; else None."""
        modules = (module for part in (self.neck, self.backbone) for module in part.modules())
        return next((batch for module in modules if (batch := getattr(module, "prediction_batch", None))), None)

    def encode(self, x: Inputs, *, backbone: nn.Module | None = None) -> Tensor:
        """Return the features (b, d) of this backbone, or of another one."""
        network = self.backbone if backbone is None else backbone
        with self._autocast():
            if not torch.is_autocast_enabled("cuda"):  # a launch costs nothing on a CPU
                return network(x)
            with weights_cast_once(network):
                return network(x)

    def apply_neck(self, z: Tensor) -> Tensor:
        """Return the features (b, d) after the neck, in full precision for the head."""
        with self._autocast():
            z = self.neck(z)
        return z if self.precision == "fp32" else z.float()

    def features(self, x: Inputs) -> Tensor:
        """Return the input (b, d) of the head."""
        return self.apply_neck(self.encode(x))

    def classify(self, z: Tensor) -> Tensor:
        """Return the outputs (b, c) for features after the neck, with the prediction-time memory if there is one."""
        outputs = self.head(z)
        return outputs if self.recall is None else self.recall(z, outputs)

    def forward(self, x: Inputs) -> Tensor:
        return self.classify(self.features(x))  # (b, c)

    def _autocast(self) -> AbstractContextManager[object]:
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(next(self.parameters()).device.type, dtype=torch.bfloat16)

    def trainable_parameters(self) -> list[nn.Parameter]:
        """Return the parameters for an optimizer."""
        return [p for p in self.parameters() if p.requires_grad]

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if mode:
            eval_frozen(self)
        return self


def part_names(model: Model) -> dict[nn.Parameter, str]:
    """Return the part that each parameter belongs to: a name in `RATE_PARTS`, or `encoder`.

    A module that declares its `rate_part`, such as a memory, counts as that part wherever it is; a parameter that head
    and backbone share belongs to the encoder.
    """
    names = dict.fromkeys(model.head.parameters(), "head")
    names |= dict.fromkeys(model.neck.parameters(), "neck")
    names |= dict.fromkeys(model.backbone.parameters(), ENCODER)
    for module in model.modules():  # a part comes before the parts in it
        if part := getattr(module, "rate_part", ""):
            names |= dict.fromkeys(module.parameters(), part)
    return names


def depends_on_batch(module: nn.Module) -> bool:
    """Whether a layer compares the examples of a batch in training: a batch norm, or one that declares it."""
    return isinstance(module, nn.modules.batchnorm._BatchNorm) or getattr(module, "compares_examples", False)


def undecayed(model: Model) -> set[int]:
    """Return the ids of matrices without weight decay: biases with several rows, and embeddings of positions."""
    named = ((name.split("."), p) for name, p in model.named_parameters())
    return {id(p) for names, p in named if "bias" in names[-1] or any("position" in name for name in names)}
