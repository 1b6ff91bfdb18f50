"""Necks: parts between the encoder and the head."""

from holdfast.catalog.entry import ALL_TASKS, FEATURE_TASKS, Part

_KEY_VALUE = "holdfast.nn.memory.neck:key_value"
_HMA = "holdfast.nn.memory.heterogeneous:HeterogeneousMemory"
_NECK, _MEMORY, _EXPERTS = ("neck",), ("memory",), ("router", "experts")  # parts with their own learning rate
_SLOTS = "its queue and its slots are per class"
_EARLIER_HMA = {"input_norm": "published", "init": "published", "include_self": True}

NECKS = {
    "none": Part("holdfast.nn.necks:NoNeck", "the plain backbone", tasks=ALL_TASKS),
    "projection": Part(
        "holdfast.nn.necks:Projection", "learned projection of the features, also of a frozen backbone",
        tasks=FEATURE_TASKS, learned=_NECK),
    "ffn": Part(
        "holdfast.nn.necks:FeedForward", "control: extra feed-forward layer with the parameters of a memory",
        tasks=FEATURE_TASKS, learned=_NECK),
    "layer": Part(
        "holdfast.nn.necks:ExtraLayer", "control: extra transformer layer with the parameters of a memory",
        tasks=FEATURE_TASKS),
    "memory": Part(
        _KEY_VALUE, "key-value memory added to the features (Jia & Zhang, 2023)", tasks=FEATURE_TASKS, learned=_MEMORY),
    "memory-4.8m": Part(
        _KEY_VALUE, "key-value memory with the published size: shared keys, values per head, output projection",
        preset={"keys_per_head": False, "values_per_head": True, "project": True}, tasks=FEATURE_TASKS,
        learned=_MEMORY),
    "heterogeneous": Part(
        _HMA, "HMA: attention over a queue of examples, the batch and learned slots per class (Qiu et al., 2023)",
        learned=(*_NECK, *_MEMORY), earlier=_EARLIER_HMA, needs_class=_SLOTS),
    "rma": Part(
        _HMA, "only the queue of HMA", fixed={"slots": 0, "across": False}, learned=_NECK,
        earlier=_EARLIER_HMA, needs_class=_SLOTS),
    "abd": Part(
        _HMA, "only the attention between examples of HMA", fixed={"real": 0, "slots": 0}, learned=_NECK,
        earlier=_EARLIER_HMA, needs_class=_SLOTS),
    "abd-rma": Part(
        _HMA, "HMA without slots", fixed={"slots": 0}, learned=_NECK, earlier=_EARLIER_HMA, needs_class=_SLOTS),
    "abd-syn": Part(
        _HMA, "HMA without the queue", fixed={"real": 0}, learned=(*_NECK, *_MEMORY), earlier=_EARLIER_HMA,
        needs_class=_SLOTS),
    "param": Part(
        "holdfast.nn.necks:ParameterControl", "control: attention blocks of HMA without a memory", learned=_NECK),
    "param-matched": Part(
        "holdfast.nn.necks:MatchedControl", "control: layers with the number of parameters of HMA, without a memory",
        learned=_NECK),
    "experts": Part(
        "holdfast.nn.experts.graft:ExpertsNeck",
        "experts in late transformer layers, initialised as copies (Li et al., 2023)", learned=_EXPERTS),
    "wide": Part(
        "holdfast.nn.experts.graft:WideNeck",
        "control: wider feed-forward networks in late layers, with the parameters of experts"),
    "product-memory": Part(
        "holdfast.nn.memory.neck:product_key", "large memory with product keys (Lample et al., 2019)",
        tasks=FEATURE_TASKS, learned=_MEMORY),
}  # fmt: skip
