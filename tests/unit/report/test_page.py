import re
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast.report
import holdfast.stats
from holdfast.catalog.analyses import ANALYSES
from holdfast.core.errors import BadInput
from holdfast.report.page import write_audit, write_report, write_watch
from holdfast.report.words import SOURCE_NOTE
from holdfast.stats.summary import summarise
from tests.unit.report.drawing import SCRIPT
from tests.unit.report.fake_records import alone, leave_one_out, record, stream


def written(tmp_path: Path, records, *, metric="accuracy", title="A report", notes=()) -> str:
    """Return the report."""
    path = write_report(summarise(records, metric), tmp_path / "report.html", title=title, notes=notes)
    return path.read_text(encoding="utf-8")


def test_report_has_the_table_and_loads_nothing_from_the_network(tmp_path):
    text = written(tmp_path, leave_one_out(), notes=["one row was dropped"])
    body = text[text.index('id="score-table"') :].partition("<tbody>")[2].partition("</tbody>")[0]
    rows = [re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL) for row in body.split("<tr>")[1:]]
    assert [[" ".join(re.sub(r"<[^>]+>", " ", cell).split()) for cell in row] for row in rows] == [
        ["erm", "85.0 ± 5.0", "65.0 ± 5.0", "75.0 ± 5.0", "65.0 films"],
        ["mil", "90.0 ± 0.0", "75.0 ± 5.0", "82.5 ± 2.5", "75.0 films"],
    ]
    assert [['class="best' in cell for cell in row] for row in rows] == [[False] * 5, [False] + [True] * 4]
    assert not re.search(r"<link|<script[^>]+src|<img|@import|url\(|https?://", text)
    assert "default-src 'none'" in text
    for text_part in ("one row was dropped", "minilm", "reviews", "leave-one-out", "0, 1", "Test CPU", "0.1.0 abc"):
        assert text_part in text


def test_reports_audits_and_watches_share_one_frame(tmp_path):
    common = {"title": "A report", "headline": "Fine.", "grids": [], "notes": []}
    audit = write_audit(tmp_path / "audit.html", **common, advice=["do this"]).read_text(encoding="utf-8")
    watch = write_watch(tmp_path / "watch.html", **common, alerts=[], figures=[]).read_text(encoding="utf-8")
    frames = []
    for text in (written(tmp_path, leave_one_out()), audit, watch):
        before, rest = text.split("<h1>A report</h1>\n")
        frames.append((before, rest.split("</main>\n")[1]))
    assert frames[0] == frames[1] == frames[2]
    before, after = frames[0]
    for part in ("<title>A report</title>", "prefers-color-scheme: dark", "@media print", 'class="theme"'):
        assert part in before
    assert "beforeprint" in after


def test_single_sources_have_validation_columns(tmp_path):
    text = written(tmp_path, [alone("erm", 0, "a", 0.9, {"b": 0.5}), alone("erm", 0, "b", 0.6, {"a": 0.2})])
    head, body = (re.search(rf"<{tag}>.*?</{tag}>", text, re.DOTALL) for tag in ("thead", "tbody"))
    names = re.findall(r"<button[^>]*>(.*?)</button>", head[0])
    assert names == ["method", "a&gt;b", "b&gt;a", "average", "worst domain", "a&gt;a (valid)", "b&gt;b (valid)"]
    assert re.findall(r'<td data-value="([^"]*)" class="([^"]*)"', body[0]) == [
        ("0.5", ""), ("0.2", ""), ("0.35", " apart"), ("0.2", ""), ("0.9", " apart"), ("0.6", ""),
    ]  # fmt: skip
    assert SOURCE_NOTE in text
    assert SOURCE_NOTE not in written(tmp_path, leave_one_out())


def test_names_are_escaped_everywhere(tmp_path):
    records = [
        record(SCRIPT, 0, {SCRIPT: 0.5}, data=SCRIPT, train=[SCRIPT]),
        record("erm", 0, {SCRIPT: 0.4}, data=SCRIPT),
    ]
    text = written(tmp_path, records, title=SCRIPT, notes=[SCRIPT])
    assert "alert(1)" in text
    assert SCRIPT not in text
    assert "&lt;script&gt;alert(1)" in text


def test_streams_have_heat_maps(tmp_path):
    run = stream("erm", 0, [{"a": 0.1, "z": 0.9}, {"a": 0.8, "z": 0.6}], ["z", "a"])
    text = written(tmp_path, [run])
    assert f'id="stream-{run.id}"' in text
    assert text.count("<figcaption>") == text.count('id="forgetting-0-') == 2
    assert "1 z, 2 a" in text
    assert "<h2>Stream of domains</h2>" in text
    assert "<h2>Stream of domains</h2>" not in written(tmp_path, leave_one_out())


def test_one_paragraph_states_the_choice_and_its_reason(tmp_path):
    text = written(tmp_path, leave_one_out())
    (paragraph,) = re.findall(r'<p class="headline">(.*?)</p>', text, re.DOTALL)
    places = [paragraph.index(part) for part in ("Recommended: erm.", "expect erm to reach", "recommended because")]
    assert places == sorted(places)


def test_collapsed_predictions_are_not_recommended(tmp_path):
    run = record("erm", 0, {"films": 0.5})
    run.stages[0]["adapted"] = {"collapsed": True}
    assert "collapsed to few classes" in written(tmp_path, [run])


def test_incomplete_comparisons_have_a_report(tmp_path):
    records = [record("erm", 0, {"films": 0.5}), record("mil", 0, {"books": 0.5})]
    text = written(tmp_path, records)
    assert "No method has finished every target domain yet" in text
    assert "–" in text


def test_cells_show_a_smaller_number_of_seeds(tmp_path):
    text = written(tmp_path, leave_one_out()[:-1])
    assert "<small>n=1</small>" in text
    assert "1 to 2 seeds" in text


def test_mixed_data_sets_have_no_best_method(tmp_path):
    other = record("erm", 0, {"x": 0.2}, data="other", fingerprint="f1")
    assert "no method is recommended" in written(tmp_path, [*leave_one_out(), other])


def test_no_records_raise_and_write_nothing(tmp_path):
    with pytest.raises(BadInput, match="no run records"):
        write_report(summarise([], "accuracy"), tmp_path / "report.html", title="x")
    assert list(tmp_path.iterdir()) == []


def test_single_source_tables_count_pairs(tmp_path):
    scores = {"a": {"b": 0.5, "c": 0.6}, "b": {"a": 0.2, "c": 0.3}, "c": {"a": 0.4, "b": 0.4}}
    records = [alone("erm", 0, source, 0.9, others) for source, others in scores.items()]
    assert "Scores per method and source-target pair" in written(tmp_path, records)
    assert "Scores per method and target domain" in written(tmp_path, leave_one_out())


def test_report_and_its_analyses_do_not_import_torch():
    folders = {"holdfast.report": holdfast.report.__path__[0], "holdfast.stats": holdfast.stats.__path__[0]}
    names = [f"{package}.{p.stem}" for package, folder in folders.items() for p in Path(folder).glob("[!_]*.py")]
    names += {entry.target.partition(":")[0] for entry in ANALYSES.values()}
    assert len(names) >= 12
    code = "import sys\n" + "".join(f"import {name}\n" for name in names)
    code += "sys.exit(str({'torch', 'sklearn', 'transformers'} & sys.modules.keys() or ''))\n"
    env = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    assert done.stderr.strip() == ""
