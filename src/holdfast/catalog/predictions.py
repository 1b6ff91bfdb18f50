"""Ways to predict: the trained network alone, or with a memory of examples that only predictions read."""

from holdfast.catalog.entry import ALL_TASKS, Part

_RECALL = "holdfast.nn.memory.recall"

PREDICTIONS = {
    "model": Part(f"{_RECALL}:NoRecall", "the trained network alone", tasks=ALL_TASKS),
    "knn": Part(
        f"{_RECALL}:KNN", "a share of the prediction is a vote of similar training examples",
        needs_class="the examples vote for classes"),
    "t3a": Part(
        f"{_RECALL}:T3A", "a share is the similarity to class prototypes that follow the unlabelled examples at hand",
        needs_class="it has one prototype per class"),
}  # fmt: skip
