"""Key-value memory: learned slots, read by several heads.

Shapes: b batch, h heads, m slots, q key width, d width.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.core.settings import checked_settings, choice, keywords_of, retired_settings, setting
from holdfast.nn.memory.bank import SegmentedSlots
from holdfast.nn.memory.initialise import (
    INITS,
    KEYS,
    choose_slots,
    examples_for,
    normalise_queries,
    relative_scale,
    solve_scale,
    thin,
)
from holdfast.nn.memory.read import Read, read
from holdfast.ops.reads import scores


@checked_settings
class SlotSettings:
    """Settings of memories with learned slots."""

    heads: int = setting(4, least=1)
    key_width: int = setting(256, least=1)
    query_norm: bool = False  # batch norm on the queries
    init: str = setting("data", choices=INITS)  # initialise from the first training batches; `published`: random slots
    # with init=data: queries of examples, or `kmeans`: means of clusters of them
    keys: str = setting("sample", choices=KEYS)


@checked_settings
class KeyValueSettings(SlotSettings):
    """Settings of a key-value memory; the defaults are the published ones (Jia & Zhang, 2023)."""

    slots: int = setting(1024, least=1, search=choice(128, 256, 512, 1024, 2048))
    keys_per_head: bool = True
    values_per_head: bool = False
    project: bool = False  # linear layer after the read
    similarity: str = setting("dot", choices=("dot", "scaled", "cosine"))
    temperature: float = setting(1.0, above=0)
    top: int | None = setting(None, least=1)  # read only the best `top` slots per head

    retired: ClassVar[Mapping[str, Any]] = retired_settings(query="linear", mean=False)


class KeyValueMemory(SegmentedSlots):
    r"""Key-value memory with several heads, which can grow (Lample et al., 2019, without product keys).

    .. math:: \sum_h \sum_m \mathrm{softmax}_m(\langle q_h(z), k_{hm} \rangle) v_m

    Args:
        width: Width d of the features and of the values.
        **settings: Fields of `KeyValueSettings`, e.g. `slots=1024`, `heads=4`, `key_width=256`, `top=None`.

    Shape:
        `read`: features (b, d) to content (b, d) and weights (b, h, m), or (b, h, top) with the chosen slots.

    Example:
        >>> memory = KeyValueMemory(64, slots=16, heads=2, key_width=8)
        >>> features = torch.randn(5, 64)
        >>> memory.read(features).content.shape
        torch.Size([5, 64])
    """

    Settings = KeyValueSettings
    sharpness: Tensor  # factor of cosine similarities
    heads: int
    key_width: int
    options: KeyValueSettings
    project: nn.Module
    query: nn.Module
    width: int

    @keywords_of(KeyValueSettings)
    def __init__(self, width: int, settings: KeyValueSettings) -> None:
        super().__init__()
        self.options = options = settings
        self.width, self.heads, self.key_width = width, options.heads, options.key_width
        self.query = query_net(width, self.heads * self.key_width, norm=options.query_norm)
        self.project = nn.Linear(width, width) if options.project else nn.Identity()
        if options.similarity == "cosine" and options.init == "data":  # keys are normalised, so they have no scale
            self.register_buffer("sharpness", torch.ones(()))
        self._initialise_slots(options.slots)

    def _sample_segment(self, slots: int) -> tuple[Tensor, Tensor]:
        """Sample keys uniformly within 1/sqrt(q) and values from a normal distribution with deviation 1/sqrt(d)."""
        like = {"device": self.owner.device, "dtype": next(self.query.parameters()).dtype}
        shape = (self.heads, slots) if self.options.keys_per_head else (slots,)
        bound = self.key_width**-0.5
        keys = torch.empty(*shape, self.key_width, **like).uniform_(-bound, bound)
        shape = (self.heads, slots) if self.options.values_per_head else (slots,)
        return keys, torch.empty(*shape, self.width, **like).normal_(std=self.width**-0.5)

    @property
    def examples_needed(self) -> int:
        """Number of training examples that initialise the new slots; 0 if none are new."""
        slots = sum(self.sizes[len(self.sizes) - self.pending :])
        return examples_for(slots, self.options.keys) if self.pending and self.options.init == "data" else 0

    @torch.no_grad()
    def initialise(self, features: Tensor, *, generator: torch.Generator) -> None:
        """Initialise the slots that were not initialised yet from features (n, d).

        Queries are standardised per entry, and keys are sampled like them, with a scale at which a read uses 16
        effective slots. Values are sampled like the features of the same rows, with a scale at which the content has
        their mean and standard deviation; values of later segments have the deviation of earlier ones.
        """
        options, first = self.options, self.pending == len(self.keys)
        if first:
            normalise_queries(self.query, features)
            if isinstance(self.project, nn.Linear):
                nn.init.eye_(self.project.weight)
                nn.init.zeros_(self.project.bias)
        queries, mean = self._queries(features), features.mean(0)  # (n, h, q), (d,)
        centred, heads = queries - queries.mean(0), self.heads
        for i in range(len(self.keys) - self.pending, len(self.keys)):
            keys, values, slots = self.keys[i], self.values[i], self.sizes[i]
            to_slots = choose_slots(centred.flatten(1), slots, keys=options.keys, generator=generator)
            by_head, at = to_slots(centred).transpose(0, 1), torch.arange(slots, device=keys.device)  # (h, m, q), (m,)
            keys.copy_(by_head if keys.dim() == 3 else by_head[at % self.heads, at])
            logits = scores(thin(queries, 512), keys, similarity=options.similarity)
            scale = solve_scale(logits if options.top is None else logits.topk(min(options.top, slots), -1).values)
            if "sharpness" not in self._buffers:
                keys *= scale
            elif first:
                self.sharpness.fill_(scale)
            deviations = to_slots(features - mean)  # (m, d)
            values.copy_(deviations / heads)
            same, other = (self.values[0], values) if i else (features - mean, self.read(features).content)
            ratio = relative_scale(same, other)
            values.copy_(mean / heads + deviations / heads * ratio)
        self.pending = 0

    def _queries(self, features: Tensor) -> Tensor:
        return self.query(features).unflatten(-1, (self.heads, self.key_width))

    def read(self, query: Tensor, *, segments: int | None = None) -> Read:
        """Read the memory with features (b, d), from all segments or only the first `segments`."""
        queries = self._queries(query)  # (b, h, q)
        options: dict[str, Any] = {name: getattr(self.options, name) for name in ("similarity", "temperature", "top")}
        keys, values = self.segments(segments)
        if "sharpness" in self._buffers:
            queries, keys = F.normalize(queries, dim=-1) * self.sharpness, F.normalize(keys, dim=-1)
            options["similarity"] = "dot"
        output = read(queries, keys, values, **options)
        return output._replace(content=self.project(output.content))


def query_net(width: int, outputs: int, *, norm: bool) -> nn.Module:
    """Build the network from features (b, d) to the queries of all heads (b, h * q)."""
    linear = nn.Linear(width, outputs)
    return nn.Sequential(linear, nn.BatchNorm1d(outputs)) if norm else linear
