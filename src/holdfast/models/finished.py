"""A model from finished runs, without another training: an ensemble of networks that left out some domains each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from holdfast.core.checkpoint import load_tensors
from holdfast.core.errors import Damaged
from holdfast.core.stopping import Deadline
from holdfast.data.splits import HeldOut
from holdfast.models.calibration import fit_calibration
from holdfast.models.reference import fit_reference
from holdfast.models.saved import Member, SavedModel
from holdfast.models.soup import Network, State, stored_weights
from holdfast.protocols.plan import Episode
from holdfast.record import RunRecord
from holdfast.run.train import state_path
from holdfast.run.workspace import Workspace
from holdfast.spec import Spec

MOST_MEMBERS = 3  # runs of an ensemble, at most


def ensemble_of_runs(
    records: Sequence[RunRecord], workspace: Workspace, deadline: Deadline | None = None
) -> SavedModel | None:
    """Return the average of the networks of runs with their first seed; None if the states were not stored.

    After the deadline no network is added to the first one.
    """
    first = records[0].spec.get("seed")
    chosen = [record for record in records if record.spec.get("seed") == first]
    chosen = list({(record.spec["method"], record.episode): record for record in chosen}.values())[:MOST_MEMBERS]
    models: list[SavedModel] = []
    for record in chosen:
        if models and deadline is not None and deadline.passed():
            break
        model = model_of_run(record, workspace)
        models += [] if model is None else [model]
    if not models:
        return None
    weight = 1 / len(models)
    return replace(models[0], members=tuple(Member(weight, model) for model in models[1:]))


def model_of_run(record: RunRecord, workspace: Workspace) -> SavedModel | None:
    """Return the network of a finished run with its calibration; None if its state was not stored."""
    assert workspace.out is not None
    state = stored_weights(record, workspace.out) or _stored_state(record, workspace)
    if state is None:
        return None
    spec, dataset = Spec(**record.spec), workspace.dataset
    episode = _episode(spec, record, workspace)
    network = Network(spec, episode, workspace)
    network.load(state)
    assembly, stage = network.assembly, episode.stages[-1]
    calibration = fit_calibration(
        network.model, assembly.examples, stage.train, stage.valid, task=assembly.task, seed=spec.seed
    )
    held_out = stage.test or stage.valid
    reference = fit_reference(
        network.model, assembly.examples, dataset, stage.train, stage.valid, task=assembly.task,
        calibration=calibration, schema=assembly.encoder.schema, columns=dataset.columns, seed=spec.seed,
    )  # fmt: skip
    return SavedModel(
        assembly.deploy(), assembly.encoder, dataset.classes, record, calibration, HeldOut.of(dataset, held_out), None,
        dataset.columns, reference=reference, forms=dataset.forms,
    )  # fmt: skip


def _episode(spec: Spec, record: RunRecord, workspace: Workspace) -> Episode:
    return next(each for each in workspace.episodes(spec) if each.name == record.episode)


def _stored_state(record: RunRecord, workspace: Workspace) -> State | None:
    assert workspace.out is not None
    try:
        return load_tensors(state_path(workspace.out, record.id))[0]
    except Damaged:
        return None
