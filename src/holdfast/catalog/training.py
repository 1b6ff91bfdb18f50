"""Training defaults of encoders that learn: learning rate, schedule, average of the weights and number of steps.

A spec contains the resulting values, so that other defaults of a later version do not change it. Encoders without
parameters to train, frozen ones among them, have the defaults of `Spec`.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.catalog.entry import EncoderEntry

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


def learns(entry: EncoderEntry, tune: str) -> bool:
    """Whether gradient steps train an encoder."""
    return tune != "frozen" and entry.learns and not entry.sparse


def default_tune(entry: EncoderEntry, *, cuda: bool) -> str:
    """Return the tuning mode: pretrained encoders are tuned on a GPU, and frozen on a CPU, where that takes hours."""
    return entry.tune or ("full" if cuda or not entry.pretrained else "frozen")


def training_defaults(entry: EncoderEntry, tune: str, *, weights: bool = False, stream: bool = False) -> dict[str, Any]:
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


def _rate_by_width(entry: EncoderEntry) -> float | None:
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
