"""Names that the package holdfast-lab adds, for errors where it is not installed."""

from holdfast.core.errors import BadInput

NAMES = {
    "command": ("bench", "reproduce"),
    "analysis": (
        "expert-agreement", "expert-parts", "attention-map", "projection-tsne", "slot-map", "slot-map-tsne",
        "slot-attention", "slot-diversity", "routing", "general-memory", "segment-mass",
    ),
    "encoder": ("dialogue-gru", "dialogue-lstm"),
    "task": ("respond",),
    "data set": ("dialogue",),
}  # fmt: skip


def laboratory_error(kind: str, name: str) -> BadInput | None:
    """Return the error for a name of holdfast-lab, which is not installed; None for other names."""
    if name not in NAMES.get(kind, ()):
        return None
    return BadInput(f"{kind} '{name}' comes with the package holdfast-lab: install the folder lab of the source")
