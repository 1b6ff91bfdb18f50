"""The audit command end to end."""

import pytest

import holdfast as library
from tests.e2e.conftest import write_reviews


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


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (["nowhere.csv"], "nowhere.csv"),
        (["reviews.csv", "--near", "3"], "near"),
        (["reviews.csv", "--clean", "clean.txt"], "clean.txt"),
        (["reviews.csv", "--clean", "reviews.csv"], "reviews.csv"),
        (["reviews.csv", "--out", "./reviews.csv"], "reviews.csv"),
        (["reviews.csv", "--task", "clasify"], "classify"),
        (["reviews.csv", "--column", "domain=shop"], "shop"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_bad_input_is_one_sentence_and_exit_code_2(holdfast, reviews, arguments, fragment):
    ran = holdfast("audit", *arguments)
    assert ran.code == 2
    assert fragment in ran.err
    assert ran.err.count("\n") == 1
