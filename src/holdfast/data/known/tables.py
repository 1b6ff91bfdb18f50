"""Published tables with columns of several kinds.

The file has one row per example. `columns` in `sets.toml` maps roles to the published column names; all other columns
are inputs, whose kinds are inferred as for any table.
"""

from dataclasses import replace
from pathlib import Path

from holdfast.data.dataset import Dataset
from holdfast.data.known.base import KnownSet, rename_codes
from holdfast.data.readers.columns import ReadOptions
from holdfast.data.readers.table import read_table


def read_table_set(known: KnownSet, *, data_dir: Path | None = None) -> Dataset:
    """Read the table of a data set; labels and domains get their published names.

    Several spellings of one label, such as the grades 1 to 4 of a disease, become one class. Without `labels` in the
    table of data sets, labels are the values of the column, such as numbers to predict.
    """
    columns: dict[str, str] = known.options["columns"]
    needed = ", ".join(columns[role] for role in ("label", "domain"))
    path = known.find(data_dir, f"the table of {known.name} into FOLDER, with the columns {needed}")
    dataset = read_table(path, ReadOptions(columns))
    y, classes = dataset.y, dataset.classes
    if known.labels:
        y, classes = rename_codes(y, classes, known.labels, f"{path}: label")
    domain, domains = rename_codes(dataset.domain, dataset.domains, known.domains, f"{path}: domain")
    renamed = replace(dataset, name=known.name, y=y, classes=classes, domain=domain, domains=domains)
    return known.finish(renamed.checked())
