"""Weisfeiler-Lehman subtree counts as an encoder of graphs (Shervashidze et al., 2011)."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from hashlib import blake2b
from typing import Any, Self

import torch

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Graphs
from holdfast.core.settings import checked_settings, keywords_of, setting
from holdfast.core.store import TokenStore
from holdfast.nn.backbones.bag import DIMENSION, BagBackbone
from holdfast.nn.backbones.graph_inputs import degrees
from holdfast.nn.backbones.ngrams import count_items, frequent

Medians = Mapping[str, Sequence[float]]  # of the columns of nodes and edges whose features are numbers


class WeisfeilerLehman(BagBackbone):
    """Counts of the labels that nodes get when each label is repeatedly replaced by itself and its neighbours' labels.

    The first label of a node is its category, whether each of its numbers exceeds the median of the training graphs,
    or its degree. Every iteration is a block of
    columns that is normalised by itself. Later labels are hashes of 8 bytes.
    """

    takes = "graph"

    @checked_settings
    class Settings:
        iterations: int = setting(3, least=0, help="rounds of relabelling: the height of the subtrees")
        min_df: int = setting(2, least=1, help="training graphs that a label must occur in")
        features: int = setting(100_000, least=1, help="largest number of labels")
        dimension: int = setting(DIMENSION, least=1, help="features that the table maps the labels to")

    @keywords_of(Settings)
    def __init__(self, vocabulary: Mapping[str, Sequence[str]], medians: Medians, settings: Settings) -> None:
        super().__init__()
        self._initialise(vocabulary, {**asdict(settings), "medians": dict(medians)})
        self.index = {block: {label: i for i, label in enumerate(names)} for block, names in self.vocabulary.items()}

    @classmethod
    def build(cls, training: Callable[[], Any], **settings: Any) -> Self:
        """Learn the labels and their frequencies from the training graphs."""
        options = cls.Settings(**settings)
        graphs = training()
        medians = {
            name: torch.cat(numbers).median(0).values.tolist()
            for name, features in (("nodes", [g.nodes for g in graphs]), ("edges", [g.weights for g in graphs]))
            if (numbers := [each for each in features if each is not None and each.is_floating_point()])
        }
        rows = [subtree_labels(graph, options.iterations, medians) for graph in graphs]
        blocks = {
            f"iteration {i}": count_items((labels[i] for labels in rows), {}, add=True)
            for i in range(options.iterations + 1)
        }
        vocabulary, idf = frequent(blocks, min_df=options.min_df, limit=options.features)
        encoder = cls(vocabulary, medians, **settings)
        encoder.idf.copy_(torch.from_numpy(idf))
        return encoder

    def prepare(self, examples: Any) -> TokenStore:
        iterations, medians = self.settings["iterations"], self.settings["medians"]
        rows = [subtree_labels(graph, iterations, medians) for graph in examples]
        counts = {
            block: count_items((labels[i] for labels in rows), index, add=False)[1]
            for i, (block, index) in enumerate(self.index.items())
        }
        return self.bags(counts)


def subtree_labels(graph: Any, iterations: int, medians: Medians) -> list[list[str]]:
    """Return the labels of all nodes, for 0 to `iterations` rounds."""
    if not isinstance(graph, Graphs) or graph.count != 1:
        raise BadInput(f"each example must be a Graphs of one graph, got {type(graph).__name__}")
    labels = _texts(graph.nodes if graph.nodes.shape[1] else degrees(graph)[:, None], medians.get("nodes", ()))
    kinds = [""] * graph.edges.shape[1] if graph.weights is None else _texts(graph.weights, medians.get("edges", ()))
    edges = list(zip(*graph.edges.tolist(), kinds, strict=True))
    rounds = [labels]
    for _ in range(iterations):
        received: list[Counter[str]] = [Counter() for _ in labels]
        for start, end, kind in edges:
            received[end][f"{kind}>{labels[start]}"] += 1
        labels = [_hash(label, sorted(near.items())) for label, near in zip(labels, received, strict=True)]
        rounds.append(labels)
    return rounds


def _texts(features: torch.Tensor, medians: Sequence[float]) -> list[str]:
    """Return one text per row of features: the categories, or which numbers exceed the median."""
    if features.is_floating_point():
        if features.shape[1] != len(medians):
            raise BadInput(f"a graph has {features.shape[1]} number columns, but the model needs {len(medians)}")
        features = (features > features.new_tensor(medians)).int()
    return [",".join(map(str, row)) for row in features.tolist()]


def _hash(label: str, near: Sequence[tuple[str, int]]) -> str:
    return blake2b(repr((label, near)).encode(), digest_size=8).hexdigest()
