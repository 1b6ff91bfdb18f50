"""Published sets of graphs (TU) and of molecules (OGB)."""

from pathlib import Path

import numpy as np

from holdfast.core.errors import BadInput
from holdfast.data.dataset import Dataset
from holdfast.data.known.base import TABLE_FILE, KnownSet
from holdfast.data.readers.columns import ReadOptions
from holdfast.data.readers.graphs import read_graphs
from holdfast.data.readers.molecules import as_molecules, smiles_column
from holdfast.data.readers.table import read_table

CONVERTED = ", with TU's files A, graph_indicator, graph_labels and node_attributes: published pickles are not opened"
MOLECULE_COLUMNS = "the columns smiles, label (0, 1) and split (train, valid, test: the scaffold split)"


def read_graph_set(known: KnownSet, *, data_dir: Path | None = None, fold: int | None = None) -> Dataset:
    """Read a zip, a folder or a text file; `fold` marks the test rows of one fold of a zip with folds."""
    expected = f"{known.files[0]}.zip into FOLDER{CONVERTED if known.options.get('converted') else ''}"
    path = known.find(data_dir, expected, (".zip", "", ".txt"))
    dataset = read_graphs(path, fold=fold)
    if len(dataset.domains) > 1:
        raise BadInput(f"{path} holds {len(dataset.domains)} sets of graphs, {known.name} is one: remove the others")
    return known.finish(dataset.as_one_domain(known.name), "graphs").checked()


def read_molecule_set(known: KnownSet, *, data_dir: Path | None = None) -> Dataset:
    """Read a table with SMILES, or the rows of the set in a table `molecules` of several sets."""
    path = known.find(data_dir, f"{TABLE_FILE.format(known.name)} into FOLDER, with {MOLECULE_COLUMNS}")
    shared = path.stem == "molecules"
    column = smiles_column(path, None)
    if column is None:
        raise BadInput(f"{path} has no column smiles: it needs {MOLECULE_COLUMNS}")
    table = read_table(path, ReadOptions({"text": column}, ("label", "domain") if shared else ("label",)))
    if shared and known.name not in table.domains:
        raise BadInput(f"{path} has no rows with the domain {known.name}: its domains are {', '.join(table.domains)}")
    rows = table.rows_of(known.name) if shared else np.arange(len(table))
    return known.finish(as_molecules(table, rows, str(path)).as_one_domain(known.name), "molecules").checked()
