"""Encoders of sparse counts: weighted and normalised counts, and a linear map from them to features.

An example is a list of (column, count) pairs, stored as token ids with the counts in place of segment ids, so that no
dense matrix (n, p) exists. The linear map is a table of p random vectors, a random projection until it is trained.

Shapes: b batch, t entries per example, p columns, k blocks, d width.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from scipy import sparse
from torch import Tensor, nn

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Tokens
from holdfast.core.ragged import Ragged
from holdfast.core.store import TokenStore
from holdfast.core.tape import exporting
from holdfast.nn.backbones.base import Backbone, LearnedPreparation, fingerprint

FILE = "vocabulary.json"
UNIT = 64  # entries that take as much memory as a token of other networks
DIMENSION = 64  # default of the setting `dimension`


class BagStore(TokenStore):
    """Sparse counts; batches have many entries, because little memory is needed per entry."""

    def lengths(self) -> Tensor:
        """Return the number of entries (n,) in units of `UNIT`."""
        return -(-super().lengths() // UNIT)


class BagBackbone(Backbone, LearnedPreparation):
    """Base of encoders of sparse counts; a vocabulary maps each block of columns to the names of its columns.

    The value of a count c is (1 + ln c) idf, divided by the Euclidean norm of the example's values in the same block.
    """

    idf: Tensor  # (p,)
    block: Tensor  # (p,) index of each column's block
    vocabulary: dict[str, list[str]]
    settings: dict[str, Any]  # with the key `dimension`
    key: str = ""  # fingerprint of the vocabulary, once it is computed

    def _initialise(self, vocabulary: Mapping[str, Sequence[str]], settings: dict[str, Any]) -> None:
        """Set the vocabulary and create the table; idf is 1 until it is set or loaded."""
        self.vocabulary = {name: list(columns) for name, columns in vocabulary.items()}
        self.settings, self.width = settings, int(settings["dimension"])
        sizes = torch.tensor([len(columns) for columns in self.vocabulary.values()])
        count = int(sizes.sum())
        if not count:
            raise BadInput("no feature occurs often enough in the training examples: lower encoder.min_df or add some")
        self.register_buffer("idf", torch.ones(count))
        self.register_buffer("block", torch.arange(len(sizes)).repeat_interleave(sizes), persistent=False)
        self.table = nn.Parameter(torch.randn(count, self.width) / math.sqrt(self.width))

    def bags(self, blocks: Mapping[str, sparse.csr_matrix]) -> TokenStore:
        """Return the store of counts (n, columns of the block) per block."""
        counts = sparse.csr_matrix(sparse.hstack([blocks[name] for name in self.vocabulary], format="csr"))
        starts = torch.from_numpy(counts.indptr.astype(np.int64))
        ids, values = (torch.from_numpy(array.astype(np.int32)) for array in (counts.indices, counts.data))
        return BagStore(Ragged(ids, starts), pad=0, types=Ragged(values, starts))

    def values(self, x: Tokens) -> Tensor:
        """(b, t) values of the entries, 0 for padding."""
        assert x.types is not None
        counts = x.types.clamp(min=1).to(self.idf.dtype)
        values = torch.where(x.mask, (1 + counts.log()) * self.idf[x.ids], 0.0)
        block = self.block[x.ids]
        norms = torch.zeros_like(values)
        for k in range(len(self.vocabulary)):
            inside = block == k
            norm = (values.square() * inside).sum(1, keepdim=True).sqrt()  # (b, 1)
            norms = torch.where(inside, norm, norms)
        return values / norms.clamp(min=1e-12)

    def forward(self, x: Tokens) -> Tensor:
        values = self.values(x)
        if exporting():
            return (self.table[x.ids] * values[..., None]).sum(1)
        if not x.ids.shape[1]:  # no example has a known column
            return self.table.new_zeros(len(x), self.width)
        return F.embedding_bag(x.ids, self.table, per_sample_weights=values.to(self.table.dtype), mode="sum")  # (b, d)

    @torch.no_grad()
    def matrix(self, x: Tokens) -> sparse.csr_matrix:
        """(b, p) values as a sparse matrix."""
        values, ids, mask = (tensor.cpu().numpy() for tensor in (self.values(x), x.ids, x.mask))
        starts = np.concatenate([[0], mask.sum(1).cumsum()])
        return sparse.csr_matrix((values[mask], ids[mask].astype(np.int32), starts), shape=(len(x), len(self.idf)))

    def save(self, folder: Path) -> dict[str, Any]:
        (folder / FILE).write_text(json.dumps(self.vocabulary, ensure_ascii=False), encoding="utf-8")
        return self.settings

    @classmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> Self:
        vocabulary = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return cls(vocabulary=vocabulary, **settings)  # pyright: ignore[reportCallIssue]

    def preparation_key(self) -> str:
        if not self.key:
            settings = {name: value for name, value in self.settings.items() if name != "dimension"}
            self.key = fingerprint(type(self).__name__, settings, self.vocabulary)
        return self.key
