"""Necks: parts between the encoder and the head."""

from __future__ import annotations

from holdfast.catalog.entry import ALL_TASKS, FEATURE_TASKS, NeckEntry
from holdfast.core.settings import choice

_KEY_VALUE = "holdfast.nn.memory.neck:key_value"
_HMA = "holdfast.nn.memory.heterogeneous:HeterogeneousMemory"
_REAL, _SLOTS = choice(64, 128, 256, 512), choice(4, 8, 16, 32)
_MEMORY_SPACE = {"share": choice(0.1, 0.2, 0.3, 0.5, 0.7), "slots": choice(128, 256, 512, 1024, 2048)}
NECKS = {
    "none": NeckEntry("holdfast.nn.necks:NoNeck", "the plain backbone", tasks=ALL_TASKS),
    "projection": NeckEntry(
        "holdfast.nn.necks:Projection", "learned projection of the features, also of a frozen backbone", tasks=FEATURE_TASKS
    ),
    "ffn": NeckEntry(
        "holdfast.nn.necks:FeedForward", "extra feed-forward layer: control with the same parameters, no memory", tasks=FEATURE_TASKS
    ),
    "layer": NeckEntry(
        "holdfast.nn.necks:ExtraLayer", "extra transformer layer: control with the same parameters, no memory", tasks=FEATURE_TASKS
    ),
    "memory": NeckEntry(
        _KEY_VALUE, "key-value memory added to the features (Jia & Zhang, 2023)",
        space=_MEMORY_SPACE, tasks=FEATURE_TASKS,
    ),
    "memory-4.8m": NeckEntry(
        _KEY_VALUE, "key-value memory with the published size: shared keys, values per head, output projection",
        preset={"keys_per_head": False, "values_per_head": True, "project": True}, space=_MEMORY_SPACE,
        tasks=FEATURE_TASKS,
    ),
    "heterogeneous": NeckEntry(
        _HMA, "HMA: attention over a queue of examples, the batch and learned slots per class (Qiu et al., 2023)",
        space={"real": _REAL, "slots": _SLOTS},
    ),
    "rma": NeckEntry(
        _HMA, "only the queue of HMA", fixed={"slots": 0, "across": False}, space={"real": _REAL},
    ),
    "abd": NeckEntry(_HMA, "only the attention between examples of HMA", fixed={"real": 0, "slots": 0}),
    "abd-rma": NeckEntry(_HMA, "HMA without slots", fixed={"slots": 0}, space={"real": _REAL}),
    "abd-syn": NeckEntry(_HMA, "HMA without the queue", fixed={"real": 0}, space={"slots": _SLOTS}),
    "param": NeckEntry("holdfast.nn.necks:ParameterControl", "control: HMA's attention blocks without a memory, parameters alone"),
    "experts": NeckEntry(
        "holdfast.nn.experts.graft:ExpertsNeck", "experts in late transformer layers, initialised as copies (Li et al., 2023)",
        space={"count": choice(2, 4, 6, 8), "balance": choice(0.001, 0.01, 0.1)},
    ),
    "wide": NeckEntry(
        "holdfast.nn.experts.graft:WideNeck", "wider feed-forward networks in late layers: control with the parameters of experts",
    ),
    "product-memory": NeckEntry(
        "holdfast.nn.memory.neck:product_key", "large memory with product keys (Lample et al., 2019)",
        space={"share": choice(0.1, 0.2, 0.3, 0.5, 0.7), "slots": choice(16_384, 65_536, 262_144)},
        tasks=FEATURE_TASKS,
    ),
}  # fmt: skip
