"""User-supplied graphs: compare over a shift or over files, fit, predict, and errors."""

import csv

import pytest

from tests.graphs import rings_and_stars, write_zip

pytestmark = pytest.mark.graph
SMALL = ["--set", "encoder.hidden=8", "--set", "encoder.layers=2", "--batch", 8]


def targets(ran) -> set[str]:
    return {cell["target"] for cell in ran.json["table"]} - {"average", "worst"}


def test_size_shift_with_an_augmentation(holdfast, tmp_path):
    write_zip(tmp_path / "shapes.zip", rings_and_stars(80))
    words = ["--plan", "given", "--metric", "mcc", "--methods", "erm,irm,g-mixup", "--seeds", 1, "--steps", 6]
    ran = holdfast(
        "compare", "--no-baselines", "shapes.zip@shift=size", *words, *SMALL, "--set", "augment=drop-edge", "--json"
    )
    assert ran.code == 0, ran.err
    assert targets(ran) == {"large"}
    assert {record["spec"]["data"] for record in ran.json["records"]} == {"shapes@shift=size"}
    assert any("graphs outside the ranges" in note for note in ran.json["notes"])


def test_files_are_domains_and_the_model_accepts_larger_graphs(holdfast, tmp_path):
    folder = tmp_path / "shapes"
    folder.mkdir()
    write_zip(folder / "near.zip", rings_and_stars(24))
    write_zip(folder / "far.zip", rings_and_stars(24, first=9))
    ran = holdfast(
        "compare", "--no-baselines", folder, "--methods", "erm", "--seeds", 1, "--steps", 6, *SMALL, "--json"
    )
    assert ran.code == 0, ran.err
    assert targets(ran) == {"near", "far"}
    assert holdfast("fit", folder, "--steps", 6, *SMALL, "--out", "model").code == 0
    write_zip(tmp_path / "new.zip", rings_and_stars(10, first=40))  # degrees that no training graph had
    done = holdfast("predict", "model", "new.zip", "--out", "labels.csv")
    assert done.code == 0, done.err
    assert len(list(csv.DictReader((tmp_path / "labels.csv").read_text().splitlines()))) == 10
