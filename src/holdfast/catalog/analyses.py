"""Analyses of trained runs; the module of each also has a function `sections` that draws its results."""

from holdfast.catalog.entry import FEATURE_TASKS, AnalysisEntry

_PROJECTION, _SLOT_MAP = "holdfast.analysis.projection:panels", "holdfast.analysis.slots:slot_map"
_BOTH, _SLOTS = "examples of sources and target", "slots per class (method=hma)"

ANALYSES = {
    "a-distance": AnalysisEntry(
        "holdfast.analysis.domain_distance:against_sources",
        "proxy A-distance between target and sources: 0 if a linear classifier cannot separate them, 2 if perfectly",
        needs=f"enough {_BOTH}"),
    "projection": AnalysisEntry(
        _PROJECTION, "2-D PCA projection of sources and target, with density contours", needs=_BOTH),
    "projection-tsne": AnalysisEntry(
        _PROJECTION, "2-D t-SNE projection of sources and target, on a subset of the points",
        fixed={"algorithm": "tsne"}, needs=_BOTH),
    "memory-use": AnalysisEntry(
        "holdfast.analysis.memory_use:memory_use", "which slots of a memory every domain uses",
        needs="a memory that was read (neck=memory)"),
    "routing": AnalysisEntry(
        "holdfast.analysis.routing:routing",
        "how tokens are distributed over experts, and the mutual information of expert and domain",
        needs="experts (neck=experts)"),
    "general-memory": AnalysisEntry(
        "holdfast.analysis.general:general_use",
        "attention on a general memory, the layers its gates choose, and the scores without it",
        tasks=FEATURE_TASKS, needs="a general memory (encoder=gmap)"),
    "expert-agreement": AnalysisEntry(
        "holdfast.analysis.patches:agreement",
        "whether the same image in several domains is routed to the same experts",
        needs="experts and image files of one name, CLASS/NAME, in several domains"),
    "expert-parts": AnalysisEntry(
        "holdfast.analysis.patches:part_experts",
        "which experts process the annotated object parts of parts.csv or CUB",
        needs="experts and training images with object parts annotated in parts.csv or CUB files"),
    "attention-map": AnalysisEntry(
        "holdfast.analysis.patches:attention_maps",
        "attention of the class token of a vision transformer, per head", needs="a vision transformer"),
    "segment-mass": AnalysisEntry(
        "holdfast.analysis.memory_use:segment_mass", "attention of every domain on every segment of a grown memory",
        needs="a memory that has grown (method=progressive(erm))"),
    "slot-map": AnalysisEntry(
        _SLOT_MAP, "2-D PCA projection of the HMA slots, alone and together with training examples", needs=_SLOTS),
    "slot-map-tsne": AnalysisEntry(
        _SLOT_MAP, "2-D t-SNE projection of the HMA slots", fixed={"algorithm": "tsne"}, needs=_SLOTS),
    "slot-attention": AnalysisEntry(
        "holdfast.analysis.slots:slot_attention",
        "attention between examples of a batch sorted by class, and on slots",
        needs="attention between examples (method=hma)"),
    "slot-diversity": AnalysisEntry(
        "holdfast.analysis.slots:slot_diversity",
        "mean similarity of the HMA slots of a class: 1 if they are identical", needs=_SLOTS),
}  # fmt: skip
