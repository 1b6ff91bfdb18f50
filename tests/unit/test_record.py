from __future__ import annotations

import json
from dataclasses import replace

import pytest

from holdfast.core.errors import Damaged
from holdfast.record import packed, read, unpacked
from tests.unit.report.fake_records import record


def test_a_record_comes_back_as_it_was_with_and_without_analyses(tmp_path):
    plain = record("erm", 0, {"t": 0.5})
    analysed = replace(plain, analysis={"projection": {"grid": [[1, 2], [3, 4]]}, "memory-use": None})
    for made in (plain, analysed):
        assert read(made.save(tmp_path)) == made
        assert list(json.loads(made.text())) == sorted(json.loads(made.text()))
    assert analysed.id == plain.id  # what is looked at afterwards decides nothing
    assert "analysis" not in json.loads(plain.text())


def test_long_rows_of_numbers_do_not_fill_the_file_with_lines():
    plain = record("erm", 0, {"t": 0.5})
    many = replace(plain, analysis={"projection": {"grid": [[0] * 100] * 100}})
    assert many.text().count("\n") == plain.text().count("\n") + 1
    assert many.text().startswith('{\n "analysis": {"projection"')


def test_a_record_from_before_there_were_analyses_still_reads(tmp_path):
    made = record("erm", 0, {"t": 0.5})
    path = tmp_path / "old.json"
    fields = json.loads(made.text())
    fields.pop("analysis", None)
    path.write_text(json.dumps(fields))
    assert read(path).analysis == {}


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("stages",), [], "it has no stages"),
        (("cost", "seconds"), [1], "a cost is no number"),
        (("cost", "seconds"), float("nan"), "not JSON compliant"),
        (("spec", "metric"), None, "the spec's metric is no name"),
        (("code", "version"), {}, "the code's version is no name"),
        (("machine",), {}, "'torch'"),
        (("spec", "head_args"), 3, "the spec's head_args is no dict"),
    ],
)
def test_a_record_of_another_form_is_told(tmp_path, path, value, said):
    fields = json.loads(record("erm", 0, {"t": 0.5}).text())
    del fields["checksum"]
    inner = fields
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    (tmp_path / "r.json").write_text(json.dumps(fields))
    with pytest.raises(Damaged, match=f"r.json is not a run record .*{said}"):
        read(tmp_path / "r.json")


@pytest.mark.parametrize("right", [[], [True], [False], [False] * 9, [False, True, True, False, True], [True] * 64])
def test_what_was_right_comes_back_in_order(right):
    assert unpacked(packed(right)) == right
    assert len(packed(right)) == len(right) // 4 + 1
