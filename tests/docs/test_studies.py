"""Generated tables of docs/studies and docs/benchmarks.md equal what the records in results/ give."""

import json
import re

import pytest

from studies import mil
from studies.build import DOCS, TABLES, block, blocks
from studies.tables import RESULTS

NAMES = [(page, name) for page, tables in TABLES.items() for name in tables]


@pytest.mark.parametrize(("page", "name"), NAMES, ids=["/".join(pair) for pair in NAMES])
def test_table_equals_its_records(page, name):
    lines = TABLES[page][name]()
    assert len(lines) >= 3
    assert block(name, lines) in (DOCS / f"{page}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", TABLES)
def test_page_shows_every_table_once_and_stays_short(page):
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    assert sorted(blocks(text)) == sorted(TABLES[page])
    assert text.count("\n") <= 400 or "studies" not in str(page)


def test_every_mil_row_has_five_seeds_on_every_target():
    for study, targets in (("amazon", 4), ("mnli", 5), ("amazon-cross", 2), ("mnli-cross", 2)):
        for row, runs in mil.runs(study).items():
            assert len(runs) == 5 * targets, (study, row)


def test_bold_findings_of_gmoe_equal_its_tables():
    text = " ".join((DOCS / "studies/gmoe.md").read_text(encoding="utf-8").split())
    for table in ("chosen-tiny-imagenet", "chosen-dinov2-shape", "longer"):
        (row,) = (line for line in TABLES["studies/gmoe"][table]() if line.startswith("| GMoE |"))
        value, low, high = re.findall(r"([+-]\d\.\d\d) \(([+-]\d\.\d\d) to ([+-]\d\.\d\d)\)", row)[0]
        assert f"{value} ({low} to {high}, " in text


def test_overlap_of_corpora_and_data_sets_is_what_was_counted():
    counted = json.loads((RESULTS / "gmap" / "overlap.json").read_text(encoding="utf-8"))["sets"]
    inside = {name: {k: v["in the corpus"] for k, v in data["splits"].items()} for name, data in counted.items()}
    complete = [
        (name, split)
        for name, data in counted.items()
        for split, counts in data["splits"].items()
        if counts["texts"] == counts["in the corpus"]
    ]
    assert complete == [("acl-arc", "train"), ("scierc", "dev"), ("scierc", "train"), ("ag-news", "train")]
    text = " ".join((DOCS / "studies/gmap.md").read_text(encoding="utf-8").split())
    assert f"all {inside['ag-news']['train']:,} of AG News" in text
    assert f"the {inside['acl-arc']['test']} of ACL-ARC that also train, {inside['imdb']['test']} of IMDB's" in text
    assert f"{inside['ncbi-disease']['test']} sentences of NCBI-disease" in text
    assert not any(inside[name]["test"] for name in ("chemprot", "scierc", "ag-news", "conll2003"))
