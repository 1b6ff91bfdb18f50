from __future__ import annotations

import json

from holdfast.report.labels import grouped
from holdfast.report.runs import configurations, facts
from tests.unit.report.fake_records import leave_one_out


def test_every_run_is_listed_under_its_configuration():
    made = leave_one_out()
    found = configurations(grouped(made), ["reviews.csv"])
    assert [each["label"] for each in found] == ["erm", "mil"]
    listed = [line["label"] for each in found for line in each["runs"]]
    assert sorted(listed) == sorted(r.id for r in made)
    assert found[0]["runs"][0]["cells"][:3] == [("to-books", None), ("0", 0), ("20", 20)]
    settings = json.loads(found[1]["settings"])
    assert settings["method"] == "mil"
    assert "seed" not in settings


def test_facts_tell_the_values_that_occur():
    told = dict(facts(leave_one_out()))
    assert told["Seeds"] == "0, 1"
    assert told["Runs"] == "8"
    assert told["Time, all runs"] == "80 s"
