"""Heads map features to outputs."""

from holdfast.catalog.entry import HeadEntry

_LABELS = ("classify", "tag", "span")

HEADS = {
    "none": HeadEntry(
        "holdfast.nn.heads:NoHead.build", "no head, for encoders that generate the output", tasks=("respond",)),
    "linear": HeadEntry("holdfast.nn.heads:Linear.build", "a linear layer", tasks=_LABELS),
    "dense": HeadEntry(
        "holdfast.nn.heads:Dense.build", "dropout, tanh layers, dropout and a linear layer", tasks=_LABELS),
    "fusion": HeadEntry(
        "holdfast.nn.fusion:Fusion.build", "one head per network of a pair, with added logits or probabilities"),
    "vocabulary": HeadEntry(
        "holdfast.nn.vocabulary:Vocabulary.build",
        "scores over the vocabulary, tied to the word vectors of the encoder", tasks=("masked",)),
    "words": HeadEntry(
        "holdfast.nn.label_words:LabelWords.build",
        "label words at the mask of a prompt, scored by the masked-language-model head"),
}  # fmt: skip
