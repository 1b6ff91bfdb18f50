"""Adapt a trained classifier to unlabelled examples without training: correct its class mix, or update prototypes."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from holdfast.adaptation.adapt import Adaptation, Terms, add_adapted, past_data, request_inputs
from holdfast.adaptation.unlabelled import (
    CORRECTED_HEADS,
    LABEL_SHIFT,
    PROTOTYPES,
    add_to_biases,
    domain_codes,
    mean_score,
    prototypes_note,
    trial_report,
)
from holdfast.core.errors import BadInput
from holdfast.data.dataset import Dataset
from holdfast.data.readers.in_memory import Source
from holdfast.data.splits import TEST, TRAIN, Part, split_parts
from holdfast.folders.format import SavedModel, load_model
from holdfast.folders.memory import add_examples
from holdfast.nn.memory.recall import T3A
from holdfast.record import Scores
from holdfast.spec import Spec
from holdfast.train.plan import rows_of
from holdfast.train.recall import control_rows
from holdfast.train.workspace import choose_device
from holdfast.uncertainty.calibration import temperature_of
from holdfast.uncertainty.label_shift import estimate_shift


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
    change, method = (follow_prototypes, PROTOTYPES) if follows else (correct_model, LABEL_SHIFT)
    return add_adapted(
        folder, request_inputs("unlabelled", new, past, terms),
        lambda _: change(saved, new, terms, earlier=past),
        lambda: Adaptation(saved, new.name, saved.record.spec["metric"]),
        force=terms.force, method=method, learned=(new.name,),
    )  # fmt: skip


def correct_model(saved: SavedModel, new: Dataset, terms: Terms, *, earlier: Sequence[Dataset]) -> Adaptation:
    """Return a copy of a model with biases that suit the class mix of the examples, whose labels are not read."""
    if saved.members or saved.record.spec["head"] not in CORRECTED_HEADS:
        kind = "an average of models" if saved.members else f"a model with head={saved.record.spec['head']}"
        raise BadInput(f"the class mix of {kind} cannot be corrected: fit one model with head=linear")
    past, held_out = _held_out(saved, earlier, "the class mix cannot be estimated")
    device, rows = choose_device(terms.device), rows_of(held_out)
    known, target = (saved.probabilities(data.raw, device=device) for data in (past.subset(rows), new))
    shift = estimate_shift(known, past.y[rows], domain_codes(held_out), target, seed=terms.seed)
    if shift is None:
        counts = f"{new.name} has {len(new)} examples and the earlier domains have {len(rows)} held-out ones"
        fix = "pass at least 20 examples, and 20 held-out examples per class"
        raise BadInput(f"{counts}, too few to estimate the class mix: {fix}")
    mixes = [", ".join(_shares(saved.classes, mix)) for mix in (shift.sources, shift.target)]
    notes = (f"class mix: {mixes[0]} in the earlier domains, {mixes[1]} estimated for {new.name}",)
    corrected = _changed(saved, LABEL_SHIFT, shift.json())
    if not shift.refused or terms.force:
        add_to_biases(corrected.model, temperature_of(saved.calibration) * np.log(shift.weights))
    return Adaptation(corrected, new.name, saved.record.spec["metric"], refused=shift.refused, notes=notes)


def follow_prototypes(saved: SavedModel, new: Dataset, terms: Terms, *, earlier: Sequence[Dataset]) -> Adaptation:
    """Return a copy of a model with `predict=t3a` whose prototypes follow the examples, whose labels are not read."""
    past, held_out = _held_out(saved, earlier, "prototypes cannot be checked")
    device, spec = choose_device(terms.device), Spec(**saved.record.spec)
    plain, followed, null = (_without_prototypes(saved) for _ in range(3))
    add_examples(followed, new.raw, None, device=terms.device)
    sources = control_rows(split_parts(past, TRAIN) or held_out, len(new), terms.seed)
    add_examples(null, past.subset(sources).raw, None, device=terms.device)
    predictions = [each.probabilities(new.raw, device=device) for each in (plain, followed, null)]
    scores = [_scores(each, past, held_out, device) for each in (plain, followed)]
    report = trial_report(len(new), scores, predictions, spec)
    before, after = ({domain: each[spec.metric] for domain, each in per_domain.items()} for per_domain in scores)
    lost = {
        domain: 100 * (mean_score({domain: scores[0][domain]}, spec) - mean_score({domain: scores[1][domain]}, spec))
        for domain in before
    }
    return Adaptation(
        _changed(followed, PROTOTYPES, report), new.name, spec.metric, before, after, lost,
        {part.domain: len(part) for part in held_out}, str(report["refused"]), (prototypes_note(report),),
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


def _shares(classes: Sequence[str], mix: Sequence[float]) -> list[str]:
    """Return `pos 40%` for the most frequent classes."""
    order = np.argsort(-np.asarray(mix))[:5]
    return [f"{classes[i]} {100 * mix[i]:.0f}%" for i in order]


def _without_prototypes(saved: SavedModel) -> SavedModel:
    """Return a copy of a model whose memory has observed nothing."""
    model = copy.deepcopy(saved.model)
    assert isinstance(model.recall, T3A)
    model.recall.forget()
    return replace(saved, model=model)


def _scores(saved: SavedModel, past: Dataset, held_out: Sequence[Part], device: torch.device) -> dict[str, Scores]:
    """Return all metrics per domain."""
    task, scores = saved.build_task(), {}
    for part in held_out:
        known = past.subset(part.rows)
        logits = np.log(saved.probabilities(known.raw, device=device).clip(1e-12))
        scores[part.domain] = task.scores(torch.from_numpy(logits), torch.from_numpy(known.y), task.metrics)
    return scores
