"""T3A with unlabelled examples: compare predictions with and without their prototypes, and refuse those that fail.

The null control is the share of predictions that change if the same number of source examples takes the place of the
unlabelled ones: a change of that size does not come from the target.

Shapes: n examples, c classes.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.data.dataset import Dataset
from holdfast.data.splits import TEST, TRAIN, Part, split_parts
from holdfast.models.adapt import Adaptation, Terms, past_data
from holdfast.models.memory import add_examples
from holdfast.models.saved import SavedModel
from holdfast.models.unlabelled import adaptation_report, mean_score
from holdfast.nn.memory.recall import T3A
from holdfast.protocols.collapse import class_mix, evenly_spaced
from holdfast.protocols.evaluate import outputs, score
from holdfast.protocols.plan import Stage, rows_of
from holdfast.protocols.recall import control_rows, observe_unlabelled
from holdfast.record import RunRecord, Scores
from holdfast.run.assemble import Assembly
from holdfast.run.workspace import choose_device
from holdfast.spec import Spec

METHOD = "t3a"  # in records and in the list of versions
MAX_ROWS = 5000  # unlabelled rows that are predicted


def check_prototypes(spec: Spec, stage: Stage, record: RunRecord, assembly: Assembly) -> tuple[str, ...]:
    """Compare a trained network with and without the prototypes of the unlabelled rows; remove those that fail.

    They fail as other adaptations do. The numbers are written to the record. Return notes for the user.
    """
    method, examples = assembly.method, assembly.examples
    assert method is not None
    model, recall = method.deployed, method.deployed.recall
    if not isinstance(recall, T3A) or not len(recall) or not stage.unlabelled:
        return ()
    rows, names = evenly_spaced(rows_of(stage.unlabelled), MAX_ROWS), assembly.task.metrics
    followed = outputs(method, examples, rows).numpy()
    scores = [score(method, examples, stage.valid, assembly.task, names)]
    observe_unlabelled(method, examples, control_rows(stage.train, len(recall), spec.seed))
    null = outputs(method, examples, rows).numpy()
    model.recall = None
    plain = outputs(method, examples, rows).numpy()
    scores.insert(0, score(method, examples, stage.valid, assembly.task, names))
    model.recall = recall
    report = _report(len(recall), [mean_score(each, spec) for each in scores], (plain, followed, null), spec.metric)
    record.analysis[METHOD] = report
    if report["refused"]:
        recall.forget()
        recall.rows = []
        record.stages[-1]["valid"] = scores[0]
    else:
        observe_unlabelled(method, examples, np.asarray(recall.rows, dtype=np.int64))
    return (_note(report),)


def _report(examples: int, scores: Sequence[float], predictions: Sequence[np.ndarray], metric: str) -> dict[str, Any]:
    """Return the numbers of a comparison; predictions (n, c) without prototypes, with them, and of the null control."""
    plain, followed, null = predictions
    report = adaptation_report(examples, scores, [class_mix(plain), class_mix(followed)], metric)
    shares = [float((each.argmax(axis=1) != plain.argmax(axis=1)).mean()) for each in (followed, null)]
    return {**report, "changed": shares[0], "changed_by_null": shares[1]}


def _note(report: Mapping[str, Any]) -> str:
    share, null = (f"{100 * report[name]:.1f}%" for name in ("changed", "changed_by_null"))
    if report["refused"]:
        return f"prototypes of unlabelled examples were refused, {report['refused']}: the network predicts without them"
    return (
        f"prototypes follow {report['examples']:,} unlabelled examples and change {share} of their predictions "
        f"({null} with the same number of source examples)"
    )


def adapt_saved_prototypes(saved: SavedModel, new: Dataset, terms: Terms, *, earlier: Sequence[Dataset]) -> Adaptation:
    """Return a copy of a model with `predict=t3a` whose prototypes follow the examples, whose labels are not read."""
    past = past_data(saved, earlier)
    held_out = () if past is None else split_parts(past, TEST)
    if past is None or not held_out:
        fix = "pass the earlier data with --earlier FILE, or fit with --keep-sample"
        raise BadInput(f"prototypes cannot be checked without held-out examples of the earlier domains: {fix}")
    device, spec = choose_device(terms.device), Spec(**saved.record.spec)
    plain, followed, null = (_without_prototypes(saved) for _ in range(3))
    add_examples(followed, new.raw, None, device=terms.device)
    sources = control_rows(split_parts(past, TRAIN) or held_out, len(new), terms.seed)
    add_examples(null, past.subset(sources).raw, None, device=terms.device)
    predictions = [each.probabilities(new.raw, device=device) for each in (plain, followed, null)]
    scores = [_scores(each, past, held_out, device) for each in (plain, followed)]
    report = _report(len(new), [mean_score(each, spec) for each in scores], predictions, spec.metric)
    record = replace(saved.record, analysis={**saved.record.analysis, METHOD: report})
    before, after = ({domain: each[spec.metric] for domain, each in per_domain.items()} for per_domain in scores)
    lost = {
        domain: 100 * (mean_score({domain: scores[0][domain]}, spec) - mean_score({domain: scores[1][domain]}, spec))
        for domain in before
    }
    return Adaptation(
        replace(followed, record=record, left_out=None), new.name, spec.metric, before, after, lost,
        {part.domain: len(part) for part in held_out}, str(report["refused"]), (_note(report),),
    )  # fmt: skip


def _without_prototypes(saved: SavedModel) -> SavedModel:
    """Return a copy of a model whose memory has observed nothing."""
    model = copy.deepcopy(saved.model)
    assert isinstance(model.recall, T3A)
    model.recall.forget()
    return replace(saved, model=model)


def _scores(saved: SavedModel, past: Dataset, held_out: Sequence[Part], device: torch.device) -> dict[str, Scores]:
    """Return all metrics per domain."""
    task, scores = catalog.build("tasks", saved.task, options={}), {}
    for part in held_out:
        known = past.subset(part.rows)
        logits = np.log(saved.probabilities(known.raw, device=device).clip(1e-12))
        scores[part.domain] = task.scores(torch.from_numpy(logits), torch.from_numpy(known.y), task.metrics)
    return scores
