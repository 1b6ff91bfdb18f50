"""Train one configuration on all domains of a data set, and save it as a model folder."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from holdfast.adaptation.unlabelled import check_adaptation, check_prototypes, correct_class_mix
from holdfast.core import parallel
from holdfast.core.errors import BadInput
from holdfast.core.files import cache_folder, locked
from holdfast.data.dataset import Dataset
from holdfast.data.sample import check_sample, draw_sample
from holdfast.data.splits import HeldOut
from holdfast.folders.format import SavedModel
from holdfast.record import RunRecord
from holdfast.spec import Spec
from holdfast.train.assemble import Assembly
from holdfast.train.plan import Stage
from holdfast.train.progress import ProgressListener
from holdfast.train.resolve import Configuration, resolve, single_run
from holdfast.train.resume import Saver, stop_at_signal
from holdfast.train.run import checkpoint_path, train
from holdfast.train.training_data import needs_labels
from holdfast.train.workspace import Workspace, choose_device
from holdfast.uncertainty.calibration import fit_calibration
from holdfast.uncertainty.left_out import CollectedRuns, train_left_out


@dataclass(frozen=True)
class Trained:
    """A trained model with its record, and remarks on the data and the training."""

    model: SavedModel
    record: RunRecord
    notes: tuple[str, ...]


def train_model(
    chosen: Configuration, dataset: Dataset, *, folder: Path | None = None, watch: ProgressListener | None = None,
    calibrate: bool = True, columns: Sequence[str] | None = None, agrees: Collection[str] | None = None,
    runs: CollectedRuns | None = None, workspace: Workspace | None = None,
) -> Trained:  # fmt: skip
    """Train on all domains and save to `folder`, where an interrupted training resumes.

    A model in `folder` must agree in the settings `agrees`; None means all. `runs` are outputs of runs of this
    configuration that left out one domain each; `workspace` is one of this data set, whose features are used;
    `columns` are the names of features, by default those of the data set.
    """
    watch = watch or ProgressListener()
    whole = workspace or Workspace(dataset, choose_device(chosen.device), cache_folder() if chosen.cache else None)
    workspace = replace(whole, on_encoding=watch.encoding, notes=[])
    request = single_run(
        chosen.method, chosen.seed, chosen.settings, encoder=chosen.encoder, tune=chosen.tune, plan="all",
        metric=chosen.metric, steps=chosen.steps, batch=chosen.batch, lr=chosen.lr, model=folder,
        model_settings=agrees,
    )  # fmt: skip
    _check_data(dataset, request.settings or {}, keep_sample=chosen.keep_sample)
    (job,) = resolve(request, workspace)
    spec, episode = job.spec, job.episode_in(workspace)
    if chosen.left_out and runs is None:
        runs = _left_out_runs(spec, workspace, folder, watch)
    saver = Saver(None if folder is None else checkpoint_path(spec, episode, folder))
    watch.start(1, 0)
    watch.begin(f"{spec.method} on {len(dataset.domains)} domains", job.steps)
    with locked(folder) if folder is not None and parallel.is_first() else nullcontext():
        with stop_at_signal():
            record, assembly = train(spec, episode, workspace, saver=saver, tick=watch.step)
            record, assembly, notes = check_adaptation(spec, episode, workspace, record, assembly)
        stage = episode.stages[-1]
        notes = (*workspace.notes, *notes, *check_prototypes(spec, stage, record, assembly))
        watch.end(record)
        model, more = _saved_model(chosen, dataset, record, assembly, stage, calibrate=calibrate, columns=columns)
        model = model if runs is None else replace(model, left_out=runs.left_out(dataset, assembly))
        if folder is not None and parallel.is_first():
            model.save(folder)
            shutil.rmtree(_left_out_folder(folder), ignore_errors=True)
        saver.finish()
    return Trained(model, record, (*notes, *more))


def _check_data(dataset: Dataset, settings: Mapping[str, Any], *, keep_sample: int) -> None:
    if len(dataset) == 1:
        raise BadInput(f"{dataset.name} has one sample: at least 2 are needed, to train and to validate")
    if settings.get("plan", "all") != "all":
        raise BadInput(f"fit trains on all domains: leave plan={settings['plan']} out, or use compare")
    dataset.checked(labels=needs_labels(settings.get("task")))
    check_sample(dataset, keep_sample)


def _left_out_folder(folder: Path) -> Path:
    """Return the folder for the runs of a model that leave out a domain."""
    return folder.with_name(f"{folder.name}-left-out")


def _left_out_runs(
    spec: Spec, workspace: Workspace, folder: Path | None, watch: ProgressListener
) -> CollectedRuns | None:
    """Train with each domain left out in turn; the runs of a model folder are next to it until it is complete."""
    with ExitStack() as stack:
        out = Path(stack.enter_context(TemporaryDirectory())) if folder is None else _left_out_folder(folder)
        with stop_at_signal():
            return train_left_out(spec, replace(workspace, out=out), watch=watch)


def _saved_model(
    chosen: Configuration, dataset: Dataset, record: RunRecord, assembly: Assembly, stage: Stage, *, calibrate: bool,
    columns: Sequence[str] | None,
) -> tuple[SavedModel, tuple[str, ...]]:  # fmt: skip
    """Return the trained network with its calibration, its held-out rows and the sample for `adapt`, and remarks."""
    held_out, rows, notes = stage.test or stage.valid, stage.train if calibrate else (), ()
    calibration = fit_calibration(assembly, rows, stage.valid, seed=chosen.seed)
    if calibrate and record.spec["task"] == "classify":
        notes = correct_class_mix(record, assembly, stage, calibration, seed=chosen.seed)
    sample = None
    if chosen.keep_sample:
        sample = draw_sample(dataset, stage.train, held_out, limit=chosen.keep_sample, seed=chosen.seed)
    named = dataset.columns if columns is None else columns
    names = None if named is None else tuple(map(str, named))
    model = SavedModel.of(
        assembly, dataset, record, HeldOut.of(dataset, held_out), calibration=calibration, train=rows, scored=held_out,
        seed=chosen.seed, sample=sample, columns=names,
    )  # fmt: skip
    return model, tuple(notes)
