"""Heads: what turns features into outputs."""

from __future__ import annotations

from holdfast.catalog.entry import Entry

HEADS = {
    "linear": Entry("holdfast.nn.heads:Linear.build", "a linear layer"),
    "dense": Entry("holdfast.nn.heads:Dense.build", "dropout, a layer with tanh, dropout, a linear layer"),
    "words": Entry(
        "holdfast.nn.label_words:LabelWords.build",
        "label words at the mask of a prompt, by the checkpoint's own masked-word head",
    ),
}
