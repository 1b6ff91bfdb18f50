"""Heads: what turns features into outputs."""

from __future__ import annotations

from holdfast.catalog.entry import Entry

_LABELS = ("classify", "tag", "span")

HEADS = {
    "none": Entry(
        "holdfast.nn.heads:NoHead.build", "the features as they are, for an encoder that answers", tasks=("respond",)
    ),
    "linear": Entry("holdfast.nn.heads:Linear.build", "a linear layer", tasks=_LABELS),
    "dense": Entry(
        "holdfast.nn.heads:Dense.build", "dropout, one or more layers with tanh, dropout, a linear layer", tasks=_LABELS
    ),
    "fusion": Entry(
        "holdfast.nn.fusion:Fusion.build", "a head on each of two networks side by side, logits or probabilities added"
    ),
    "vocabulary": Entry(
        "holdfast.nn.vocabulary:Vocabulary.build",
        "a score for every word of the encoder's vocabulary, compared with its own word vectors",
        tasks=("masked",),
    ),
    "words": Entry(
        "holdfast.nn.label_words:LabelWords.build",
        "label words at the mask of a prompt, by the checkpoint's own masked-word head",
    ),
}
