"""Summaries of a comparison as Markdown and as an image."""

import pytest
from PIL import Image

from holdfast.report.summary import SIZE, markdown, write_summary
from holdfast.stats.summary import summarise
from tests.calls import run_cli
from tests.unit.report.fake_records import leave_one_out, record


def test_summary_has_decision_headroom_and_the_best_methods(tmp_path):
    text, image = write_summary(summarise(leave_one_out(), "accuracy"), tmp_path, title="Reviews")
    lines = text.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# Reviews"
    assert lines[2].startswith(("Recommended: ", "mil has the best"))
    assert "| erm | 75.0 ± 5.0 |  |" in lines
    assert any(line.startswith("| mil | 82.5 ± 2.5 | +7.5 (") for line in lines)
    with Image.open(image) as opened:
        assert opened.size == SIZE
        assert len(opened.convert("L").getcolors()) > 10


def test_many_methods_are_counted():
    runs = [record(f"m{i}" if i else "erm", seed, {"a": i / 20}) for i in range(15) for seed in range(2)]
    assert "5 more rows are in the report." in markdown(summarise(runs, "accuracy"), "x")


def test_mixed_data_sets_have_no_recommendation(tmp_path):
    other = record("erm", 0, {"x": 0.2}, data="other", fingerprint="f1")
    text, _ = write_summary(summarise([*leave_one_out(), other], "accuracy"), tmp_path, title="x")
    assert "no method is recommended" in text.read_text()


@pytest.mark.parametrize("option", [[], ["--json"]])
def test_report_writes_the_summary_on_request(tmp_path, option):
    for run in leave_one_out():
        run.save(tmp_path / "runs" / "records")
    ran = run_cli("report", tmp_path / "runs", "--summary", *option)
    assert ran.code == 0, ran.err
    expected = [str(tmp_path / "runs" / name) for name in ("summary.md", "summary.png")]
    if option:
        assert list(ran.json["summary"].values()) == expected
    else:
        assert all(f"summary: {path}" in ran.err for path in expected)
