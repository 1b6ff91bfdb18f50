"""Heterogeneous memory (HMA): attention to a queue of real examples, then to the batch and to learned class slots.

Shapes: b batch, c classes, h heads, m rows, d width of the features and the label embedding together.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.core.errors import BadInput, check_at_least
from holdfast.core.settings import checked_settings, choice, keywords_of, retired_settings, setting
from holdfast.core.tape import exporting, is_recording, known_labels, record
from holdfast.nn.memory.block import BlockSettings, KeysValues, MemoryBlock, attend, concatenate
from holdfast.nn.memory.initialise import (
    MAX_ROWS,
    MIN_ROWS,
    needs_no_initialisation,
    normalise_queries,
    relative_scale,
    solve_scale,
)
from holdfast.nn.memory.queue import STARTS, Queue, Support, SyntheticMemory
from holdfast.nn.memory.read import effective_slots

LABEL = 64  # default width of a label embedding
EPS = 1e-6  # added to the variance of features and label vectors
PIECE = 64  # rows per prediction: a matrix product of another shape may differ in the last bit


@checked_settings
class HeterogeneousSettings(BlockSettings):
    """Settings of a heterogeneous memory."""

    real: int = setting(128, least=0, search=choice(64, 128, 256, 512))  # rows of the queue; 0 removes the first block
    slots: int = setting(16, least=0, search=choice(4, 8, 16, 32))  # learned slots per class; 0 for none
    across: bool = True  # examples of a batch attend to each other
    label_width: int | None = setting(None, least=1)  # default: 64, or the next width that the heads divide evenly
    # rows attended to in evaluation besides the slots
    context: str = setting("support", choices=("support", "batch", "self", "none"))
    support: int = setting(128, least=1)  # rows of the support set, or of a batch with context=batch
    shuffle: int = 0  # seed that shuffles predictions with context=batch
    written: bool = True  # False: a control with a queue of noise that is never written
    stale_labels: bool = False  # store label embeddings in the queue instead of labels
    frozen: bool = False  # do not train the slots
    # slots start at clusters of the features of their class (with init=data), around zero, or at zero as published
    start: str = setting("classes", choices=STARTS)
    # normalise features and label vectors separately, or neither
    input_norm: str = setting("layer", choices=("layer", "published"))
    # initialise both reads, or that of the queue only, from the first training batches; `published`: randomly
    init: str = setting("data", choices=("data", "queue", "published"))
    include_self: bool = False  # the read of the queue includes the example itself, as published

    retired: ClassVar[Mapping[str, Any]] = retired_settings(**BlockSettings.retired, part="all")

    def __post_init__(self) -> None:
        if not (self.real or self.slots or self.across):
            raise BadInput("this neck has neither a queue nor slots: set neck.real to 1 or more, or use neck=param")
        if self.context == "none" and not self.slots:
            raise BadInput(
                "neck.context=none needs slots: set neck.context=self, or neck=abd-syn with neck.slots above 0"
            )

    def label_width_for(self, width: int) -> int:
        """Return the width of a label embedding next to features of this width."""
        if self.label_width is None:
            return LABEL + -(width + LABEL) % self.heads
        if rest := (width + self.label_width) % self.heads:
            raise BadInput(
                f"neck.heads={self.heads} must divide the width {width + self.label_width} of features and label "
                f"embedding: set neck.label_width={self.label_width + self.heads - rest} or another neck.heads"
            )
        return self.label_width


class HeterogeneousMemory(nn.Module):
    """Heterogeneous memory for features with class labels (Qiu et al., 2023).

    C1 = [z; unknown], C2 = MHA(C1, queue), C3 = MHA(C2, batch + slots); with `include_self`, or while the queue is
    empty, the first read includes C1_i.

    The queue contains features and labels of earlier examples, the slots are learned. A forward pass writes nothing:
    `write` fills the queue, `set_support` the support set. In training an example attends to its batch; in
    evaluation `context` decides: itself and a support set of training rows (`support`), the batch as published
    (`batch`, then other examples change a prediction), only itself (`self`), or only the slots (`none`).

    Args:
        width: Width of the features.
        classes: Number of classes c.
        **settings: Fields of `HeterogeneousSettings`, e.g. `real=128`, `slots=16`, `heads=4`, `context="support"`.

    Shape:
        features (b, width) to (b, self.width), where `self.width` includes the label embedding.

    Example:
        >>> memory = HeterogeneousMemory(16, 3, real=8, slots=2)
        >>> memory.write(torch.randn(8, 16), torch.randint(3, (8,)))
        >>> memory(torch.randn(5, 16)).shape
        torch.Size([5, 80])
    """

    Settings = HeterogeneousSettings
    tape_name = "heterogeneous/recalled"
    compares_examples = True
    across: bool
    context: str
    first: MemoryBlock | None
    inputs: int
    labels: nn.Embedding
    options: HeterogeneousSettings
    pending: bool
    queue: Queue | None
    second: MemoryBlock | None
    slots: SyntheticMemory | None
    support: Support | None
    width: int

    @keywords_of(HeterogeneousSettings)
    def __init__(self, width: int, classes: int, settings: HeterogeneousSettings) -> None:
        super().__init__()
        self.options = options = settings
        check_at_least(1, classes=classes)
        label_width = options.label_width_for(width)
        inner, real, slots = width + label_width, options.real, options.slots
        self.inputs, self.across, self.context = width, options.across, options.context
        self.width = inner
        self.labels = nn.Embedding(classes + 1, label_width)  # the last row is `unknown`, the label of every query
        self.first = MemoryBlock(inner, options) if real else None
        columns = inner if options.stale_labels else width
        self.queue = Queue(real, columns, classes, noise=not options.written) if real else None
        self.second = MemoryBlock(inner, options) if self.across or slots else None
        self.slots = SyntheticMemory(classes, slots, width, start=options.start) if slots else None
        self.support = Support(options.support, inner) if self.across else None
        if self.slots is not None:
            self.slots.requires_grad_(not options.frozen)
        # whether it awaits training examples
        self.pending = options.init == "data" or (options.init == "queue" and self.first is not None)
        self.register_load_state_dict_pre_hook(needs_no_initialisation)

    @property
    def prediction_batch(self) -> tuple[int, int] | None:
        """Batch size and shuffle seed of predictions if other examples change a prediction, else None."""
        if self.support is None or self.context != "batch":
            return None
        return len(self.support), self.options.shuffle

    def forward(self, z: Tensor) -> Tensor:
        context = "self" if not self.across else "batch" if self.training else self.context
        recording, labels = is_recording() and not self.training, known_labels()
        measured = recording or labels is not None
        queue, shared = self._queue_rows(), self._shared_rows(context)
        # an exported program must accept any number of rows, but the number of pieces would be fixed
        undivided = self.training or context == "batch" or exporting()
        pieces = [z] if undivided else F.pad(z, (0, 0, 0, -len(z) % PIECE)).split(PIECE)
        outputs = []
        for piece in pieces:
            recalled, first = self._attend_to_queue(piece, queue)
            out, second = self._attend_across(recalled, context, shared)
            outputs.append((out, recalled, first if measured else None, second if recording else None))
        out, recalled, first, second = (_join(tensors, z.shape[0]) for tensors in zip(*outputs, strict=True))
        record("heterogeneous/recalled", recalled.detach())
        if measured:
            self._record_queue(first, labels)
        if recording:
            self._record_weights(first, second, context)
        return out

    @property
    def examples_needed(self) -> int:
        """Number of training examples that initialise the memory; 0 once it is initialised."""
        return min(MAX_ROWS, max(MIN_ROWS, 2 * self.options.real)) if self.pending else 0

    def observe(self, inputs: tuple[Any, ...], output: Any) -> tuple[Tensor, ...]:
        """Return the features of a forward pass from which the memory is initialised, and their labels if known."""
        labels = known_labels()
        return (inputs[0].float(),) if labels is None else (inputs[0].float(), labels)

    @torch.no_grad()
    def initialise(self, features: Tensor, labels: Tensor | None = None, *, generator: torch.Generator) -> None:
        """Initialise slots and reads from features (n, width) and labels (n,), half of which act as a queue.

        Slots become the centres of clusters of the features of their class. In each read, queries and keys get the same
        projection, which ignores label vectors, with a scale at which a read uses 16 effective rows: an example attends
        to similar rows. Values are the rows themselves, scaled to the deviation of the features.
        """
        self.pending = False
        order = torch.randperm(len(features), generator=generator).to(features.device)
        features, everything = features[order], self.options.init == "data"
        if everything and self.slots is not None and labels is not None and self.options.start == "classes":
            self.slots.start_at(features, labels[order], generator=generator)
        recalled, count = self._query(features), min(self.options.real, len(features) // 2)
        if self.first is not None and count:
            labels = torch.randint(self.labels.num_embeddings - 1, (count,), generator=generator).to(features.device)
            rows, query = self._join_label(features[:count], self.labels(labels)), recalled[count:]
            self._initialise_block(self.first, query, rows)
            keys_values = self.first.keys_values(rows)
            hidden = None if self.options.include_self else torch.tensor(-torch.inf, device=query.device)
            recalled, _ = self.first(query, keys_values, with_self=True, self_bias=hidden)
        if everything and self.second is not None:
            half = len(recalled) // 2
            groups = [recalled[:half]] if self.across else []
            if self.slots is not None:
                groups.append(self._join_label(self.slots.values, self.labels(self.slots.labels)))
            self._initialise_block(self.second, recalled[half:], torch.cat(groups))

    def _initialise_block(self, block: MemoryBlock, query: Tensor, rows: Tensor) -> None:
        """Let queries (b, d) attend to those rows (m, d) whose features, without label vectors, are similar."""
        if not len(query) or not len(rows):
            return
        block.query.weight[:, self.inputs :] = 0
        normalise_queries(block.query, block.norm_query(query))
        key_weight, value_weight = block.key_value.weight.chunk(2)
        key_bias, value_bias = block.key_value.bias.chunk(2)
        if self.options.init == "data":  # what the first read returns stays comparable with the rows of the second one
            value_weight.copy_(torch.eye(len(value_weight)))
            value_bias.zero_()
        key_weight.copy_(block.query.weight)
        key_bias.copy_(block.query.bias)
        scores = torch.bmm(block.queries(query), block.keys_values(rows).keys.transpose(1, 2)) * block.scale
        root = solve_scale(scores) ** 0.5
        for tensor in (block.query.weight, block.query.bias, key_weight, key_bias):
            tensor *= root
        mixed, _ = attend(block.queries(query), block.keys_values(rows), None, scale=block.scale)  # (h, b, q)
        value_weight *= relative_scale(query[:, : self.inputs], mixed.transpose(0, 1).flatten(1))

    def read_queue(self, z: Tensor) -> Tensor:
        """Return the features (b, d) after attention to the queue: the rows of a support set."""
        return self._attend_to_queue(z, self._queue_rows())[0]

    @torch.no_grad()
    def write(self, key: Tensor, value: Tensor) -> None:
        """Write features (b, width) and labels (b,) into the queue, if there is one."""
        if self.queue is not None:
            stale = torch.cat([key, self.labels(value)], dim=-1) if self.options.stale_labels else key
            self.queue.write(stale, value)

    def set_support(self, rows: Tensor) -> None:
        """Replace the support set by rows (n, d) that `read_queue` returned for training examples."""
        if self.support is not None:
            self.support.replace(rows)

    def _queue_rows(self) -> tuple[KeysValues, Tensor] | None:
        """Project the queue to keys and values, with the bias that hides empty rows; labels get no gradient."""
        if self.queue is None or self.first is None:
            return None
        rows, labels = self.queue.features, self.labels.weight.detach()[self.queue.labels]
        if self.options.stale_labels:
            rows, labels = rows.split([self.inputs, rows.shape[1] - self.inputs], dim=1)
        return self.first.keys_values(self._join_label(rows, labels)), self.queue.mask_bias()

    def _query(self, z: Tensor) -> Tensor:
        """Return the rows (b, d) of examples whose label is unknown."""
        return self._join_label(z, self.labels.weight[-1].expand(z.shape[0], -1))

    def _join_label(self, features: Tensor, labels: Tensor) -> Tensor:
        return join_label(features, labels, self.options.input_norm)

    def _shared_rows(self, context: str) -> tuple[KeysValues | None, Tensor | None]:
        """Project support set and slots to keys and values, with the bias that hides empty rows."""
        slots = support = bias = None
        if self.slots is not None and self.second is not None:
            slots = self.second.keys_values(self._join_label(self.slots.values, self.labels(self.slots.labels)))
        if context == "support" and self.support is not None and self.second is not None:
            support = self.second.keys_values(self.support.rows)
            bias = F.pad(self.support.mask_bias(), (0, 0 if self.slots is None else len(self.slots)))
        return concatenate(support, slots), bias

    def _attend_to_queue(self, z: Tensor, queue: tuple[KeysValues, Tensor] | None) -> tuple[Tensor, Tensor | None]:
        query = self._query(z)
        if self.first is None or self.queue is None or queue is None:
            return query, None
        hidden = None if self.options.include_self else torch.where(self.queue.seen.any(), -torch.inf, 0.0)
        return self.first(query, queue[0], with_self=True, bias=queue[1], self_bias=hidden)

    def _attend_across(
        self, recalled: Tensor, context: str, shared: tuple[KeysValues | None, Tensor | None]
    ) -> tuple[Tensor, Tensor | None]:
        if self.second is None:
            return recalled, None
        rows, bias = shared
        if context == "batch":
            rows = concatenate(self.second.keys_values(recalled), rows)
        return self.second(recalled, rows, with_self=context in ("self", "support"), bias=bias)

    def _record_queue(self, weights: Tensor | None, labels: Tensor | None) -> None:
        """Record statistics of the weights (b, h, 1 + m) of the queue; with `labels` (b,) also the class ratio.

        It is sum_i mass_i(y_i) / sum_i mass_i share(y_i), where mass_i(k) is the attention of example i to rows of
        class k, mass_i its attention to all rows and share(k) the fraction of rows of class k. It is 1 for attention
        that does not depend on the class.
        """
        if self.queue is None or weights is None:
            return
        rows = weights.detach().float()[..., 1:]
        mean, mass = rows.mean(1), rows.sum(-1)  # (b, m), (b, h)
        record("stat/queue/mass", mass.mean())
        record("stat/queue/effective_rows", effective_slots(rows / mass.clamp(min=1e-9)[..., None]))
        if labels is not None and labels.shape == mean.shape[:1]:
            classes = F.one_hot(self.queue.labels, self.labels.num_embeddings - 1) * self.queue.seen[:, None]  # (m, c)
            shares = classes.sum(0) / classes.sum().clamp(min=1)
            masses = mean @ classes.float()  # (b, c)
            expected = (masses.sum(1) * shares[labels]).sum()
            own = masses.gather(1, labels[:, None]).sum()
            record("stat/queue/same_class", torch.where(expected > 0, own / expected, 1.0))

    def _record_weights(self, first: Tensor | None, second: Tensor | None, context: str) -> None:
        """Record the weights (b, h, m) of both reads and their mass (b, 4) on itself, others, queue and slots."""
        if first is not None:
            record("heterogeneous/real", first.detach())
            mean = first.detach().float().mean(1)  # (b, m)
            itself, queue = mean[:, :1], mean[:, 1:].sum(1, keepdim=True)
            nothing = torch.zeros_like(itself)
            record("heterogeneous/real/mass", torch.cat([itself, nothing, queue, nothing], dim=1))
        if second is not None:
            record("heterogeneous/across", second.detach())
            mean = second.detach().float().mean(1)
            count = 0 if self.slots is None else len(self.slots)
            examples, slots = mean.split([mean.shape[1] - count, count], dim=1)
            # column 0 is the example itself, except with context `batch`, where rows are in batch order
            itself = examples.diagonal()[:, None] if context == "batch" else examples[:, :1].sum(1, keepdim=True)
            others, slots = examples.sum(1, keepdim=True) - itself, slots.sum(1, keepdim=True)
            record("heterogeneous/across/mass", torch.cat([itself, others, torch.zeros_like(itself), slots], dim=1))
            if count:
                record("stat/slots/mass", slots.mean())


def join_label(features: Tensor, labels: Tensor, norm: str) -> Tensor:
    """Concatenate features (m, width) and label vectors to rows (m, d); the norm `layer` gives both the same scale."""
    if norm == "layer":
        features, labels = (F.layer_norm(part, part.shape[-1:], eps=EPS) for part in (features, labels))
    return torch.cat([features, labels], dim=-1)


def _join(pieces: Sequence[Tensor | None], count: int) -> Any:
    """Concatenate pieces and drop the rows that pad the last one."""
    present = [piece for piece in pieces if piece is not None]
    if len(present) < 2:
        return present[0][:count] if present else None
    return torch.cat(present)[:count]
