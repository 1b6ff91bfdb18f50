"""Random augmentations of training examples."""

from holdfast.catalog.entry import AugmentationEntry

_ABOUT = {  # function in holdfast.data.augment, kind of example, description
    "domainbed": ("augment", "image", "crop, flip, colour jitter and random greyscale (Gulrajani & Lopez-Paz, 2021)"),
    "crop-flip": ("crop_flip", "image", "crop to 8% to 100% of the area, and flip"),
    "shift-flip": ("shift_flip", "image", "shift by up to an eighth with black padding, and flip"),
    "drop-edge": ("drop_edge", "graph", "drop 20% of the edges (Rong et al., 2020)"),
    "drop-node": ("drop_node", "graph", "drop 20% of the nodes (You et al., 2020)"),
    "subgraph": ("subgraph", "graph", "connected subgraph with 80% of the nodes (You et al., 2020)"),
}
AUGMENTATIONS = {
    name: AugmentationEntry(f"holdfast.data.augment:{function}", about, takes=kind)
    for name, (function, kind, about) in _ABOUT.items()
}
DEFAULT_AUGMENTATION = {"image": "domainbed"}  # for augment=true
