"""Defaults that depend on the number of domains of the data."""

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
