"""Studies of G-MAP with folds: data without duplicates, runs of all stages with a tiny encoder, and their tables."""

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from studies import gmap_fold_tables
from studies.comparisons import COMPARISONS
from studies.gmap_data import corpus, joined, pooled
from studies.gmap_folds import MEMORIES, dose_comparisons, jobs_of, masked_comparisons
from studies.pack_results import pack_all
from studies.primary import Runner
from tests.tiny import tiny_bert

LABELS = ("background", "compareorcontrast", "extends", "future", "motivation", "uses")
TINY = {"encoder.general": "models/general", "encoder.length": 16, "steps": 2, "every": 1, "batch": 4}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Folder with ACL-ARC, of which some texts are copies, a corpus and tiny models."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(list("abcdefghij"), 8)) + f" {row}" for row in range(60)]
    labels = [LABELS[row % 6] for row in range(60)]
    copies = [(f" {texts[0]} ".upper(), labels[0]), (texts[1], labels[2])]  # the second copy has another label
    rows = {"text": [*texts, *(text for text, _ in copies)], "label": [*labels, *(label for _, label in copies)]}
    rows["split"] = ["train"] * 50 + ["dev"] * 5 + ["test"] * 7
    parquet.write_table(pa.table(rows), folder / "acl_arc.parquet")
    lines = [*texts[:3], *(f"{' '.join(rng.choice(list('klmnop'), 200))} {row}" for row in range(60))]
    parquet.write_table(
        pa.table({"text": lines, "domain": ["computer science"] * len(lines)}), folder / "corpora_unlabelled.parquet"
    )
    for name in ("general", "minilm-cs-150", "minilm-cs-1500"):
        tiny_bert(folder / "models" / name)
    return folder


def test_pooled_data_has_no_copies_and_no_splits(data):
    dataset = pooled("acl-arc", data)
    # without the text with two labels
    assert (len(dataset), dataset.split, dataset.domains) == (59, None, ("acl-arc",))


def test_corpora_have_fixed_splits_and_no_texts_of_the_data_set(data):
    dataset = corpus("computer science", data)
    assert np.bincount(dataset.split).tolist() == [54, 3, 3]
    assert not any("a" in str(text) for text in dataset.raw.take(np.arange(len(dataset))))


def test_neighbouring_texts_are_joined():
    assert joined(["aa", "bb", "cccccc", "d"], 6) == ["aa bb", "cccccc", "d"]


def test_corrected_intervals_are_wider():
    a, b = [3.0, 1.0, 2.0, 4.0, 2.5], [1.0] * 5
    spread = np.std(np.subtract(a, b), ddof=1)
    half = 2.7764451 * spread * math.sqrt(1 / 5 + 1 / 4)
    assert gmap_fold_tables.corrected(a, b).startswith(f"+1.50 ({1.5 - half:+.2f} to {1.5 + half:+.2f}), p ")


@pytest.mark.slow
def test_runs_of_all_stages_fill_the_tables(data, tmp_path, monkeypatch):
    primary = COMPARISONS["gmap-acl-arc"]
    assert primary.seeds == 15  # three partitions in five folds
    chosen = {"gmap-dose-minilm-acl-arc-150": dose_comparisons("minilm", COMPARISONS)["gmap-dose-minilm-acl-arc-150"]}
    chosen |= {"gmap-masked-minilm-cs": masked_comparisons("minilm")["gmap-masked-minilm-cs"]}
    small = {
        name: replace(each, settings={**each.settings, **TINY}, seeds=2, device="cpu") for name, each in chosen.items()
    }
    monkeypatch.chdir(data)
    runner = Runner(data, tmp_path, small)
    for name, comparison in small.items():
        stage = name.split("-")[1]
        for job in jobs_of(stage, {name: comparison}, {name: dict.fromkeys(comparison.rows, 1e-3)}):
            runner.run(job)
    pack_all(tmp_path)
    (line,) = gmap_fold_tables.dose(tmp_path)[2:]
    assert line.startswith("| acl-arc, minilm | 150 |")
    (line,) = gmap_fold_tables.masked(tmp_path)[2:]
    assert line.startswith("| cs, minilm | 2 |")
    assert len(line.split("|")) - 2 == 2 + len(MEMORIES) + 3
