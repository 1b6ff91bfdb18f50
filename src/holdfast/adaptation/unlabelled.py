"""Adapt to unlabelled examples in a training or of a model folder: check the gain, and correct the class mix.

A trial compares a model without the examples with one that adapted to them. For prototypes it has a null control too:
the share of predictions that change if the same number of source examples takes the place of the unlabelled ones. A
change of that size does not come from the target. A model folder can be adapted without training: its class mix is
corrected, or its prototypes follow the examples.

Shapes: n examples, c classes.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import softmax

from holdfast import catalog
from holdfast.adaptation.adapt import Adaptation, Terms, add_adapted, past_data, request_inputs
from holdfast.core.errors import BadInput
from holdfast.data.dataset import Dataset
from holdfast.data.readers.in_memory import Source
from holdfast.data.splits import TEST, TRAIN, Part, split_parts
from holdfast.folders.format import SavedModel, load_model
from holdfast.folders.memory import add_examples
from holdfast.nn.memory.recall import T3A
from holdfast.nn.model import Model
from holdfast.record import RunRecord, Scores
from holdfast.spec import Spec
from holdfast.train.assemble import Assembly
from holdfast.train.evaluate import (
    class_mix,
    collapsed,
    control_rows,
    evenly_spaced,
    observe_unlabelled,
    outputs,
    score,
)
from holdfast.train.plan import Episode, Stage, rows_of
from holdfast.train.run import train
from holdfast.train.workspace import Workspace, choose_device
from holdfast.uncertainty.calibration import Calibration, temperature_of
from holdfast.uncertainty.label_shift import LabelShift, estimate_shift

TOLERANCE = 2.0  # points of the metric that the mean over the sources' held-out rows may lose
CORRECTED_HEADS = ("linear", "dense")
MAX_ROWS = 5000  # unlabelled rows that are predicted
LABEL_SHIFT, PROTOTYPES = "label-shift", "t3a"  # in records and in the list of versions


def adapt_unlabelled(
    model: str | Path, unlabelled: Source, terms: Terms | None = None, *, earlier: Sequence[Source] = (),
    columns: Mapping[str, str] | None = None, skip_bad: bool = False,
) -> Adaptation:  # fmt: skip
    """Correct the class mix of a model folder, or update the prototypes of one with `predict=t3a`.

    An accepted model becomes the next version of the folder. The check needs held-out examples of the earlier domains,
    from `earlier` or from the sample in the folder.
    """
    folder, terms = Path(model), terms or Terms()
    saved = load_model(folder)
    if saved.task != "classify":
        raise BadInput(f"--unlabelled needs a classifier, this model has the task {saved.task}: pass labelled data")
    inputs = {role: name for role, name in (columns or {}).items() if role not in ("label", "split")}
    new = saved.read(unlabelled, columns=inputs, need=(), skip_bad=skip_bad)
    past = [saved.read(each, columns=columns, skip_bad=skip_bad) for each in earlier]
    follows = isinstance(saved.model.recall, T3A) and not saved.members
    change, method = (_follow_prototypes, PROTOTYPES) if follows else (_correct_model, LABEL_SHIFT)
    return add_adapted(
        folder, request_inputs("unlabelled", new, past, terms),
        lambda _: change(saved, new, terms, past),
        lambda: Adaptation(saved, new.name, saved.record.spec["metric"]),
        force=terms.force, method=method, learned=(new.name,),
    )  # fmt: skip


def _correct_model(saved: SavedModel, new: Dataset, terms: Terms, earlier: Sequence[Dataset]) -> Adaptation:
    """Return a copy of a model with biases that suit the class mix of the examples, whose labels are not read."""
    if saved.members or saved.record.spec["head"] not in CORRECTED_HEADS:
        kind = "an average of models" if saved.members else f"a model with head={saved.record.spec['head']}"
        raise BadInput(f"the class mix of {kind} cannot be corrected: fit one model with head=linear")
    past, held_out = _held_out(saved, earlier, "the class mix cannot be estimated")
    device, rows = choose_device(terms.device), rows_of(held_out)
    known, target = (saved.probabilities(data.raw, device=device) for data in (past.subset(rows), new))
    shift = estimate_shift(known, past.y[rows], _domain_codes(held_out), target, seed=terms.seed)
    if shift is None:
        counts = f"{new.name} has {len(new)} examples and the earlier domains have {len(rows)} held-out ones"
        fix = "pass at least 20 examples, and 20 held-out examples per class"
        raise BadInput(f"{counts}, too few to estimate the class mix: {fix}")
    mixes = [
        ", ".join(f"{saved.classes[i]} {100 * mix[i]:.0f}%" for i in np.argsort(-np.asarray(mix))[:5])
        for mix in (shift.sources, shift.target)
    ]
    notes = (f"class mix: {mixes[0]} in the earlier domains, {mixes[1]} estimated for {new.name}",)
    corrected = _changed(saved, LABEL_SHIFT, shift.json())
    if not shift.refused or terms.force:
        _add_to_biases(corrected.model, temperature_of(saved.calibration) * np.log(shift.weights))
    return Adaptation(corrected, new.name, saved.record.spec["metric"], refused=shift.refused, notes=notes)


def _follow_prototypes(saved: SavedModel, new: Dataset, terms: Terms, earlier: Sequence[Dataset]) -> Adaptation:
    """Return a copy of a model with `predict=t3a` whose prototypes follow the examples, whose labels are not read."""
    past, held_out = _held_out(saved, earlier, "prototypes cannot be checked")
    device, spec, task = choose_device(terms.device), Spec(**saved.record.spec), saved.build_task()
    plain, followed, null = models = [replace(saved, model=copy.deepcopy(saved.model)) for _ in range(3)]
    for each in models:
        assert isinstance(each.model.recall, T3A)
        each.model.recall.forget()
    sources = control_rows(split_parts(past, TRAIN) or held_out, len(new), terms.seed)
    for each, raw in ((followed, new.raw), (null, past.subset(sources).raw)):
        add_examples(each, raw, None, device=terms.device)

    def scored(model: SavedModel, part: Part) -> Scores:
        known = past.subset(part.rows)
        logits = np.log(model.probabilities(known.raw, device=device).clip(1e-12))
        return task.scores(torch.from_numpy(logits), torch.from_numpy(known.y), task.metrics)

    predictions = [each.probabilities(new.raw, device=device) for each in models]
    scores = [{part.domain: scored(each, part) for part in held_out} for each in (plain, followed)]
    report = trial_report(len(new), scores, predictions, spec)
    before, after = ({domain: each[spec.metric] for domain, each in per_domain.items()} for per_domain in scores)
    values = [{domain: _mean_score({domain: each[domain]}, spec) for domain in before} for each in scores]
    lost = {domain: 100 * (values[0][domain] - values[1][domain]) for domain in before}
    return Adaptation(
        _changed(followed, PROTOTYPES, report), new.name, spec.metric, before, after, lost,
        {part.domain: len(part) for part in held_out}, str(report["refused"]), (_prototypes_note(report),),
    )  # fmt: skip


def _held_out(saved: SavedModel, earlier: Sequence[Dataset], problem: str) -> tuple[Dataset, tuple[Part, ...]]:
    """Return examples of the earlier domains, and their held-out rows; raise if there are none."""
    past = past_data(saved, earlier)
    held_out = () if past is None else split_parts(past, TEST)
    if past is None or not held_out:
        fix = "pass the earlier data with --earlier FILE, or fit with --keep-sample"
        raise BadInput(f"{problem} without held-out examples of the earlier domains: {fix}")
    return past, held_out


def _changed(saved: SavedModel, name: str, report: Mapping[str, object]) -> SavedModel:
    """Return a copy of a model with this analysis in its record, without outputs of left-out domains."""
    record = replace(saved.record, analysis={**saved.record.analysis, name: report})
    return replace(saved, model=copy.deepcopy(saved.model), record=record, left_out=None)


def check_adaptation(
    spec: Spec, episode: Episode, workspace: Workspace, record: RunRecord, assembly: Assembly
) -> tuple[RunRecord, Assembly, tuple[str, ...]]:
    """Compare a training that used unlabelled examples with one that did not; the latter replaces a failed one.

    It failed if the sources' held-out rows lost more than 2 points, or if at most half of the classes that the other
    training predicts for the unlabelled examples are left. Return the accepted training, and notes for the user.
    """
    stage = episode.stages[-1]
    assert assembly.method is not None
    if not assembly.method.uses_unlabelled or not stage.unlabelled:
        return record, assembly, ()
    plain = replace(spec, method_args={**spec.method_args, "unlabelled": "none"})
    reference, other = train(plain, episode, workspace)
    scores = [each.stages[-1]["valid"] for each in (reference, record)]
    predictions = [_outputs(each, stage.unlabelled) for each in (other, assembly)]
    report = trial_report(sum(map(len, stage.unlabelled)), scores, predictions, spec)
    notes: tuple[str, ...] = ()
    if report["refused"]:
        fix = "the model was trained without them; try a lower method.weight or another method"
        notes = (f"{spec.method} with unlabelled examples was refused, {report['refused']}: {fix}",)
        record, assembly = reference, other
    record.analysis["unlabelled"] = report
    return record, assembly, notes


def check_prototypes(spec: Spec, stage: Stage, record: RunRecord, assembly: Assembly) -> tuple[str, ...]:
    """Compare a trained network with and without the prototypes of the unlabelled rows; remove those that fail.

    They fail as other adaptations do. The numbers are written to the record. Return notes for the user.
    """
    method, examples = assembly.method, assembly.examples
    assert method is not None
    model, recall = assembly.deployed, assembly.deployed.recall
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
    return (_prototypes_note(report),)


def trial_report(
    examples: int, scores: Sequence[Mapping[str, Scores]], predictions: Sequence[np.ndarray], spec: Spec
) -> dict[str, Any]:
    """Return scores of the sources' held-out rows and class mixes, without and with an adaptation, and the verdict.

    `predictions` (n, c) are those for the unlabelled examples, without and with the adaptation, and of the null control
    if there is one. `refused` is empty if the adaptation is accepted.
    """
    names, mixes = ("without", "with"), [class_mix(each) for each in predictions[:2]]
    valid = {name: _mean_score(each, spec) for name, each in zip(names, scores, strict=True)}
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


def _prototypes_note(report: Mapping[str, Any]) -> str:
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
    shift = estimate_shift(known, y, _domain_codes(stage.valid), target, seed=seed)
    if shift is None:
        return ("the class mix of the unlabelled examples is not estimated: there are too few examples",)
    if not shift.refused and not _apply(assembly, shift, temperature, stage.unlabelled, str(record.spec["head"])):
        shift = replace(shift, refused="the network has no biases of the classes to change")
    record.analysis[LABEL_SHIFT] = shift.json()
    if shift.refused:
        return (f"the class mix is not corrected: {shift.refused}",)
    mix = f"distance {shift.distance:.2f}, at most {shift.null:.2f} for samples of the sources"
    return (f"predictions are corrected for the class mix of the unlabelled examples ({mix})",)


def _domain_codes(groups: Sequence[Part]) -> np.ndarray:
    """Return the number of the part (n,) that each of its rows belongs to."""
    return np.repeat(np.arange(len(groups)), [len(part) for part in groups])


def _add_to_biases(model: Model, change: np.ndarray) -> None:
    """Add numbers (c,) to the outputs of a network."""
    head: Any = model.head
    bias = head.last_layer().bias
    with torch.no_grad():
        bias.add_(torch.as_tensor(change, dtype=bias.dtype, device=bias.device))


def _apply(assembly: Assembly, shift: LabelShift, temperature: float, groups: tuple[Part, ...], head: str) -> bool:
    """Change the biases; return whether the outputs changed as intended, otherwise restore them."""
    model: Any = assembly.deployed
    if head not in CORRECTED_HEADS or model.head.last_layer().bias is None:
        return False
    intended, probe = temperature * np.log(shift.weights), (Part(groups[0].domain, groups[0].rows[:8]),)
    before = _outputs(assembly, probe)
    _add_to_biases(model, intended)
    if np.allclose(_outputs(assembly, probe) - before, intended, atol=1e-3):
        return True
    _add_to_biases(model, -intended)
    return False


def _mean_score(scores: Mapping[str, Scores], spec: Spec) -> float:
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
