"""Random augmentations of training examples."""

from __future__ import annotations

from holdfast.catalog.entry import AugmentationEntry

AUGMENTATIONS = {
    "domainbed": AugmentationEntry(
        "holdfast.data.augment:augment",
        "crop, flip, colour jitter and random greyscale (Gulrajani & Lopez-Paz, 2021)",
        takes="image",
    ),
    "crop-flip": AugmentationEntry(
        "holdfast.data.augment:crop_flip", "crop to 8% to 100% of the area, and flip", takes="image"
    ),
    "shift-flip": AugmentationEntry(
        "holdfast.data.augment:shift_flip",
        "shift by up to an eighth with black padding, and flip",
        takes="image",
    ),
    "drop-edge": AugmentationEntry(
        "holdfast.data.augment:drop_edge", "drop 20% of the edges (Rong et al., 2020)", takes="graph"
    ),
    "drop-node": AugmentationEntry(
        "holdfast.data.augment:drop_node", "drop 20% of the nodes (You et al., 2020)", takes="graph"
    ),
    "subgraph": AugmentationEntry(
        "holdfast.data.augment:subgraph",
        "connected subgraph with 80% of the nodes (You et al., 2020)",
        takes="graph",
    ),
}
DEFAULT_AUGMENTATION = {"image": "domainbed"}  # for augment=true
