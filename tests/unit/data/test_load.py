"""`load_data`: names, files, folders and settings after an @."""

import numpy as np
import pytest
from PIL import Image

from holdfast.core.errors import BadInput
from holdfast.data.load import load_data
from holdfast.data.synthetic import world
from tests.graphs import rings_and_stars, text_form, write_zip

CSV = "words,label,domain\na,x,d\nb,y,e\n"


def toy(*, data_dir=None):
    made = world("vector", "none", size=5)
    return made if data_dir is None else made.subset(np.arange(3))


def test_known_name_takes_precedence_over_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy").mkdir()
    assert len(load_data("toy", known={"toy": toy})) == 20
    assert len(load_data("toy", known={"toy": toy}, data_dir=tmp_path)) == 3


def test_table(tmp_path):
    (tmp_path / "data.csv").write_text(CSV)
    path = tmp_path / "data.csv"
    assert load_data(str(path), columns={"text": "words"}, known={}).domains == ("d", "e")
    assert load_data(path, columns={"text": "words", "label": ""}, need=(), known={}).classes == ()
    with pytest.raises(BadInput, match="no text column"):
        load_data(path, known={})


def test_folder_of_images(tmp_path):
    for name in ("d/x", "d/y"):
        (tmp_path / name).mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(tmp_path / name / "a.png")
    assert load_data(tmp_path, known={}).classes == ("x", "y")
    with pytest.raises(BadInput, match="no columns"):
        load_data(tmp_path, columns={"text": "a"}, known={})


def test_missing_data_is_reported_with_suggestions(tmp_path):
    with pytest.raises(BadInput, match=r"'vadr' .*did you mean 'vader'\?"):
        load_data("vadr", known={"vader": toy})
    with pytest.raises(BadInput, match=r"did you mean 'imdb-b' or 'imdb'\? `holdfast list datasets`"):
        load_data("imdb-", known=dict.fromkeys(("imdb", "vader", "imdb-b"), toy))
    many = dict.fromkeys((f"set {i}" for i in range(50)), toy)
    with pytest.raises(BadInput, match=r"check the path; `holdfast list datasets`") as refused:
        load_data("/no/such/file.csv", known=many)
    assert len(str(refused.value)) < 200
    (tmp_path / "data.ods").write_text("x")
    with pytest.raises(BadInput, match=r"suffix '\.ods'.*\.csv.*\.npz"):
        load_data(tmp_path / "data.ods", known={})


def test_graph_files(tmp_path):
    path = write_zip(tmp_path / "shapes.zip", rings_and_stars(40), folds=True)
    assert load_data(path, known={}).raw.kind == "graph"
    assert load_data(tmp_path, known={}).domains == ("shapes",)  # a folder with one file
    with pytest.raises(BadInput, match="holds graphs, which have no columns"):
        load_data(path, columns={"text": "a"}, known={})


def test_settings_after_an_at_sign(tmp_path):
    path = write_zip(tmp_path / "shapes.zip", rings_and_stars(40), folds=True)
    found = load_data(f"{path}@shift=size", known={})
    assert found.name == "shapes@shift=size"
    assert found.domains == ("small-1", "small-2", "large")
    # settings of earlier versions with the only value that is left
    assert load_data(f"{path}@shift=size,environments=2,group=quantile", known={}).domains == found.domains
    odd = tmp_path / "odd@shift=size.txt"  # a name with an @ is that file
    odd.write_text(text_form(rings_and_stars(4)))
    assert len(load_data(str(odd), known={})) == 4


def test_settings_of_a_known_set():
    def toy(*, data_dir=None, size=5):
        return world("vector", "none", size=size)

    assert len(load_data("toy@size=7", known={"toy": toy})) == 28
    with pytest.raises(BadInput, match="unknown setting of toy 'sise': did you mean 'size'"):
        load_data("toy@sise=7", known={"toy": toy})
    with pytest.raises(BadInput, match="unknown setting of toy 'data_dir'"):
        load_data("toy@data_dir=7", known={"toy": toy})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("shift", "'shift' .*KEY=VALUE"),
        ("environments=3", "unknown setting of .* 'environments': known: shift"),
        ("shifts=size", "did you mean 'shift'"),
    ],
)
def test_invalid_settings_are_rejected(tmp_path, text, message):
    path = write_zip(tmp_path / "shapes.zip", rings_and_stars(20))
    with pytest.raises(BadInput, match=message):
        load_data(f"{path}@{text}", known={})
