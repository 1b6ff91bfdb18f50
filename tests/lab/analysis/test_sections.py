"""Entries and sections of the analyses: presence in the report, escaping, unique ids, and what they import."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from holdfast import catalog
from holdfast.report.page import analysis_sections
from holdfast.stats.labels import grouped
from lab.analysis.catalog import ANALYSES
from tests.lab.analysis import test_general_use, test_patches, test_routing, test_slots
from tests.unit.analysis.test_projection import stored as projection
from tests.unit.report import test_sections
from tests.unit.report.drawing import SCRIPT
from tests.unit.report.fake_records import analysed
from tests.unit.report.test_page import written

SEGMENT = {"mass": [0.25, 0.75], "effective": 7.4, "entropy": 2.0, "evenness": 0.8}
RESULTS = {
    "segment-mass": {"sizes": [1, 3], "owners": [0, 1], "sources": {"a": SEGMENT}, "targets": {SCRIPT: SEGMENT}},
    "routing": test_routing.stored(),
    "general-memory": test_general_use.STORED,
    "projection-tsne": projection("features", "memory", "backbone") | {"how": "tsne"},
    "expert-agreement": test_patches.AGREEMENT,
    "expert-parts": test_patches.PART_RESULT,
    "attention-map": test_patches.ATTENTION,
    "slot-map": test_slots.stored_map(),
    "slot-map-tsne": test_slots.stored_map("tsne"),
    "slot-attention": test_slots.stored_attention(),
    "slot-diversity": test_slots.STORED_SIMILARITY,
}


def test_entries_are_in_the_catalog():
    assert set(ANALYSES) <= set(catalog.buildable_names("analyses"))
    assert all(entry.needs for entry in ANALYSES.values())


@pytest.mark.parametrize("name", ANALYSES)
def test_every_analysis_has_a_section_if_records_have_its_result(name):
    groups = grouped([analysed("erm"), analysed("mil", **{name: RESULTS[name]})])
    (section,) = analysis_sections(groups, "accuracy")
    assert section.runs
    assert analysis_sections(grouped([analysed("erm"), analysed("mil", **{name: None})]), "accuracy") == []


@pytest.mark.slow
def test_report_escapes_names_and_gives_figures_unique_ids(tmp_path):
    results = {**test_sections.RESULTS, **RESULTS}
    text = written(tmp_path, [analysed(SCRIPT, **results), *(analysed("erm", seed, **results) for seed in (0, 1))])
    assert SCRIPT not in text
    assert "b<i>" not in text
    assert "b&lt;i&gt;" in text
    ids = re.findall(r'<div class="chart[^"]*" id="([^"]+)', text)
    assert len(ids) == len(set(ids)) >= 60


def test_drawing_imports_no_torch():
    modules = {entry.target.partition(":")[0] for entry in ANALYSES.values()}
    code = f"import {', '.join(modules)}, sys; sys.exit(str({{'torch', 'sklearn'}} & sys.modules.keys() or ''))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""
