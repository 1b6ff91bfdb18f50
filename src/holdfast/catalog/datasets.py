"""Published data sets, listed from the table in `data/known/sets.toml`."""

from dataclasses import dataclass
from typing import Any

from holdfast.catalog.entry import Entry
from holdfast.data.registry import READERS, table


@dataclass(frozen=True)
class PublishedEntry(Entry):
    """A data set of the table; its target is its name there."""

    def load(self) -> Any:
        """Import and return the reader."""
        return READERS[self.target]


DATASETS: dict[str, Entry] = {name: PublishedEntry(name, row["about"]) for name, row in table().items()}
