"""The dialogue data: two tables, dropped domains, a sample of published size, and errors for missing files."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from holdfast.core.errors import BadInput
from holdfast.data.load import load_data
from holdfast.data.splits import rows_by_domain
from lab.dialogue import data

HEAD = ["message", "response", "domain", "split"]


def write(path, rows, head=HEAD):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "cornell_pairs.csv", [[f"f{i}", f"g{i}", "cornell_movie", "all"] for i in range(20)])
    splits = ["train", "train", "train", "dev", "test"]
    rows = [[f"u{i}", f"v{i}", "ubuntu", splits[i % 5]] for i in range(30)]
    write(tmp_path / "irc_pairs.csv", [["r", "s", "rust", "new"], *rows, ["x", "y", "mediawiki", "c2"]])
    return tmp_path


def test_films_have_no_split_and_ubuntu_has_one(folder):
    found = load_data("dialogue", data_dir=folder)
    assert (found.name, found.domains, found.classes, len(found)) == ("dialogue", ("films", "ubuntu"), (), 50)
    assert set(found.y) == {-1}
    rows_of = rows_by_domain(found)
    assert not rows_of["films"].splits
    assert {kind: len(rows) for kind, rows in rows_of["ubuntu"].splits.items()} == {"train": 18, "valid": 6, "test": 6}
    pairs = found.raw.take(np.arange(50))
    assert pairs[0] == ("f0", "g0")
    assert pairs[20:] == [(f"u{i}", f"v{i}") for i in range(30)]
    assert any("20 film pairs" in note for note in found.notes)


def test_ubuntu_sample_has_the_published_size_and_is_reproducible(folder, monkeypatch):
    monkeypatch.setattr(data, "DRAWN", {"train": 5, "valid": 6, "test": 2})
    first, second = (load_data("dialogue", data_dir=folder) for _ in range(2))
    assert {kind: len(rows) for kind, rows in rows_by_domain(first)["ubuntu"].splits.items()} == {
        "train": 5, "valid": 6, "test": 2,
    }  # fmt: skip
    assert first.fingerprint == second.fingerprint
    assert any("13 of the 30 Ubuntu pairs" in note for note in first.notes)


def test_tables_without_splits_or_domains_are_read(tmp_path):
    for name in ("cornell_pairs", "irc_pairs"):
        write(tmp_path / f"{name}.csv", [[f"{name} {i}", "yes"] for i in range(6)], HEAD[:2])
    found = load_data("dialogue", data_dir=tmp_path)
    assert found.split is None
    assert [len(found.rows_of(name)) for name in found.domains] == [6, 6]


def test_bad_input(folder, tmp_path):
    with pytest.raises(BadInput, match=r"cornell.*\(films\).*cornell_pairs.csv.*--data-dir"):
        load_data("dialogue")
    (folder / "irc_pairs.csv").unlink()
    with pytest.raises(BadInput, match=r"ubuntu.*ubuntu_pairs.csv"):
        load_data("dialogue", data_dir=folder)
    write(folder / "irc_pairs.csv", [["a", "b", "rust", "new"], ["a", "b", "go", "new"]])
    with pytest.raises(BadInput, match=r"ubuntu.*rust, go"):
        load_data("dialogue", data_dir=folder)
    write(folder / "irc_pairs.csv", [["a", "ubuntu"]], ["message", "domain"])
    with pytest.raises(BadInput, match="needs message, response"):
        load_data("dialogue", data_dir=folder)
