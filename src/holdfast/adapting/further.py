"""go_on: more examples for a trained model, by the rule that it was fitted with; nothing is measured or refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from holdfast import catalog
from holdfast.assembly import Workshop
from holdfast.core import parallel
from holdfast.core.errors import BadInput
from holdfast.data.arrival import with_classes
from holdfast.data.domain import Dataset
from holdfast.data.heldout import HeldOut
from holdfast.experiment import episodes, train
from holdfast.protocols.plan import Past
from holdfast.protocols.resume import stop_at_signal
from holdfast.saved import SavedModel
from holdfast.spec import Spec


def go_on(saved: SavedModel, dataset: Dataset, *, device: torch.device, cache: Path | None) -> SavedModel:
    """A copy of the model that has also learned these examples; a fifth of each domain chooses the step that is kept.

    The optimizer starts anew. Calibration and foreignness are dropped, because they need all examples at once.
    """
    spec = _spec(Spec(**saved.record.spec), dataset, device)
    dataset = with_classes(dataset, saved.classes).checked()
    workshop = Workshop(dataset, device=device, cache=cache)
    (episode,) = episodes(spec, workshop)
    with stop_at_signal():
        past = Past(len(saved.record.stages))
        record, built = train(spec, episode, workshop, trained=saved.model, past=past)
    record = replace(record, stages=[*saved.record.stages, *record.stages])
    held = (saved.held_out or HeldOut({}, {})).joined(HeldOut.of(dataset, episode.stages[0].valid))
    return SavedModel(built.deploy(), built.encoder, saved.classes, record, None, held, saved.kept, saved.columns)


def _spec(before: Spec, dataset: Dataset, device: torch.device) -> Spec:
    """What the model was fitted by, on other examples; a rule that it was adapted by was for that domain alone."""
    if before.plan != "all":
        before = replace(before, plan="all", plan_args={}, method="erm", method_args={}, select=Spec.select)
    if any(layer.acts_on == "stream" for _, layer in catalog.layers("methods", before.method)):
        raise BadInput(f"method {before.method} learns domain after domain, so use adapt, or fit with another method")
    precision = before.precision if device.type == "cuda" else "fp32"
    told = {"data": dataset.name, "fingerprint": dataset.fingerprint, "processes": parallel.world_size()}
    return replace(before, precision=precision, **told)
