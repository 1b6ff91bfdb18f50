"""Small stand-ins for the image data sets of the GMoE tables."""

import numpy as np
import pytest

from holdfast.data.dataset import Dataset
from holdfast.data.raw import Pixels
from tests.lab.recipes.tables import gmoe_domains


def dataset(name: str, domains: tuple[str, ...]) -> Dataset:
    """Ten black images per domain."""
    count = 10 * len(domains)
    return Dataset(
        name=name, raw=Pixels(np.zeros((count, 3, 4, 4), np.uint8)), y=np.arange(count) % 2, classes=("a", "b"),
        domain=np.repeat(np.arange(len(domains)), 10), domains=domains,
    ).checked()  # fmt: skip


@pytest.fixture(scope="session")
def images() -> dict[str, Dataset]:
    return {name: dataset(name, domains) for name, domains in gmoe_domains().items()}
