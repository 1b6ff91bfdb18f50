"""Spec: all that decides a run's numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from holdfast.core.errors import BadInput

KINDS: dict[Any, type] = {"int": int, "float": float, "str": str, "bool": bool}


@dataclass(frozen=True, kw_only=True)
class Spec:
    """Everything that decides the numbers of a run; equal specs give equal records."""

    data: str
    fingerprint: str  # of the data's content
    method: str = "erm"
    encoder: str = "minilm"
    neck: str = "none"
    head: str = "linear"
    task: str = "classify"
    plan: str = "leave-one-out"
    select: str = "train-validation"
    metric: str = "accuracy"
    tune: str = "frozen"
    seed: int = 0
    steps: int = 300  # in each phase of a method
    every: int = 25  # steps between validations
    batch: int = 32  # examples of each domain in a batch, of each process where there are several
    processes: int = 1  # that train together
    patience: int = 0  # validations without improvement before stopping; 0 goes on to the end
    optimizer: str = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.01
    momentum: float = 0.9
    schedule: str = "constant"
    warmup: float = 0.0  # steps, or below 1 a share of them
    clip: float = 0.0
    accumulate: int = 1
    precision: str = "fp32"
    augment: bool | str = False  # the name of an augmentation; true is the usual one of images
    method_args: dict[str, Any] = field(default_factory=dict)
    encoder_args: dict[str, Any] = field(default_factory=dict)
    neck_args: dict[str, Any] = field(default_factory=dict)
    head_args: dict[str, Any] = field(default_factory=dict)
    plan_args: dict[str, Any] = field(default_factory=dict)
    task_args: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.type == "float" and type(value) is int:
                object.__setattr__(self, each.name, float(value))  # 1 and 1.0 are one setting, so one run
            elif each.type in KINDS and type(value) is not KINDS[each.type]:
                raise BadInput(f"{each.name} takes a value of kind {each.type}, not {value!r}")
        if not isinstance(self.augment, bool | str):
            raise BadInput(f"augment takes true, false or a name, not {self.augment!r}")
        for name in ("steps", "every", "batch", "processes"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.patience < 0:
            raise BadInput(f"patience must be at least 0, which goes on to the end, not {self.patience}")
        if self.precision not in ("fp32", "bf16"):
            raise BadInput(f"unknown precision '{self.precision}': use fp32 or bf16 (bf16 needs a GPU)")

    def json(self) -> dict[str, Any]:
        """As a record holds it; several processes, and settings of a task, are told where there are some."""
        found = asdict(self)
        if not self.task_args:
            del found["task_args"]
        if self.processes == 1:
            del found["processes"]
        return found
