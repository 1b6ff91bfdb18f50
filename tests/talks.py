"""Small dialogues with a known answer."""

import random
from pathlib import Path

import numpy as np

from holdfast.data.dataset import Dataset
from holdfast.data.raw import Texts
from tests.tables import write_rows

THINGS = {"home": ("tea", "milk", "soup"), "ship": ("rope", "sail", "deck"), "farm": ("corn", "hay", "seed")}


def pairs(domain: str, size: int = 24) -> list[tuple[str, str]]:
    """Return questions about things of a domain, answered with the thing."""
    rng = random.Random(domain)
    asked = [(rng.choice(THINGS[domain]), rng.choice(("one", "two"))) for _ in range(size)]
    return [(f"do you have {count} {thing}?", f"yes, {count} {thing}.") for thing, count in asked]


def talks(size: int = 24) -> Dataset:
    """Return all domains as a data set without labels."""
    pattern = [pair for domain in THINGS for pair in pairs(domain, size)]
    where = np.repeat(np.arange(len(THINGS)), size)
    return Dataset("talks", Texts.of(pattern), np.full(len(pattern), -1), (), where, tuple(THINGS))


def write_talks(path: Path, size: int = 24) -> Path:
    rows = ([*pair, domain] for domain in THINGS for pair in pairs(domain, size))
    return write_rows(path, ["message", "response", "domain"], rows)
