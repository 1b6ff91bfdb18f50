"""Heads: what turns features into outputs."""

from __future__ import annotations

from holdfast.catalog.entry import Entry

HEADS = {
    "none": Entry(
        "holdfast.nn.heads:NoHead.build", "the features as they are, for an encoder that answers", tasks=("respond",)
    ),
    "linear": Entry("holdfast.nn.heads:Linear.build", "a linear layer"),
    "dense": Entry("holdfast.nn.heads:Dense.build", "dropout, a layer with tanh, dropout, a linear layer"),
    "words": Entry(
        "holdfast.nn.label_words:LabelWords.build",
        "label words at the mask of a prompt, by the checkpoint's own masked-word head",
    ),
}
