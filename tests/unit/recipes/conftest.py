"""Small stand-ins for the image sets of GMoE's tables."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.data.dataset import Dataset
from holdfast.data.raw import Pixels
from holdfast.recipes.gmoe_parts import DOMAINS
from holdfast.run.assemble import Workspace


def dataset(name: str) -> Dataset:
    """A few dark images of every domain of a set."""
    domains, each = DOMAINS[name], 10
    count = each * len(domains)
    return Dataset(
        name=name, raw=Pixels(np.zeros((count, 3, 4, 4), np.uint8)), y=np.arange(count) % 2, classes=("a", "b"),
        domain=np.repeat(np.arange(len(domains)), each), domains=domains,
    ).checked()  # fmt: skip


@pytest.fixture(scope="session")
def workspaces():
    return {name: Workspace(dataset(name)) for name in DOMAINS}
