"""Count the rows of a data set that repeat the input of another row, for the warning of `compare`."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from holdfast.auditing.examples import input_hashes
from holdfast.data.dataset import Dataset

MAX_IMAGES = 20_000  # files whose content is read for the warning; `audit` reads any number
COUNTED = ("text", "image", "vector")  # small graphs are often equal


@dataclass(frozen=True)
class Repeated:
    """Rows whose input occurs earlier in the data: in the same domain, or only in other domains."""

    rows: int
    within: int
    between: int

    @property
    def total(self) -> int:
        return self.within + self.between


def count_repeated(dataset: Dataset) -> Repeated | None:
    """Count repeated inputs; None for graphs and for many images."""
    kind, rows = dataset.raw.kind, len(dataset)
    if kind not in COUNTED or (kind == "image" and rows > MAX_IMAGES):
        return None
    table = pd.DataFrame({"input": input_hashes(dataset), "domain": dataset.domain})
    anywhere, within = table.duplicated("input"), table.duplicated()
    return Repeated(rows, int(within.sum()), int((anywhere & ~within).sum()))


def repeated_note(dataset: Dataset, source: Sequence[str]) -> str:
    """Return a warning with the command that writes the data without repeated rows; empty if there are none.

    `source` holds the arguments that name the data on the command line, without options that sample from it.
    """
    repeated = count_repeated(dataset)
    if repeated is None or not repeated.total:
        return ""
    places = [
        f"{count:,} {place}"
        for count, place in ((repeated.within, "in the same domain"), (repeated.between, "in another domain"))
        if count
    ]
    own = Path(source[0]).suffix.lower() if source else ""
    suffix = own if own in (".jsonl", ".parquet") else ".csv"
    command = shlex.join(["holdfast", "audit", *source, "--clean", f"clean{suffix}"])
    fix = f"`{command if source else 'holdfast.audit(data, clean=FILE)'}` writes the data without repeated rows"
    rows = "rows repeats an earlier one" if repeated.total == 1 else "rows repeat earlier ones"
    return (
        f"{repeated.total:,} of {repeated.rows:,} {rows} ({', '.join(places)}), so that scores may be too high: {fix}"
    )
