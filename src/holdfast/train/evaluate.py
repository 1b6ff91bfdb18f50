"""Predictions, scores and class mixes of a method, in large batches and without gradients.

A prediction-time memory is filled after training, and its settings are chosen on source validation rows.

Shapes: n examples, d width, c classes, k statistics per example.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Inputs
from holdfast.core.seeds import derive
from holdfast.core.stopping import stop_all_if_requested, stop_if_requested
from holdfast.core.tape import tape
from holdfast.data.batches import Examples
from holdfast.data.splits import Part
from holdfast.defaults import FEW_DOMAINS
from holdfast.methods.base import Method
from holdfast.nn.memory.read import HasMemory
from holdfast.nn.memory.recall import T3A, Recall, mixed
from holdfast.nn.model import Model
from holdfast.record import Scores
from holdfast.tasks.base import Task
from holdfast.train.fit import Diverged
from holdfast.train.plan import Stage, rows_of

Function = Callable[[Inputs, Tensor], Tensor]
MEMORY_CHECK_ROWS = 8  # examples that test whether a memory is read
REMAINS = 0.1  # a class is still predicted if its share is at least this part of what it was
MAX_ROWS = 2000  # that are predicted


class Unused(BadInput):
    """A memory of the network has no effect."""


def outputs(method: Method, examples: Examples, rows: np.ndarray) -> Tensor:
    """Return (n, c) predictions on the CPU, in the order of `rows`."""
    return _map(method, examples, rows, lambda x, y: method.predict(x))


def validation_outputs(
    method: Method, examples: Examples, domains: Sequence[Part], task: Task
) -> list[tuple[Tensor, Tensor]]:
    """Return per part (n, k) the task's statistics of plain predictions, and the targets."""
    return _map_parts(method, examples, domains, lambda x, y: task.stats(method.predict(x), y))


def evaluation_outputs(
    method: Method, examples: Examples, domains: Sequence[Part], task: Task
) -> list[tuple[Tensor, Tensor]]:
    """Return per part (n, k) the task's statistics of its complete evaluation, such as responses, and the targets."""
    return _map_parts(method, examples, domains, lambda x, y: task.evaluate(method.deployed, x, y))


def score(
    method: Method, examples: Examples, domains: Sequence[Part], task: Task, names: Sequence[str]
) -> dict[str, Scores]:
    """Return the named metrics per domain."""
    pairs = zip(domains, evaluation_outputs(method, examples, domains, task), strict=True)
    return {part.domain: task.scores(*pair, names) for part, pair in pairs}


def _map_parts(
    method: Method, examples: Examples, domains: Sequence[Part], function: Function
) -> list[tuple[Tensor, Tensor]]:
    """Evaluate each domain in its own batches; many share batches unless predictions depend on the batch."""
    rows = [examples.rows_of(part) for part in domains]
    if len(domains) <= FEW_DOMAINS or method.deployed.prediction_batch is not None:
        values = [_map(method, examples, each.numpy(), function) for each in rows]
    else:
        values = _map(method, examples, torch.cat(rows).numpy(), function).split(list(map(len, rows)))
    return [(value, examples.targets(each).cpu()) for value, each in zip(values, rows, strict=True)]


def _map(method: Method, examples: Examples, rows: np.ndarray, function: Function) -> Tensor:
    stop_all_if_requested()
    training = method.training
    method.eval()
    values = examples.map(
        function, rows, lambda _: stop_if_requested(),
        prediction_batch=method.deployed.prediction_batch, targets=True, shared=True,
    )  # fmt: skip
    method.train(training)
    return values


