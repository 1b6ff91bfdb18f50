"""Encoders of tables with numbers, categories and missing values.

All statistics come from the training rows and are part of the saved encoder: quantiles of the numbers, the categories,
and the columns with missing values. A missing number is replaced by the median and marked by an indicator; a missing
category and a category that the training rows do not have are categories of their own.

Shapes: b batch, p number columns, q category columns, k knots, m columns with missing numbers, d width, t tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from scipy.special import ndtri
from torch import Tensor, nn

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Joint
from holdfast.core.settings import checked_settings, choice, keywords_of, setting
from holdfast.core.store import JointStore, TensorStore
from holdfast.core.table import Column, Schema, TableRows, category_columns, numeric_columns
from holdfast.nn.backbones.base import Backbone, LearnedPreparation, fingerprint
from holdfast.nn.backbones.small import Dropout

KNOTS = 128  # quantiles per number column
UNKNOWN, MISSING, FIRST = 0, 1, 2  # codes of the network: unknown category, missing value, first category
ROWS = 200_000  # training rows that quantiles are computed from, at most
CATEGORIES = 500  # most frequent categories per column that are distinguished


class TableBackbone(Backbone, LearnedPreparation):
    """Base of encoders of tables; `schema` lists the columns with the categories of the training rows."""

    takes = "table"
    knots: Tensor  # (p, k) ascending values of the column, inf after the last one
    levels: Tensor  # (p, k) standardised normal scores of the knots
    gaps: list[int]  # (m,) number columns with missing values in the training rows

    def _initialise(self, schema: Sequence[Any], gaps: Sequence[int]) -> None:
        self.schema = tuple(c if isinstance(c, Column) else Column.from_json(c) for c in schema)
        count = len(numeric_columns(self.schema))
        self.gaps = [int(i) for i in gaps]
        if any(not 0 <= i < count for i in self.gaps):
            raise BadInput("the columns with missing values are not columns of the schema")
        self.register_buffer("knots", torch.zeros(count, KNOTS))
        self.register_buffer("levels", torch.zeros(count, KNOTS))

    @property
    def statistics(self) -> dict[str, Any]:
        """Schema and columns with missing values, as JSON."""
        return {"schema": [column.to_json() for column in self.schema], "gaps": self.gaps}

    @torch.no_grad()
    def _fit_numbers(self, rows: TableRows) -> None:
        at = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), ROWS)).astype(int))
        numbers = rows.numbers[at].numpy().astype(np.float64)
        for i in range(numbers.shape[1]):
            values = numbers[:, i]
            knots, levels = quantile_knots(values[~np.isnan(values)])
            self.knots[i], self.levels[i] = torch.from_numpy(knots), torch.from_numpy(levels)

    @property
    def sizes(self) -> list[int]:
        """Number of codes per category column."""
        return [FIRST + len(column.categories) for column in category_columns(self.schema)]

    def prepare(self, examples: TableRows) -> JointStore:
        try:
            rows = examples.recoded(self.schema)
        except KeyError as error:
            names = ", ".join(column.name for column in self.schema)
            raise BadInput(f"the table lacks the model's column {error}: the model reads {names}") from error
        return JointStore(TensorStore(rows.numbers), TensorStore(rows.codes.long() + FIRST))

    def scores(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """(b, p) normal scores, 0 where a number is missing, and (b, m) indicators of missing values."""
        missing = numbers.isnan()
        x = torch.where(missing, self.knots[:, 0], numbers)[..., None]  # (b, p, 1)
        at = ((x >= self.knots).sum(-1) - 1).clamp(min=0)  # (b, p) last knot that is not above the value
        after = (at + 1).clamp(max=KNOTS - 1)

        def value(table: Tensor, index: Tensor) -> Tensor:
            return table.expand(index.shape[0], -1, -1).gather(-1, index[..., None])[..., 0]

        low, high = value(self.knots, at), value(self.knots, after)
        inside = high.isfinite() & (high > low)
        share = ((x[..., 0] - low) / torch.where(inside, high - low, 1.0)).clamp(0, 1)
        start = value(self.levels, at)
        z = torch.where(inside, start + share * (value(self.levels, after) - start), start)
        return torch.where(missing, 0.0, z), missing[:, self.gaps].to(z.dtype)

    def preparation_key(self) -> str:
        return fingerprint("table", self.statistics["schema"])


def quantile_knots(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return at most `KNOTS` distinct quantiles and their normal scores, standardised on the values; padded with inf.

    Equal values have one knot, with the mean of their ranks.
    """
    knots, levels = np.full(KNOTS, np.inf), np.zeros(KNOTS)
    if not len(values):
        knots[0] = 0.0
        return knots, levels
    ordered = np.sort(values)
    distinct, first, counts = np.unique(ordered.astype(np.float32), return_index=True, return_counts=True)
    ranks = (first + counts / 2) / len(ordered)  # mean rank of each distinct value, in (0, 1)
    chosen = np.unique(np.searchsorted(ranks, np.linspace(ranks[0], ranks[-1], KNOTS)).clip(max=len(distinct) - 1))
    score = ndtri(ranks)
    mean = np.average(score, weights=counts)
    std = np.sqrt(np.average((score - mean) ** 2, weights=counts))
    n = len(chosen)
    knots[:n], levels[:n] = distinct[chosen], (score[chosen] - mean) / (std if std > 1e-8 else 1.0)
    levels[n:] = levels[n - 1]
    return knots, levels


