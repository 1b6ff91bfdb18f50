"""Defaults that a comparison decides from the size and the kind of the data."""

import math

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
