"""Necks: parts between the encoder and the head."""

from holdfast.catalog.entry import ALL_TASKS, FEATURE_TASKS, NeckEntry

_KEY_VALUE = "holdfast.nn.memory.neck:key_value"
_HMA = "holdfast.nn.memory.heterogeneous:HeterogeneousMemory"

NECKS = {
    "none": NeckEntry("holdfast.nn.necks:NoNeck", "the plain backbone", tasks=ALL_TASKS),
    "projection": NeckEntry(
        "holdfast.nn.necks:Projection",
        "learned projection of the features, also of a frozen backbone", tasks=FEATURE_TASKS),
    "ffn": NeckEntry(
        "holdfast.nn.necks:FeedForward",
        "control: extra feed-forward layer with the parameters of a memory", tasks=FEATURE_TASKS),
    "layer": NeckEntry(
        "holdfast.nn.necks:ExtraLayer",
        "control: extra transformer layer with the parameters of a memory", tasks=FEATURE_TASKS),
    "memory": NeckEntry(_KEY_VALUE, "key-value memory added to the features (Jia & Zhang, 2023)", tasks=FEATURE_TASKS),
    "memory-4.8m": NeckEntry(
        _KEY_VALUE, "key-value memory with the published size: shared keys, values per head, output projection",
        preset={"keys_per_head": False, "values_per_head": True, "project": True}, tasks=FEATURE_TASKS),
    "heterogeneous": NeckEntry(
        _HMA, "HMA: attention over a queue of examples, the batch and learned slots per class (Qiu et al., 2023)"),
    "rma": NeckEntry(_HMA, "only the queue of HMA", fixed={"slots": 0, "across": False}),
    "abd": NeckEntry(_HMA, "only the attention between examples of HMA", fixed={"real": 0, "slots": 0}),
    "abd-rma": NeckEntry(_HMA, "HMA without slots", fixed={"slots": 0}),
    "abd-syn": NeckEntry(_HMA, "HMA without the queue", fixed={"real": 0}),
    "param": NeckEntry("holdfast.nn.necks:ParameterControl", "control: attention blocks of HMA without a memory"),
    "experts": NeckEntry(
        "holdfast.nn.experts.graft:ExpertsNeck",
        "experts in late transformer layers, initialised as copies (Li et al., 2023)"),
    "wide": NeckEntry(
        "holdfast.nn.experts.graft:WideNeck",
        "control: wider feed-forward networks in late layers, with the parameters of experts"),
    "product-memory": NeckEntry(
        "holdfast.nn.memory.neck:product_key",
        "large memory with product keys (Lample et al., 2019)", tasks=FEATURE_TASKS),
}  # fmt: skip