def training_schema(rows: TableRows) -> Schema:
    """Return the columns with the categories of these rows, the most frequent first."""
    coded, columns = iter(rows.codes.T), []
    for column in rows.schema:
        if column.kind != "category":
            columns.append(column)
            continue
        codes = next(coded)
        counts = torch.bincount(codes[codes >= 0].long(), minlength=len(column.categories)).numpy()
        order = [i for i in np.argsort(-counts, kind="stable")[:CATEGORIES] if counts[i]]
        columns.append(replace(column, categories=tuple(column.categories[i] for i in order)))
    return tuple(columns)


def _fitted(cls: Any, training: Callable[[], Any], settings: dict[str, Any]) -> Any:
    rows = training()
    gaps = rows.numbers.isnan().any(0).nonzero()[:, 0].tolist()
    encoder = cls(schema=training_schema(rows), gaps=gaps, **settings)
    encoder._fit_numbers(rows)
    return encoder


class Columns(TableBackbone):
    """Normal scores of the numbers, indicators of missing values and one column per category, without parameters."""

    def __init__(self, *, schema: Sequence[Any], gaps: Sequence[int]) -> None:
        super().__init__()
        self._initialise(schema, gaps)
        self.width = len(numeric_columns(self.schema)) + len(self.gaps) + sum(size - 1 for size in self.sizes)
        self.settings = self.statistics

    @classmethod
    def build(cls, training: Callable[[], Any]) -> Self:
        return _fitted(cls, training, {})

    def forward(self, x: Joint) -> Tensor:
        blocks = [F.one_hot(x.second[:, i], size)[:, MISSING:].float() for i, size in enumerate(self.sizes)]
        return torch.cat([*self.scores(x.first), *blocks], dim=1)  # (b, d); an unknown category is all zeros


