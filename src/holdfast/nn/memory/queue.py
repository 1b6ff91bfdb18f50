"""Rows stored as buffers: a ring of recent examples, a support set, and learned slots per class.

Shapes: b batch, m rows or slots, c classes, d width.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.core.seeds import generator
from holdfast.nn.engagement import overwritten


class _MaskedRows(nn.Module):
    """Rows of which some may be empty."""

    seen: Tensor  # (m,) bool: rows that are filled

    def __len__(self) -> int:
        return len(self.seen)

    def mask_bias(self) -> Tensor:
        """Return a bias (m,) for attention scores: 0 for filled rows, -inf for empty ones."""
        return torch.zeros_like(self.seen, dtype=torch.float).masked_fill(~self.seen, -torch.inf)


class Queue(_MaskedRows):
    """First-in, first-out queue of features and labels, for batches of any size; empty rows are masked.

    With `noise` it contains random unit rows with random labels and is never written: a control for a real memory.
    """

    features: Tensor  # (m, d)
    labels: Tensor  # (m,)
    at: Tensor  # () position of the next write
    mechanism = "queue"
    null_name = "rows replaced by noise with the mean and deviation of each column, labels shuffled"

    def __init__(self, rows: int, width: int, classes: int, *, noise: bool = False) -> None:
        super().__init__()
        self.noise = noise
        features = F.normalize(torch.randn(rows, width), dim=-1) if noise else torch.zeros(rows, width)
        self.register_buffer("features", features)
        labels = torch.randint(classes, (rows,)) if noise else torch.zeros(rows, dtype=torch.long)
        self.register_buffer("labels", labels)
        self.register_buffer("seen", torch.full((rows,), noise))
        self.register_buffer("at", torch.zeros((), dtype=torch.long))

    def null(self) -> AbstractContextManager[None]:
        """Context in which the filled rows are noise with the moments of each column, and their labels are shuffled."""
        rows, random = self.features[self.seen], generator(0, "null")
        noise = torch.randn(rows.shape, generator=random).to(rows)
        features, labels = self.features.clone(), self.labels.clone()
        features[self.seen] = rows.mean(0) + rows.std(0, correction=0) * noise
        labels[self.seen] = labels[self.seen][torch.randperm(len(rows), generator=random).to(labels.device)]
        return overwritten((self.features, features), (self.labels, labels))

    @torch.no_grad()
    def write(self, key: Tensor, value: Tensor) -> None:
        """Replace the oldest rows by features (b, d) and labels (b,); of more than m rows the last m are stored."""
        if self.noise:
            return
        rows = len(self)
        skipped = max(0, len(key) - rows)  # the ring advances as if they had been written and overwritten
        key, value = key[skipped:], value[skipped:]
        positions = (self.at + skipped + torch.arange(len(key), device=self.at.device)) % rows
        self.features.index_copy_(0, positions, key.to(self.features.dtype))
        self.labels.index_copy_(0, positions, value)
        self.seen.index_fill_(0, positions, True)
        self.at.copy_((self.at + skipped + len(key)) % rows)


class Support(_MaskedRows):
    """Support set of at most m rows, saved with the network."""

    rows: Tensor  # (m, d)
    mechanism = "support"
    null_name = "all rows replaced by their mean"

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(rows, width))
        self.register_buffer("seen", torch.zeros(rows, dtype=torch.bool))

    def null(self) -> AbstractContextManager[None]:
        """Context in which every filled row is the mean of these rows."""
        return overwritten((self.rows, torch.where(self.seen[:, None], self.rows[self.seen].mean(0), self.rows)))

    @torch.no_grad()
    def replace(self, rows: Tensor) -> None:
        """Replace the support set by rows (n, d); of more than m the first m are stored."""
        rows = rows[: len(self)]
        self.rows.zero_()[: len(rows)] = rows.to(self.rows.dtype)
        self.seen.zero_()[: len(rows)] = True


@torch.no_grad()
def balanced_sample(batches: Iterable[tuple[Tensor, Tensor]], count: int) -> Tensor:
    """Sample at most `count` rows, balanced over classes, from batches of rows (n, d) with labels (n,).

    Every row gets a random number. The classes take turns; each contributes its remaining row with the smallest
    number, and an exhausted class passes its turns on.
    """
    chosen_rows: list[tuple[Tensor, Tensor, Tensor]] = []  # rows, labels and numbers; at most one entry
    for new, y in batches:
        chosen_rows.append((new, y.cpu(), torch.rand(len(new))))
        rows, labels, numbers = (torch.cat(tensors) for tensors in zip(*chosen_rows, strict=True))
        order = numbers.argsort(stable=True)
        turn = torch.empty_like(order)
        for label in labels.unique():
            members = order[labels[order] == label]
            turn[members] = torch.arange(len(members))
        chosen = order[turn[order].argsort(stable=True)][:count]
        chosen_rows = [(rows[chosen.to(rows.device)], labels[chosen], numbers[chosen])]
    return chosen_rows[0][0]


class SyntheticMemory(nn.Module):
    """Learned slots, m per class, class after class, initialised from N(0, 0.02^2).

    The published initialisation `zeros` is degenerate: equal slots get equal gradients and act as one slot.
    """

    values: nn.Parameter  # (c * m, d)
    labels: Tensor  # (c * m,) class of each slot
    mechanism = "slots"
    rate_part = "memory"
    null_name = "all slots replaced by their mean"

    def __init__(self, classes: int, slots: int, width: int, *, start: str = "normal") -> None:
        super().__init__()
        values = torch.zeros(classes * slots, width)
        self.values = nn.Parameter(values.normal_(std=0.02) if start == "normal" else values)
        self.register_buffer("labels", torch.arange(classes).repeat_interleave(slots))

    def __len__(self) -> int:
        return len(self.labels)

    def null(self) -> AbstractContextManager[None]:
        """Context in which every slot is the mean of all slots."""
        return overwritten((self.values, self.values.detach().mean(0, keepdim=True)))
