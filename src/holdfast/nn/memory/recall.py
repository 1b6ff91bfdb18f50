"""Memories that are read at prediction time only: the trained network stays as it is.

The prediction is p = (1 - a) p_model + a p_memory. Stored examples are added and deleted without training. A weight of
zero reproduces the network exactly.

Shapes: b batch, n stored examples, d width, c classes.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.core.checkpoint import load_tree, save_tree
from holdfast.core.errors import BadInput
from holdfast.core.settings import checked_settings, setting, unlabelled_setting
from holdfast.nn.heads import Linear

WEIGHTS = tuple(i / 10 for i in range(10))  # of the memory, tried if it is not set
ALL = 1 << 40  # as a size: no limit


class Recall(nn.Module, ABC):
    """Base of prediction-time memories: stored features with labels, and their share of the prediction.

    Buffers are not part of the network's state, so that weights of a network with and without a memory are equal.
    """

    Settings: ClassVar[type[Any]]
    name: ClassVar[str]
    grid: ClassVar[Mapping[str, Sequence[Any]]]  # values to try for settings that are not set
    row_buffers: ClassVar[Sequence[str]] = ("keys", "labels")  # with a row per stored example
    transductive: ClassVar[bool] = False  # it stores unlabelled examples that are to be predicted

    keys: Tensor  # (n, d) unit vectors
    labels: Tensor  # (n,) long
    centre: Tensor  # (d,) mean of the training features

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.settings: Any = self.Settings(**settings)
        self.chosen: dict[str, Any] = {}  # values of `grid` and `weight`
        self.scale: float = 1.0  # temperature of the network's outputs
        self.classes: int = 0
        self.ids: list[str] = []  # hash of each stored example; empty for those that were never named
        self.rows: list[int] = []  # of the training data that are stored, until they have ids
        for name, value in (("keys", torch.zeros(0, 0)), ("labels", torch.zeros(0, dtype=torch.long))):
            self.register_buffer(name, value, persistent=False)
        self.register_buffer("centre", torch.zeros(0), persistent=False)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def weight(self) -> float:
        return float(self.chosen.get("weight", 0.0))

    @abstractmethod
    def begin(self, features: Tensor, y: Tensor, head: nn.Module) -> None:
        """Store the labelled training features (n, d) and what else the memory needs of the network."""

    @abstractmethod
    def votes(self, z: Tensor) -> Tensor:
        """Return the probabilities (b, c) of the memory alone."""

    def forward(self, z: Tensor, outputs: Tensor) -> Tensor:
        """Return log p (b, c) for features and outputs of the network, or the outputs if the weight is zero."""
        if not self.weight or not len(self):
            return outputs
        return mixed(outputs, self.votes(z), self.weight, self.scale).log()

    def options(self) -> list[dict[str, Any]]:
        """Return the combinations of settings to try, without the weight."""
        values = [
            tried if getattr(self.settings, name) is None else (getattr(self.settings, name),)
            for name, tried in self.grid.items()
        ]
        return [dict(zip(self.grid, combination, strict=True)) for combination in itertools.product(*values)]

    def weights(self) -> tuple[float, ...]:
        """Return the weights to try."""
        return WEIGHTS if self.settings.weight is None else (float(self.settings.weight),)

    def normalised(self, z: Tensor) -> Tensor:
        """Return centred features as unit vectors, in full precision.  # (b, d)"""
        return F.normalize(z.float() - self.centre, dim=-1)

    def add(self, z: Tensor, y: Tensor, ids: Sequence[str] = ()) -> None:
        """Store further examples; they count from the next prediction on."""
        if z.shape[-1] != self.keys.shape[-1]:
            raise BadInput(f"the memory stores features of width {self.keys.shape[-1]}, got {z.shape[-1]}")
        self.keys = torch.cat([self.keys, self.normalised(z.to(self.keys.device))])
        self.labels = torch.cat([self.labels, y.to(self.labels.device)])
        self.ids = [*self.ids, *(ids or [""] * len(y))]

    def delete(self, ids: Sequence[str]) -> int:
        """Remove all examples with these ids; return how many there were."""
        gone = set(ids)
        remaining = [i for i, own in enumerate(self.ids) if own not in gone]
        removed = len(self.ids) - len(remaining)
        rows = torch.tensor(remaining, dtype=torch.long, device=self.keys.device)
        for name in self.row_buffers:
            setattr(self, name, getattr(self, name)[rows])
        self.ids = [self.ids[i] for i in remaining]
        return removed

    def state(self) -> dict[str, Any]:
        """Return everything that a file stores: JSON values and tensors."""
        tensors = {name: buffer.detach().cpu().contiguous() for name, buffer in self.named_buffers()}
        values = {"settings": asdict(self.settings), "chosen": self.chosen, "scale": self.scale}
        return {"kind": self.name, **values, "classes": self.classes, "ids": self.ids, "tensors": tensors}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set everything from `state`; raise TypeError if the sizes do not fit together."""
        tensors, self.chosen, self.scale = state["tensors"], dict(state["chosen"]), float(state["scale"])
        self.classes, self.ids = int(state["classes"]), [str(each) for each in state["ids"]]
        for name, _ in list(self.named_buffers()):
            setattr(self, name, tensors[name])
        if not len(self.keys) == len(self.labels) == len(self.ids) or self.keys.shape[1:] != self.centre.shape:
            raise TypeError("the stored examples have inconsistent sizes")
        if len(self.labels) and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < self.classes:
            raise TypeError("a stored example has an unknown class")


def mixed(outputs: Tensor, votes: Tensor, weight: float, scale: float) -> Tensor:
    """Return (1 - weight) softmax(outputs / scale) + weight votes, (b, c), above zero."""
    own = (outputs.float() / scale).softmax(dim=-1)
    return ((1 - weight) * own + weight * votes).clamp_min(1e-12)


class KNN(Recall):
    """Vote of the k most similar training examples, weighted by softmax(similarity / temperature).

    Khandelwal et al. (2020) for language models; here similarity is the cosine of centred features before the head.
    """

    @checked_settings
    class Settings:
        k: int | None = setting(None, least=1, help="examples that vote; default: chosen on source validation rows")
        temperature: float | None = setting(None, least=1e-6, help="of the similarities; default: chosen")
        weight: float | None = setting(None, least=0, below=1, help="share of the memory; default: chosen")
        limit: int = setting(10000, least=1, help="stored training examples, drawn evenly from the domains")

    name = "knn"
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {"k": (8, 32, 128), "temperature": (0.02, 0.05, 0.1)}

    def begin(self, features: Tensor, y: Tensor, head: nn.Module) -> None:
        self.centre = features.float().mean(dim=0)
        self.keys, self.labels = self.normalised(features), y
        self.ids = [""] * len(y)

    def votes(self, z: Tensor) -> Tensor:
        similarity = self.normalised(z) @ self.keys.T  # (b, n)
        values, at = similarity.topk(min(self.chosen["k"], len(self)), dim=-1)  # (b, k)
        weights = (values / self.chosen["temperature"]).softmax(dim=-1)
        empty = weights.new_zeros(z.shape[0], self.classes)
        return empty.scatter_add(1, self.labels[at], weights)


class T3A(Recall):
    """Class prototypes: the weights of the head and the most certain unlabelled examples (Iwasawa & Matsuo, 2021).

    `observe` stores unlabelled examples with their predicted class; the prototype of a class is the mean of its head
    weights and of its `size` examples with the lowest entropy.
    """

    @checked_settings
    class Settings:
        size: int | None = setting(
            None, least=1, help="unlabelled examples per class; default: chosen on source validation rows"
        )
        temperature: float | None = setting(None, least=1e-6, help="of the similarities; default: chosen")
        weight: float | None = setting(None, least=0, below=1, help="share of the prototypes; default: chosen")
        unlabelled: str = unlabelled_setting()

    name = "t3a"
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {"size": (5, 20, 100, ALL), "temperature": (0.05, 0.1, 0.2)}
    transductive = True
    row_buffers = ("keys", "labels", "entropy")

    start: Tensor  # (c, d) unit vectors
    entropy: Tensor  # (n,) of the stored examples; 0 for labelled ones

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.register_buffer("start", torch.zeros(0, 0), persistent=False)
        self.register_buffer("entropy", torch.zeros(0), persistent=False)

    def begin(self, features: Tensor, y: Tensor, head: nn.Module) -> None:
        if not isinstance(head, Linear):
            raise BadInput("predict=t3a needs the weights of a linear head: use head=linear, or predict=knn")
        self.centre = torch.zeros_like(features[0], dtype=torch.float)
        self.start = F.normalize(head.weight.detach().float(), dim=-1)
        self.forget()

    def forget(self) -> None:
        """Remove all stored examples."""
        self.keys, self.labels = self.start[:0], torch.zeros(0, dtype=torch.long, device=self.start.device)
        self.entropy, self.ids = self.start.new_zeros(0), []

    def observe(self, z: Tensor, outputs: Tensor, ids: Sequence[str] = ()) -> None:
        """Store unlabelled examples with the class and the certainty that the network predicts."""
        p = outputs.float().softmax(dim=-1)
        self.add(z, p.argmax(dim=-1), ids)
        entropy = torch.special.entr(p).sum(dim=-1).to(self.entropy.device)
        self.entropy = torch.cat([self.entropy[: len(self) - len(z)], entropy])

    def add(self, z: Tensor, y: Tensor, ids: Sequence[str] = ()) -> None:
        super().add(z, y, ids)
        self.entropy = torch.cat([self.entropy, self.entropy.new_zeros(len(y))])

    def prototypes(self) -> Tensor:
        """Return the normalised prototypes (c, d)."""
        means = []
        for label in range(len(self.start)):
            rows = (self.labels == label).nonzero()[:, 0]
            certain = rows[self.entropy[rows].argsort(stable=True)][: self.chosen["size"]]
            means.append(torch.cat([self.start[label : label + 1], self.keys[certain]]).mean(dim=0))
        return F.normalize(torch.stack(means), dim=-1)

    def votes(self, z: Tensor) -> Tensor:
        return (self.normalised(z) @ self.prototypes().T / self.chosen["temperature"]).softmax(dim=-1)


@dataclass(frozen=True)
class NoRecall:
    """The network alone; it has no settings."""


KINDS: dict[str, type[Recall]] = {KNN.name: KNN, T3A.name: T3A}


def save_recall(path: Path, recall: Recall) -> Path:
    """Write the stored examples atomically."""
    return save_tree(path, recall.state())


def load_recall(path: Path, *, width: int) -> Recall:
    """Read the stored examples of a network; raise TypeError or KeyError if they are not valid."""
    tree = load_tree(path)
    recall = KINDS[tree["kind"]](**tree["settings"])
    recall.restore(tree)
    if recall.keys.shape[-1] != width:
        raise TypeError(f"its stored examples have the width {recall.keys.shape[-1]}, its network {width}")
    return recall