class Tabular(TableBackbone):
    """Embeddings of categories and normal scores of numbers, then a residual MLP or a transformer over the columns.

    The residual MLP follows Gorishniy et al. (2021), and so does the transformer (FT-Transformer), which has one token
    per column and a class token.
    """

    @checked_settings
    class Settings:
        form: str = setting(
            "mlp",
            choices=("mlp", "transformer"),
            search=choice("mlp", "transformer"),
            help="mlp (residual MLP) or transformer",
        )
        dimension: int = setting(128, least=1, help="width of the features")
        depth: int = setting(2, least=1, help="residual blocks, or layers of the transformer")
        dropout: float = setting(0.2, least=0, below=1, help="dropout inside the blocks")
        heads: int = setting(4, least=1, help="attention heads of the transformer")

        def __post_init__(self) -> None:
            if self.form == "transformer" and self.dimension % self.heads:
                raise BadInput(f"encoder.dimension={self.dimension} must be a multiple of encoder.heads={self.heads}")

    @keywords_of(Settings)
    def __init__(self, schema: Sequence[Any], gaps: Sequence[int], settings: Settings) -> None:
        super().__init__()
        self._initialise(schema, gaps)
        self.settings, self.width = {**self.statistics, **asdict(settings)}, settings.dimension
        numbers, sizes = len(numeric_columns(self.schema)), self.sizes
        self.network = (ColumnTransformer if settings.form == "transformer" else ResidualMLP)(
            numbers, len(self.gaps), sizes, settings
        )

    @classmethod
    def build(cls, training: Callable[[], Any], **settings: Any) -> Self:
        return _fitted(cls, training, settings)

    def forward(self, x: Joint) -> Tensor:
        z, missing = self.scores(x.first)
        return self.network(z, missing, x.second)  # (b, d)

    def blocks(self) -> list[nn.Module]:
        return list(self.network.layers)

    def stack(self) -> nn.ModuleList:
        return self.network.layers if isinstance(self.network, ColumnTransformer) else super().stack()


class ResidualMLP(nn.Module):
    """A linear map of scores, indicators and embeddings, then blocks z + W2 relu(W1 norm(z))."""

    def __init__(self, numbers: int, gaps: int, sizes: Sequence[int], options: Tabular.Settings) -> None:
        super().__init__()
        widths = [min(16, 1 + round(1.6 * size**0.56)) for size in sizes]
        self.tables = nn.ModuleList(nn.Embedding(size, width) for size, width in zip(sizes, widths, strict=True))
        self.first = nn.Linear(numbers + gaps + sum(widths), options.dimension)
        d, dropout = options.dimension, options.dropout
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.ReLU(), Dropout(dropout), nn.Linear(2 * d, d),
                Dropout(dropout),
            )
            for _ in range(options.depth)
        )  # fmt: skip
        self.last = nn.LayerNorm(d)

    def forward(self, z: Tensor, missing: Tensor, codes: Tensor) -> Tensor:
        embedded = [table(codes[:, i]) for i, table in enumerate(self.tables)]
        h = self.first(torch.cat([z, missing, *embedded], dim=1))
        for layer in self.layers:
            h = h + layer(h)
        return F.relu(self.last(h))  # (b, d)


class ColumnTransformer(nn.Module):
    """One token per column and a class token, whose state after the layers is the feature."""

    def __init__(self, numbers: int, gaps: int, sizes: Sequence[int], options: Tabular.Settings) -> None:
        super().__init__()
        d = options.dimension
        self.weight, self.bias = (nn.Parameter(torch.randn(numbers, d) / d**0.5) for _ in range(2))
        self.missing = nn.Parameter(torch.zeros(gaps, d))  # one more token per column with missing numbers
        self.tables = nn.ModuleList(nn.Embedding(size, d) for size in sizes)
        self.token = nn.Parameter(torch.randn(d) / d**0.5)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                d, options.heads, 2 * d, options.dropout, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(options.depth)
        )
        self.last = nn.LayerNorm(d)

    def forward(self, z: Tensor, missing: Tensor, codes: Tensor) -> Tensor:
        tokens = [self.token.expand(z.shape[0], 1, -1), z[..., None] * self.weight + self.bias]
        tokens += [missing[..., None] * self.missing]
        tokens += [table(codes[:, i])[:, None] for i, table in enumerate(self.tables)]
        h = torch.cat(tokens, dim=1)  # (b, t, d)
        for layer in self.layers:
            h = layer(h)
        return F.relu(self.last(h[:, 0]))  # (b, d)
