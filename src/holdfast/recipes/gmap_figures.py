"""G-MAP (Wan et al., EMNLP 2022): its figures, of layers that read the memory and of hidden words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.recipes.base import Budget, Column, Recipe, Row, grid
from holdfast.recipes.gmap import classifying
from holdfast.recipes.gmap_parts import FIELDS, FIVE, GENERAL, NONE, controls, row

UNTOLD = "the sets behind this figure are not told; here they are those of Tables 4 and 5"
TEXTS = {"biomedical-texts": "BM", "cs-texts": "CS", "books-texts": "PT"}
NAMED = {"bm": "BM", "cs": "CS"}  # domains whose models are pretrained further
LENGTH = 512
HIDDEN = {
    "task": "masked", "tune": "full", "optimizer": "adam", "lr": 4e-5, "weight_decay": 0.0, "schedule": "linear",
    "clip": 1.0, "select": "last", "metric": "nll", "plan.test": 0.3, "plan.valid": 0.01,
}  # fmt: skip
MODELS = "with other models: --set encoder.general=... --set encoder.domain=FOLDER/{start}, which is general, bm or cs"
MASKED = "15 % of the words are hidden, and both networks see the same hidden words: the memory cannot tell them"
DRAWN = "texts are drawn by a fixed seed and cut by that of a run, 70 % to train and 30 % to score"
DEPTH = 12  # of the published networks
HEIGHTS = "layers are those of a network with twelve; another depth takes them by proportion, so that rows may coincide"
NUMBERS = "its numbers are not in the text that was read"


def figure1() -> Recipe:
    """The loss of hidden words before anything is learnt here."""
    rows = [row("roberta", "RoBERTa", NONE, start="general")]
    rows += [row(f"dapt-{name}", f"DAPT({label})", NONE, start=name) for name, label in NAMED.items()]
    claim = "a domain's model has a lower loss on its own texts than the general one, and a higher one on general texts"
    still = "one step at a rate of 1e-12 stands for none: what is scored is the checkpoint as it is"
    return _hidden("gmap/figure1", rows, {"lr": 1e-12}, Budget(steps=1, batch=8), claim, (still, NUMBERS))


def figure5() -> Recipe:
    """The loss of hidden words after pretraining further, with and without the memory."""
    rows: list[Row] = []
    for name, label in NAMED.items():
        rows += [
            row(f"dapt-{name}", f"DAPT({label})", NONE, start=name),
            row(f"gmap-{name}", f"G-MAP({label})", start=name),
            *controls(f"G-MAP({label})", before=f"gmap-{name}-", start=name),
        ]
    claim = "with the memory the loss is lower on texts of all three domains"
    epochs = "5 to 10 epochs are told; here 10"
    return _hidden("gmap/figure5", rows, {}, Budget(epochs=10, batch=128), claim, (epochs, NUMBERS))


def figure4() -> Recipe:
    """Pairs of layers that read the low and the high chunk."""
    rows = [row(f"{i}-{i + 6}", f"layers {i} and {i + 6}", _reading(i, i + 6)) for i in range(1, 7)]
    claim = "scores rise as the two layers move to the top, and are best for layers 6 and 12"
    return classifying("gmap/figure4", rows, FIVE, {}, claim=claim, notes=(UNTOLD, HEIGHTS, NUMBERS))


def figure6() -> Recipe:
    """The layer that reads, of the strategies with one."""
    rows = [
        row(
            f"{strategy}-{layer}",
            f"{strategy}, layer {layer}",
            {"encoder.strategy": strategy, **_reading(layer)},
        )
        for strategy in ("single", "gated")
        for layer in (3, 6, 9, 12)
    ]
    claim = "both strategies are best where layer 9 reads"
    return classifying("gmap/figure6", rows, FIVE, {}, claim=claim, notes=(UNTOLD, HEIGHTS, NUMBERS))


def _reading(*layers: int) -> dict[str, Any]:
    """Published layers of twelve by their height, so that a network of any depth has them."""
    return {"encoder.layers": [f"{layer}/{DEPTH}" for layer in layers]}


def _hidden(
    name: str,
    rows: Sequence[Row],
    settings: Mapping[str, Any],
    budget: Budget,
    claim: str,
    notes: tuple[str, ...],
) -> Recipe:
    columns = [
        Column(
            name=label.lower(), label=label, data=data, targets=(data,), plan="in-domain", metric="nll", digits=3,
            percent=False,
        )
        for data, label in TEXTS.items()
    ]  # fmt: skip
    return Recipe(
        name=name,
        cells=grid(name, rows, columns, {}),
        encoder="gmap",
        encoder_settings={data: {"encoder.general": GENERAL, "encoder.length": LENGTH} for data in TEXTS},
        settings={**HIDDEN, **settings},
        budget=budget,
        starts={
            start: {data: {"encoder.domain": checkpoint} for data in TEXTS}
            for start, checkpoint in {"general": GENERAL, "bm": FIELDS["biomed"], "cs": FIELDS["cs"]}.items()
        },
        claim=claim,
        notes=(*notes, MODELS, MASKED, DRAWN),
    )
