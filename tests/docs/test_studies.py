"""Numbers of the documents equal the records in results/ and the constants of the code."""

import json
import re
from pathlib import Path

import pytest

from holdfast.auditing.audit import SAMPLE
from holdfast.auditing.near import BANDS, BITS, CORRELATION, LONGEST, ROWS, WIDTH
from holdfast.auditing.shift import MAX_ROWS, MIN_ROWS
from studies import mil
from studies.build import DOCS, FILES, MOST_ROWS, TABLES, blocks, build
from studies.tables import RESULTS

ROOT = Path(__file__).resolve().parents[2]
WORDS = 1200  # of a study, at most


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_generated_tables_equal_their_records(path):
    text = path.read_text(encoding="utf-8")
    page, files = build(path, text)
    assert page == text, "run `python -m studies.build`"
    assert sorted(blocks(text)) == sorted(FILES[path])
    for file, content in files.items():
        assert content.count("\n") > 1
        assert file.read_text(encoding="utf-8") == content, f"{file.name}: run `python -m studies.build`"
    for name in re.findall(r"<!-- table: (.+) -->", text):
        lines = FILES[path][name]()
        assert len(lines) - 2 <= MOST_ROWS or "" in lines, f"link the table {name} as a file"


def test_no_other_csv_files_are_stored():
    linked = {name for page in DOCS.rglob("*.md") for name in re.findall(r"\(csv/(.+?)\)", page.read_text())}
    assert {path.name for path in DOCS.rglob("csv/*")} == linked


@pytest.mark.parametrize("page", sorted((DOCS / "studies").glob("*.md")), ids=lambda page: page.stem)
def test_studies_stay_short(page):
    assert len(re.sub(r"<!--.*?-->", "", page.read_text(encoding="utf-8")).split()) <= WORDS


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


TEXT = " ".join((ROOT / "docs/audit.md").read_text().split())


def test_constants_on_the_page_are_those_of_the_code():
    assert f"sequences of {WIDTH} characters" in TEXT
    missed = [(1 - s**ROWS) ** BANDS for s in (0.8, 0.7)]
    assert f"{BANDS} bands of {ROWS} rows, which misses {round(10000 * missed[0])} in 10,000" in TEXT
    assert f"{round(1000 * missed[1])} in 1,000" in TEXT
    assert f"first {LONGEST:,} characters" in TEXT
    assert f"within {BITS} of 64 bits" in TEXT
    assert f"at least {CORRELATION}" in TEXT
    assert f"at most {SAMPLE:,} rows per domain ({10 * SAMPLE:,} in total), distances at most {MAX_ROWS:,}" in TEXT
    assert f"fewer than {MIN_ROWS} distinct rows" in TEXT


SECTIONS = {"kills": "kills", "faults": "cases", "inputs": "inputs"}  # section -> count in its record


@pytest.mark.parametrize("section", SECTIONS)
def test_figures_are_those_of_the_record(section):
    record = json.loads((ROOT / "results" / "soak" / f"{section}.json").read_text(encoding="utf-8"))
    text = " ".join((ROOT / "docs" / "security.md").read_text(encoding="utf-8").split())
    count, failures = record[SECTIONS[section]], len(record["failures"])
    assert f"{count:,} {section} in {record['seconds']:,.0f} seconds, {failures} failures" in text


def test_kills_reach_every_command_that_writes():
    record = json.loads((ROOT / "results" / "soak" / "kills.json").read_text(encoding="utf-8"))
    assert {"fit", "compare", "adapt", "rollback", "export", "watch"} <= record["commands"].keys()
    assert all(each["kills"] >= 20 for each in record["commands"].values())
