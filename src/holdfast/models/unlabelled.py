"""Check what a model gained from unlabelled examples: refuse an adaptation that collapses, and correct the class mix.

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
from holdfast.models.calibration import Calibration
from holdfast.models.label_shift import LabelShift, estimate_shift
from holdfast.protocols.collapse import class_mix, collapsed
from holdfast.protocols.evaluate import outputs
from holdfast.protocols.plan import Episode, Stage, rows_of
from holdfast.record import RunRecord, Scores
from holdfast.run.assemble import Assembly
from holdfast.run.train import train
from holdfast.run.workspace import Workspace
from holdfast.spec import Spec

TOLERANCE = 2.0  # points of the metric that the mean over the sources' held-out rows may lose
CORRECTED_HEADS = ("linear", "dense")
MAX_ROWS = 5000  # unlabelled rows that are predicted


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
    scores = [mean_score(each.stages[-1]["valid"], spec) for each in (reference, record)]
    mixes = [class_mix(_probabilities(each, stage.unlabelled)) for each in (other, assembly)]
    report = adaptation_report(sum(map(len, stage.unlabelled)), scores, mixes, spec.metric)
    refused = str(report["refused"])
    record, assembly = (reference, other) if refused else (record, assembly)
    record.analysis["unlabelled"] = report
    fix = "the model was trained without them; try a lower method.weight or another method"
    return Checked(
        record, assembly, (f"{spec.method} with unlabelled examples was refused, {refused}: {fix}",) * bool(refused)
    )


def adaptation_report(
    examples: int, scores: Sequence[float], mixes: Sequence[np.ndarray], metric: str
) -> dict[str, Any]:
    """Return scores of the sources' held-out rows and class mixes, without and with an adaptation, and the verdict.

    `refused` is empty if the adaptation is accepted.
    """
    lost, refused = 100 * (scores[0] - scores[1]), ""
    if lost > TOLERANCE:
        refused = f"it lost {lost:.1f} points of {metric} on held-out rows of the sources"
    elif collapsed(mixes[0], mixes[1]):
        refused = "its predictions for them collapse to few classes"
    names = ("without", "with")
    return {
        "examples": examples, "refused": refused, "valid": dict(zip(names, scores, strict=True)),
        "mix": {name: mix.round(4).tolist() for name, mix in zip(names, mixes, strict=True)},
    }  # fmt: skip


def correct_class_mix(
    record: RunRecord, assembly: Assembly, stage: Stage, calibration: Calibration | None, *, seed: int
) -> tuple[str, ...]:
    """Add the logarithm of the class weights of the unlabelled examples to the biases, if the estimate is reliable.

    The estimate and its null control are written to the record. Return notes for the user.
    """
    if not stage.unlabelled or not stage.valid:
        return ()
    temperature = 1.0 if calibration is None else calibration.temperature
    held_out = _probabilities(assembly, stage.valid, temperature)
    domain = np.repeat(np.arange(len(stage.valid)), [len(part) for part in stage.valid])
    y = assembly.examples.targets(torch.from_numpy(rows_of(stage.valid))).cpu().numpy()
    shift = estimate_shift(held_out, y, domain, _probabilities(assembly, stage.unlabelled, temperature), seed=seed)
    if shift is None:
        return ("the class mix of the unlabelled examples is not estimated: there are too few examples",)
    if not shift.refused and not _apply(assembly, shift, temperature, stage.unlabelled, str(record.spec["head"])):
        shift = replace(shift, refused="the network has no biases of the classes to change")
    record.analysis["label-shift"] = shift.json()
    if shift.refused:
        return (f"the class mix is not corrected: {shift.refused}",)
    mix = f"distance {shift.distance:.2f}, at most {shift.null:.2f} for samples of the sources"
    return (f"predictions are corrected for the class mix of the unlabelled examples ({mix})",)


def _apply(assembly: Assembly, shift: LabelShift, temperature: float, groups: tuple[Part, ...], head: str) -> bool:
    """Change the biases; return whether the outputs changed as intended, otherwise restore them."""
    assert assembly.method is not None
    network: Any = assembly.method.deployed.head
    if head not in CORRECTED_HEADS or network.last_layer().bias is None:
        return False
    bias, intended = network.last_layer().bias, temperature * np.log(shift.weights)
    probe = (Part(groups[0].domain, groups[0].rows[:8]),)
    before = _outputs(assembly, probe)
    change = torch.as_tensor(intended, dtype=bias.dtype, device=bias.device)
    with torch.no_grad():
        bias.add_(change)
    if np.allclose(_outputs(assembly, probe) - before, intended, atol=1e-3):
        return True
    with torch.no_grad():
        bias.sub_(change)
    return False


def mean_score(scores: Mapping[str, Scores], spec: Spec) -> float:
    """Return the mean over domains of the metric, higher is better."""
    task = catalog.build("tasks", spec.task, options=spec.task_args)
    values = [each[spec.metric] for each in scores.values()]
    known = [task.selection_value(spec.metric, value) for value in values if value is not None]
    return float(np.mean(known)) if known else 0.0


def _probabilities(assembly: Assembly, groups: tuple[Part, ...], temperature: float = 1.0) -> np.ndarray:
    return softmax(_outputs(assembly, groups).astype(np.float64) / temperature, axis=1)


def _outputs(assembly: Assembly, groups: tuple[Part, ...]) -> np.ndarray:
    """(n, c) outputs of the trained network; of many unlabelled rows, evenly spaced ones."""
    assert assembly.method is not None
    rows = rows_of(groups)
    if len(rows) > MAX_ROWS and not (assembly.examples.targets(torch.from_numpy(rows)) >= 0).any():
        rows = rows[np.linspace(0, len(rows) - 1, MAX_ROWS).astype(np.int64)]
    return outputs(assembly.method, assembly.examples, rows).numpy()
