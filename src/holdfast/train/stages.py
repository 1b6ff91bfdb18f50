"""Run of one episode, from the first batch to the last score. Only this module opens test data."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from holdfast.core import parallel
from holdfast.core.errors import BadInput
from holdfast.core.seeds import generator
from holdfast.data.batches import Batches, Examples, Transform
from holdfast.data.splits import Part
from holdfast.methods.base import Method, Metrics, StageInfo
from holdfast.nn.memory.recall import Recall
from holdfast.record import packed
from holdfast.spec import Spec
from holdfast.tasks.base import Augmenting, Task
from holdfast.train.assemble import GrowingVocabulary
from holdfast.train.evaluate import (
    adapt_prototypes,
    adaptation_mix,
    attach,
    check_memory,
    evaluation_outputs,
    forget_unlabelled,
    observe_unlabelled,
    score,
    validation_outputs,
)
from holdfast.train.fit import FitResult, Selection, across_folds, fit, newest, source_folds
from holdfast.train.initialise import fit_neck_and_head, initialise_parts
from holdfast.train.plan import Episode, PastStages, Stage, pool_small, rows_of
from holdfast.train.resume import Saver


def train_stages(
    episode: Episode,
    make: Callable[[], Method],
    examples: Examples,
    task: Task,
    spec: Spec,
    *,
    selection: Selection,
    transform: Transform | None = None,
    following: GrowingVocabulary | None = None,
    past: PastStages | None = None,
    saver: Saver | None = None,
    saved: dict[str, Any] | None = None,
    tick: Callable[[Metrics], None] | None = None,
    kept_outputs: dict[str, Tensor] | None = None,
    recall: Recall | None = None,
) -> tuple[Method, list[dict[str, Any]]]:
    """Train all stages, resuming from `saved`; return the method and one JSON-compatible result per stage.

    A network with past stages is also scored before its first stage, and the method gets the past examples.
    `kept_outputs` receives the statistics of the validation and test rows of the last stage, such as logits. A memory
    `recall` is filled after the training of a stage, with the rows of all stages so far.
    """
    saver = saver or Saver(None)
    trainer = _Trainer(make, task, spec, selection, transform)
    per_step = spec.domains_per_step
    done: list[dict[str, Any]] = saved["run"]["done"] if saved else []
    method, first = make(), 0 if past is None else past.count
    current, before = first + len(done), {}
    if past is not None:
        stage = episode.stages[0]
        before = {"before": score(method, examples, (*stage.test, *stage.valid), task, task.metrics)}
        method.begin_stage(StageInfo(0, _names(past.data), domains_per_step=per_step))
        if past.data and not saved:  # a checkpoint has the state after it
            method.end_stage(examples.one_pass(past.data, spec.batch))
    for index, stage in enumerate(episode.stages, start=first):
        _check_stage(stage, examples)
        words = tuple if following is None else partial(following.words, stage.train)
        method.begin_stage(StageInfo(index, _names(stage.train), words, len(_unlabelled(method, stage)), per_step))
        if index < current:
            continue  # the checkpoint has the state after this stage
        examples = examples if following is None else following.examples(method)
        method.deployed.recall = None  # training never reads it
        saver.done = done
        resumed = saved["fit"] if saved and index == current else None
        if resumed is None:
            trainer.initialise(method, stage, index, examples)
        steps, choose = spec.steps, newest if method.selects_itself else selection.choose
        if selection.scored_on == "folds":
            steps = trainer.steps_by_folds(stage, index, examples, saver, is_new=resumed is None)
            choose = newest
        loop = {"steps": steps, "choose": choose, "saver": saver, "saved": resumed, "tick": tick}
        fitted = trainer.fit(method, stage, index, examples, **loop)
        method.end_stage(examples.one_pass(stage.train, spec.batch))
        check_memory(method, examples, stage.train[0])
        stored, followed = {}, ()
        if recall is not None:
            seen = (
                *(() if past is None else past.data),
                *(p for s in episode.stages[: index - first + 1] for p in s.train),
            )
            stored = {"recall": attach(method, recall, examples, seen, stage.valid, spec.seed)}
            followed = adapt_prototypes(method, examples, stage, spec.seed)
        result = _result(method, stage, fitted, examples, task, kept_outputs, followed)
        if not followed:
            forget_unlabelled(method.deployed)
        done = [*done, {**result, **stored, **(before if index == first else {})}]
    return method, done


@dataclass(frozen=True)
class _Trainer:
    """Arguments shared by all trainings of a run."""

    make: Callable[[], Method]
    task: Task
    spec: Spec
    selection: Selection
    transform: Transform | None

    def initialise(self, method: Method, stage: Stage, index: int, examples: Examples) -> None:
        """Initialise new parts of the network from the training rows of a stage."""
        own = generator(self.spec.seed, "initialise", index)
        initialise_parts(method, examples, stage.train, self.spec.batch, generator=own)
        if self.spec.tune == "lp-ft" and index == 0:
            own = generator(self.spec.seed, "probe")
            size, per_step = self.spec.batch, self.spec.domains_per_step
            fit_neck_and_head(method, self.task, examples, stage.train, size, generator=own, domains_per_step=per_step)

    def fit(
        self, method: Method, stage: Stage, index: int, examples: Examples, *, label: str = "", **loop: Any
    ) -> FitResult:
        """Train one stage."""
        task, spec = self.task, self.spec
        domains = self._validation_rows(stage, label)
        metric = task.validation_metric(spec.metric)

        def validate() -> tuple[dict[str, float], dict[str, float]]:
            scores, losses = {}, {}
            outputs = validation_outputs(method, examples, domains, task)
            for part, (stats, y) in zip(domains, outputs, strict=True):
                losses[part.domain] = float(task.loss_from_stats(stats, y))
                if not math.isfinite(losses[part.domain]):
                    return scores, losses  # the loop raises
                value = task.scores(stats, y, [metric])[metric]
                scores[part.domain] = task.selection_value(metric, 0.0 if value is None else value)
            return scores, losses

        names = (spec.seed, "batches", index)
        local = generator(*names, parallel.rank(), "own") if parallel.active() else None
        unlabelled = _unlabelled(method, stage)
        batches = Batches(
            examples, (*stage.train, *unlabelled), spec.batch,
            generator=generator(*names, 0),  # equal in all processes, which take different rows
            transform_generator=local, transform=self.transform,
            augment=task.augment if isinstance(task, Augmenting) else None,
            domains_per_step=spec.domains_per_step, always=len(unlabelled),
        )  # fmt: skip
        return fit(method, batches, validate, every=spec.every, patience=spec.patience, compile=spec.compile, **loop)

    def _validation_rows(self, stage: Stage, label: str) -> tuple[Part, ...]:
        """Return the rows that the selection is scored on, those of many small domains together."""
        scored_on = self.selection.scored_on
        domains = stage.oracle if scored_on == "oracle" else stage.valid
        if scored_on == "current":
            domains = tuple(part for part in domains if part.domain in _names(stage.train))
        if not domains:
            fix = "use another --select, such as train-validation, or another --plan"
            raise BadInput(f"this protocol has no rows to select a step on ('{scored_on}'): {fix}")
        return pool_small(domains, len({*_names(domains), *_names(stage.train)}), label=label)

    def steps_by_folds(self, stage: Stage, index: int, examples: Examples, saver: Saver, *, is_new: bool) -> int:
        """Return the number of steps with the best mean score when each fold of the sources in turn is left out.

        Every fold has a checkpoint of its own, so that finished folds are not repeated.
        """
        histories = []
        for number, names in enumerate(source_folds(stage.train)):
            fold_domains = [part for part in (*stage.train, *stage.valid) if part.domain in names]
            rows = {name: rows_of([part for part in fold_domains if part.domain == name]) for name in names}
            others = tuple(part for part in stage.train if part.domain not in rows)
            held_out = tuple(Part(name, each) for name, each in rows.items())
            fold = Stage(others, held_out, (), unlabelled=stage.unlabelled)
            label = f"fold {number + 1}"
            method = self.make()
            _check_stage(fold, examples)
            unlabelled, per_step = len(_unlabelled(method, stage)), self.spec.domains_per_step
            method.begin_stage(StageInfo(index, _names(others), tuple, unlabelled, per_step))
            fold_saver = saver.fold(f"{index}-{number}")
            saved = fold_saver.load()
            if saved is None:
                self.initialise(method, fold, index, examples)
            fitted = self.fit(
                method, fold, index, examples, label=label, steps=self.spec.steps, choose=newest, saver=fold_saver,
                saved=saved["fit"] if saved else None,
            )  # fmt: skip
            saver.spent += fold_saver.spent if is_new else 0.0  # a checkpoint of the run includes it already
            histories.append(fitted.validations)
        merged = across_folds(histories)
        return merged[self.selection.choose(merged)].step


def _unlabelled(method: Method, stage: Stage) -> tuple[Part, ...]:
    """Return the unlabelled rows that a method trains on."""
    return stage.unlabelled if method.uses_unlabelled else ()


def _names(domains: Sequence[Part]) -> tuple[str, ...]:
    return tuple(part.domain for part in domains)


def _result(
    method: Method, stage: Stage, fitted: FitResult, examples: Examples, task: Task, outputs: dict[str, Tensor] | None,
    followed: tuple[Part, ...],
) -> dict[str, Any]:  # fmt: skip
    """Return the scores of a stage; a transductive memory follows `followed`, or else the part that it predicts."""
    scored = {"test": stage.test, "valid": pool_small(stage.valid, len({*_names(stage.valid), *_names(stage.train)}))}
    evaluated: dict[str, dict[str, tuple[Tensor, Tensor]]] = {}
    for split, domains in scored.items():
        pairs = _evaluate(method, examples, domains, task, observes=not followed)
        evaluated[split] = dict(zip(_names(domains), pairs, strict=True))
        if outputs is not None:
            outputs |= _per_domain(f"{split}/", getattr(stage, split), evaluated[split], examples)
    if evaluated["valid"] and task.predicts:
        task = task.calibrated(*map(torch.cat, zip(*evaluated["valid"].values(), strict=True)))
    scores = {
        split: {domain: task.scores(*pair, task.reported) for domain, pair in domains.items()}
        for split, domains in evaluated.items()
    }
    correct = {domain: task.correct(*pair) for domain, pair in evaluated["test"].items()}
    summaries = {domain: summary for domain, pair in evaluated["test"].items() if (summary := task.summary(*pair))}
    splits = {"train": stage.train, **scored}
    splits |= {"unlabelled": used} if (used := _unlabelled(method, stage) or followed) else {}
    return {
        "train": list(_names(stage.train)),
        "step": fitted.step,
        **({"pieces": fitted.microbatches} if fitted.microbatches > 1 else {}),
        **({"compiled": fitted.compiled} if fitted.compiled else {}),
        **scores,
        "right": {domain: packed(values.tolist()) for domain, values in correct.items() if values is not None},
        **({"predictions": summaries} if summaries else {}),
        "history": fitted.history,
        "sizes": {split: {part.domain: len(part) for part in domains} for split, domains in splits.items()},
        **({"adapted": adaptation_mix(method, examples, stage.valid, used)} if used else {}),
    }


def _evaluate(
    method: Method, examples: Examples, domains: Sequence[Part], task: Task, *, observes: bool
) -> list[tuple[Tensor, Tensor]]:
    """Return statistics and targets per domain; a transductive memory that observes is filled with each one first."""
    recall = method.deployed.recall
    if not observes or recall is None or not recall.transductive:
        return evaluation_outputs(method, examples, domains, task)
    pairs = []
    for part in domains:
        observe_unlabelled(method, examples, part.rows)
        pairs += evaluation_outputs(method, examples, [part], task)
    return pairs


def _per_domain(
    prefix: str, domains: Sequence[Part], evaluated: Mapping[str, tuple[Tensor, Tensor]], examples: Examples
) -> dict[str, Tensor]:
    """Return the statistics per domain; those of domains that are scored together are the last ones."""
    stats = {part.domain: evaluated[part.domain][0] for part in domains if part.domain in evaluated}
    pooled = [part for part in domains if part.domain not in evaluated]
    if pooled:
        (values,) = (values for name, (values, _) in evaluated.items() if name not in stats)
        sizes = [len(examples.rows_of(part)) for part in pooled]
        stats |= dict(zip(_names(pooled), values.split(sizes), strict=True))
    return {f"{prefix}{name}": value.contiguous() for name, value in stats.items()}


def _check_stage(stage: Stage, examples: Examples) -> None:
    for part in (*stage.valid, *stage.test):
        if not len(examples.rows_of(part)):  # for example only texts without a known word
            raise BadInput(f"domain '{part.domain}' has no held-out examples to score: add some or remove the domain")
