"""Defaults that are decided from the data, the encoder and the device, with reasons.

`defaults` completes the fields of a Spec that the user chose. A spec contains the resulting values, so that other
defaults of a later version do not change it. Encoders without parameters to train, frozen ones among them, have the
defaults of `Spec`; what suits one encoder, method, neck or task is a fact about it in its entry of the catalog.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from holdfast.spec import Spec

AUTO = "auto"
LIMIT = 300.0  # seconds of a comparison, a search or a training, unless --budget is set
# rows of the first sample of large data, on which plain training takes seconds: by what a run computes
ENCODED_ROWS = {"cpu": 500, "cuda": 2000}  # texts and images whose features a frozen encoder computes first
LONG = 128  # tokens up to which two cores encode 40 to 150 texts per second; of longer texts the sample is smaller
FEWEST_ENCODED = 125  # of texts with at most VERY_LONG tokens
FEWEST_VERY_LONG, VERY_LONG = 32, 512  # of texts that are read in windows, or by an encoder of long texts
FEWEST_PER_DOMAIN = 6  # rows, to have some for training, validation and test
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
FEWEST_OF_GRAPHS = 50  # the same without a GPU, for graphs, of which a step takes 30 to 100 ms
LATE = (0.2, 0.3)  # shares of the limit before the first run: from each of them on, the first sample is halved
VALIDATIONS, PATIENCE = 20, 5  # validations per run; without improvement before it stops
# parts that start from random weights or, as experts, from equal weights: the rate of a tuned encoder is too low
NEW_PARTS: dict[str, float] = dict.fromkeys(("neck", "head", "router", "experts", "critic", "memory"), 10.0)
FITTED = ("neck", "head", "memory")  # before the encoder is trained, with the tuning mode lp-ft
PRETRAINED_HEADS = ("vocabulary", "words")  # they come with the encoder, so that they are not new parts
DECAY = "weights"  # of new specs; a spec without the setting has `all`
LENGTH, SIDE = "length", "size"  # settings of encoders: tokens, pixels per side
ROWS_PER_SLOT, FEWEST_SLOTS = 8, 16  # of a memory, for a step that takes as long as that of other methods

DEFAULT_ENCODER = {
    "text": "minilm", "vector": "mlp", "image": "resnet18", "graph": "gin", "table": "tabular", "mixed": "mixed",
}  # fmt: skip
# without a GPU, on which a step of larger networks takes seconds
CPU_ENCODER = {**DEFAULT_ENCODER, "image": "cnn"}
PREFERRED_ENCODER = {"image": "efficientnet-lite0"}  # the default where its package is installed


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
    @property
    def cpu(self) -> Mapping[str, Any]: ...
    @property
    def cpu_sides(self) -> tuple[int, ...]: ...
    @property
    def fewest_steps(self) -> int: ...


class Facts(Protocol):
    """Facts that defaults depend on besides the encoder: the data and the machine."""

    @property
    def rows(self) -> int: ...
    @property
    def domains(self) -> int: ...
    @property
    def device(self) -> str: ...  # cpu, cuda, or empty if it is unknown
    @property
    def bf16(self) -> bool: ...  # whether the device computes with it
    @property
    def processes(self) -> int: ...

    def length(self, options: Mapping[str, Any]) -> int | None:
        """Return the number of tokens that suits the texts, for an encoder with these settings; None for its own."""
        ...

    def side(self) -> float:
        """Return the median of the longer sides of the images, in pixels."""
        ...


def defaults(facts: Facts, encoder: Encoder, task: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chosen fields of a Spec, completed by those whose default depends on data, encoder, task or machine.

    `task` has the defaults of the task, which come before those of the encoder. Missing fields have the default of
    `Spec`. Slots and rates of parts depend on the method, too: `default_slots` and `default_rates` decide them.
    """
    options, plan, tune = chosen.get("encoder_args", {}), chosen.get("plan", Spec.plan), chosen.get("tune", AUTO)
    if plan == AUTO:
        plan = default_plan(facts.domains)
    if tune == AUTO:
        tune = str(task.get("tune", default_tune(encoder, cuda=facts.device == "cuda")))
    values = training_defaults(encoder, tune, weights=bool(options.get("weights")), stream=plan == "stream")
    values |= {"decay": DECAY, "lr_args": {}, **task, **chosen, "plan": plan, "tune": tune}
    # features of a frozen encoder are computed once, in fp32; training uses bf16 where the GPU has it
    if values.get("precision", AUTO) == AUTO:
        values["precision"] = "bf16" if facts.bf16 and tune != "frozen" else "fp32"
    values["encoder_args"] = with_sizes(options, facts, encoder)
    values.setdefault("domains_per_step", default_domains_per_step(facts.domains, plan))
    # the length depends on batch and domains per step, so it comes last; single values that are set win
    if learns(encoder, tune) and "steps" not in values:
        batch, per_step = values.get("batch", Spec.batch), values["domains_per_step"]
        size = batch * facts.processes if isinstance(batch, int) and batch > 0 else 1  # `Spec` checks both
        length = default_length(
            facts.rows, facts.domains, size, per_step if isinstance(per_step, int) else 0, fewest=encoder.fewest_steps
        )
        values = {**length, **values}
    return values


