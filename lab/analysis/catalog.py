"""Analyses of trained runs, which `holdfast compare --analyse` computes."""

from holdfast.catalog.entry import FEATURE_TASKS, AnalysisEntry

_LOCATIONS = "lab.analysis.part_locations"
_SLOTS = "slots per class (method=hma)"

ANALYSES = {
    "segment-mass": AnalysisEntry(
        "lab.analysis.segments:segment_mass", "attention of every domain on every segment of a grown memory",
        needs="a memory that has grown (method=progressive(erm))"),
    "routing": AnalysisEntry(
        "lab.analysis.routing:routing",
        "how tokens are distributed over experts, and the mutual information of expert and domain",
        needs="experts (neck=experts)"),
    "general-memory": AnalysisEntry(
        "lab.analysis.general_use:general_use",
        "attention on a general memory, the layers its gates choose, and the scores without it",
        tasks=FEATURE_TASKS, needs="a general memory (encoder=gmap)"),
    "projection-tsne": AnalysisEntry(
        "lab.analysis.tsne:panels", "2-D t-SNE projection of sources and target, on a subset of the points",
        needs="examples of sources and target"),
    "expert-agreement": AnalysisEntry(
        "lab.analysis.patches:agreement",
        "whether the same image in several domains is routed to the same experts",
        needs="experts and image files of one name, CLASS/NAME, in several domains",
        check=f"{_LOCATIONS}:check_locations"),
    "expert-parts": AnalysisEntry(
        "lab.analysis.patches:part_experts",
        "which experts process the annotated object parts of parts.csv or CUB",
        needs="experts and training images with object parts annotated in parts.csv or CUB files",
        check=f"{_LOCATIONS}:unmatched_note"),
    "attention-map": AnalysisEntry(
        "lab.analysis.patches:attention_maps", "attention of the class token of a vision transformer, per head",
        needs="a vision transformer", check=f"{_LOCATIONS}:check_locations"),
    "slot-map": AnalysisEntry(
        "lab.analysis.slots:slot_map",
        "2-D PCA projection of the HMA slots, alone and together with training examples", needs=_SLOTS),
    "slot-map-tsne": AnalysisEntry(
        "lab.analysis.slots:tsne_map", "2-D t-SNE projection of the HMA slots", needs=_SLOTS),
    "slot-attention": AnalysisEntry(
        "lab.analysis.slots:slot_attention",
        "attention between examples of a batch sorted by class, and on slots",
        needs="attention between examples (method=hma)"),
    "slot-diversity": AnalysisEntry(
        "lab.analysis.slots:slot_diversity",
        "mean similarity of the HMA slots of a class: 1 if they are identical", needs=_SLOTS),
}  # fmt: skip
