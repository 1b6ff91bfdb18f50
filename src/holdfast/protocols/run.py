"""One episode from first batch to last score. Read this to know what happens when; only here is test data opened."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from holdfast.core import parallel
from holdfast.core.errors import BadInput
from holdfast.core.seeds import generator
from holdfast.data.batches import Batches, Examples, Transform
from holdfast.data.splits import Part
from holdfast.methods.base import Method, Metrics, StageInfo
from holdfast.protocols.evaluate import check_memory, evaluation_outputs, score, validation_outputs
from holdfast.protocols.fit import FitResult, fit
from holdfast.protocols.plan import Episode, PastStages, Stage, rows_of
from holdfast.protocols.resume import Saver
from holdfast.protocols.select import Selection, across_folds, newest
from holdfast.record import packed
from holdfast.spec import Spec
from holdfast.tasks.base import Augmenting, Task


class Following(Protocol):
    """How the data follow a network that learns new words."""

    def words(self, domains: Sequence[Part]) -> Sequence[str]:
        """The words of these parts' examples, and of no others."""
        ...

    def examples(self, method: Method) -> Examples:
        """All examples as the method's network takes them now."""
        ...


def run(
    episode: Episode,
    make: Callable[[], Method],
    examples: Examples,
    task: Task,
    spec: Spec,
    *,
    selection: Selection,
    transform: Transform | None = None,
    following: Following | None = None,
    past: PastStages | None = None,
    saver: Saver | None = None,
    saved: dict[str, Any] | None = None,
    tick: Callable[[Metrics], None] | None = None,
) -> tuple[Method, list[dict[str, Any]]]:
    """Train through all stages, going on from what was saved; the method and one JSON-able result a stage.

    A network with a past is scored before its first stage too, and its rule is shown what is there of the past.
    """
    saver = saver or Saver(None)
    done: list[dict[str, Any]] = saved["run"]["done"] if saved else []
    method, behind = make(), 0 if past is None else past.count
    begun, before = behind + len(done), {}
    if past is not None:
        first = episode.stages[0]
        before = {"before": score(method, examples, (*first.test, *first.valid), task, task.metrics)}
        _recall(method, past, None if saved else examples, spec.batch)
    for index, stage in enumerate(episode.stages, start=behind):
        _check_stage(stage, examples)
        words = tuple if following is None else partial(following.words, stage.train)
        method.begin_stage(StageInfo(index, tuple(p.domain for p in stage.train), words))
        if index < begun:
            continue  # the saved state holds what this stage left
        examples = examples if following is None else following.examples(method)
        saver.done = done
        going_on = saved["fit"] if saved and index == begun else None
        steps, choose = spec.steps, selection.choose
        if selection.scored_on == "folds":
            new = going_on is None
            steps = _steps_by_folds(make, stage, index, examples, task, spec, selection, transform, saver, new=new)
            choose = newest
        if method.selects_itself:
            choose = newest
        fitted = _train(
            method, stage, index, examples, task, spec, selection, transform,
            steps=steps, choose=choose, saver=saver, saved=going_on, tick=tick,
        )  # fmt: skip
        method.end_stage(examples.one_pass(stage.train, spec.batch))
        check_memory(method, examples, stage.train[0])
        done = [*done, {**_result(method, stage, fitted, examples, task), **(before if index == behind else {})}]
    return method, done


def _recall(method: Method, past: PastStages, examples: Examples | None, batch: int) -> None:
    """Begin and end the past as one stage; what it left is in the saved state where a run is taken up again."""
    method.begin_stage(StageInfo(0, tuple(p.domain for p in past.data)))
    if examples is not None and past.data:
        method.end_stage(examples.one_pass(past.data, batch))


