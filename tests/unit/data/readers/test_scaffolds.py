"""Scaffold splits: groups are not divided, and the largest ones train."""

import numpy as np
import pytest

from holdfast.core.errors import BadInput
from holdfast.data.load import load_data
from holdfast.data.readers.molecules import as_molecules, by_scaffold, scaffolds
from holdfast.data.shifts import apply_shift
from tests.unit.data.test_shifts import graph, pool

pytestmark = pytest.mark.molecules
BENZENES = ["Cc1ccccc1", "CCc1ccccc1", "Oc1ccccc1", "Nc1ccccc1", "Clc1ccccc1", "Brc1ccccc1"]
PYRIDINES, CHAINS = ["Cc1ccncc1", "Oc1ccncc1"], ["CCO", "CCCC"]
ALONE = ["C1CCCCC1C"]


def table(tmp_path, texts):
    path = tmp_path / "molecules.csv"
    path.write_text("smiles,label\n" + "".join(f"{text},{i % 2}\n" for i, text in enumerate(texts)))
    return path


def as_data(tmp_path, texts):
    return load_data(table(tmp_path, texts), need=("label",), known={})


def test_scaffold_is_rings_and_linkers():
    assert scaffolds(["Cc1ccccc1", "CCO", "OC(=O)c1ccc(Cc2ccccc2)cc1"]) == ["c1ccccc1", "", "c1ccc(Cc2ccccc2)cc1"]


def test_enantiomers_have_different_scaffolds():
    one, other = scaffolds(["c1ccccc1[C@H]1CCCN1", "c1ccccc1[C@@H]1CCCN1"])
    assert one.replace("@", "") == other.replace("@", "")
    assert one != other


def test_largest_groups_train_and_groups_are_not_divided(tmp_path):
    texts = [*ALONE, *CHAINS, *PYRIDINES, *BENZENES]  # eleven: 8.8 train at most, 9.9 train or choose
    train, valid, test = by_scaffold(as_data(tmp_path, texts))
    assert sorted(train) == [3, 4, 5, 6, 7, 8, 9, 10]
    assert sorted(valid) == [0]  # the chains are two, for whom there is no room, and the next one has it
    assert sorted(test) == [1, 2]


def test_scaffold_shift_has_domains_and_splits(tmp_path):
    texts = [*ALONE, *CHAINS, *PYRIDINES, *BENZENES]
    path = table(tmp_path, texts)
    found = load_data(f"{path}@shift=scaffold", need=("label",), known={})
    assert found.domains == ("common-1", "common-2", "rarer", "rare")
    assert [len(found.rows_of(name)) for name in found.domains] == [4, 4, 1, 2]
    assert [set(found.split[found.rows_of(name)].tolist()) for name in found.domains] == [{0}, {0}, {1}, {2}]
    assert found.y.tolist() == [i % 2 for i in range(len(texts))]
    one = load_data(f"{path}@shift=scaffold,environments=1", known={})  # no column of domains is asked for
    assert one.domains == ("common", "rarer", "rare")


def test_subset_of_molecules_is_split(tmp_path):
    data = as_data(tmp_path, [*CHAINS, *BENZENES, *PYRIDINES])
    fewer = data.subset(np.arange(2, 10))
    assert [sorted(part) for part in by_scaffold(fewer)] == [[0, 1, 2, 3, 4, 5], [], [6, 7]]
    with pytest.raises(BadInput, match="no graphs for the domain 'rarer'"):
        apply_shift(fewer, "scaffold")


def test_graphs_without_smiles_are_rejected():
    with pytest.raises(BadInput, match=r"no SMILES.*column smiles"):
        apply_shift(pool([graph(3, 4) for _ in range(6)]), "scaffold")


def test_molecules_keep_their_smiles(tmp_path):
    data = as_data(tmp_path, BENZENES)
    assert as_molecules(load_data(table(tmp_path, BENZENES), columns={"text": "smiles"}, need=("label",), known={}),
                        np.arange(3), "here").raw.smiles == BENZENES[:3]  # fmt: skip
    assert data.raw.smiles == BENZENES
