"""Check what a model gained from unlabelled examples: refuse an adaptation that collapses, and correct the class mix.

A trial compares a model without the examples with one that adapted to them. For prototypes it has a null control too:
the share of predictions that change if the same number of source examples takes the place of the unlabelled ones. A
change of that size does not come from the target.

Shapes: n examples, c classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import softmax

from holdfast import catalog
from holdfast.data.splits import Part
from holdfast.nn.memory.recall import T3A
from holdfast.nn.model import Model
from holdfast.record import RunRecord, Scores
from holdfast.spec import Spec
from holdfast.train.assemble import Assembly
from holdfast.train.evaluate import class_mix, collapsed, evenly_spaced, outputs, score
from holdfast.train.plan import Episode, Stage, rows_of
from holdfast.train.recall import control_rows, observe_unlabelled
from holdfast.train.run import train
from holdfast.train.workspace import Workspace
from holdfast.uncertainty.calibration import Calibration, temperature_of
from holdfast.uncertainty.label_shift import LabelShift, estimate_shift

TOLERANCE = 2.0  # points of the metric that the mean over the sources' held-out rows may lose
CORRECTED_HEADS = ("linear", "dense")
MAX_ROWS = 5000  # unlabelled rows that are predicted
LABEL_SHIFT, PROTOTYPES = "label-shift", "t3a"  # in records and in the list of versions


class Checked(NamedTuple):
    """The record and the parts of the accepted training, and notes for the user."""

    record: RunRecord
    assembly: Assembly
    notes: tuple[str, ...]


def check_adaptation(
    spec: Spec, episode: Episode, workspace: Workspace, record: RunRecord, assembly: Assembly
) -> Checked:
    """Compare a training that used unlabelled examples with one that did not; the latter replaces a failed one.

    It failed if the sources' held-out rows lost more than 2 points, or if at most half of the classes that the other
    training predicts for the unlabelled examples are left.
    """
    stage = episode.stages[-1]
    assert assembly.method is not None
    if not assembly.method.uses_unlabelled or not stage.unlabelled:
        return Checked(record, assembly, ())
    plain = replace(spec, method_args={**spec.method_args, "unlabelled": "none"})
    reference, other = train(plain, episode, workspace)
    scores = [each.stages[-1]["valid"] for each in (reference, record)]
    report = trial_report(
        sum(map(len, stage.unlabelled)), scores, [_outputs(each, stage.unlabelled) for each in (other, assembly)], spec
    )
    refused = str(report["refused"])
    record, assembly = (reference, other) if refused else (record, assembly)
    record.analysis["unlabelled"] = report
    fix = "the model was trained without them; try a lower method.weight or another method"
    return Checked(
        record, assembly, (f"{spec.method} with unlabelled examples was refused, {refused}: {fix}",) * bool(refused)
    )


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
    after = score(method, examples, stage.valid, assembly.task, names)
    observe_unlabelled(method, examples, control_rows(stage.train, len(recall), spec.seed))
    null = outputs(method, examples, rows).numpy()
    model.recall = None
    plain = outputs(method, examples, rows).numpy()
    before = score(method, examples, stage.valid, assembly.task, names)
    model.recall = recall
    report = trial_report(len(recall), [before, after], [plain, followed, null], spec)
    record.analysis[PROTOTYPES] = report
    if report["refused"]:
        recall.forget()
        recall.rows = []
        record.stages[-1]["valid"] = before
    else:
        observe_unlabelled(method, examples, np.asarray(recall.rows, dtype=np.int64))
    return (prototypes_note(report),)


def trial_report(
    examples: int, scores: Sequence[Mapping[str, Scores]], predictions: Sequence[np.ndarray], spec: Spec
) -> dict[str, Any]:
    """Return scores of the sources' held-out rows and class mixes, without and with an adaptation, and the verdict.

    `predictions` (n, c) are those for the unlabelled examples, without and with the adaptation, and of the null control
    if there is one. `refused` is empty if the adaptation is accepted.
    """
    names, mixes = ("without", "with"), [class_mix(each) for each in predictions[:2]]
    valid = {name: mean_score(each, spec) for name, each in zip(names, scores, strict=True)}
    lost, refused = 100 * (valid["without"] - valid["with"]), ""
    if lost > TOLERANCE:
        refused = f"it lost {lost:.1f} points of {spec.metric} on held-out rows of the sources"
    elif collapsed(mixes[0], mixes[1]):
        refused = "its predictions for them collapse to few classes"
    mix = {name: each.round(4).tolist() for name, each in zip(names, mixes, strict=True)}
    report = {"examples": examples, "refused": refused, "valid": valid, "mix": mix}
    plain, *changed = (each.argmax(axis=1) for each in predictions)
    shares = [float((each != plain).mean()) for each in changed]
    return report | (dict(zip(("changed", "changed_by_null"), shares, strict=True)) if len(shares) > 1 else {})


def prototypes_note(report: Mapping[str, Any]) -> str:
    """Describe the trial of prototypes."""
    if report["refused"]:
        return f"prototypes of unlabelled examples were refused, {report['refused']}: the network predicts without them"
    share, null = (f"{100 * report[name]:.1f}%" for name in ("changed", "changed_by_null"))
    return (
        f"prototypes follow {report['examples']:,} unlabelled examples and change {share} of their predictions "
        f"({null} with the same number of source examples)"
    )


def correct_class_mix(
    record: RunRecord, assembly: Assembly, stage: Stage, calibration: Calibration | None, *, seed: int
) -> tuple[str, ...]:
    """Add the logarithm of the class weights of the unlabelled examples to the biases, if the estimate is reliable.

    The estimate and its null control are written to the record. Return notes for the user.
    """
    if not stage.unlabelled or not stage.valid:
        return ()
    temperature = temperature_of(calibration)
    known, target = (
        softmax(_outputs(assembly, groups).astype(np.float64) / temperature, axis=1)
        for groups in (stage.valid, stage.unlabelled)
    )
    y = assembly.examples.targets(torch.from_numpy(rows_of(stage.valid))).cpu().numpy()
    shift = estimate_shift(known, y, domain_codes(stage.valid), target, seed=seed)
    if shift is None:
        return ("the class mix of the unlabelled examples is not estimated: there are too few examples",)
    if not shift.refused and not _apply(assembly, shift, temperature, stage.unlabelled, str(record.spec["head"])):
        shift = replace(shift, refused="the network has no biases of the classes to change")
    record.analysis[LABEL_SHIFT] = shift.json()
    if shift.refused:
        return (f"the class mix is not corrected: {shift.refused}",)
    mix = f"distance {shift.distance:.2f}, at most {shift.null:.2f} for samples of the sources"
    return (f"predictions are corrected for the class mix of the unlabelled examples ({mix})",)


def domain_codes(groups: Sequence[Part]) -> np.ndarray:
    """Return the number of the part (n,) that each of its rows belongs to."""
    return np.repeat(np.arange(len(groups)), [len(part) for part in groups])


def add_to_biases(model: Model, change: np.ndarray) -> None:
    """Add numbers (c,) to the outputs of a network."""
    head: Any = model.head
    bias = head.last_layer().bias
    with torch.no_grad():
        bias.add_(torch.as_tensor(change, dtype=bias.dtype, device=bias.device))


def _apply(assembly: Assembly, shift: LabelShift, temperature: float, groups: tuple[Part, ...], head: str) -> bool:
    """Change the biases; return whether the outputs changed as intended, otherwise restore them."""
    assert assembly.method is not None
    model: Any = assembly.method.deployed
    if head not in CORRECTED_HEADS or model.head.last_layer().bias is None:
        return False
    intended, probe = temperature * np.log(shift.weights), (Part(groups[0].domain, groups[0].rows[:8]),)
    before = _outputs(assembly, probe)
    add_to_biases(model, intended)
    if np.allclose(_outputs(assembly, probe) - before, intended, atol=1e-3):
        return True
    add_to_biases(model, -intended)
    return False


def mean_score(scores: Mapping[str, Scores], spec: Spec) -> float:
    """Return the mean over domains of the metric, higher is better."""
    task = catalog.build("tasks", spec.task, options=spec.task_args)
    values = [each[spec.metric] for each in scores.values()]
    known = [task.selection_value(spec.metric, value) for value in values if value is not None]
    return float(np.mean(known)) if known else 0.0


def _outputs(assembly: Assembly, groups: tuple[Part, ...]) -> np.ndarray:
    """(n, c) outputs of the trained network; of many unlabelled rows, evenly spaced ones."""
    assert assembly.method is not None
    rows = rows_of(groups)
    if not (assembly.examples.targets(torch.from_numpy(rows)) >= 0).any():
        rows = evenly_spaced(rows, MAX_ROWS)
    return outputs(assembly.method, assembly.examples, rows).numpy()
