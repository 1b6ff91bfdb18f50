"""Without the package holdfast-lab the rest works, and its names are errors that name the package."""

from __future__ import annotations

import pytest

from holdfast import catalog
from holdfast.catalog import plugins
from holdfast.core.errors import LABORATORY, BadInput
from holdfast.data import registry
from holdfast.data.load import load_data
from holdfast.data.synthetic import world
from holdfast.report.page import analysis_sections
from holdfast.stats.labels import grouped
from holdfast.train.analyses import choose_analyses, report_notes
from holdfast.train.settings import make_spec
from tests.unit.report.fake_records import analysed

DATA = world("vector", "rotation", domains=3, size=40, classes=2, seed=0)
ABSENT = "comes with the package holdfast-lab"


@pytest.fixture
def no_laboratory(clean_catalog, monkeypatch):
    """Hide the entries of installed packages."""
    monkeypatch.setattr(plugins, "entry_points", lambda **_: ())
    monkeypatch.setattr(registry, "_plugins", dict)
    for entries in plugins.MAPPED_SECTIONS.values():
        for name in [name for name, entry in entries.items() if not entry.target.startswith("holdfast.")]:
            monkeypatch.delitem(entries, name)


@pytest.mark.usefixtures("no_laboratory")
def test_names_of_the_laboratory_are_errors():
    for section, kind in (("analyses", "analysis"), ("encoders", "encoder"), ("tasks", "task")):
        for name in LABORATORY[kind]:
            with pytest.raises(BadInput, match=f"{kind} '{name}' {ABSENT}"):
                catalog.lookup(section, name)
    with pytest.raises(BadInput, match=f"data set 'dialogue' {ABSENT}"):
        load_data("dialogue")
    with pytest.raises(BadInput, match=f"task 'respond' {ABSENT}"):
        make_spec(DATA, settings={"task": "respond"})
    with pytest.raises(BadInput, match=f"analysis 'slot-map' {ABSENT}"):
        choose_analyses(["a-distance", "slot-map"])


@pytest.mark.usefixtures("no_laboratory")
def test_built_in_names_work():
    assert {"a-distance", "projection"} <= set(choose_analyses(["all"]))
    assert not set(choose_analyses(["all"])) & set(LABORATORY["analysis"])
    assert make_spec(DATA).encoder == "mlp"
    with pytest.raises(BadInput, match="unknown task 'respnd'"):
        make_spec(DATA, settings={"task": "respnd"})


@pytest.mark.usefixtures("no_laboratory")
def test_results_that_cannot_be_drawn_are_noted():
    records = [analysed("erm", slot_map={"targets": ["films"]})]
    assert analysis_sections(grouped(records), "accuracy") == []
    (note,) = report_notes(records)
    assert note.startswith(f"analysis 'slot-map' {ABSENT}")
