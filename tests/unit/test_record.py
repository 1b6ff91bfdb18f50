"""Run records: round trip, checks and packing."""

import json
from dataclasses import replace

import pytest

from holdfast.core.errors import Damaged
from holdfast.record import packed, read, unpacked
from tests.unit.report.fake_records import record


def test_records_survive_a_round_trip(tmp_path):
    plain = record("erm", 0, {"t": 0.5})
    analysed = replace(plain, analysis={"projection": {"grid": [[1, 2], [3, 4]]}, "memory-use": None})
    for written in (plain, analysed):
        assert read(written.save(tmp_path)) == written
        assert list(json.loads(written.text())) == sorted(json.loads(written.text()))
    assert analysed.id == plain.id  # analyses do not change the id
    assert "analysis" not in json.loads(plain.text())


def test_analyses_are_written_on_one_line():
    plain = record("erm", 0, {"t": 0.5})
    many = replace(plain, analysis={"projection": {"grid": [[0] * 100] * 100}})
    assert many.text().count("\n") == plain.text().count("\n") + 1
    assert many.text().startswith('{\n "analysis": {"projection"')


def test_engagement_is_optional(tmp_path):
    plain = record("erm", 0, {"t": 0.5})
    assert "engagement" not in json.loads(plain.text())  # the file of a plain network has no field for it
    shares = {"memory": {"share": 0.25, "predictions": 8, "null": "mean", "statistics": {"effective_slots": 3.5}}}
    measured = replace(plain, engagement=shares)
    assert read(measured.save(tmp_path)) == measured
    assert measured.id == plain.id
    assert read(plain.save(tmp_path)).engagement == {}


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("stages",), [], "stages"),
        (("cost", "seconds"), [1], "cost"),
        (("cost", "seconds"), float("nan"), "not JSON compliant"),
        (("spec", "metric"), None, "spec.metric"),
        (("code", "version"), {}, "code.version"),
        (("machine",), {}, "'torch'"),
        (("spec", "head_args"), 3, "spec.head_args"),
        (("engagement",), [], "engagement"),
        (("engagement",), {"memory": {"share": "all"}}, "share of a mechanism"),
        (("engagement",), {"memory": {}}, "'share'"),
    ],
)
def test_invalid_records_raise(tmp_path, path, value, message):
    fields = json.loads(record("erm", 0, {"t": 0.5}).text())
    del fields["checksum"]
    inner = fields
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    (tmp_path / "r.json").write_text(json.dumps(fields))
    with pytest.raises(Damaged, match=f"r.json is not a run record .*{message}"):
        read(tmp_path / "r.json")


@pytest.mark.parametrize("correct", [[], [True], [False], [False] * 9, [False, True, True, False, True], [True] * 64])
def test_correctness_survives_packing(correct):
    assert unpacked(packed(correct)) == correct
    assert len(packed(correct)) == len(correct) // 4 + 1
