"""Analyses of trained runs; the module of each also has a function `sections` that draws its results."""

from holdfast.catalog.entry import AnalysisEntry

_BOTH = "examples of sources and target"

ANALYSES = {
    "a-distance": AnalysisEntry(
        "holdfast.analysis.domain_distance:against_sources",
        "proxy A-distance between target and sources: 0 if a linear classifier cannot separate them, 2 if perfectly",
        needs=f"enough {_BOTH}"),
    "projection": AnalysisEntry(
        "holdfast.analysis.projection:panels", "2-D PCA projection of sources and target, with density contours",
        needs=_BOTH),
    "memory-use": AnalysisEntry(
        "holdfast.analysis.memory_use:memory_use", "which slots of a memory every domain uses",
        needs="a memory that was read (neck=memory)"),
}  # fmt: skip
