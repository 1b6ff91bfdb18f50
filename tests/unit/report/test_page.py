from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from plotly.offline import get_plotlyjs

import holdfast.report
from holdfast.core.errors import BadInput
from holdfast.report.page import write_report
from holdfast.report.table import rows
from holdfast.report.words import headline
from tests.unit.report.fake_records import alone, leave_one_out, record, stream

WILD = "<script>alert(1)</script>"


def written(tmp_path: Path, made, *, metric="accuracy", title="A report", notes=()) -> str:
    """The page without plotly.js."""
    path = write_report(made, tmp_path / "report.html", title=title, metric=metric, notes=notes)
    text = path.read_text(encoding="utf-8")
    assert text.count(get_plotlyjs()) == 1
    return text.replace(get_plotlyjs(), "")


class Cells(HTMLParser):
    """The body of the first table, as rows of text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.inside = self.bold = False
        self.bolds: list[str] = []
        self.feed(text[text.index("<tbody>") : text.index("</tbody>")])

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")
            self.inside, self.bold = True, "best" in (dict(attrs).get("class") or "")

    def handle_endtag(self, tag):
        if tag in ("th", "td"):
            self.inside = False

    def handle_data(self, data):
        if self.inside and data.strip():
            self.rows[-1][-1] += data.strip() + " "
            if self.bold:
                self.bolds.append(data.strip())


def test_the_page_holds_the_table_and_nothing_from_the_network(tmp_path):
    text = written(tmp_path, leave_one_out(), notes=["one row was dropped"])
    cells = Cells(text)
    assert [[c.strip() for c in row] for row in cells.rows] == [
        ["erm", "85.0 ± 5.0", "65.0 ± 5.0", "75.0 ± 5.0", "65.0 films"],
        ["mil", "90.0 ± 0.0", "75.0 ± 5.0", "82.5 ± 2.5", "75.0 films"],
    ]
    assert cells.bolds == ["90.0 ± 0.0", "75.0 ± 5.0", "82.5 ± 2.5", "75.0", "films"]
    assert not re.search(r"<link|<script[^>]+src|<img|@import|url\(|https?://", text)
    assert "default-src 'none'" in text
    for part in ("one row was dropped", "minilm", "reviews", "leave-one-out", "0, 1", "Made", "0.1.0 abc"):
        assert part in text


def test_a_lone_source_is_in_the_table(tmp_path):
    text = written(tmp_path, [alone("erm", 0, "a", 0.9, {"b": 0.5}), alone("erm", 0, "b", 0.6, {"a": 0.2})])
    head, body = (re.search(rf"<{tag}>.*?</{tag}>", text, re.DOTALL) for tag in ("thead", "tbody"))
    assert head is not None
    assert body is not None
    names = re.findall(r"<button[^>]*>(.*?)</button>", head[0])
    assert names == ["method", "a&gt;b", "b&gt;a", "average", "worst domain", "a&gt;a (valid)", "b&gt;b (valid)"]
    assert re.findall(r'<td data-value="([^"]*)" class="([^"]*)"', body[0]) == [
        ("0.5", ""), ("0.2", ""), ("0.35", " apart"), ("0.2", ""), ("0.9", " apart"), ("0.6", ""),
    ]  # fmt: skip
    assert "which no average counts" in text
    assert "which no average counts" not in written(tmp_path, leave_one_out())


def test_names_are_escaped_everywhere(tmp_path):
    made = [record(WILD, 0, {WILD: 0.5}, data=WILD, train=[WILD]), record("erm", 0, {WILD: 0.4}, data=WILD)]
    text = written(tmp_path, made, title=WILD, notes=[WILD])
    assert "alert(1)" in text
    assert WILD not in text
    assert "&lt;script&gt;alert(1)" in text


def test_streams_get_their_heat_map(tmp_path):
    made = stream("erm", 0, [{"a": 0.1, "z": 0.9}, {"a": 0.8, "z": 0.6}], ["z", "a"])
    text = written(tmp_path, [made])
    assert "Along the stream" in text
    assert f'id="stream-{made.id}"' in text
    assert text.count("<figcaption>") == text.count('id="forgetting-0-') == 2
    assert "1 z, 2 a" in text
    other = written(tmp_path, leave_one_out())
    assert "Along the stream" not in other
    assert "as the stream goes on" not in other


def test_an_unfinished_comparison_still_has_a_page(tmp_path):
    made = [record("erm", 0, {"films": 0.5}), record("mil", 0, {"books": 0.5})]
    text = written(tmp_path, made)
    assert "No method has finished every target domain yet" in text
    assert "–" in text


def test_fewer_seeds_are_told_in_the_cell(tmp_path):
    text = written(tmp_path, leave_one_out()[:-1])
    assert "<small>n=1</small>" in text
    assert "1 to 2 seeds" in text


def test_mixed_data_sets_have_no_winner(tmp_path):
    other = record("erm", 0, {"x": 0.2}, data="other", fingerprint="f1")
    assert "no single best is named" in written(tmp_path, [*leave_one_out(), other])


def test_no_records_is_said_and_nothing_written(tmp_path):
    with pytest.raises(BadInput, match="no run records"):
        write_report([], tmp_path / "report.html", title="x", metric="accuracy")
    assert list(tmp_path.iterdir()) == []


def averages(**methods):
    """Rows of one target with these scores per seed."""
    made = [record(m, seed, {"t": v}) for m, values in methods.items() for seed, v in enumerate(values)]
    return rows(made, "accuracy")


def test_headline_clear_weak_and_within_the_error():
    # standard errors .01 each, pooled .0141
    clear = headline(averages(erm=[0.69, 0.71], mil=[0.79, 0.81]), "accuracy")
    assert clear == (
        "mil is best, with an average accuracy of 80.0 ± 1.0 % over 1 target domain and 2 seeds: "
        "10.0 points better than erm (70.0 ± 1.0 %; 2 seeds), "
        "which is 7.1 times the pooled standard error of 1.4."
    )
    assert "weak evidence" in headline(averages(erm=[0.69, 0.71], mil=[0.71, 0.73]), "accuracy")
    assert "more than ten times" in headline(averages(erm=[0.5, 0.5], mil=[0.7, 0.7]), "accuracy")
    within = headline(averages(erm=[0.69, 0.71], mil=[0.70, 0.72]), "accuracy")
    assert "1.0 points better than erm" in within
    assert "within the error" in within
    level = headline(averages(erm=[0.69, 0.71], mil=[0.71, 0.69], hma=[0.5, 0.5]), "accuracy")
    assert level == "erm and mil are level, with an average accuracy of 70.0 ± 1.0 % over 1 target domain and 2 seeds."
    three = headline(averages(erm=[0.7, 0.7], mil=[0.7, 0.7], hma=[0.7, 0.7], coral=[0.6, 0.8]), "accuracy")
    assert three.startswith("erm, coral, hma and mil are level, with an average")
    assert "Also within" not in three
    one_seed = headline(averages(erm=[0.65], mil=[0.70], coral=[0.70]), "accuracy")
    assert one_seed.startswith("coral and mil are best, with an average accuracy of 70.0 %")
    assert "5.0 points better than erm" in one_seed


def test_where_single_domains_train_pairs_are_counted(tmp_path):
    scores = {"a": {"b": 0.5, "c": 0.6}, "b": {"a": 0.2, "c": 0.3}, "c": {"a": 0.4, "b": 0.4}}
    made = [alone("erm", 0, source, 0.9, others) for source, others in scores.items()]
    assert headline(rows(made, "accuracy"), "accuracy") == (
        "erm has an average accuracy of 40.0 % over 6 pairs of source and target and 1 seed."
    )
    text = written(tmp_path, made)
    assert "Accuracy (%) on each pair of source and target;" in text
    assert "Scores by method and pair of source and target" in text
    assert "on each target domain;" in written(tmp_path, leave_one_out())


def test_headline_compares_with_erm_and_names_the_others_within_the_error():
    text = headline(averages(erm=[0.5, 0.52], mil=[0.70, 0.72], hma=[0.69, 0.71]), "accuracy")
    assert "better than erm" in text
    assert text.endswith("Also within the error of the best: hma.")


def test_headline_when_erm_wins_or_is_absent_or_alone():
    assert "erm is best" in headline(averages(erm=[0.8, 0.8], mil=[0.7, 0.7], hma=[0.5, 0.5]), "accuracy")
    assert "better than mil" in headline(averages(erm=[0.8, 0.8], mil=[0.7, 0.7], hma=[0.5, 0.5]), "accuracy")
    assert "better than hma" in headline(averages(mil=[0.8, 0.8], hma=[0.7, 0.7]), "accuracy")
    assert headline(averages(mil=[0.8]), "accuracy") == (
        "mil has an average accuracy of 80.0 % over 1 target domain and 1 seed."
    )


def test_headline_of_one_seed_claims_no_error():
    text = headline(averages(erm=[0.7], mil=[0.8]), "accuracy")
    assert text.endswith("but a single seed gives no error to judge that by.")


def test_headline_prefers_the_lower_nll():
    made = [record(m, s, {"t": v + s / 100}, metric="nll") for m, v in (("erm", 0.9), ("mil", 0.5)) for s in (0, 1)]
    assert headline(rows(made, "nll"), "nll").startswith("mil is best, with an average nll of 0.505 ± 0.005 over")


def test_reports_need_no_torch():
    names = sorted(p.stem for p in Path(holdfast.report.__path__[0]).glob("[!_]*.py"))
    assert len(names) >= 7
    code = "import sys\n" + "".join(f"import holdfast.report.{n}\n" for n in names)
    code += "sys.exit(1 if 'torch' in sys.modules else 0)\n"
    env = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
