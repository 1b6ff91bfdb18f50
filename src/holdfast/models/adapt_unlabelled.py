"""Adapt a trained classifier to unlabelled examples without training: correct its class mix, or update prototypes."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from holdfast.core.errors import BadInput
from holdfast.core.files import locked
from holdfast.data.dataset import Dataset
from holdfast.data.load import load_data
from holdfast.data.readers.memory import Source
from holdfast.data.splits import TEST, split_parts
from holdfast.models.adapt import Adaptation, Terms, ledger_of, past_data, request_inputs, version_of
from holdfast.models.label_shift import LabelShift, estimate_shift
from holdfast.models.prototypes import METHOD as PROTOTYPES
from holdfast.models.prototypes import adapt_saved_prototypes
from holdfast.models.saved import SavedModel, load_model
from holdfast.models.unlabelled import CORRECTED_HEADS
from holdfast.models.versions import add_version, repeated_note, repeated_version, request_digest
from holdfast.nn.memory.recall import T3A
from holdfast.protocols.plan import rows_of
from holdfast.run.workspace import choose_device

METHOD = "label-shift"  # in the list of versions


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
    new = saved.align(load_data(unlabelled, columns=saved.read_columns(inputs), need=(), skip_bad=skip_bad))
    past = [saved.align(load_data(each, columns=saved.read_columns(columns), skip_bad=skip_bad)) for each in earlier]
    with locked(folder):
        ledger, inputs = ledger_of(folder), request_inputs("unlabelled", new, past, terms)
        if repeated := repeated_version(ledger, inputs):
            metric = str(saved.record.spec["metric"])
            notes = (repeated_note(repeated),)
            return Adaptation(saved, new.name, metric, {}, {}, {}, {}, notes=notes, version=repeated.number)
        follows = isinstance(saved.model.recall, T3A) and not saved.members
        result = (adapt_saved_prototypes if follows else correct_model)(saved, new, terms, earlier=past)
        if result.refused and not terms.force:
            return result
        about = replace(
            version_of(result.model.record, forced=bool(result.refused)),
            method=PROTOTYPES if follows else METHOD,
            learned=(new.name,),
            request=request_digest(ledger, ledger.current, inputs),
        )
        version = add_version(folder, ledger, about, lambda draft: result.model.save(draft, name=folder.name))
        return replace(result, version=version.number)


def correct_model(saved: SavedModel, new: Dataset, terms: Terms, *, earlier: Sequence[Dataset] = ()) -> Adaptation:
    """Return a copy of a model with biases that suit the class mix of the examples, whose labels are not read."""
    if saved.members or saved.record.spec["head"] not in CORRECTED_HEADS:
        kind = "an average of models" if saved.members else f"a model with head={saved.record.spec['head']}"
        raise BadInput(f"the class mix of {kind} cannot be corrected: fit one model with head=linear")
    past = past_data(saved, earlier)
    held_out = () if past is None else split_parts(past, TEST)
    if past is None or not held_out:
        fix = "pass the earlier data with --earlier FILE, or fit with --keep-sample"
        raise BadInput(f"the class mix cannot be estimated without held-out examples of the earlier domains: {fix}")
    device, rows = choose_device(terms.device), rows_of(held_out)
    known, target = (saved.probabilities(data.raw, device=device) for data in (past.subset(rows), new))
    domain = np.repeat(np.arange(len(held_out)), [len(part) for part in held_out])
    shift = estimate_shift(known, past.y[rows], domain, target, seed=terms.seed)
    if shift is None:
        counts = f"{new.name} has {len(new)} examples and the earlier domains have {len(rows)} held-out ones"
        fix = "pass at least 20 examples, and 20 held-out examples per class"
        raise BadInput(f"{counts}, too few to estimate the class mix: {fix}")
    record = replace(saved.record, analysis={**saved.record.analysis, METHOD: shift.json()})
    mixes = [", ".join(_shares(saved.classes, mix)) for mix in (shift.sources, shift.target)]
    notes = (f"class mix: {mixes[0]} in the earlier domains, {mixes[1]} estimated for {new.name}",)
    model: Any = _corrected(saved, shift) if not shift.refused or terms.force else saved.model
    metric = str(saved.record.spec["metric"])
    corrected = replace(saved, model=model, record=record, left_out=None)
    return Adaptation(corrected, new.name, metric, {}, {}, {}, {}, shift.refused, notes)


def _shares(classes: Sequence[str], mix: Sequence[float]) -> list[str]:
    """Return `pos 40%` for the most frequent classes."""
    order = np.argsort(-np.asarray(mix))[:5]
    return [f"{classes[i]} {100 * mix[i]:.0f}%" for i in order]


def _corrected(saved: SavedModel, shift: LabelShift) -> Any:
    """Return a copy of the network whose probabilities are multiplied by the weights."""
    model: Any = copy.deepcopy(saved.model)
    temperature = 1.0 if saved.calibration is None else saved.calibration.temperature
    bias = model.head.last_layer().bias
    with torch.no_grad():
        bias.add_(torch.as_tensor(temperature * np.log(shift.weights), dtype=bias.dtype, device=bias.device))
    return model
