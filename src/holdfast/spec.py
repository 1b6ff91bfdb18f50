"""Spec: everything that determines the numbers of a run."""

import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from holdfast.core.errors import BadInput, check_at_least, check_known

CHECKED = (int, float, str, bool)
RATE_PARTS = ("neck", "head", "router", "experts", "critic", "memory")  # parts that may have their own learning rate
AVERAGES = ("none", "moving", "swad")
COMPILE = ("auto", "off")
LATER = (  # settings that older records lack: left out where they have no effect
    "processes", "rows", "domains_per_step", "average", "decay", "compile", "predict", "task_args", "predict_args",
    "searched", "lr_args",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Spec:
    """Complete description of a run; equal specs give equal records."""

    data: str
    fingerprint: str  # of the content of the data
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
    steps: int = 300  # per phase of the method
    every: int = 25  # steps between validations
    batch: int = 32  # examples per domain and process
    processes: int = 1  # that train together
    rows: int = 0  # examples of all domains that the run trains and tests on, a stratified sample; 0 means all
    domains_per_step: int = 0  # training domains that a step draws, at most; 0 means all
    patience: int = 0  # validations without improvement before stopping; 0 disables early stopping
    optimizer: str = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.01
    momentum: float = 0.9
    schedule: str = "constant"
    warmup: float = 0.0  # steps, or a fraction of all steps if below 1
    clip: float = 0.0
    accumulate: int = 1
    average: str = "none"  # of the weights in training: none, moving (mean over the steps) or swad
    decay: str = "all"  # what weight decay applies to: all, or weights (neither biases nor norms)
    precision: str = "fp32"
    compile: str = "auto"  # training steps on a GPU: auto captures them as CUDA graphs where possible, off does not
    predict: str = "model"  # what predicts: model, or the model with a memory of examples (knn, t3a)
    augment: bool | str = False  # name of an augmentation; true is the default for images
    method_args: dict[str, Any] = field(default_factory=dict)
    encoder_args: dict[str, Any] = field(default_factory=dict)
    neck_args: dict[str, Any] = field(default_factory=dict)
    head_args: dict[str, Any] = field(default_factory=dict)
    plan_args: dict[str, Any] = field(default_factory=dict)
    task_args: dict[str, Any] = field(default_factory=dict)
    predict_args: dict[str, Any] = field(default_factory=dict)
    searched: dict[str, list[float]] = field(default_factory=dict)  # setting -> values that a search chose from
    lr_args: dict[str, float] = field(default_factory=dict)  # part -> factor of its learning rate; 1 if missing

    def __post_init__(self) -> None:
        for spec_field in fields(self):
            name, value = spec_field.name, getattr(self, spec_field.name)
            if spec_field.type is float and type(value) is int:
                object.__setattr__(self, name, float(value))  # 1 and 1.0 are the same setting, so the same run
            elif spec_field.type in CHECKED and type(value) is not spec_field.type:
                raise BadInput(f"{name} must have the type {spec_field.type.__name__}, got {value!r}")
        if not isinstance(self.augment, bool | str):
            raise BadInput(f"augment must be true, false or the name of an augmentation; got {self.augment!r}")
        check_at_least(1, steps=self.steps, every=self.every, batch=self.batch, processes=self.processes)
        check_at_least(0, rows=self.rows, domains_per_step=self.domains_per_step)
        if self.patience < 0:
            raise BadInput(f"patience must be at least 0, which disables early stopping, got {self.patience}")
        check_known("precision", self.precision, ("fp32", "bf16"))
        check_known("average", self.average, AVERAGES)
        check_known("compile", self.compile, COMPILE)
        for part, factor in self.lr_args.items():
            check_known("setting of lr", part, RATE_PARTS)
            if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < math.inf:
                raise BadInput(f"lr.{part} multiplies the learning rate and must be above 0, got {factor!r}")

    def json(self) -> dict[str, Any]:
        """Return the form that records store; settings without effect that older records lack are left out."""
        values = asdict(self)
        values["lr_args"] = {part: float(factor) for part, factor in self.lr_args.items() if factor != 1}
        if not self.weight_decay:
            values["decay"] = Spec.decay
        return {name: value for name, value in values.items() if name not in LATER or value != DEFAULTS[name]}


DEFAULTS = asdict(Spec(data="", fingerprint=""))
