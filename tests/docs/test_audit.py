"""Numbers in docs/audit.md equal the constants of the code."""

from pathlib import Path

import numpy as np

from holdfast.auditing.audit import SAMPLE
from holdfast.auditing.near import BANDS, BITS, CORRELATION, LONGEST, ROWS, WIDTH
from holdfast.auditing.shift import MAX_ROWS, MIN_ROWS
from holdfast.data.load import load_data
from studies.audit import CHARACTERS, DOMAINS, write_texts

ROOT = Path(__file__).resolve().parents[2]
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


def test_speed_is_measured_on_texts_with_all_domains_and_labels(tmp_path):
    write_texts(tmp_path / "texts.csv", 40)
    dataset = load_data(tmp_path / "texts.csv")
    assert (len(dataset), len(dataset.domains), len(dataset.classes)) == (40, DOMAINS, 2)
    assert {len(text) for text in dataset.raw.take(np.arange(40))} == {CHARACTERS}
