"""Combine finished runs: stacking of the simple baselines and the best network, averages over seeds, soups.

A combination is computed per target domain from runs that did not see it, and everything it chooses is chosen on the
validation rows of the source domains. Its records are rows of the table like any other.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from holdfast import catalog
from holdfast.catalog.entry import EXAMPLE_TASKS
from holdfast.core.checkpoint import save_tensors
from holdfast.prediction.soup import State, greedy_soup
from holdfast.record import RunRecord, Scores
from holdfast.stats.labels import CONSTANT, ENSEMBLE, SOUP, STACK, STACK_ENSEMBLE, configuration, grouped, is_simple
from holdfast.stats.selection import train_validation
from holdfast.stats.statistics import mean
from holdfast.tasks.base import Task
from holdfast.tasks.regress import Regress
from holdfast.train.plan import rows_of
from holdfast.train.run import outputs_path, weights_path
from holdfast.train.workspace import Workspace
from holdfast.uncertainty.calibration import probabilities
from holdfast.uncertainty.mixture import (
    ByDomain,
    Predictions,
    averaged,
    predictions_of,
    stored_outputs,
    test_fields,
    weights_of,
)
from holdfast.uncertainty.stored_runs import episode_of, read_run, stored_tensors

# settings of the networks that the records of combinations have too
KEPT = ("data", "fingerprint", "encoder", "task", "task_args", "plan", "plan_args", "select", "metric", "tune", "rows")
SUMMED = ("seconds", "parameters", "learning_parameters", "macs")  # costs of all members together
SMALLEST = 0.1  # members of a trained model with a smaller weight are left out

Place = tuple[Any, str]  # seed and episode


@dataclass(frozen=True, eq=False)
class _Outputs:
    """Predictions of a run or a combination, targets per domain, and its members with their weights."""

    record: RunRecord
    predictions: Predictions
    y_test: ByDomain
    members: tuple[tuple[RunRecord, float], ...]
    y_valid: ByDomain = field(default_factory=dict)  # of a run

    @property
    def place(self) -> Place:
        return self.record.spec.get("seed"), self.record.episode


def combine(records: Sequence[RunRecord], workspace: Workspace) -> list[RunRecord]:
    """Return the records of all combinations that these runs allow, and store their outputs.

    Runs on the most rows that a network was trained on are combined. If outputs of runs are missing, there are no
    combinations, with a note.
    """
    if any(record.spec.get("task") not in EXAMPLE_TASKS or len(record.stages) != 1 for record in records):
        return []
    assert workspace.out is not None
    sizes = [record.spec.get("rows") or 0 for record in records if not is_simple(record)]
    if not sizes:
        return []
    size, out = 0 if 0 in sizes else max(sizes), workspace.out
    workspace = workspace.sampled(size)
    groups = _complete_groups([each for each in records if (each.spec.get("rows") or 0) == size])
    candidates = [record for group in groups for record in group if record.spec["method"] not in CONSTANT]
    known = [run for record in candidates if (run := _read(record, workspace)) is not None]
    if missing := len(candidates) - len(known):
        workspace.notes.append(f"runs were not combined: the outputs of {missing} runs are missing, use a new --out")
        return []
    trained, simple = ([run for run in known if is_simple(run.record) is which] for which in (False, True))
    if not trained:
        return []
    first = trained[0].record
    task = _task(first)
    networks = _best_networks(trained)
    stacks = _stacks(networks, simple, task)
    combined = list(stacks.values())
    if _same_rows(trained):
        combined = [*_soups(trained, workspace, task), *combined]
        for method, runs_by_place in ((ENSEMBLE, networks), (STACK_ENSEMBLE, stacks)):
            combined += _over_seeds(method, runs_by_place, task)
    else:
        workspace.notes.append("seeds were not combined: they know different classes, so their test rows differ")
    shared = {name: first.spec[name] for name in KEPT if name in first.spec}
    complete = [replace(each.record, spec={**shared, **each.record.spec}) for each in combined]
    for record, each in zip(complete, combined, strict=True):
        save_tensors(outputs_path(out, record.id), stored_outputs(task, each.predictions))
    return complete


def _same_rows(runs: Sequence[_Outputs]) -> bool:
    """Whether all seeds of an episode are scored on the same rows; rows of classes that a seed lacks are not scored."""
    first: dict[str, _Outputs] = {}
    for run in runs:
        own, other = run.y_test, first.setdefault(run.record.episode, run).y_test
        if own.keys() != other.keys() or not all(np.array_equal(own[d], other[d], equal_nan=True) for d in own):
            return False
    return True


def _complete_groups(records: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """Return the configurations with all seeds and episodes of the network that has the most of them."""
    groups = list(grouped(records).values())
    places = [{(r.spec.get("seed"), r.episode) for r in group} for group in groups]
    trained = [own for own, group in zip(places, groups, strict=True) if not is_simple(group[0])]
    most = max(trained, key=len, default=set())
    return [group for own, group in zip(places, groups, strict=True) if own >= most or is_simple(group[0])]


def _read(record: RunRecord, workspace: Workspace) -> _Outputs | None:
    """Read the outputs of a run; None if they were not stored."""
    stored, targets = read_run(record, workspace), workspace.dataset.targets
    if stored is None:
        return None
    task = _task(record)
    bound = task.bound(None if targets is None else targets[rows_of(stored.episode.stages[0].train)])
    scale, y = bound.scale if isinstance(bound, Regress) else None, stored.y
    predictions = predictions_of(task, stored.outputs, y["valid"], scale)
    return _Outputs(record, predictions, y["test"], ((record, 1.0),), y["valid"])


def _task(record: RunRecord) -> Task:
    return catalog.build("tasks", record.spec["task"], options=record.spec.get("task_args") or {})


def _best_networks(runs: Sequence[_Outputs]) -> dict[Place, _Outputs]:
    """Map seed and episode to the run of the network with the best mean validation score in this episode."""
    best: dict[Place, _Outputs] = {}
    for episode in dict.fromkeys(run.record.episode for run in runs):
        scores: dict[str, list[_Outputs]] = {}
        for run in runs:
            if run.record.episode == episode:
                scores.setdefault(configuration(run.record), []).append(run)
        means = {key: mean(train_validation(run.record) for run in own) for key, own in scores.items()}
        chosen = max(scores, key=lambda key: -np.inf if (score := means[key]) is None else score)
        best |= {run.place: run for run in scores[chosen]}
    return best


def _soups(runs: Sequence[_Outputs], workspace: Workspace, task: Task) -> list[_Outputs]:
    """Average the weights of the seeds of the best network per episode, among those whose seeds stored them.

    There is no soup if nowhere two seeds can be averaged. Its validation scores are the means of those of the members:
    each of them has seen what the others held out.
    """
    assert workspace.out is not None
    stored = {run.record.id for run in runs if weights_path(workspace.out, run.record.id).is_file()}
    missing = {configuration(run.record) for run in runs if run.record.id not in stored}
    networks = _best_networks([run for run in runs if configuration(run.record) not in missing])
    soups = []
    for members in _by_episode(networks):
        paths = (weights_path(workspace.out, run.record.id) for run in members)
        states = [state for path in paths if (state := stored_tensors(path)) is not None]
        if not len(members) == len(states) > 1:
            return []
        soups.append(_soup(members, states, workspace, task))
    return soups if any(len(soup.members) > 1 for soup in soups) else []


def _soup(members: Sequence[_Outputs], states: Sequence[State], workspace: Workspace, task: Task) -> _Outputs:
    """Return the greedy soup of the seeds of one network on one target."""
    episodes = [episode_of(run.record, workspace) for run in members]
    network, chosen, state = greedy_soup([run.record for run in members], states, episodes, workspace)
    soup = [members[i] for i in chosen]
    temperature = float(np.mean([run.predictions.temperature for run in soup]))
    test = {
        part.domain: probabilities(network.outputs(state, part.rows), temperature)
        for part in episodes[0].stages[-1].test
    }
    combined = _combined(SOUP, soup, np.full(len(chosen), 1 / len(chosen)), Predictions({}, test), _valid(soup), task)
    cost = combined.record.cost
    cost |= {name: members[0].record.cost[name] for name in SUMMED[1:] if name in cost}  # it is one network
    return combined


def _stacks(networks: Mapping[Place, _Outputs], simple: Sequence[_Outputs], task: Task) -> dict[Place, _Outputs]:
    """Mix the best network of each seed and episode with all simple baselines of the same seed and episode.

    Seeds that lack a simple baseline of another seed have no mixture. The weights are drawn to equal ones: simple
    models often fit their own domains almost perfectly, so that the best weights there are not those of a new domain.
    """
    members = {place: [*(run for run in simple if run.place == place), run] for place, run in networks.items()}
    most = max(map(len, members.values()), default=0)
    lacking = {seed for (seed, _), own in members.items() if len(own) < most}
    stacks = {}
    for place, own in members.items():
        if most > 1 and place[0] not in lacking:
            each, network = [run.predictions for run in own], own[-1]
            weights = weights_of(task, each, network.y_valid, shrink=True)
            stack = averaged(each, weights, with_valid=True)
            scores = test_fields(task, stack.valid, network.y_valid, stack.thresholds)["test"]
            stacks[place] = _combined(STACK, own, weights, stack, scores, task, seed=place[0])
    return stacks


def _over_seeds(method: str, runs: Mapping[Place, _Outputs], task: Task) -> list[_Outputs]:
    """Average the predictions of all seeds per episode; its validation scores are the means of those of the seeds."""
    averages = []
    for members in _by_episode(runs):
        if len(members) > 1:
            weights = np.full(len(members), 1 / len(members))
            mixed = averaged([run.predictions for run in members], weights, with_valid=False)
            averages.append(_combined(method, members, weights, mixed, _valid(members), task))
    return averages


def _by_episode(runs: Mapping[Place, _Outputs]) -> list[list[_Outputs]]:
    """Return the runs of all seeds per episode."""
    return [
        [run for run in runs.values() if run.record.episode == episode]
        for episode in dict.fromkeys(episode for _, episode in runs)
    ]


def _valid(runs: Sequence[_Outputs]) -> dict[str, Scores]:
    """Return the mean validation scores of runs per domain."""
    scores = [run.record.stages[-1]["valid"] for run in runs]
    return {d: {name: mean(each[d][name] for each in scores) for name in scores[0][d]} for d in scores[0]}


def _combined(
    method: str, runs: Sequence[_Outputs], weights: np.ndarray, predictions: Predictions,
    valid: Mapping[str, Scores], task: Task, *, seed: int | None = None,
) -> _Outputs:  # fmt: skip
    """Return a combination on one target with its record; `members` of its stage name the runs and their weights."""
    members = tuple(
        (record, float(weight) * inner)
        for run, weight in zip(runs, weights, strict=True)
        for record, inner in run.members
        if float(weight) * inner > 0
    )
    last, y = members[-1][0], runs[0].y_test
    spec = {"method": method, **({} if seed is None else {"seed": seed})}
    costs = [record.cost for record, _ in members]
    cost = {name: sum(each[name] for each in costs) for name in SUMMED if all(each.get(name) for each in costs)}
    cost["peak_memory_mb"] = max(each.get("peak_memory_mb") or 0.0 for each in costs)
    trained = {name: last.stages[-1][name] for name in ("train", "step", "sizes")}
    stage = {
        **trained, "valid": dict(valid), **test_fields(task, predictions.test, y, predictions.thresholds),
        "history": [], "members": [{"id": record.id, "weight": round(weight, 6)} for record, weight in members],
    }  # fmt: skip
    record = RunRecord(spec, last.episode, [stage], dict(last.code), dict(last.machine), cost)
    return _Outputs(record, predictions, y, members)


def final_members(
    records: Sequence[RunRecord], combination: Sequence[RunRecord], *, rates: Mapping[str, float] | None = None
) -> list[tuple[dict[str, Any], float]]:
    """Return the specs and weights of the model to train on all domains; the network comes first.

    Weights are averaged over targets and seeds. If the targets chose different networks, the one with the largest
    weight represents them all. `rates` are the learning rates per configuration for a model of all domains; one that
    has none gets the rate that most of its runs in the combination have.
    """
    known = {record.id: record for record in records}
    total, searched_rates = Counter[str](), defaultdict[str, Counter[float]](Counter)
    first: dict[str, RunRecord] = {}
    averaged = combination[0].spec.get("seed") is None  # over seeds, so that each seed is trained
    for record in combination:
        for member in record.stages[-1]["members"]:
            run = known[member["id"]]
            key = configuration(run)
            total[key] += member["weight"] / len(combination)
            first.setdefault(key, run)
            searched_rates[key][run.spec["lr"]] += 1
    networks = {key: weight for key, weight in total.items() if not is_simple(first[key])}
    if networks:
        best = max(networks, key=lambda key: networks[key])
        total = {key: weight for key, weight in total.items() if key not in networks} | {best: sum(networks.values())}
    chosen = {key: weight for key, weight in total.items() if weight >= SMALLEST}
    ordered = sorted(chosen, key=lambda key: (key not in networks, -chosen[key]))
    seeds = sorted({r.spec["seed"] for r in records if "seed" in r.spec}) if averaged else [None]
    scale = sum(chosen.values()) * len(seeds)
    specs = {key: dict(first[key].spec) for key in ordered}
    for key, spec in specs.items():
        if "searched" in spec:
            spec["lr"] = (rates or {}).get(key, searched_rates[key].most_common(1)[0][0])
    return [
        ({**specs[key], **({} if seed is None else {"seed": seed})}, chosen[key] / scale)
        for key in ordered
        for seed in seeds
    ]
