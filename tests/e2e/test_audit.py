"""holdfast audit, as a user calls it."""

import pytest

import holdfast as library
from tests.e2e.conftest import write_reviews


@pytest.fixture
def leaky(tmp_path):
    """Reviews with a split, a copy of a training row in test, a nearly equal row, and a row with the other label."""
    path = write_reviews(tmp_path / "leaky.csv", size=20)
    head, *rows = path.read_text().splitlines()
    texts = list(dict.fromkeys(row.rpartition(",")[0].rpartition(",")[0] for row in rows))
    lines = [f'"review {i} says {text[1:-1]}",pos,books,train' for i, text in enumerate(texts[:40])]
    lines += [f'"report {i} says {text[1:-1]}",neg,films,train' for i, text in enumerate(texts[:40])]
    said = "a long and winding sentence about things that nobody else would ever think of saying"
    lines += [f'"{said}",pos,books,train', f'"{said}",pos,films,test', f'"{said}!",pos,books,train']
    lines += [f'"{said} twice",pos,books,train', '"what now",pos,films,train', '"what now",neg,films,train']
    path.write_text("\n".join([f"{head},split", *lines]) + "\n")
    return path


def test_audit_for_people_and_machines(holdfast, leaky, tmp_path):
    before = leaky.read_bytes()
    ran = holdfast("audit", "leaky.csv", "--clean", "clean.csv", "--out", "page.html")
    assert ran.code == 0, ran.err
    assert "Of 1 test rows 1 are also in train:" in ran.out
    assert "2 rows share their input with a row of another label" in ran.out
    assert "Inputs apart" in ran.out
    assert "report: page.html" in ran.err
    page = (tmp_path / "page.html").read_text()
    assert "http://" not in page.split("</style>")[1].rsplit("</script>", 2)[2]
    assert "What the shift costs" in page
    told = holdfast("audit", "leaky.csv", "--json").json
    assert told["duplicates"] == 2
    assert {"books", "films"} == {each["domain"] for each in told["domains"]}
    kept = (tmp_path / "clean.csv").read_text().splitlines()
    assert len(kept) - 1 == told["examples"] - len(told["dropped"])
    assert leaky.read_bytes() == before
    again = holdfast("audit", "clean.csv", "--json").json
    assert again["duplicates"] == 0
    assert again["dropped"] == []
    assert library.audit("leaky.csv").json()["headline"] == told["headline"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere.csv"], "is neither a file, nor a folder, nor a known data set"),
        (["reviews.csv", "--near", "3"], "from 0.7 to 1"),
        (["reviews.csv", "--clean", "clean.txt"], "name a file that ends in"),
        (["reviews.csv", "--clean", "reviews.csv"], "would write over the data"),
        (["reviews.csv", "--out", "./reviews.csv"], "would write over the data"),
        (["reviews.csv", "--task", "clasify"], "did you mean 'classify'"),
        (["reviews.csv", "--column", "domain=shop"], "has no column 'shop'"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_bad_input_is_one_sentence_and_exit_code_2(holdfast, reviews, words, said):
    ran = holdfast("audit", *words)
    assert ran.code == 2
    assert said in ran.err
    assert ran.err.count("\n") == 1
