"""Chance changes to training examples, by the kind of example that they take."""

from __future__ import annotations

from holdfast.catalog.entry import AugmentationEntry

AUGMENTATIONS = {
    "domainbed": AugmentationEntry(
        "holdfast.data.augment:augment",
        "images cropped, flipped, jittered, at times grey (Gulrajani & Lopez-Paz, 2021)",
        takes="image",
    ),
    "crop-flip": AugmentationEntry(
        "holdfast.data.augment:crop_flip", "images cropped to 8 to 100 % of their area, and flipped", takes="image"
    ),
    "shift-flip": AugmentationEntry(
        "holdfast.data.augment:shift_flip",
        "images shifted by up to an eighth, black around, and flipped",
        takes="image",
    ),
    "drop-edge": AugmentationEntry(
        "holdfast.data.augment:drop_edge", "a fifth of the edges left out (Rong et al., 2020)", takes="graph"
    ),
    "drop-node": AugmentationEntry(
        "holdfast.data.augment:drop_node", "a fifth of the nodes left out (You et al., 2020)", takes="graph"
    ),
    "subgraph": AugmentationEntry(
        "holdfast.data.augment:subgraph",
        "a connected part with four fifths of the nodes (You et al., 2020)",
        takes="graph",
    ),
}
DEFAULT_AUGMENTATION = {"image": "domainbed"}  # what augment=true means
