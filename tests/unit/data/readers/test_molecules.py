"""Molecules: SMILES as graphs, their features, the cache and scaffolds."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from holdfast.core.errors import BadInput
from holdfast.data.load import load_data
from holdfast.data.readers import molecules as module
from holdfast.data.readers import smiles
from holdfast.data.readers.molecules import (
    as_molecules,
    by_scaffold,
    molecules,
    read_molecules,
    scaffolds,
    smiles_column,
)
from holdfast.data.readers.smiles import ATOM, BOND
from holdfast.data.shifts import apply_shift
from tests.unit.data.test_shifts import graph, pool

pytestmark = pytest.mark.molecules
TABLE = "smiles,label,domain,split\nCCO,1,a,train\nc1ccccc1,0,b,test\nC,0,a,valid\n"


def test_code_tables_have_the_published_sizes():
    assert [len(values) + 1 for values in ATOM.values()][:7] == [119, 5, 12, 12, 10, 6, 6]
    assert list(ATOM)[7:] == ["aromatic", "ring"]
    assert [len(values) for values in BOND.values()] == [4, 6, 2]


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


def test_aromatic_ring_salt_and_unusual_valence():
    ring, salt, metal = molecules(["c1ccccc1", "[Na+].[Cl-]", "O=C1O[Al]23(OC1=O)(OC(=O)C(=O)O2)OC(=O)C(=O)O3"])
    assert ring.nodes[:, 7:].tolist() == [[1, 1]] * 6
    assert ring.weights[:, 0].tolist() == [3] * 12
    assert salt.edges.shape == (2, 0)
    assert salt.weights.shape == (0, 3)
    assert salt.nodes[:, 3].tolist() == [6, 4]
    assert len(metal.nodes) == 19


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


def test_invalid_smiles_are_reported_with_their_row(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(TABLE.replace("c1ccccc1", "c1ccc"))
    with pytest.raises(BadInput, match=r"a\.csv, row 2: 'c1ccc'"):
        read_molecules(path, "smiles")


def test_missing_rdkit_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "rdkit", None)
    with pytest.raises(BadInput, match=r"pip install 'holdfast\[molecules\]'"):
        molecules(["C"])


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
    found = load_data(f"{path}@shift=scaffold", known={})  # no column of domains is needed
    assert found.domains == ("common-1", "common-2", "rarer", "rare")
    assert [len(found.rows_of(name)) for name in found.domains] == [4, 4, 1, 2]
    assert [set(found.split[found.rows_of(name)].tolist()) for name in found.domains] == [{0}, {0}, {1}, {2}]
    assert found.y.tolist() == [i % 2 for i in range(len(texts))]


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


TEXTS = ["CCO", "c1ccccc1", "C", "N[C@@H](C)C(=O)O", "C/C=C/C", "[Na+].[Cl-]", "F[P](F)(F)(F)(F)F", "OCC#N"] * 3


def _assert_equal(a: smiles.Parsed, b: smiles.Parsed) -> None:
    for x, y in zip(a, b, strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("executable", [sys.executable, "false"])  # the work of a dead process is done here
def test_several_processes_parse_as_one_does(monkeypatch: pytest.MonkeyPatch, executable) -> None:
    monkeypatch.setattr(smiles, "PER_PROCESS", 8)
    monkeypatch.setattr(smiles, "cores", lambda: 3)
    monkeypatch.setattr(smiles.sys, "executable", executable)
    texts = [*TEXTS[:10], "not a molecule", *TEXTS[10:]]
    parsed = smiles.parse_all(texts)
    _assert_equal(parsed, smiles.parse(texts))
    assert parsed.atom_counts[10] == 0


def test_a_process_does_not_import_torch() -> None:
    code = "import holdfast.data.readers.smiles, sys; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_parsed_molecules_are_stored_and_read_again(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))
    expected = module.molecules(TEXTS)
    assert not list(tmp_path.iterdir())  # too few to store
    monkeypatch.setattr(module, "CACHED", 3)
    calls = []
    parse_all = module.parse_all
    monkeypatch.setattr(module, "parse_all", lambda texts: calls.append(1) or parse_all(texts))
    for _ in range(2):
        for a, b in zip(module.molecules(TEXTS), expected, strict=True):
            assert a.weights is not None
            assert b.weights is not None
            assert torch.equal(a.nodes, b.nodes)
            assert torch.equal(a.edges, b.edges)
            assert torch.equal(a.weights, b.weights)
    assert len(calls) == 1
    (file,) = (tmp_path / "molecules").glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-9])
    module.molecules(TEXTS)
    assert len(calls) == 2
    module.molecules(TEXTS)
    assert len(calls) == 2
    with pytest.raises(BadInput, match="row 25: 'not a molecule' is not a molecule in SMILES"):
        module.molecules([*TEXTS, "not a molecule"])


def test_a_cache_that_cannot_be_written_is_reported(tmp_path, monkeypatch, caplog) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("HOLDFAST_CACHE", str(blocked))
    monkeypatch.setattr(module, "CACHED", 3)
    assert len(module.molecules(TEXTS)) == len(TEXTS)
    assert "cannot be written, so the next run parses the molecules again" in caplog.text
