"""The table of published data sets: every row is complete, and the catalog lists exactly these names."""

import subprocess
import sys

import pytest

from holdfast import catalog
from holdfast.core.errors import Absent, BadInput
from holdfast.data.known import table
from holdfast.data.known.base import KnownSet
from holdfast.data.load import load_data
from holdfast.data.registry import READERS

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


@pytest.mark.parametrize("name", [name for name in table() if name not in DOWNLOADED])
def test_missing_files_are_reported_with_home_and_folder(name, tmp_path):
    for folder in (None, tmp_path):
        with pytest.raises(Absent, match=f"the data set {name} ") as error:
            load_data(name, data_dir=folder)
        assert KnownSet.of(name).home in str(error.value)
        assert (str(tmp_path) if folder else "--data-dir") in str(error.value)


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
