"""Fill a prediction-time memory after training, and choose its settings on source validation rows.

Shapes: n examples, d width, c classes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.core.seeds import derive
from holdfast.data.batches import Examples
from holdfast.data.splits import Part
from holdfast.methods.base import Method
from holdfast.nn.memory.recall import T3A, Recall, mixed
from holdfast.nn.model import Model
from holdfast.train.evaluate import evenly_spaced
from holdfast.train.plan import Stage, rows_of

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
    model, training = method.deployed, method.training
    method.eval()

    def both(x: Any) -> Tensor:
        z = model.features(x)
        return torch.cat([z.float(), model.head(z).float()], dim=-1)

    values = examples.map(both, rows, prediction_batch=model.prediction_batch, shared=True).to(examples.device)
    method.train(training)
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
