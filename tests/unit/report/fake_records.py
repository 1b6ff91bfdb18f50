"""Hand-written records with scores whose means are easy to compute."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast.record import RunRecord

COST = {"seconds": 10.0, "examples_per_second": 500.0, "peak_memory_mb": 100.0, "learning_parameters": 1000}


def spec(method: str, seed: int, **other: Any) -> dict[str, Any]:
    defaults = {"data": "reviews", "fingerprint": "f0", "encoder": "minilm", "neck": None, "tune": "frozen"}
    rest = {"task": "classify", "plan": "leave-one-out", "select": "valid", "metric": "accuracy", "steps": 20}
    return defaults | rest | {"method": method, "seed": seed, "method_args": {}} | other


def stage(train: Sequence[str], test: Mapping[str, float | None], *, metric: str = "accuracy") -> dict[str, Any]:
    history = [
        {"step": 10, "loss": 1.0, "valid": dict.fromkeys(train, 0.5)},
        {"step": 20, "loss": 0.5, "valid": dict.fromkeys(train, 0.7)},
    ]
    scores = {d: {metric: v} for d, v in test.items()}
    return {"train": list(train), "step": 20, "valid": {}, "test": scores, "history": history, "sizes": {}}


def record(
    method: str,
    seed: int,
    test: Mapping[str, float | None],
    *,
    train: Sequence[str] = ("a", "b"),
    episode: str | None = None,
    metric: str = "accuracy",
    cost: Mapping[str, float] = COST,
    **other: Any,
) -> RunRecord:
    """Return one run of one stage that is scored on the given target domains."""
    return RunRecord(
        spec=spec(method, seed, **other),
        episode=episode or "to-" + "-".join(test),
        stages=[stage(train, test, metric=metric)],
        code={"version": "0.1.0", "commit": "abc"},
        machine={"python": "3.11", "torch": "2.13", "device": "cpu", "cpu": "Test CPU", "threads": 1},
        cost=dict(cost),
    )


def analysed(method: str, seed: int = 0, target: str = "films", **results: Any) -> RunRecord:
    """Return a run with results of analyses; `_` in keywords stands for `-` in the names of analyses."""
    analysis = {name.replace("_", "-"): result for name, result in results.items()}
    return replace(record(method, seed, {target: 0.5}), analysis=analysis)


def alone(method: str, seed: int, source: str, inside: float, test: Mapping[str, float]) -> RunRecord:
    """Return a run that trained on one domain, with the score of its validation rows."""
    run = record(method, seed, test, train=[source], plan="single-source", episode=f"from-{source}")
    run.stages[0]["valid"] = {source: {"accuracy": inside}}
    return run


def stream(method: str, seed: int, matrix: Sequence[Mapping[str, float]], order: Sequence[str]) -> RunRecord:
    """Return one run of several stages; `matrix` has the scores after each."""
    stages = [stage([d], scores) for d, scores in zip(order, matrix, strict=True)]
    return replace(record(method, seed, {}, plan="stream", episode="stream"), stages=stages)


def leave_one_out() -> list[RunRecord]:
    """Return erm: films .60 .70, books .80 .90; mil: films .70 .80, books .90 .90 (seeds 0 and 1)."""
    scores = {
        "mil": {"films": (0.70, 0.80), "books": (0.90, 0.90)},
        "erm": {"films": (0.60, 0.70), "books": (0.80, 0.90)},
    }
    return [
        record(method, seed, {target: values[seed]})
        for method, targets in scores.items()
        for target, values in targets.items()
        for seed in (0, 1)
    ]
