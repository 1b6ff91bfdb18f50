"""The analysis plan on synthetic records: rates from source validation alone, gates, paired differences, jobs."""

import json
from dataclasses import replace

import pytest

from holdfast.record import RunRecord
from studies import primary
from studies.comparisons import COMPARISONS, Comparison
from studies.primary_tables import choice_of

ROWS = {
    "erm": {"method": "erm", "neck": "none"},
    "mil": {"method": "mil", "neck": "memory"},
    "untrained": {"method": "mil", "neck": "memory", "method.memory_lr": 0.0},
}
RATES = (1e-5, 1e-4, 1e-3)


def comparison(system: str = "MIL", **fields) -> Comparison:
    values = {
        "title": "test", "datasets": {"": None}, "settings": {"metric": "macro_f1"}, "rows": ROWS, "treated": "mil",
        "null": "untrained", "mechanism": "memory", "rates": RATES, "seeds": 4, **fields,
    }  # fmt: skip
    return Comparison(system=system, **values)


def record(row: str, *, lr: float, seed: int = 0, valid: float = 0.8, test: float | None = None, share: float = 0.2):
    """Return a record with two source domains and, if `test` is given, two targets."""
    args = {"memory_lr": 0.0} if row == "untrained" else {}
    settings = {**ROWS[row], "method_args": args, "neck_args": {}, "metric": "macro_f1", "lr": lr}
    targets = {} if test is None else {"x": {"macro_f1": test - 0.1}, "y": {"macro_f1": test + 0.1}}
    valid_scores = {"a": {"macro_f1": valid}, "b": {"macro_f1": valid}}
    stage = {"train": ["a", "b"], "step": 1, "valid": valid_scores, "test": targets, "sizes": {}, "history": []}
    engagement = {} if row == "erm" else {"memory": {"share": share}}
    spec = {**settings, "data": "d", "fingerprint": "f", "encoder": "mlp", "seed": seed}
    return RunRecord(spec, "e", [stage], {"version": "0"}, {"torch": "2"}, {}, engagement=engagement)


def searched(best: float, share: float = 0.2) -> list[RunRecord]:
    """Return a search whose source validation prefers `best` and whose target scores prefer another rate."""
    return [
        record(row, lr=lr, valid=0.9 if lr == best else 0.7, test=0.1 if lr == best else 0.99, share=share)
        for row in ROWS
        for lr in RATES
    ]


def test_rates_come_from_source_validation():
    choice = choice_of(comparison(), searched(1e-4))
    assert {entry["rate"] for entry in choice["rows"].values()} == {1e-4}
    assert choice["rows"]["erm"]["scores"] == {"1e-05": 70.0, "0.0001": 90.0, "0.001": 70.0}
    assert choice["engaged"]
    assert choice["notes"] == []


def test_a_rate_at_the_edge_and_missing_runs_are_noted():
    choice = choice_of(comparison(), searched(1e-3))
    assert ["at the edge" in note for note in choice["notes"]] == [True] * 3
    partial = [each for each in searched(1e-4) if each.spec["lr"] != 1e-5 or each.spec["method"] != "erm"]
    assert any(
        "erm has complete runs at 0.0001, 0.001 only" in note for note in choice_of(comparison(), partial)["notes"]
    )
    with pytest.raises(ValueError, match="row erm has no rate"):
        choice_of(comparison(), [each for each in partial if each.spec["method"] == "mil"])
    with pytest.raises(ValueError, match="row erm has no rate with all 2 runs"):
        choice_of(comparison(episodes=("e", "f")), searched(1e-4))


@pytest.mark.parametrize(("share", "engaged"), [(0.049, False), (0.05, True)])
def test_the_gate_is_five_percent_of_source_predictions(share, engaged):
    assert choice_of(comparison(), searched(1e-4, share))["engaged"] is engaged


def test_jobs_of_a_stage():
    each = comparison(episodes=("to-a", "to-b"), search_episodes=("to-a",))
    jobs = primary.search_jobs(["a"], {"a": each}, [])
    assert len(jobs) == 3 * 3
    assert {job.seed for job in jobs} == {0}
    assert {job.rate for job in primary.search_jobs(["a"], {"a": each}, [0.5])} == {0.5}
    chosen = {"a": choice_of(replace(each, episodes=("e",), search_episodes=()), searched(1e-4))}
    jobs = primary.final_jobs(["a"], {"a": each}, chosen)
    assert len(jobs) == 4 * 3 * 2 == len({job.name for job in jobs})
    assert [job.seed for job in jobs] == sorted(job.seed for job in jobs)
    with pytest.raises(primary.BadInput, match="no rates are chosen for a"):
        primary.final_jobs(["a"], {"a": each}, {})


def test_choose_writes_rates_and_gate(tmp_path, capsys):
    for each in searched(1e-4):
        path = tmp_path / "search" / "a" / "records" / f"{each.id}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(each.text())
    primary.choose(["a", "b"], {"a": comparison(), "b": comparison()}, tmp_path)
    chosen = json.loads((tmp_path / "chosen.json").read_text())
    assert chosen["a"]["rows"]["mil"]["rate"] == 1e-4
    assert "a: memory engaged, 20.0% of predictions" in capsys.readouterr().out


@pytest.mark.parametrize("name", COMPARISONS)
def test_every_comparison_names_its_rows(name):
    each = COMPARISONS[name]
    assert {each.treated, each.null, each.baseline, *filter(None, [each.control])} == set(each.final_rows)
    assert len(each.rates) >= 3
    assert list(each.rates) == sorted(each.rates)
    assert set(each.search_episodes) <= set(each.episodes)
