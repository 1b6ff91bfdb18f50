"""Syntax trees of the sources take much memory: tests of other folders run without them."""

from collections.abc import Iterator

import pytest

from tests.arch.sources import sources


@pytest.fixture(scope="package", autouse=True)
def release_sources() -> Iterator[None]:
    yield
    sources.cache_clear()
