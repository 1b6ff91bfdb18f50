"""What a trained run can be looked at for, and what it must have for that."""

from __future__ import annotations

from holdfast.catalog.entry import FEATURE_TASKS, AnalysisEntry

ANALYSES = {
    "a-distance": AnalysisEntry(
        "holdfast.analysis.domain_distance:against_sources",
        "how well a linear classifier tells the target from the sources: 0 not at all, 2 without error",
        needs="enough rows of sources and target",
    ),
    "projection": AnalysisEntry(
        "holdfast.analysis.projection:panels",
        "sources and target in the plane by PCA, with density contours",
        needs="rows of sources and target",
    ),
    "projection-tsne": AnalysisEntry(
        "holdfast.analysis.projection:panels",
        "the same by t-SNE, on fewer points",
        fixed={"how": "tsne"},
        needs="rows of sources and target",
    ),
    "memory-use": AnalysisEntry(
        "holdfast.analysis.memory_use:memory_use",
        "which slots of a memory are used, by domain",
        needs="a memory that was read (neck=memory)",
    ),
    "routing": AnalysisEntry(
        "holdfast.analysis.routing:routing",
        "how experts share the tokens, and what their choice tells of the domain",
        needs="experts (neck=experts)",
    ),
    "general-memory": AnalysisEntry(
        "holdfast.analysis.general_use:general_use",
        "how much attention goes to a general memory, which depths its gates take from, and what hiding it changes",
        tasks=FEATURE_TASKS,
        needs="a general memory (encoder=gmap)",
    ),
    "expert-agreement": AnalysisEntry(
        "holdfast.analysis.patches:agreement",
        "whether one image in several domains goes to the same experts",
        needs="experts and image files of one name, CLASS/NAME, in several domains",
    ),
    "expert-parts": AnalysisEntry(
        "holdfast.analysis.patches:part_experts",
        "which experts the parts of things go to, where parts.csv or CUB's files tell them",
        needs="experts and training images whose parts are told by parts.csv or CUB's files",
    ),
    "attention-map": AnalysisEntry(
        "holdfast.analysis.patches:attention_maps",
        "where the class token of a vision transformer looks, head by head",
        needs="a vision transformer",
    ),
    "segment-mass": AnalysisEntry(
        "holdfast.analysis.forgetting:segment_mass",
        "how much each domain reads of each segment of a memory that grew",
        needs="a memory that grew (method=progressive(erm))",
    ),
    "slot-map": AnalysisEntry(
        "holdfast.analysis.slots:slot_map",
        "HMA's slots in the plane, alone and beside training examples, by PCA",
        needs="slots of the classes (method=hma)",
    ),
    "slot-map-tsne": AnalysisEntry(
        "holdfast.analysis.slots:slot_map",
        "the same by t-SNE",
        fixed={"how": "tsne"},
        needs="slots of the classes (method=hma)",
    ),
    "slot-attention": AnalysisEntry(
        "holdfast.analysis.slots:slot_attention",
        "who looks at whom in a batch sorted by class, and at which slots",
        needs="attention between examples (method=hma)",
    ),
    "slot-diversity": AnalysisEntry(
        "holdfast.analysis.slots:slot_diversity",
        "how alike HMA's slots of a class are: 1 where they are one slot",
        needs="slots of the classes (method=hma)",
    ),
}
