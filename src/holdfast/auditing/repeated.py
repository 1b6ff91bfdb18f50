"""Count the rows of a data set that repeat the input of another row, for the warning of `compare`."""

import shlex
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from holdfast.auditing.examples import input_hashes
from holdfast.data.dataset import Dataset

MAX_IMAGES = 20_000  # files whose content is read for the warning; `audit` reads any number
COUNTED = ("text", "image", "vector")  # small graphs are often equal


def repeated_note(dataset: Dataset, source: Sequence[str]) -> str:
    """Return a warning with the command that writes the data without repeated rows; empty if there are none.

    `source` holds the arguments that name the data on the command line, without options that sample from it. Graphs
    and many images are not counted.
    """
    kind, rows = dataset.raw.kind, len(dataset)
    if kind not in COUNTED or (kind == "image" and rows > MAX_IMAGES):
        return ""
    table = pd.DataFrame({"input": input_hashes(dataset), "domain": dataset.domain})
    total, within = int(table.duplicated("input").sum()), int(table.duplicated().sum())
    if not total:
        return ""
    counts = ((within, "in the same domain"), (total - within, "in another domain"))
    places = [f"{count:,} {place}" for count, place in counts if count]
    own = Path(source[0]).suffix.lower() if source else ""
    suffix = own if own in (".jsonl", ".parquet") else ".csv"
    command = shlex.join(["holdfast", "audit", *source, "--clean", f"clean{suffix}"])
    fix = f"`{command if source else 'holdfast.audit(data, clean=FILE)'}` writes the data without repeated rows"
    repeat = "rows repeats an earlier one" if total == 1 else "rows repeat earlier ones"
    return f"{total:,} of {rows:,} {repeat} ({', '.join(places)}), so that scores may be too high: {fix}"
