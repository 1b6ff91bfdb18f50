"""Molecules: codes of atoms and bonds as in OGB, and errors with the row number."""

import sys

import numpy as np
import pytest

from holdfast.core.errors import BadInput
from holdfast.data.load import load_data
from holdfast.data.readers.molecules import molecules, read_molecules, smiles_column
from holdfast.data.readers.smiles import ATOM, BOND

needs_rdkit = pytest.mark.molecules
TABLE = "smiles,label,domain,split\nCCO,1,a,train\nc1ccccc1,0,b,test\nC,0,a,valid\n"


def test_code_tables_have_the_published_sizes():
    assert [len(values) + 1 for values in ATOM.values()][:7] == [119, 5, 12, 12, 10, 6, 6]
    assert list(ATOM)[7:] == ["aromatic", "ring"]
    assert [len(values) for values in BOND.values()] == [4, 6, 2]


@needs_rdkit
def test_acetic_acid():
    (graph,) = molecules(["CC(=O)O"])
    # number less one, no chirality, degree with hydrogens, charge plus five, hydrogens, radicals, sp2 or sp3, no, no
    assert graph.nodes.tolist() == [
        [5, 0, 4, 5, 3, 0, 2, 0, 0],
        [5, 0, 3, 5, 0, 0, 1, 0, 0],
        [7, 0, 1, 5, 0, 0, 1, 0, 0],
        [7, 0, 2, 5, 1, 0, 1, 0, 0],
    ]
    assert graph.edges.tolist() == [[0, 1, 1, 1, 2, 3], [1, 2, 3, 0, 1, 1]]
    assert graph.weights.tolist() == [[0, 0, 0], [1, 0, 1], [0, 0, 1]] * 2


@needs_rdkit
def test_aromatic_ring_salt_and_unusual_valence():
    ring, salt, metal = molecules(["c1ccccc1", "[Na+].[Cl-]", "O=C1O[Al]23(OC1=O)(OC(=O)C(=O)O2)OC(=O)C(=O)O3"])
    assert ring.nodes[:, 7:].tolist() == [[1, 1]] * 6
    assert ring.weights[:, 0].tolist() == [3] * 12
    assert salt.edges.shape == (2, 0)
    assert salt.weights.shape == (0, 3)
    assert salt.nodes[:, 3].tolist() == [6, 4]
    assert len(metal.nodes) == 19


@needs_rdkit
def test_table_with_smiles_is_read_as_graphs(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(TABLE)
    found = load_data(path, known={})
    assert (found.raw.kind, found.domains, found.classes) == ("graph", ("a", "b"), ("0", "1"))
    assert found.y.tolist() == [1, 0, 0]
    assert found.split.tolist() == [0, 2, 1]
    assert [len(g.nodes) for g in found.raw.take(np.arange(3))] == [3, 6, 1]
    path.write_text(TABLE.replace("smiles", "structure"))
    assert load_data(path, columns={"smiles": "structure"}, known={}).raw.kind == "graph"
    path.write_text(TABLE.replace("smiles", "smiles,text", 1).replace("\nC", "\nC,C").replace("\nc", "\nc,c"))
    assert smiles_column(path, {"text": "text"}) is None  # another input is named


@needs_rdkit
def test_invalid_smiles_are_reported_with_their_row(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(TABLE.replace("c1ccccc1", "c1ccc"))
    with pytest.raises(BadInput, match=r"a\.csv, row 2: 'c1ccc'"):
        read_molecules(path, "smiles")


def test_missing_rdkit_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "rdkit", None)
    with pytest.raises(BadInput, match=r"pip install 'holdfast\[molecules\]'"):
        molecules(["C"])
