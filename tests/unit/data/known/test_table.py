"""The table of published data sets: every row is complete, the catalog lists these names, and tables are read."""

import subprocess
import sys

import pandas as pd
import pytest

from holdfast import catalog
from holdfast.core.errors import Absent, BadInput
from holdfast.data.known import table
from holdfast.data.known.known_set import KnownSet
from holdfast.data.load import load_data
from holdfast.data.registry import READERS
from holdfast.train.training_data import training_data

DOWNLOADED = ("vader",)


@pytest.mark.parametrize("name", table())
def test_every_row_has_a_reader_a_home_and_a_description(name):
    known = KnownSet.of(name)
    assert callable(known.load_reader())
    assert known.about
    assert known.home.startswith("http") or name in DOWNLOADED
    assert catalog.DATASETS[name].about == known.about
    assert known.files


def test_the_catalog_lists_the_table():
    assert set(table()) <= set(catalog.DATASETS)
    assert len(table()) == 55


LAYOUTS = {  # reader -> what the file or folder must hold
    "read_texts": "label (", "read_table_set": "with the columns ", "read_tag_set": "tokens, tags",
    "read_question_set": "answer_start", "read_text_corpus": ".txt, with one text per line", "read_graph_set": ".zip",
    "read_molecule_set": "smiles, label", "read_colored_mnist": "mnist.npz", "read_domain_folders": "DOMAIN/CLASS/FILE",
    "read_split_folders": "/SPLIT/CLASS/FILE", "read_camelyon": "camelyon17_v1.0 with metadata.csv",
    "read_fmow": "with rgb_metadata.csv",
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in table() if name not in DOWNLOADED])
def test_missing_files_are_reported_with_home_folder_and_layout(name, tmp_path):
    known = KnownSet.of(name)
    for folder in (None, tmp_path):
        with pytest.raises(Absent, match=f"the data set {name} ") as error:
            load_data(name, data_dir=folder)
        message = str(error.value)
        for part in (known.home, str(tmp_path) if folder else "--data-dir", LAYOUTS[known.reader.partition(":")[2]]):
            assert part in message
        assert ("premise, hypothesis" in message) == bool(known.options.get("pairs"))
        assert ("pickles" in message) == (name in ("graph-sst5", "graph-twitter"))


def test_reading_a_csv_imports_no_published_data_set(tmp_path):
    path = tmp_path / "reviews.csv"
    path.write_text("text,label,domain\na,1,x\nb,0,y\n")
    code = (
        "import sys, holdfast\n"
        f"assert len(holdfast.load_data({str(path)!r})) == 2\n"
        "print([name for name in sys.modules if name.startswith('holdfast.data.known.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_plugin_data_sets_are_loaded_by_name(monkeypatch):
    def broken(name, group):
        raise ImportError("no module")

    class Point:
        name, value = "toy", "toys:read"

        @staticmethod
        def load():
            return broken("toy", "")

    monkeypatch.setattr("holdfast.data.registry._plugins", lambda: {"toy": Point})
    assert "toy" in READERS
    with pytest.raises(BadInput, match=r"'toy'.*toys:read.*ImportError"):
        load_data("toy")
    monkeypatch.setattr(Point, "load", staticmethod(lambda: lambda *, data_dir: data_dir))
    assert READERS["toy"](data_dir=3) == 3


def test_heart_disease_has_two_classes_and_four_hospitals(tmp_path):
    hospitals = ["Cleveland", "Hungary", "Switzerland", "VA Long Beach"]
    rows = [
        {"id": i, "age": 40 + i % 7, "chol": None if i % 3 else 200 + i % 9, "sex": ["Male", "Female"][i % 2],
         "hospital": hospitals[i % 4], "num": i // 4 % 5}
        for i in range(40)
    ]  # fmt: skip
    pd.DataFrame(rows).to_csv(tmp_path / "heart_disease_uci.csv", index=False)
    dataset = KnownSet.of("heart-disease").load_reader()(data_dir=tmp_path)
    assert dataset.classes == ("healthy", "disease")
    assert dataset.domains == ("cleveland", "hungary", "switzerland", "va-long-beach")
    assert dataset.y.tolist() == [int(row["num"] > 0) for row in rows]
    assert dataset.columns == ("age", "chol", "sex")
    assert dataset.raw.kind == "table"


def test_cars_are_a_regression_on_three_continents(tmp_path):
    continents = ["usa", "europe", "japan"]
    rows = [
        {"mpg": 15 + i / 4, "cylinders": 4 + 2 * (i % 3), "horsepower": None if i == 4 else 70 + i, "model_year": 70,
         "origin": continents[i % 3], "name": f"car number {i}"}
        for i in range(60)
    ]  # fmt: skip
    pd.DataFrame(rows).to_csv(tmp_path / "mpg.csv", index=False)
    dataset = training_data("cars", data_dir=tmp_path)
    assert dataset.task == "regress"
    assert dataset.targets.tolist() == [row["mpg"] for row in rows]
    assert dataset.domains == ("usa", "europe", "japan")
    assert dataset.columns is not None
    assert "name" not in dataset.columns
