"""Tables, charts and notes of a comparison with many target domains."""

import io
import json

import pytest
from rich.console import Console

from holdfast.report.charts import scores_chart
from holdfast.report.page import write_report
from holdfast.report.terminal import rich_table
from holdfast.report.words import columns_note, score_columns, score_lines
from holdfast.stats.summary import summarise
from holdfast.stats.table import columns, flat_table, shown_columns, tabulate
from tests.unit.report.fake_records import record

DOMAINS = 20


def records(methods=("erm", "mil"), seeds=(0, 1), domains=DOMAINS, metric="accuracy"):
    """Runs of leave-groups-out; the i-th domain has 100 + i rows and a score of 0.5 + i / 100."""
    runs = []
    for place, method in enumerate(methods):
        for seed in seeds:
            for fold in range(5):
                test = {f"d{i}": 0.5 + i / 100 + place / 50 for i in range(domains) if i % 5 == fold}
                episode = f"fold-{fold + 1}-of-5"
                run = record(method, seed, test, plan="leave-groups-out", episode=episode, metric=metric)
                run.stages[0]["sizes"] = {"test": {name: 100 + int(name[1:]) for name in test}}
                runs.append(run)
    return runs


def test_the_table_shows_the_largest_domains_percentile_average_and_worst():
    table = tabulate(records(), "accuracy").rows
    assert len(columns(table)) == DOMAINS
    assert shown_columns(table) == ["d15", "d16", "d17", "d18", "d19"]
    assert score_columns(table, "accuracy") == [*shown_columns(table), "average", "10th percentile", "worst"]
    (label, cells), _ = score_lines(table, "accuracy")
    assert label == "erm"
    assert len(cells) == 8
    assert table[0].low.mean == pytest.approx(0.5 + 1.9 / 100)
    assert table[0].low.n == 2
    assert cells[6].value == table[0].low.mean
    assert (cells[7].domain, cells[7].value) == ("d0", pytest.approx(0.5))
    assert "5 largest of 20" in columns_note(table)


def test_lower_is_better_reverses_the_percentile():
    table = tabulate(records(metric="nll"), "nll").rows
    assert score_columns(table, "nll")[-2:] == ["90th percentile", "worst"]
    assert table[0].low.mean == pytest.approx(0.5 + 17.1 / 100)


def test_few_domains_are_all_shown():
    table = tabulate(records(domains=8), "accuracy").rows
    assert shown_columns(table) == columns(table)
    assert table[0].low is None
    assert columns_note(table) == ""
    assert score_columns(table, "accuracy") == [*columns(table), "average", "worst"]


def test_json_has_all_domains():
    entries = [entry for entry in flat_table(tabulate(records(), "accuracy")) if entry["method"] == "erm"]
    assert [e["target"] for e in entries[-3:]] == ["average", "10th percentile", "worst"]
    assert len(entries) == DOMAINS + 3


def test_the_terminal_names_what_it_shows():
    output = io.StringIO()
    Console(file=output, width=160).print(rich_table(tabulate(records(), "accuracy").rows, "accuracy"))
    text = output.getvalue()
    assert "10th percentile" in text
    assert "the 5 largest of 20 target domains" in text
    assert "d3" not in text.split()


def test_the_strip_has_every_domain():
    chart = scores_chart(tabulate(records(), "accuracy").rows, "accuracy")
    for i in range(DOMAINS):
        assert f", d{i}: " in chart
    assert "sorted by score" in chart
    assert len(scores_chart(tabulate(records(domains=1000), "accuracy").rows, "accuracy")) < 120_000


def test_the_report_of_many_domains(tmp_path):
    path = write_report(summarise(records(), "accuracy"), tmp_path / "report.html", title="shops")
    text = path.read_text(encoding="utf-8")
    assert "10th percentile" in text
    assert text.count("worst domain</button>") == 1
    assert "The dotted line is the\nworst tenth" in text
    assert json.dumps(flat_table(tabulate(records(), "accuracy")))
