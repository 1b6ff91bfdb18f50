"""The audit command: its output, the commands that it recommends, and the order of its findings."""

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


@pytest.fixture
def leaky(tmp_path):
    """Reviews with splits, a duplicate between train and test, a near duplicate, and a label conflict."""
    path = write_reviews(tmp_path / "leaky.csv", size=20)
    head, *rows = path.read_text().splitlines()
    texts = list(dict.fromkeys(row.rpartition(",")[0].rpartition(",")[0] for row in rows))
    lines = [f'"review {i} says {text[1:-1]}",pos,books,train' for i, text in enumerate(texts[:40])]
    lines += [f'"report {i} says {text[1:-1]}",neg,films,train' for i, text in enumerate(texts[:40])]
    sentence = "a long and winding sentence about things that nobody else would ever think of saying"
    lines += [f'"{sentence}",pos,books,train', f'"{sentence}",pos,films,test', f'"{sentence}!",pos,books,train']
    lines += [f'"{sentence} twice",pos,books,train', '"what now",pos,films,train', '"what now",neg,films,train']
    path.write_text("\n".join([f"{head},split", *lines]) + "\n")
    return path


def test_audit_prints_tables_and_json(holdfast, leaky, tmp_path):
    before = leaky.read_bytes()
    ran = holdfast("audit", "leaky.csv", "--clean", "clean.csv", "--out", "page.html")
    assert ran.code == 0, ran.err
    assert "1 are also in train" in ran.out
    assert "2 rows share their input" in ran.out
    assert "Distance of inputs" in ran.out
    assert "report: page.html" in ran.err
    page = (tmp_path / "page.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page
    assert "Headroom" in page
    document = holdfast("audit", "leaky.csv", "--json").json
    assert document["duplicates"] == 2
    assert {"books", "films"} == {domain["domain"] for domain in document["domains"]}
    clean = (tmp_path / "clean.csv").read_text().splitlines()
    assert len(clean) - 1 == document["examples"] - len(document["dropped"])
    assert leaky.read_bytes() == before
    cleaned = holdfast("audit", "clean.csv", "--json").json
    assert cleaned["duplicates"] == 0
    assert cleaned["dropped"] == []
    assert library.audit("leaky.csv").json()["headline"] == document["headline"]