def default_encoder(kind: str, *, cpu: bool, preferred: bool) -> str | None:
    """Return the encoder for a kind of example; `preferred`: the package of the pretrained one is installed."""
    if preferred and kind in PREFERRED_ENCODER:
        return PREFERRED_ENCODER[kind]
    return (CPU_ENCODER if cpu else DEFAULT_ENCODER).get(kind)


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


def first_sample(kind: str, *, tuned: bool, pretrained: bool, device: str, tokens: int = 0, spent: float = 0.0) -> int:
    """Return the number of rows of the first sample.

    `tuned`: the encoder learns; `pretrained`: it is a large one; `tokens`: of a text, at most; `spent`: share of the
    limit that imports and reading took, which is large if other processes use the machine.
    """
    rows = _first_sample(kind, tuned=tuned, pretrained=pretrained, device=device, tokens=tokens)
    return max(min(rows, _fewest(tokens)), rows >> sum(spent >= share for share in LATE))


def fewest_of_sample(takes: str, device: str) -> int:
    """Return the fewest steps of a run on a sample of the rows, by what its encoder takes."""
    return FEWEST_OF_GRAPHS if takes == "graph" and device == "cpu" else FEWEST_OF_SAMPLE


def _first_sample(kind: str, *, tuned: bool, pretrained: bool, device: str, tokens: int) -> int:
    if kind == "graph" and tuned and device == "cpu":
        return GRAPH_ROWS
    if kind not in ("text", "image", "mixed"):
        return LIGHT_ROWS
    if tuned:
        return min(TUNED_ROWS[device], TUNED_IMAGES) if kind == "image" else TUNED_ROWS[device]
    if not pretrained:
        return LIGHT_ROWS
    halvings = math.ceil(math.log2(tokens / LONG)) if kind == "text" and tokens > LONG and device == "cpu" else 0
    return max(_fewest(tokens), ENCODED_ROWS[device] >> halvings)


def _fewest(tokens: int) -> int:
    return FEWEST_VERY_LONG if tokens > VERY_LONG else FEWEST_ENCODED


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


def with_sizes(options: Mapping[str, Any], facts: Facts, encoder: Encoder) -> dict[str, Any]:
    """Add sizes that suit the data and the machine to the settings of an encoder, unless they have them.

    Texts have a number of tokens. Without a GPU, images have fewer pixels, and graph networks have fewer units. A
    setting of None requests the encoder's own size.
    """
    sizes = {} if LENGTH in options or (length := facts.length(options)) is None else {LENGTH: length}
    if facts.device == "cpu":
        sizes |= encoder.cpu
        if encoder.cpu_sides and SIDE not in options:  # the first one that half of the images do not exceed
            median = facts.side()
            sizes[SIDE] = next((side for side in encoder.cpu_sides if median <= side), encoder.cpu_sides[-1])
    own = {LENGTH, SIDE, *encoder.cpu}  # encoders without such a setting ignore None
    return {name: value for name, value in {**sizes, **options}.items() if name not in own or value is not None}


def default_slots(slots: int, rows: int, *, keys: int | None = None) -> int:
    """Return the number of slots of a memory that has `slots` at most, in proportion to the rows of the data.

    A memory with product keys, of which `keys` are read per side, has a square number of slots.
    """
    limit = max(FEWEST_SLOTS, rows // ROWS_PER_SLOT)
    return min(slots, limit if keys is None else max(math.isqrt(limit), keys) ** 2)


def default_rates(spec: Spec, encoder: Encoder, own: Sequence[str]) -> dict[str, float]:
    """Return the factor of the learning rate per part: new parts learn faster than a pretrained encoder that is tuned.

    `own` are those of the network and the method of a spec.
    """
    pretrained = "lr_args" in encoder.defaults or bool(spec.encoder_args.get("weights"))
    equal = spec.tune == "frozen" or spec.tune.startswith("lora:")  # adapters are new parts too
    known = {} if equal or not pretrained else dict(NEW_PARTS)
    for name in FITTED if spec.tune == "lp-ft" else ("head",) if spec.head in PRETRAINED_HEADS else ():
        known.pop(name, None)
    return {name: known.get(name, 1.0) for name in own}
