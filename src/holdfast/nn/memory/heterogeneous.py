"""HMA's neck: features look at a queue of real examples, then at each other and at learned slots of the classes.

b batch, c classes, h heads, m rows, d width of the backbone's features and the label's vector together
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.core.errors import BadInput, unknown
from holdfast.core.tape import exporting, is_recording, record
from holdfast.nn.memory.block import Keys, MemoryBlock, joined
from holdfast.nn.memory.queue import Queue, Support, SyntheticMemory

CONTEXTS = ("support", "batch", "self", "none")
PARTS = ("all", "label", "feature")
LABEL = 64  # width of a label's vector
PIECE = 64  # rows that are predicted at once: a product of another shape may differ in its last bit


class HeterogeneousMemory(nn.Module):
    """C1 = [z; unknown], C2 = MHA(C1, {C1_i} + queue), C3 = MHA(C2, batch + slots) (Qiu et al., 2023).

    The queue holds features and labels of earlier examples (`real` rows; 0 leaves this block out), the slots are
    learned (`slots` a class; 0 for none), `across` lets the examples of a batch see each other. Without it and without
    slots the second block is left out. A forward pass writes nothing: `write` and `keep` do. A label's vector is 64
    wide, or a few columns more where the heads could not share them evenly, unless `label_width` says otherwise.

    In training the context of an example is its batch. When it predicts it is what `context` says: itself and a support
    set of training rows, the batch as published (then others change a prediction), itself alone, or the slots alone.
    """

    def __init__(
        self,
        width: int,
        classes: int,
        *,
        real: int = 128,
        slots: int = 16,
        across: bool = True,
        label_width: int | None = None,
        heads: int = 4,
        part: str = "all",
        context: str = "support",
        support: int = 128,
        shuffle: int = 0,
        written: bool = True,
        stale_labels: bool = False,
        frozen: bool = False,
        start: str = "normal",
        residual: str = "identity",
        scale: str = "head",
        project: bool = False,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        for what, name, known in (("context", context, CONTEXTS), ("part", part, PARTS)):
            if name not in known:
                raise unknown(what, name, known)
        if label_width is None:
            label_width = LABEL + -(width + LABEL) % max(1, heads)
        if classes < 1 or label_width < 1 or min(real, slots) < 0:
            raise BadInput("this neck needs classes and a label_width of at least 1, and real and slots not negative")
        if not (real or slots or across):
            raise BadInput("nothing is left of this neck: set neck.real to 1 or more, or use neck=param")
        if context == "none" and not slots:
            raise BadInput(
                "context none leaves the slots alone to look at, and there are none: set neck.context=self, or use "
                "neck=heterogeneous or neck=abd-syn with neck.slots of 1 or more"
            )
        if heads < 1 or (width + label_width) % heads:
            raise BadInput(
                f"{width} features and a label_width of {label_width} cannot be shared evenly by {heads} heads: "
                f"set neck.label_width={label_width + -(width + label_width) % max(1, heads)} or another neck.heads"
            )
        inner = width + label_width
        self.inputs, self.part, self.across, self.stale_labels = width, part, across, stale_labels
        self.context, self.shuffle = context, shuffle
        self.width = {"all": inner, "label": label_width, "feature": width}[part]
        self.labels = nn.Embedding(classes + 1, label_width)  # the last row is `unknown`, which every query has
        options = {"heads": heads, "residual": residual, "scale": scale, "project": project, "dropout": dropout}
        self.first = MemoryBlock(inner, **options) if real else None
        self.queue = Queue(real, inner if stale_labels else width, classes, noise=not written) if real else None
        self.second = MemoryBlock(inner, **options) if across or slots else None
        self.slots = SyntheticMemory(classes, slots, width, start=start) if slots else None
        self.support = Support(support, inner) if across else None
        if self.slots is not None:
            self.slots.requires_grad_(not frozen)

    @property
    def prediction_batch(self) -> tuple[int, int] | None:
        """Where others change a prediction: how many examples to predict at once, and the seed to shuffle them by."""
        return (len(self.support), self.shuffle) if self.support is not None and self.context == "batch" else None

    @property
    def tape_name(self) -> str:
        return "heterogeneous/recalled"

    def forward(self, z: Tensor) -> Tensor:
        looks_at, tell = self._looks_at(self.training), is_recording() and not self.training
        real, rest = self._real(), self._rest(looks_at)
        # a program that is being recorded must take any number of rows, and pieces would be counted once for all
        whole = self.training or looks_at == "batch" or exporting()
        pieces = [z] if whole else F.pad(z, (0, 0, 0, -len(z) % PIECE)).split(PIECE)
        found = []
        for piece in pieces:
            recalled, first = self._recall(piece, real)
            out, second = self._compare(recalled, looks_at, rest)
            found.append((out, recalled, first if tell else None, second if tell else None))
        out, recalled, first, second = (_one(each, z.shape[0]) for each in zip(*found, strict=True))
        assert out is not None
        assert recalled is not None
        record("heterogeneous/recalled", recalled.detach())
        if tell:
            self._tell(first, second, looks_at)
        return {"all": out, "label": out[:, self.inputs :], "feature": out[:, : self.inputs]}[self.part]

    def read_queue(self, z: Tensor) -> Tensor:
        """(b, d) what the features are after the queue: the rows that a support set is made of."""
        return self._recall(z, self._real())[0]

    @torch.no_grad()
    def write(self, key: Tensor, value: Tensor) -> None:
        """Features (b, d1) and labels (b,) into the queue, where there is one."""
        if self.queue is not None:
            stale = torch.cat([key, self.labels(value)], dim=-1) if self.stale_labels else key
            self.queue.write(stale, value)

    def set_support(self, rows: Tensor) -> None:
        """What `recall` gave for training examples as the support set, where one is used."""
        if self.support is not None:
            self.support.replace(rows)

    def _looks_at(self, training: bool) -> str:
        return "self" if not self.across else "batch" if training else self.context

    def _real(self) -> tuple[Keys, Tensor] | None:
        """The queue as keys and values, and what hides its empty rows; its label vectors get no gradient."""
        if self.queue is None or self.first is None:
            return None
        rows = self.queue.features
        if not self.stale_labels:
            rows = torch.cat([rows, self.labels.weight.detach()[self.queue.labels]], dim=-1)  # (m, d)
        return self.first.keys_values(rows), self.queue.hidden()

    def _rest(self, looks_at: str) -> tuple[Keys | None, Tensor | None]:
        """Support set and slots as keys and values, and what hides empty rows."""
        slots = support = hidden = None
        if self.slots is not None and self.second is not None:
            slots = self.second.keys_values(torch.cat([self.slots.values, self.labels(self.slots.labels)], dim=-1))
        if looks_at == "support" and self.support is not None and self.second is not None:
            support, hidden = self.second.keys_values(self.support.rows), self.support.hidden()
            hidden = F.pad(hidden, (0, 0 if self.slots is None else len(self.slots)))
        return joined(support, slots), hidden

    def _recall(self, z: Tensor, real: tuple[Keys, Tensor] | None) -> tuple[Tensor, Tensor | None]:
        asked = torch.cat([z, self.labels.weight[-1].expand(z.shape[0], -1)], dim=-1)  # (b, d)
        if self.first is None or real is None:
            return asked, None
        return self.first(asked, real[0], with_self=True, bias=real[1])

    def _compare(
        self, recalled: Tensor, looks_at: str, rest: tuple[Keys | None, Tensor | None]
    ) -> tuple[Tensor, Tensor | None]:
        if self.second is None:
            return recalled, None
        shared, hidden = rest
        if looks_at == "batch":
            shared = joined(self.second.keys_values(recalled), shared)
        return self.second(recalled, shared, with_self=looks_at in ("self", "support"), bias=hidden)

    def _tell(self, first: Tensor | None, second: Tensor | None, looks_at: str) -> None:
        """To a tape: weights (b, h, m) of both reads, and the mass (b, 4) on itself, others, queue and slots in each.

        The first has the example itself first; so has the second, unless it looks at the batch, which comes in order.
        """
        if first is not None:
            record("heterogeneous/real", first.detach())
            mean = first.detach().float().mean(1)  # (b, m)
            itself, queue = mean[:, :1], mean[:, 1:].sum(1, keepdim=True)
            nothing = torch.zeros_like(itself)
            record("heterogeneous/real/mass", torch.cat([itself, nothing, queue, nothing], dim=1))
        if second is not None:
            record("heterogeneous/across", second.detach())
            mean = second.detach().float().mean(1)
            slots = 0 if self.slots is None else len(self.slots)
            seen, of_slots = mean.split([mean.shape[1] - slots, slots], dim=1)
            itself = seen.diagonal()[:, None] if looks_at == "batch" else seen[:, :1].sum(1, keepdim=True)
            others = seen.sum(1, keepdim=True) - itself
            of_slots = of_slots.sum(1, keepdim=True)
            record("heterogeneous/across/mass", torch.cat([itself, others, torch.zeros_like(itself), of_slots], dim=1))


def _one(pieces: Sequence[Tensor | None], count: int) -> Tensor | None:
    """Pieces put together again without the rows that filled the last one up."""
    there = [piece for piece in pieces if piece is not None]
    if len(there) < 2:
        return there[0][:count] if there else None
    return torch.cat(there)[:count]
