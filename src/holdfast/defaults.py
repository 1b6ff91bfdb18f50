"""Defaults that are decided from the data, the encoder and the device: rows, plan, rates, steps and slots.

A spec contains the resulting values, so that other defaults of a later version do not change it. Encoders without
parameters to train, frozen ones among them, have the defaults of `Spec`; what one encoder, method, neck or task changes
is in its entry of the catalog, and `train.settings.make_spec` puts everything together.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

LIMIT = 300.0  # seconds of a comparison, a search or a training, unless --budget is set
# rows of the first sample of large data, on which plain training takes seconds: by what a run computes
ENCODED_ROWS = {"cpu": 500, "cuda": 2000}  # texts and images whose features a frozen encoder computes first
LONG = 128  # tokens up to which two cores encode 40 to 150 texts per second; of longer texts the sample is smaller
FEWEST_ENCODED = 125  # of the longest texts
LIGHT_ROWS = 8000  # tables, vectors and graphs, and features that are cheap
TUNED_ROWS = {"cpu": 2000, "cuda": 4000}  # texts and images whose encoder learns
TUNED_IMAGES = 2000  # images whose encoder learns, of which a step on 96 takes up to 40 ms on a GPU
GRAPH_ROWS = 500  # graphs without a GPU, of which a step takes 30 to 100 ms
FEW_DOMAINS = 8  # up to this number, every domain is a target of its own, and every step has all training domains
DOMAINS_PER_STEP = 8  # domains in a step, where there are more

LEARNING = {"lr": 1e-3, "schedule": "linear", "warmup": 0.1, "average": "moving"}
FROM_FILE = {"lr": 5e-5, "clip": 1.0}  # for weights that the user supplies
RATES = {  # by width
    "text": ((256, 1e-4), (512, 6e-5), (1024, 3e-5), (math.inf, 1e-5)),
    "image": ((768, 3e-5), (math.inf, 2e-5)),
}
ADAPTERS = 10.0  # multiple of the rate for low-rank adapters
PASSES = 8  # over the examples of a domain of average size
FEWEST, MOST = 300, 3000  # steps
FEWEST_OF_SAMPLE = 100  # steps on a sample of the rows, which is to give a first answer soon
VALIDATIONS, PATIENCE = 20, 5  # validations per run; without improvement before it stops
# parts that start from random weights or, as experts, from equal weights: the rate of a tuned encoder is too low
NEW_PARTS: dict[str, float] = dict.fromkeys(("neck", "head", "router", "experts", "critic", "memory"), 10.0)
ROWS_PER_SLOT, FEWEST_SLOTS = 8, 16  # of a memory, for a step that takes as long as that of other methods


class Encoder(Protocol):
    """The part of an encoder's entry in the catalog that decides defaults."""

    @property
    def pretrained(self) -> bool: ...
    @property
    def sparse(self) -> bool: ...
    @property
    def learns(self) -> bool: ...
    @property
    def tune(self) -> str: ...
    @property
    def takes(self) -> str: ...
    @property
    def defaults(self) -> Mapping[str, Any]: ...
    @property
    def fixed(self) -> Mapping[str, Any]: ...


def default_plan(domains: int) -> str:
    """Return the plan of a comparison for data with this number of domains."""
    return "leave-one-out" if domains <= FEW_DOMAINS else "leave-groups-out"


def plan_note(domains: int) -> str:
    """Return why `default_plan` does not hold out every domain on its own; empty where it does."""
    if domains <= FEW_DOMAINS:
        return ""
    cost = f"one model per domain would be {domains:,} models per method and seed (--plan leave-one-out)"
    return f"{domains:,} domains are held out in 5 balanced groups, each scored by a model without it: {cost}"


def default_domains_per_step(domains: int, plan: str) -> int:
    """Return the number of training domains in a step; 0 means all."""
    return DOMAINS_PER_STEP if domains > FEW_DOMAINS and plan != "stream" else 0


def first_sample(kind: str, *, tuned: bool, pretrained: bool, device: str, tokens: int = 0) -> int:
    """Return the number of rows of the first sample.

    `tuned`: the encoder learns; `pretrained`: it is a large one; `tokens`: of a text, at most.
    """
    if kind == "graph" and tuned and device == "cpu":
        return GRAPH_ROWS
    if kind not in ("text", "image", "mixed"):
        return LIGHT_ROWS
    if tuned:
        return min(TUNED_ROWS[device], TUNED_IMAGES) if kind == "image" else TUNED_ROWS[device]
    if not pretrained:
        return LIGHT_ROWS
    halvings = math.ceil(math.log2(tokens / LONG)) if kind == "text" and tokens > LONG and device == "cpu" else 0
    return max(FEWEST_ENCODED, ENCODED_ROWS[device] >> halvings)


def learns(entry: Encoder, tune: str) -> bool:
    """Whether gradient steps train an encoder."""
    return tune != "frozen" and entry.learns and not entry.sparse


def default_tune(entry: Encoder, *, cuda: bool) -> str:
    """Return the tuning mode: pretrained encoders are tuned on a GPU, and frozen on a CPU, where that takes hours."""
    return entry.tune or ("full" if cuda or not entry.pretrained else "frozen")


def training_defaults(entry: Encoder, tune: str, *, weights: bool = False, stream: bool = False) -> dict[str, Any]:
    """Return the run settings for training an encoder; `weights`: it starts from a file that the user supplies.

    On a stream the weights are not averaged, because the network may grow between its stages.
    """
    if not learns(entry, tune):
        return {} if tune == "frozen" else dict(entry.defaults)
    defaults = {**LEARNING, **entry.defaults, **(FROM_FILE if weights else {})}
    if rate := _rate_by_width(entry):
        defaults["lr"] = rate
    if tune.startswith("lora:") and "lr_args" in entry.defaults:  # adapters learn as fast as other new parts
        defaults["lr"] = round(ADAPTERS * defaults["lr"], 9)
    if stream:
        defaults["average"] = "none"
    return defaults


def default_length(examples: int, domains: int, batch: int, per_step: int = 0, *, fewest: int = 0) -> dict[str, int]:
    """Return steps, steps between validations and patience for training an encoder.

    A step takes `batch` examples per domain, of at most `per_step` domains if it is not 0. The number of steps is that
    of `PASSES` passes over all examples, if the domains have the same size, at least `fewest` or `FEWEST`, at most
    `MOST`, and a multiple of the validation interval.
    """
    domains = min(domains, per_step) if per_step > 0 else domains
    steps = min(MOST, max(fewest or FEWEST, math.ceil(PASSES * examples / max(1, domains) / batch)))
    every = math.ceil(steps / VALIDATIONS)
    return {"steps": every * VALIDATIONS, "every": every, "patience": PATIENCE}


def _rate_by_width(entry: Encoder) -> float | None:
    """Return the rate for the width of a local transformer; None if it is not in a local folder."""
    name = entry.fixed.get("name")
    if not entry.pretrained or name is None:
        return None
    width = _width(Path(str(name)) / "config.json")
    return None if width is None else next(rate for limit, rate in RATES[entry.takes] if width < limit)


def _width(path: Path) -> int | None:
    try:
        config: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # a name on the hub, or a damaged folder that the encoder reports
        return None
    width = config.get("hidden_size", config.get("dim")) if isinstance(config, Mapping) else None
    return width if isinstance(width, int) else None