@torch.no_grad()
def check_memory(method: Method, examples: Examples, part: Part) -> None:
    """Raise if a memory of the network is not read by a few examples, or if a read is not finite."""
    modules = method.deployed.modules()
    expected = {module.tape_name for module in modules if isinstance(module, HasMemory) and module.tape_name}
    if not expected or not len(part.rows):
        return
    training = method.training
    method.eval()
    with tape() as side:
        method.predict(examples.inputs(torch.from_numpy(part.rows[:MEMORY_CHECK_ROWS])))
    method.train(training)
    for name in sorted(expected):
        if not side[name]:
            raise Unused(f"no example reads the memory of this network ({name}): move it to another layer or remove it")
        if not all(bool(torch.isfinite(value).all()) for value in side[name]):
            raise Diverged(f"the memory read returned NaN or inf ({name}): lower --lr or set clip")


def class_mix(probabilities: np.ndarray) -> np.ndarray:
    """(c,) share of examples per predicted class."""
    return np.bincount(probabilities.argmax(axis=1), minlength=probabilities.shape[1]) / max(1, len(probabilities))


def collapsed(before: np.ndarray, after: np.ndarray) -> bool:
    """Whether at most half of the classes that were predicted are still predicted."""
    present = before > 0
    return bool((after[present] >= REMAINS * before[present]).sum() <= present.sum() / 2) and int(present.sum()) > 1


def adaptation_mix(
    method: Method, examples: Examples, valid: tuple[Part, ...], unlabelled: tuple[Part, ...]
) -> dict[str, Any]:
    """Return the predicted class mixes of held-out source rows and of unlabelled rows, and whether it collapsed."""
    mixes = [
        class_mix(outputs(method, examples, evenly_spaced(rows_of(groups), MAX_ROWS)).numpy())
        for groups in (valid, unlabelled)
    ]
    names = ("sources", "unlabelled")
    shares = {name: mix.round(4).tolist() for name, mix in zip(names, mixes, strict=True)}
    return {"mix": shares, "collapsed": collapsed(*mixes)}


def evenly_spaced(rows: np.ndarray, limit: int) -> np.ndarray:
    """Return at most `limit` of the rows, evenly spaced."""
    return rows[np.linspace(0, len(rows) - 1, min(limit, len(rows))).astype(np.int64)]


MAX_UNLABELLED = 10_000  # unlabelled rows that are stored
VALID_ROWS = 500  # validation rows per domain that settings are chosen on
SCALES = [10 ** (i / 20) for i in range(-20, 21)]  # temperatures of the network that are tried


@torch.no_grad()
def attach(
    method: Method, recall: Recall, examples: Examples, train: Sequence[Part], valid: Sequence[Part], seed: int
) -> dict[str, Any]:
    """Fill a memory with the training rows, choose its settings, and let the deployed network read it.

    The settings with the lowest mean NLL over the validation rows of the source domains are used; a domain counts as
    much as any other. Return what was chosen, the NLL without and with the memory, and the share of predictions on
    validation rows that it changes.
    """
    model = method.deployed
    model.recall = None
    rows = _stored_rows(train, getattr(recall.settings, "limit", 0), seed)
    features, outputs = _observe(method, examples, rows[: 1 if recall.transductive else None])
    y = examples.targets(torch.from_numpy(rows)).to(features.device)[: len(features)]
    recall.to(features.device)
    recall.classes = outputs.shape[-1]
    recall.begin(features, y, model.head)
    observed = [_observe(method, examples, part.rows[:VALID_ROWS]) for part in valid]
    targets = [examples.targets(torch.from_numpy(part.rows[:VALID_ROWS])).to(features.device) for part in valid]
    recall.scale = min(SCALES, key=lambda scale: _nll([(o / scale).softmax(-1) for _, o in observed], targets))
    best, lowest, changed = {"weight": 0.0}, float("inf"), 0.0
    plain = _nll([(o / recall.scale).softmax(-1) for _, o in observed], targets)
    for option in recall.options():
        recall.chosen = option
        votes = [_votes(recall, z, o) for z, o in observed]
        for weight in recall.weights():
            predictions = [mixed(o, v, weight, recall.scale) for (_, o), v in zip(observed, votes, strict=True)]
            loss = _nll(predictions, targets)
            if loss < lowest - 1e-6:
                best, lowest = {**option, "weight": weight}, loss
                pairs = zip(predictions, observed, strict=True)
                changed = _share([p.argmax(-1) != o.argmax(-1) for p, (_, o) in pairs])
    recall.chosen = best
    if isinstance(recall, T3A):
        recall.forget()
    recall.rows = [] if recall.transductive else rows.tolist()
    model.recall = recall
    names = {key: value for key, value in best.items() if key != "size" or value < 1 << 30}
    stored = {"examples": len(recall), "nll": plain, "nll_with_memory": lowest, "changed": changed}
    return {"kind": recall.name, **names, **stored}


