"""Defaults that a comparison decides from the size and the kind of the data."""

LIMIT = 300.0  # seconds of a comparison, a search or a training, unless --budget is set
# rows of the first sample of large data, on which plain training takes seconds: by what a run computes
ENCODED_ROWS = 2000  # texts and images whose features a frozen encoder computes first, which is the larger part
LIGHT_ROWS = 8000  # tables, vectors and graphs, and features that are cheap
TUNED_ROWS = {"cpu": 2000, "cuda": 4000}  # texts and images whose encoder learns
FEW_DOMAINS = 8  # up to this number, every domain is a target of its own, and every step has all training domains
DOMAINS_PER_STEP = 8  # domains in a step, where there are more


def default_plan(domains: int) -> str:
    """Return the plan of a comparison for data with this number of domains."""
    return "leave-one-out" if domains <= FEW_DOMAINS else "leave-groups-out"


def plan_reason(domains: int) -> str:
    """Return why `default_plan` chooses its plan, as a sentence for notes and reports."""
    if domains <= FEW_DOMAINS:
        return f"The data has {domains} domains, so each one is held out in turn (leave-one-out)."
    cost = f"one model per domain would be {domains:,} models per method and seed (--plan leave-one-out)"
    groups = "5 balanced groups of them are held out in turn (leave-groups-out)"
    return f"The data has {domains:,} domains, so {groups}: {cost}."


def default_domains_per_step(domains: int, plan: str) -> int:
    """Return the number of training domains in a step; 0 means all."""
    return DOMAINS_PER_STEP if domains > FEW_DOMAINS and plan != "stream" else 0


def first_sample(kind: str, *, tuned: bool, pretrained: bool, device: str) -> int:
    """Return the number of rows of the first sample; `tuned`: the encoder learns, `pretrained`: it is a large one."""
    if kind not in ("text", "image", "mixed"):
        return LIGHT_ROWS
    if tuned:
        return TUNED_ROWS[device]
    return ENCODED_ROWS if pretrained else LIGHT_ROWS
