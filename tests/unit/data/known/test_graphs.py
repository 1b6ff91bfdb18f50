"""Published sets of graphs and molecules: file names, folds, sizes."""

from dataclasses import replace

import numpy as np
import pytest

from holdfast.core.errors import BadInput
from holdfast.data.known import table
from holdfast.data.known.base import KnownSet
from holdfast.data.load import load_data
from tests.graphs import rings_and_stars, text_form, write_layout, write_zip

SETS = [name for name, row in table().items() if row["reader"] == "graphs:read_graph_set"]
MOLECULES = [name for name, row in table().items() if row["reader"] == "graphs:read_molecule_set"]


@pytest.mark.parametrize("name", SETS)
def test_set_is_read_by_its_name(tmp_path, name):
    known = KnownSet.of(name)
    write_zip(tmp_path / f"{known.files[0].replace('-', '')}.zip", rings_and_stars(20), folds=True)
    found = load_data(name, data_dir=tmp_path)
    assert (found.name, found.domains, len(found)) == (name, (name,), 20)
    (note,) = found.notes
    assert f"20 instead of {known.sizes['all']:,}" in note
    assert found.split is None
    marked = load_data(f"{name}@fold=2", data_dir=tmp_path)
    assert marked.split is not None
    assert np.flatnonzero(marked.split == 2).tolist() == [1, 11]


def test_folder_or_text_file_is_read(tmp_path):
    write_layout(tmp_path / "NCI1", "NCI1", rings_and_stars(6))
    (tmp_path / "PROTEINS.txt").write_text(text_form(rings_and_stars(8)))
    assert len(load_data("nci1", data_dir=tmp_path)) == 6
    assert len(load_data("proteins", data_dir=tmp_path)) == 8


def test_published_size_needs_no_note(tmp_path):
    write_zip(tmp_path / "NCI1.zip", rings_and_stars(6))
    assert replace(KnownSet.of("nci1"), sizes={"all": 6}).load_reader()(data_dir=tmp_path).notes == ()


@pytest.mark.parametrize("name", [*SETS, *MOLECULES])
def test_missing_file_is_reported_with_its_format(tmp_path, name):
    with pytest.raises(BadInput) as error:
        load_data(name, data_dir=tmp_path)
    assert ("smiles, label" in str(error.value)) == (name in MOLECULES)
    assert ("pickles" in str(error.value)) == (name in ("graph-sst5", "graph-twitter"))


@pytest.mark.molecules
def test_molecules_are_read_from_their_table_or_a_shared_one(tmp_path):
    (tmp_path / "bace.csv").write_text("smiles,label,split\nC,1,train\nCC,0,valid\nCCC,0,test\n")
    found = load_data("bace", data_dir=tmp_path)
    assert found.domains == ("bace",)
    assert found.split.tolist() == [0, 1, 2]
    assert "train 1 instead of 1,210, valid 1 instead of 151, test 1 instead of 152" in found.notes[0]
    (tmp_path / "bace.csv").unlink()
    rows = "\n".join(["smiles,label,domain", "C,1,hiv", "CC,0,bace", "CCC,1,bace", "no molecule,1,hiv"])
    (tmp_path / "molecules.csv").write_text(rows)
    found = load_data("bace", data_dir=tmp_path)  # rows of other sets are not parsed
    assert [len(g.nodes) for g in found.raw.take(np.arange(2))] == [2, 3]
    assert found.domains == ("bace",)
    with pytest.raises(BadInput, match=r"domain bbbp.*hiv, bace"):
        load_data("bbbp", data_dir=tmp_path)
