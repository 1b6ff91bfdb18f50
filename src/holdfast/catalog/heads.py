"""Heads: what turns features into outputs."""

from __future__ import annotations

from holdfast.catalog.entry import HeadEntry

_LABELS = ("classify", "tag", "span")

HEADS = {
    "none": HeadEntry(
        "holdfast.nn.heads:NoHead.build", "the features as they are, for an encoder that answers", tasks=("respond",)
    ),
    "linear": HeadEntry("holdfast.nn.heads:Linear.build", "a linear layer", tasks=_LABELS),
    "dense": HeadEntry(
        "holdfast.nn.heads:Dense.build", "dropout, one or more layers with tanh, dropout, a linear layer", tasks=_LABELS
    ),
    "fusion": HeadEntry(
        "holdfast.nn.fusion:Fusion.build", "a head on each of two networks side by side, logits or probabilities added"
    ),
    "vocabulary": HeadEntry(
        "holdfast.nn.vocabulary:Vocabulary.build",
        "a score for every word of the encoder's vocabulary, compared with its own word vectors",
        tasks=("masked",),
    ),
    "words": HeadEntry(
        "holdfast.nn.label_words:LabelWords.build",
        "label words at the mask of a prompt, by the checkpoint's own masked-word head",
    ),
}
