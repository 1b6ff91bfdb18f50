"""Every command that the audit recommends runs, and its findings are ordered by the rows they concern."""

import shlex

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import holdfast as library
from tests.e2e.conftest import write_reviews

QUICK = ["--seeds", "1", "--steps", "2", "--batch", "12", "--no-model", "--no-baselines", "--device", "cpu"]
SMALL = {
    "text": ["--encoder", "bilstm", "--set", "encoder.hidden=8", "--set", "encoder.embedding=8"],
    "image": ["--encoder", "cnn"],
    "vector": [],
}


def with_duplicates(folder, name="reviews.csv", header="text,label,domain"):
    """Reviews in which half of the rows are repeated and two rows are in conflict."""
    path = write_reviews(folder / name, size=12, header=header)
    head, *rows = path.read_text().splitlines()
    rows = [f'"number {i} {row[1:]}' for i, row in enumerate(rows) if "phones" not in row]
    rows += [row for row in rows if "books" in row]
    rows += ['"who knows",pos,books', '"who knows",neg,books']
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


def renamed(folder):
    with_duplicates(folder, "my reviews.csv", header="body,stars,shop")
    return ["my reviews.csv", "--column", "text=body", "--column", "label=stars", "--column", "domain=shop"]


def images(folder):
    rng = np.random.default_rng(0)
    for domain in ("art", "photo", "sketch"):
        for label in ("cat", "dog"):
            place = folder / "images" / domain / label
            place.mkdir(parents=True)
            for i in range(6):
                Image.fromarray(rng.integers(0, 255, (16, 16, 3)).astype(np.uint8)).save(place / f"{i}.png")
            (place / "again.png").write_bytes((place / "0.png").read_bytes())
    return ["images"]


def imbalanced_vectors(folder):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(120, 3)), columns=["a", "b", "c"])
    frame["label"], frame["domain"] = np.where(np.arange(120) % 12, "no", "yes"), np.repeat(["x", "y", "z"], 40)
    frame.to_csv(folder / "numbers.csv", index=False)
    return ["numbers.csv"]


def two_domains(folder):
    path = with_duplicates(folder)
    lines = [line for line in path.read_text().splitlines() if "shoes" not in line]
    path.write_text("\n".join(lines) + "\n")
    return ["reviews.csv"]


CASES = {
    "clean table": (renamed, "text", ".parquet"),
    "two domains": (two_domains, "text", ".jsonl"),
    "images": (images, "image", ".csv"),
    "imbalanced vectors": (imbalanced_vectors, "vector", ".csv"),
}


@pytest.mark.parametrize("case", CASES)
def test_recommended_command_runs(holdfast, tmp_path, case):
    write, kind, suffix = CASES[case]
    words = write(tmp_path)
    table = tmp_path / f"clean{suffix}"
    document = holdfast("audit", *words, "--clean", table, "--json").json
    program, *arguments = shlex.split(document["command"])
    assert program == "holdfast"
    assert document["advice"][-1] == f"Try: {document['command']}"
    assert (str(table) in arguments) == (case != "images")  # a list of images is not data
    assert ("macro_f1" in arguments) == (case == "imbalanced vectors")
    ran = holdfast(*arguments, *QUICK, *SMALL[kind])
    assert ran.code == 0, ran.err


def test_no_command_is_recommended_that_would_fail(holdfast, tmp_path):
    path = with_duplicates(tmp_path)
    frame = pd.read_csv(path)
    frame["label"] = frame["domain"]  # no domain has a label that the others have
    frame.to_csv(path, index=False)
    document = holdfast("audit", path.name, "--json").json
    assert document["command"] is None
    assert "books" in document["advice"][-1]
    assert holdfast("compare", path.name, *QUICK, *SMALL["text"]).code == 2


def test_findings_are_ordered_by_the_rows_they_concern(holdfast, tmp_path):
    path = with_duplicates(tmp_path)
    ran = holdfast("audit", path.name)
    order = ["13 of 50 rows (26%) repeat", "2 rows share their input", "A table without duplicates", "Headroom  "]
    positions = [ran.out.index(text) for text in order]
    assert positions == sorted(positions)
    assert ran.err.splitlines()[-1].startswith("next: holdfast compare reviews.csv")
    command = library.audit(pd.read_csv(path)).command
    assert command.startswith("holdfast.compare(data, methods='erm,")


def test_probe_is_shown_next_to_the_comparison(holdfast, tmp_path):
    path = write_reviews(tmp_path / "reviews.csv", size=12)
    assert holdfast("compare", path.name, "--methods", "erm", *QUICK, *SMALL["text"]).code == 0
    document = holdfast("audit", path.name, "--json").json
    (row,) = document["compared"]
    assert row["label"] == "erm"
    assert set(row["scores"]) == {"books", "films", "shoes", "phones"}
    assert "compare measured erm" in document["headline"]
    path.write_text(path.read_text() + '"one more",pos,books\n')
    assert holdfast("audit", path.name, "--json").json["compared"] == []  # other data
