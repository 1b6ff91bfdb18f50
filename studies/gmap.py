"""The tables of G-MAP in docs/reproduction.md, made from the records in results/gmap."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from statistics import fmean
from typing import Any

from holdfast import catalog
from holdfast.record import RunRecord
from studies.tables import RESULTS, compared, difference, records

SEEDS = 5
NO_MEMORY = {"strategy": "none"}
DAPT, NULL = "DAPT", "memory of the domain model's own frozen copy"
AGAINST = {DAPT: "DAPT", NULL: "its own copy"}
# row -> how its encoder differs from chunk-gated memory of a frozen general model inside one after DAPT
BASELINES: dict[str, dict[str, Any]] = {
    "fine-tuning of MiniLM": {**NO_MEMORY, "mix": 1.0},
    DAPT: NO_MEMORY,
    "TAPT": {**NO_MEMORY, "start": "tapt"},
    "DAPT+TAPT": {**NO_MEMORY, "start": "dapt+tapt"},
    "logits fusion": {"strategy": "beside"},
    "ensemble of probabilities": {"strategy": "beside", "frozen": False},
}
MEMORY: dict[str, dict[str, Any]] = {
    "G-MAP, single layer": {"strategy": "single"},
    "G-MAP, multiple layers": {"strategy": "multi"},
    "G-MAP, gated": {"strategy": "gated"},
    "G-MAP, chunk-gated": {},
}
CONTROLS: dict[str, dict[str, Any]] = {
    NULL: {"memory": "own"},
    "memory of another text": {"memory": "other"},
    "memory of a random network": {"memory": "random"},
}
KINDS: dict[str, dict[str, Any]] = {
    "chunk-gated, cross-attention": {"attention": "cross"},
    "chunk-gated, a gate for attention": {"attention": "gate"},
    "chunk-gated, the general model learns": {"frozen": False},
}
ALL = {**BASELINES, **MEMORY, **CONTROLS}
# ACL-ARC counts without the test texts that stand in its training part; with them, as published, it is beside
TEXTS = ("chemprot", "acl-arc-clean", "scierc", "hyperpartisan", "ag-news", "imdb")
LEAKY = "acl-arc"
AS_PUBLISHED = tuple(LEAKY if name == "acl-arc-clean" else name for name in TEXTS)
NAMES, ANSWERS = ("ncbi-disease", "conll2003"), ("subjqa",)
# what a recipe calls the rows that were published
PRINTED = {
    "fine-tuning of MiniLM": "fine-tuning", DAPT: "dapt", "TAPT": "tapt", "DAPT+TAPT": "dapt+tapt",
    "logits fusion": "logits-fusion", "ensemble of probabilities": "ensemble",
    "G-MAP, single layer": "single", "G-MAP, multiple layers": "multi",
    "G-MAP, gated": "gated", "G-MAP, chunk-gated": "gmap",
}  # fmt: skip


def _row(record: RunRecord) -> str:
    given = record.spec["encoder_args"]
    start = given["domain"].rsplit("/", 1)[-1].removesuffix(f"-{record.spec['data'].partition('@')[0]}")
    said = {key: given[key] for key in ("strategy", "memory", "attention", "frozen", "mix") if key in given}
    if start in ("tapt", "dapt+tapt"):
        said["start"] = start
    (name,) = (name for name, row in {**ALL, **KINDS}.items() if row == said)
    return name


def _scores(folders: tuple[str, ...], *, also: str | None = None) -> dict[str, Any]:
    """The metric of each run, and another one as a column of its own name."""
    found: dict[str, Any] = defaultdict(lambda: defaultdict(dict))
    for folder in folders:
        for record in records(f"gmap/{folder}"):
            (told,) = record.stages[-1]["test"].values()
            found[_row(record)][folder][record.spec["seed"]] = 100 * told[record.spec["metric"]]
            if also:
                found[_row(record)][also][record.spec["seed"]] = 100 * told[also]
    return found


def _cells() -> dict[tuple[str, str], float | None]:
    # Table 2 has a memory inside a model after both pretrainings, by the name that Table 1 has for that after one
    tables = (catalog.lookup("recipes", f"gmap/table{i}").load()() for i in (2, 3, 1))
    return {(cell.row.name, cell.column.name): cell.published for table in tables for cell in table.cells}


def _published(columns: tuple[str, ...]) -> dict[str, float]:
    """Means over these sets, of the rows that were published for all of them."""
    found, means = _cells(), {}
    for row, name in PRINTED.items():
        told = [value for column in columns if (value := found.get((name, column))) is not None]
        if len(told) == len(columns):
            means[row] = fmean(told)
    return means


def texts() -> list[str]:
    """Sets of texts: baselines, the four strategies, the controls."""
    printed = _published(AS_PUBLISHED)
    assert printed.keys() == PRINTED.keys()
    return compared(
        _scores((*TEXTS, LEAKY)), ALL, TEXTS, seeds=SEEDS, against=AGAINST, published=printed, beside=(LEAKY,)
    )


def kinds() -> list[str]:
    """Other attentions, and a general model that learns."""
    rows = (DAPT, "G-MAP, chunk-gated", NULL, *KINDS)
    return compared(_scores((*TEXTS, LEAKY)), rows, TEXTS, seeds=SEEDS, against=AGAINST, beside=(LEAKY,))


def names() -> list[str]:
    """Names in sentences; nothing was trained both ways there."""
    rows = [row for row in (*ALL, *KINDS) if row != "DAPT+TAPT"]
    return compared(_scores(NAMES), rows, NAMES, seeds=SEEDS, against=AGAINST, published=_published(NAMES))


def answers() -> list[str]:
    """Answers in reviews; an ensemble adds probabilities of classes, and those of an answer are over tokens."""
    rows = [row for row in (*ALL, *KINDS) if row not in ("DAPT+TAPT", "ensemble of probabilities")]
    found = _scores(ANSWERS, also="exact_match")
    return compared(found, rows, ANSWERS, seeds=SEEDS, against=AGAINST, beside=("exact_match",))


def gains() -> list[str]:
    """Chunk-gated memory of a general model over each of the others, set by set, with the printed gain over DAPT."""
    others = {DAPT: "DAPT", NULL: "its own copy", "memory of another text": "another text"}
    others["memory of a random network"] = "a random network"
    every = (*TEXTS, LEAKY, *NAMES, *ANSWERS)
    found, printed = _scores(every), _cells()
    sets = {"all texts": TEXTS, "all texts, acl-arc as published": AS_PUBLISHED}
    lines = [f"| set | published over DAPT | {' | '.join(f'over {name}' for name in others.values())} |"]
    lines.append("|" + "---|" * (2 + len(others)))
    for name, columns in {**sets, **{column: (column,) for column in every}}.items():
        mine, plain = printed.get(("gmap", name)), printed.get(("dapt", name))
        told = "-" if mine is None or plain is None else f"{mine - plain:+.1f}"
        means = {row: [fmean(found[row][column][seed] for column in columns) for seed in range(SEEDS)]
                 for row in (*others, "G-MAP, chunk-gated")}  # fmt: skip
        cells = [difference(means["G-MAP, chunk-gated"], means[row]) for row in others]
        lines.append(f"| {name} | {told} | {' | '.join(cells)} |")
    return lines


def searched() -> list[str]:
    """What each rate gave on validation examples, mean over the sets and rows that were tried."""
    rates = (5e-5, 1e-4, 2e-4, 4e-4)
    lines = [f"| task | runs a rate | {' | '.join(f'{rate:g}' for rate in rates)} |", "|" + "---|" * (2 + len(rates))]
    for kind, name in {"text": "a label a text", "tag": "names in sentences", "span": "answers in texts"}.items():
        by_rate: dict[float, list[float]] = defaultdict(list)
        for record in records(f"gmap/search-{kind}"):
            (told,) = record.stages[-1]["valid"].values()
            by_rate[record.spec["lr"]].append(100 * told[record.spec["metric"]])
        (count,) = {len(values) for values in by_rate.values()}
        lines.append(f"| {name} | {count} | {' | '.join(f'{fmean(by_rate[rate]):.1f}' for rate in rates)} |")
    return lines


def pretrained() -> list[str]:
    """The domain models: loss on hidden words of texts that were kept aside, for each time a model was trained."""
    rounds = json.loads(gzip.decompress((RESULTS / "gmap" / "pretraining.json.gz").read_bytes()))
    lines = ["| model | before | first | second | third |", "|---|---|---|---|---|"]
    for name in sorted({name for models in rounds.values() for name in models}, key=lambda name: f"{name}.json"):
        told = [_losses(models[name]) if name in models else None for models in rounds.values()]
        before = next(f"{losses[0]:.2f}" for losses in told if losses)
        after = " | ".join(f"{losses[1]:.2f}" if losses else "-" for losses in told)
        lines.append(f"| {name.replace('_', '+')} | {before} | {after} |")
    return lines


def _losses(told: dict[str, Any]) -> tuple[float, float]:
    (before,), (after,) = told["analysis"]["before"].values(), told["stages"][-1]["test"].values()
    return before["nll"], after["nll"]
