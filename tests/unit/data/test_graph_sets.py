"""Published sets of graphs by their names: found under the names of their files, sizes told, homes named."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.data.known import graph_sets
from holdfast.data.known.graph_sets import BACE, GraphSet, MoleculeSet
from holdfast.data.load import load_data
from tests.graphs import rings_and_stars, text_form, write_layout, write_zip

SETS = {each.name: each for each in vars(graph_sets).values() if isinstance(each, GraphSet)}
MOLECULES = {each.name: each for each in vars(graph_sets).values() if isinstance(each, MoleculeSet)}


def test_every_set_is_in_the_catalog():
    assert len(SETS) == 11
    assert len(MOLECULES) == 3
    for name in (*SETS, *MOLECULES):
        assert catalog.DATASETS[name].target.startswith("holdfast.data.known.graph_sets:")


@pytest.mark.parametrize("name", SETS)
def test_each_is_read_by_its_name(tmp_path, name):
    write_zip(tmp_path / f"{SETS[name].official.replace('-', '')}.zip", rings_and_stars(20), folds=True)
    found = load_data(name, data_dir=tmp_path)
    assert (found.name, found.domains, len(found)) == (name, (name,), 20)
    assert found.notes == (f"{name} has not the published number of graphs: 20, not {SETS[name].size:,}",)
    assert found.split is None
    marked = load_data(f"{name}@fold=2", data_dir=tmp_path)
    assert marked.split is not None
    assert np.flatnonzero(marked.split == 2).tolist() == [1, 11]


def test_a_folder_or_one_text_file_will_do(tmp_path):
    write_layout(tmp_path / "NCI1", "NCI1", rings_and_stars(6))
    (tmp_path / "PROTEINS.txt").write_text(text_form(rings_and_stars(8)))
    assert len(load_data("nci1", data_dir=tmp_path)) == 6
    assert len(load_data("proteins", data_dir=tmp_path)) == 8


def test_the_published_size_needs_no_note(tmp_path):
    write_zip(tmp_path / "tiny.zip", rings_and_stars(6))
    assert GraphSet(name="tiny", official="tiny", size=6).read(data_dir=tmp_path).notes == ()


@pytest.mark.parametrize("name", [*SETS, *MOLECULES])
def test_an_absent_file_is_named_with_its_home(tmp_path, name):
    one = {**SETS, **MOLECULES}[name]
    for folder in (None, tmp_path):
        with pytest.raises(BadInput) as error:
            one.read(data_dir=folder)
        said = str(error.value)
        assert one.home in said
        assert (str(tmp_path) if folder else "--data-dir") in said
        assert ("smiles, label" in said) == (name in MOLECULES)


@pytest.mark.molecules
def test_molecules_from_a_table_of_their_own_or_a_shared_one(tmp_path):
    (tmp_path / "bace.csv").write_text("smiles,label,split\nC,1,train\nCC,0,valid\nCCC,0,test\n")
    found = BACE.read(data_dir=tmp_path)
    assert found.domains == ("bace",)
    assert found.split is not None
    assert found.split.tolist() == [0, 1, 2]
    assert found.notes == (
        "bace has not the published number of molecules: train 1 instead of 1,210, valid 1 instead of 151, "
        "test 1 instead of 152",
    )
    (tmp_path / "bace.csv").unlink()
    rows = "\n".join(["smiles,label,domain", "C,1,hiv", "CC,0,bace", "CCC,1,bace", "no molecule,1,hiv"])
    (tmp_path / "molecules.csv").write_text(rows)
    found = BACE.read(data_dir=tmp_path)  # rows of other sets are not even parsed
    assert [len(g.nodes) for g in found.raw.take(np.arange(2))] == [2, 3]
    assert found.domains == ("bace",)
    with pytest.raises(BadInput, match="no rows of the domain bbbp"):
        MOLECULES["bbbp"].read(data_dir=tmp_path)