@torch.no_grad()
def observe_unlabelled(method: Method, examples: Examples, rows: np.ndarray) -> None:
    """Let a transductive memory store the inputs of some rows, without labels, in place of those that it has."""
    recall = method.deployed.recall
    if isinstance(recall, T3A):
        method.deployed.recall = None
        recall.forget()
        recall.observe(*_observe(method, examples, rows))
        method.deployed.recall = recall


def adapt_prototypes(method: Method, examples: Examples, stage: Stage, seed: int) -> tuple[Part, ...]:
    """Let a transductive memory follow the unlabelled rows of a stage; return the rows, none if it does not use them.

    With `unlabelled=source` it follows the same number of training rows instead, a null control.
    """
    recall = method.deployed.recall
    if not isinstance(recall, T3A) or not stage.unlabelled or recall.settings.unlabelled == "none":
        return ()
    rows = evenly_spaced(rows_of(stage.unlabelled), MAX_UNLABELLED)
    if recall.settings.unlabelled == "source":
        rows = control_rows(stage.train, len(rows), seed)
    observe_unlabelled(method, examples, rows)
    recall.rows = rows.tolist()
    return stage.unlabelled


def control_rows(train: Sequence[Part], count: int, seed: int) -> np.ndarray:
    """Return at most `count` random training rows, for a null control."""
    rows = rows_of(train)
    return np.sort(np.random.default_rng(derive(seed, "t3a")).choice(rows, min(count, len(rows)), replace=False))


def forget_unlabelled(model: Model) -> None:
    """Remove the examples that a transductive memory stored."""
    if isinstance(model.recall, T3A):
        model.recall.forget()


def _votes(recall: Recall, z: Tensor, outputs: Tensor) -> Tensor:
    if isinstance(recall, T3A):
        recall.forget()
        recall.observe(z, outputs)
    return recall.votes(z)


def _observe(method: Method, examples: Examples, rows: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return features (n, d) before the head and outputs (n, c) of the deployed network, on its device."""
    model = method.deployed

    def both(x: Any, y: Tensor) -> Tensor:
        z = model.features(x)
        return torch.cat([z.float(), model.head(z).float()], dim=-1)

    values = _map(method, examples, rows, both).to(examples.device)
    return values[:, : model.width], values[:, model.width :]


def _stored_rows(train: Sequence[Part], limit: int, seed: int) -> np.ndarray:
    """Return the rows to store, at most `limit` if it is above 0, drawn evenly from the domains."""
    share = -(-limit // max(1, len(train))) if limit else 0
    rng, rows = np.random.default_rng(derive(seed, "recall")), []
    for part in train:
        chosen = part.rows if not share or len(part.rows) <= share else rng.choice(part.rows, share, replace=False)
        rows.append(np.sort(chosen))
    return np.concatenate(rows)


def _nll(probabilities: Sequence[Tensor], targets: Sequence[Tensor]) -> float:
    """Return the mean over domains of the negative log-likelihood."""
    losses = [F.nll_loss(p.clamp_min(1e-12).log(), y) for p, y in zip(probabilities, targets, strict=True)]
    return float(torch.stack(losses).mean())


def _share(masks: Sequence[Tensor]) -> float:
    return float(torch.cat(list(masks)).float().mean())
