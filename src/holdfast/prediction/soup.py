"""Models of finished runs, without further training: average the weights of seeds, or the predictions of networks.

A soup averages the weights of seeds that share a start. The best seed comes first and others join one by one, as in a
greedy soup (Wortsman et al., 2022). Seeds hold out different rows, so a seed is judged with each member in turn on the
rows that neither of the two was trained on: the average of both networks must not have a higher NLL there than the
member. Head and neck of each seed have their own random start; where averages of them do not work, this test refuses
them.

Shapes: n rows, c classes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from holdfast.core.stopping import Deadline
from holdfast.data.dataset import Dataset
from holdfast.data.splits import HeldOut
from holdfast.folders.format import Member, SavedModel
from holdfast.record import RunRecord
from holdfast.spec import Spec
from holdfast.stats.selection import train_validation
from holdfast.train.assemble import assemble
from holdfast.train.plan import Episode, rows_of
from holdfast.train.run import state_path, weights_path
from holdfast.train.workspace import Workspace
from holdfast.uncertainty.calibration import fit_calibration, nll
from holdfast.uncertainty.reference import fit_reference
from holdfast.uncertainty.stored_runs import episode_of, stored_tensors

MOST_MEMBERS = 3  # runs of an ensemble, at most
MIN_ROWS = 20  # held out by two seeds; fewer do not show whether their average works

State = Mapping[str, Tensor]


class Network:
    """The network of one episode, with weights that are set from outside."""

    def __init__(self, spec: Spec, episode: Episode, workspace: Workspace) -> None:
        assembly = assemble(spec, episode, workspace)
        self.assembly = assembly.trained(assembly.make())
        self.model = self.assembly.deployed
        self.model.recall = None

    def load(self, state: State) -> None:
        """Set the weights; encoders of a complete state are left out if the network starts from cached features."""
        self.model.load_state_dict({name: state[name] for name in self.model.state_dict()})
        self.model.eval()

    def outputs(self, state: State, rows: np.ndarray) -> np.ndarray:
        """Return the outputs (n, c) of the network with these weights."""
        self.load(state)
        examples, batch = self.assembly.examples, self.model.prediction_batch
        return examples.map(self.model, rows, prediction_batch=batch).float().cpu().numpy()


def average(states: Sequence[State]) -> dict[str, Tensor]:
    """Return the mean of every tensor, in double precision, in which that of equal tensors is exact.

    Tensors of integers are those of the first state.
    """
    means = {name: torch.stack([state[name].double() for state in states]).mean(dim=0) for name in states[0]}
    return {name: means[name].to(t.dtype) if t.is_floating_point() else t for name, t in states[0].items()}


def choose_members(
    states: Sequence[State], held_out: Sequence[np.ndarray], order: Sequence[int], y: np.ndarray,
    outputs: Callable[[State, np.ndarray], np.ndarray],
) -> list[int]:  # fmt: skip
    """Return the members of a greedy soup, the first of `order` first.

    `held_out` are the rows that each network was not trained on, `y` the labels of all rows, and `outputs` computes the
    outputs (n, c) of weights for some rows.
    """

    def loss(members: Sequence[int], rows: np.ndarray) -> float:
        return nll(outputs(average([states[i] for i in members]), rows), y[rows])

    def joins(member: int, new: int) -> bool:
        rows = np.intersect1d(held_out[member], held_out[new])
        rows = rows[y[rows] >= 0]
        return len(rows) >= MIN_ROWS and loss((member, new), rows) <= loss((member,), rows)

    chosen = [order[0]]
    for new in order[1:]:
        if all(joins(member, new) for member in chosen):
            chosen.append(new)
    return chosen


def greedy_soup(
    records: Sequence[RunRecord], states: Sequence[State], episodes: Sequence[Episode], workspace: Workspace
) -> tuple[Network, list[int], dict[str, Tensor]]:
    """Return the network of some seeds, the members of their soup, and its weights."""
    network = Network(Spec(**records[0].spec), episodes[0], workspace)
    held_out = [rows_of(episode.stages[-1].valid) for episode in episodes]
    chosen = choose_members(states, held_out, best_first(records), workspace.dataset.y, network.outputs)
    return network, chosen, average([states[i] for i in chosen])


def best_first(records: Sequence[RunRecord]) -> list[int]:
    """Return the order of runs by their mean validation score over source domains."""
    scores = [train_validation(record) for record in records]
    return sorted(range(len(records)), key=lambda i: -np.inf if (score := scores[i]) is None else score, reverse=True)


def fit_soup(models: Sequence[SavedModel], dataset: Dataset, *, device: torch.device, cache: Path | None) -> SavedModel:
    """Return the soup of models that were trained on all domains with different seeds, best validation score first.

    The foreign score is fitted to the averaged network. Its temperature is the mean of those of the members, because
    the rows that one of them held out are training rows of the others.
    """
    workspace = Workspace(dataset, device, cache)
    specs = [Spec(**model.record.spec) for model in models]
    episodes = [workspace.episodes(spec)[0] for spec in specs]
    states = [{name: value.to(device) for name, value in model.model.state_dict().items()} for model in models]
    network, chosen, state = greedy_soup([model.record for model in models], states, episodes, workspace)
    first, stage = models[chosen[0]], episodes[chosen[0]].stages[-1]
    model = copy.deepcopy(first.model)
    model.load_state_dict(state)
    network.load(state)
    seed = specs[chosen[0]].seed
    calibration = fit_calibration(network.assembly, stage.train, stage.valid, seed=seed)
    known = [models[i].calibration for i in chosen]
    if calibration is not None:
        temperatures = [each.temperature for each in known if each is not None]
        calibration = replace(calibration, temperature=float(np.mean(temperatures or [calibration.temperature])))
    reference = fit_reference(
        network.assembly, dataset, stage.train, stage.test or stage.valid, calibration=calibration,
        columns=first.columns, seed=seed,
    )  # fmt: skip
    about = {"seeds": [spec.seed for spec in specs], "averaged": [specs[i].seed for i in chosen]}
    record = replace(first.record, analysis={**first.record.analysis, "soup": about})
    left_out = first.left_out
    if left_out is not None and specs[0].tune != "frozen":  # the features of the average differ
        left_out = left_out.without_features()
    return replace(
        first, model=model.eval(), record=record, calibration=calibration, left_out=left_out, reference=reference
    )


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
    return SavedModel.of(
        network.assembly, dataset, record, HeldOut.of(dataset, stage.test or stage.valid),
        calibration=fit_calibration(network.assembly, stage.train, stage.valid, seed=spec.seed),
        train=stage.train, scored=stage.valid, seed=spec.seed,
    )  # fmt: skip
