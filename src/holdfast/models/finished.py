"""A model from finished runs, without another training: an ensemble of networks that left out some domains each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from holdfast.core.stopping import Deadline
from holdfast.data.splits import HeldOut
from holdfast.models.calibration import fit_calibration
from holdfast.models.reference import fit_reference
from holdfast.models.saved import Member, SavedModel
from holdfast.models.soup import Network
from holdfast.models.stored_runs import episode_of, stored_tensors
from holdfast.record import RunRecord
from holdfast.run.train import state_path, weights_path
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
    paths = (path(workspace.out, record.id) for path in (weights_path, state_path))
    state = next((state for path in paths if (state := stored_tensors(path)) is not None), None)
    if state is None:
        return None
    spec, dataset, episode = Spec(**record.spec), workspace.dataset, episode_of(record, workspace)
    network, stage = Network(spec, episode, workspace), episode.stages[-1]
    network.load(state)
    calibration = fit_calibration(network.assembly, stage.train, stage.valid, seed=spec.seed)
    reference = fit_reference(
        network.assembly, dataset, stage.train, stage.valid, calibration=calibration, columns=dataset.columns,
        seed=spec.seed,
    )  # fmt: skip
    held_out = HeldOut.of(dataset, stage.test or stage.valid)
    return SavedModel.of(network.assembly, dataset, record, held_out, calibration=calibration, reference=reference)
