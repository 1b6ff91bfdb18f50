"""Tables of the G-MAP study (docs/studies/gmap.md), computed from the records in results/gmap."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from statistics import fmean
from typing import Any

from holdfast.record import RunRecord
from lab.recipes.recipe import load_recipe
from studies.tables import RESULTS, compared, difference, header, records

SEEDS = 5
NO_MEMORY = {"strategy": "none"}
DAPT, OWN_COPY, GMAP = "DAPT", "memory of the domain model's own frozen copy", "G-MAP, chunk-gated"
AGAINST = {DAPT: "DAPT", OWN_COPY: "its own copy"}
# row -> the encoder settings in which it differs from chunk-gated memory of a frozen general model after DAPT
BASELINES: dict[str, dict[str, Any]] = {
    "fine-tuning of MiniLM": {**NO_MEMORY, "mix": 1.0},
    DAPT: NO_MEMORY,
    "TAPT": {**NO_MEMORY, "start": "tapt"},
    "DAPT+TAPT": {**NO_MEMORY, "start": "dapt+tapt"},
    "logits fusion": {"strategy": "beside"},
    "ensemble of probabilities": {"strategy": "beside", "frozen": False},
}
STRATEGIES: dict[str, dict[str, Any]] = {
    "G-MAP, single layer": {"strategy": "single"},
    "G-MAP, multiple layers": {"strategy": "multi"},
    "G-MAP, gated": {"strategy": "gated"},
    GMAP: {},
}
CONTROLS: dict[str, dict[str, Any]] = {
    OWN_COPY: {"memory": "own"},
    "memory of another text": {"memory": "other"},
    "memory of a random network": {"memory": "random"},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "chunk-gated, cross-attention": {"attention": "cross"},
    "chunk-gated, gated attention": {"attention": "gate"},
    "chunk-gated, trainable general model": {"frozen": False},
}
ROWS = {**BASELINES, **STRATEGIES, **CONTROLS}
# the mean uses ACL-ARC without test texts that are also in its training part; the published split is an extra column
TEXTS = ("chemprot", "acl-arc-clean", "scierc", "hyperpartisan", "ag-news", "imdb")
LEAKY = "acl-arc"
AS_PUBLISHED = tuple(LEAKY if name == "acl-arc-clean" else name for name in TEXTS)
ENTITIES, ANSWERS = ("ncbi-disease", "conll2003"), ("subjqa",)
# names of the published rows in the recipes
RECIPE_ROWS = {
    "fine-tuning of MiniLM": "fine-tuning", DAPT: "dapt", "TAPT": "tapt", "DAPT+TAPT": "dapt+tapt",
    "logits fusion": "logits-fusion", "ensemble of probabilities": "ensemble",
    "G-MAP, single layer": "single", "G-MAP, multiple layers": "multi", "G-MAP, gated": "gated", GMAP: "gmap",
}  # fmt: skip


def _row(record: RunRecord) -> str:
    settings = record.spec["encoder_args"]
    start = settings["domain"].rsplit("/", 1)[-1].removesuffix(f"-{record.spec['data'].partition('@')[0]}")
    changed = {key: settings[key] for key in ("strategy", "memory", "attention", "frozen", "mix") if key in settings}
    if start in ("tapt", "dapt+tapt"):
        changed["start"] = start
    (name,) = (name for name, row in {**ROWS, **VARIANTS}.items() if row == changed)
    return name


def _scores(studies: tuple[str, ...], *, also: str | None = None) -> dict[str, Any]:
    """Return row -> data set -> seed -> score; `also` adds a second metric as a column of its own."""
    scores: dict[str, Any] = defaultdict(lambda: defaultdict(dict))
    for study in studies:
        for record in records(f"gmap/{study}"):
            (test,) = record.stages[-1]["test"].values()
            scores[_row(record)][study][record.spec["seed"]] = 100 * test[record.spec["metric"]]
            if also:
                scores[_row(record)][also][record.spec["seed"]] = 100 * test[also]
    return scores


def _cells() -> dict[tuple[str, str], float | None]:
    # tables 1 and 2 use one row name for different pretraining; table 1 is read last and wins
    tables = (load_recipe(f"gmap/table{number}") for number in (2, 3, 1))
    return {(cell.row.name, cell.column.name): cell.published for table in tables for cell in table.cells}


def _published(columns: tuple[str, ...]) -> dict[str, float]:
    """Return the published mean over these data sets, for rows that were published on all of them."""
    cells, means = _cells(), {}
    for row, name in RECIPE_ROWS.items():
        values = [value for column in columns if (value := cells.get((name, column))) is not None]
        if len(values) == len(columns):
            means[row] = fmean(values)
    return means


def texts() -> list[str]:
    """Text classification: baselines, the four strategies and the controls."""
    published = _published(AS_PUBLISHED)
    assert published.keys() == RECIPE_ROWS.keys()
    scores = _scores((*TEXTS, LEAKY))
    return compared(scores, ROWS, TEXTS, seeds=SEEDS, against=AGAINST, published=published, extra=(LEAKY,))


def variants() -> list[str]:
    """Other attentions, and a trainable general model."""
    rows = (DAPT, GMAP, OWN_COPY, *VARIANTS)
    return compared(_scores((*TEXTS, LEAKY)), rows, TEXTS, seeds=SEEDS, against=AGAINST, extra=(LEAKY,))


def entities() -> list[str]:
    """Named entities; DAPT+TAPT was not trained on these data sets."""
    rows = [row for row in (*ROWS, *VARIANTS) if row != "DAPT+TAPT"]
    return compared(_scores(ENTITIES), rows, ENTITIES, seeds=SEEDS, against=AGAINST, published=_published(ENTITIES))


def answers() -> list[str]:
    """Answer spans in reviews; the ensemble averages class probabilities and does not apply to spans."""
    rows = [row for row in (*ROWS, *VARIANTS) if row not in ("DAPT+TAPT", "ensemble of probabilities")]
    scores = _scores(ANSWERS, also="exact_match")
    return compared(scores, rows, ANSWERS, seeds=SEEDS, against=AGAINST, extra=("exact_match",))


def gains() -> list[str]:
    """Gain of chunk-gated memory over each baseline and control per data set, with the published gain over DAPT."""
    others = {DAPT: "DAPT", OWN_COPY: "its own copy", "memory of another text": "another text"}
    others["memory of a random network"] = "a random network"
    datasets = (*TEXTS, LEAKY, *ENTITIES, *ANSWERS)
    scores, cells = _scores(datasets), _cells()
    groups = {"all texts": TEXTS, "all texts, acl-arc as published": AS_PUBLISHED}
    lines = header("data set", "published over DAPT", *(f"over {name}" for name in others.values()))
    for name, columns in {**groups, **{column: (column,) for column in datasets}}.items():
        gmap, dapt = cells.get(("gmap", name)), cells.get(("dapt", name))
        published = "-" if gmap is None or dapt is None else f"{gmap - dapt:+.1f}"
        means = {
            row: [fmean(scores[row][column][seed] for column in columns) for seed in range(SEEDS)]
            for row in (*others, GMAP)
        }
        lines.append(f"| {name} | {published} | {' | '.join(difference(means[GMAP], means[row]) for row in others)} |")
    return lines


def searched() -> list[str]:
    """Validation score per learning rate, mean over the data sets and rows of the search."""
    rates = (5e-5, 1e-4, 2e-4, 4e-4)
    lines = header("task", "runs per rate", *(f"{rate:g}" for rate in rates))
    for kind, name in {"text": "text classification", "tag": "named entities", "span": "answer spans"}.items():
        by_rate: dict[float, list[float]] = defaultdict(list)
        for record in records(f"gmap/search-{kind}"):
            (valid,) = record.stages[-1]["valid"].values()
            by_rate[record.spec["lr"]].append(100 * valid[record.spec["metric"]])
        (count,) = {len(values) for values in by_rate.values()}
        lines.append(f"| {name} | {count} | {' | '.join(f'{fmean(by_rate[rate]):.1f}' for rate in rates)} |")
    return lines


def pretrained() -> list[str]:
    """Masked-word loss of the domain models on held-out text, before and after each of up to three trainings."""
    trainings = json.loads(gzip.decompress((RESULTS / "gmap" / "pretraining.json.gz").read_bytes()))
    lines = header("model", "before", *trainings)
    for name in sorted({name for models in trainings.values() for name in models}, key=lambda name: f"{name}.json"):
        losses = [_losses(models[name]) if name in models else None for models in trainings.values()]
        before = next(f"{pair[0]:.2f}" for pair in losses if pair)
        after = " | ".join(f"{pair[1]:.2f}" if pair else "-" for pair in losses)
        lines.append(f"| {name.replace('_', '+')} | {before} | {after} |")
    return lines


def _losses(record: dict[str, Any]) -> tuple[float, float]:
    (before,), (after,) = record["analysis"]["before"].values(), record["stages"][-1]["test"].values()
    return before["nll"], after["nll"]


TABLES = {
    "pretrained": pretrained,
    "search": searched,
    "texts": texts,
    "gains": gains,
    "variants": variants,
    "entities": entities,
    "answers": answers,
}
