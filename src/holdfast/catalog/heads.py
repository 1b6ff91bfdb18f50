"""Heads map features to outputs."""

from holdfast.catalog.entry import EXAMPLE_TASKS, Part

_LABELS = (*EXAMPLE_TASKS, "tag", "span")

HEADS = {
    "linear": Part("holdfast.nn.heads:Linear.build", "a linear layer", tasks=_LABELS),
    "dense": Part("holdfast.nn.heads:Dense.build", "dropout, tanh layers, dropout and a linear layer", tasks=_LABELS),
    "trees": Part("holdfast.nn.trees:Trees.build", "decision trees, for the methods boosting and lightgbm"),
    "fusion": Part(
        "holdfast.nn.fusion:Fusion.build", "one head per network of a pair, with added logits or probabilities",
        needs_class="it adds probabilities of classes"),
    "vocabulary": Part(
        "holdfast.nn.vocabulary:Vocabulary.build",
        "scores over the vocabulary, tied to the word vectors of the encoder", tasks=("masked",)),
    "words": Part(
        "holdfast.nn.label_words:LabelWords.build",
        "label words at the mask of a prompt, scored by the masked-language-model head",
        needs_class="every class has label words"),
}  # fmt: skip