def _train(
    method: Method, stage: Stage, index: int, examples: Examples, task: Task, spec: Spec, selection: Selection,
    transform: Transform | None, **loop: Any,
) -> FitResult:  # fmt: skip
    scored_on = selection.scored_on
    parts = stage.oracle if scored_on == "oracle" else stage.valid
    if scored_on == "current":
        trained = {p.domain for p in stage.train}
        parts = tuple(p for p in stage.valid if p.domain in trained)
    if not parts:
        raise BadInput(
            f"nothing to select on: this protocol gives no rows for looking at '{scored_on}': use another --select, "
            "such as train-validation, or another --plan"
        )

    metric = task.validation_metric(spec.metric)

    def validate() -> tuple[dict[str, float], dict[str, float]]:
        scores, losses = {}, {}
        for part in parts:
            kept, y = validation_outputs(method, examples, part, task)
            losses[part.domain] = float(task.loss_from_stats(kept, y))
            if not math.isfinite(losses[part.domain]):
                return scores, losses  # the loop says that training diverged
            value = task.scores(kept, y, [metric])[metric]
            scores[part.domain] = task.selection_value(metric, 0.0 if value is None else value)
        return scores, losses

    chance = generator(spec.seed, "batches", index, 0)  # the same in every process, which takes its share of rows
    own = generator(spec.seed, "batches", index, parallel.rank(), "own") if parallel.active() else None
    redraw = task.augment if isinstance(task, Augmenting) else None
    batches = Batches(
        examples, stage.train, spec.batch,
        generator=chance, transform_generator=own, transform=transform, augment=redraw,
    )  # fmt: skip
    return fit(method, batches, validate, every=spec.every, patience=spec.patience, **loop)


def _steps_by_folds(
    make: Callable[[], Method], stage: Stage, index: int, examples: Examples, task: Task, spec: Spec,
    selection: Selection, transform: Transform | None, saver: Saver, *, new: bool,
) -> int:  # fmt: skip
    """Leave one source out in turn; the number of steps that serves the left-out sources best on average.

    Folds go on from where they were stopped; those that were finished are at their end at once.
    """
    histories = []
    for number, held in enumerate(stage.train):
        rows = rows_of([p for p in (*stage.train, *stage.valid) if p.domain == held.domain])
        others = tuple(p for p in stage.train if p.domain != held.domain)
        fold = Stage(others, (Part(held.domain, rows),), ())
        method = make()
        _check_stage(fold, examples)
        method.begin_stage(StageInfo(index, tuple(p.domain for p in others)))
        own = saver.fold(f"{index}-{number}")
        saved = own.load()
        fitted = _train(
            method, fold, index, examples, task, spec, selection, transform,
            steps=spec.steps, choose=newest, saver=own, saved=saved["fit"] if saved else None,
        )  # fmt: skip
        saver.spent += own.spent if new else 0.0  # what this run has saved counts it already
        histories.append(fitted.checks)
    merged = across_folds(histories)
    return merged[selection.choose(merged)].step


def _result(method: Method, stage: Stage, fitted: FitResult, examples: Examples, task: Task) -> dict[str, Any]:
    test, right = {}, {}
    for part in stage.test:
        seen, y = evaluation_outputs(method, examples, part, task)
        test[part.domain] = task.scores(seen, y, task.metrics)
        judged = task.correct(seen, y)
        if judged is not None:
            right[part.domain] = packed(judged.tolist())
    return {
        "train": [p.domain for p in stage.train],
        "step": fitted.step,
        **({"pieces": fitted.microbatches} if fitted.microbatches > 1 else {}),
        "valid": score(method, examples, stage.valid, task, task.metrics),
        "test": test,
        "right": right,
        "history": fitted.history,
        "sizes": {
            kind: {p.domain: len(p) for p in parts}
            for kind, parts in (("train", stage.train), ("valid", stage.valid), ("test", stage.test))
        },
    }


def _check_stage(stage: Stage, examples: Examples) -> None:
    for part in (*stage.valid, *stage.test):
        if not len(examples.rows_of(part)):  # such as texts of which a tokenizer knows no word
            raise BadInput(f"domain '{part.domain}' has nothing held out to score: give it more or leave it out")


def check_labels(y: np.ndarray, classes: Sequence[str], episode: Episode) -> None:
    """A label that is tested but never trained on cannot be predicted: say so before any training."""
    known = np.unique(y[np.concatenate([rows_of(stage.train) for stage in episode.stages])])
    for stage in episode.stages:
        for part in stage.test:
            new = np.setdiff1d(y[part.rows], known)
            if len(new):
                raise BadInput(
                    f"label '{classes[new[0]]}' occurs in domain '{part.domain}' but in none of the domains "
                    f"that train for it ({episode.name}): drop those rows or bring training examples of it"
                )
