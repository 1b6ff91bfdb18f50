"""The tables of HMA in docs/reproduction.md, made from the records in results/hma."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from holdfast import catalog
from holdfast.record import RunRecord
from studies.tables import Scores, compared, difference, records

Rows = Mapping[str, dict[str, Any]]  # name -> what a run of this row has that plain training has not

PLAIN = {"method": "erm", "neck": "none", "augment": False, "context": "", "written": True, "frozen": False}
ERM, NULL = "ERM", "PARAM, parameters alone"
AGAINST = {ERM: "ERM", NULL: "PARAM"}
MEMORY: dict[str, Any] = {"method": "hma", "neck": "heterogeneous"}
PARTS: dict[str, dict[str, Any]] = {
    "RMA, the queue": {"method": "hma", "neck": "rma"},
    "ABD, batch-mates": {"method": "hma", "neck": "abd"},
    "ABD+RMA": {"method": "hma", "neck": "abd-rma"},
    "ABD+SYN": {"method": "hma", "neck": "abd-syn"},
}
NULLS: dict[str, dict[str, Any]] = {
    "HMA, a queue of noise": {**MEMORY, "written": False},
    "HMA, slots that never learn": {**MEMORY, "frozen": True},
}
# a neck predicts beside training rows, the recipes in batches, as published
BESIDE: dict[str, dict[str, Any]] = {"HMA, predicted in batches": {**MEMORY, "context": "batch"}}
ALONE: dict[str, dict[str, Any]] = {"HMA, predicted beside training rows": {**MEMORY, "context": "support"}}
TEXTS: Rows = {ERM: {}, NULL: {"neck": "param"}, **PARTS, "HMA": MEMORY, **BESIDE, **NULLS}
CHANGES: dict[str, dict[str, Any]] = {
    **{name: {"augment": key} for name, key in (("DropEdge", "drop-edge"), ("DropNode", "drop-node"))},
    "Subgraph": {"augment": "subgraph"}, "M-Mixup": {"method": "manifold-mixup"}, "G-Mixup": {"method": "g-mixup"},
}  # fmt: skip
RULES: dict[str, dict[str, Any]] = {
    "ASAP pooling": {"encoder": "gin-asap"}, "DIR": {"method": "dir"}, "IRM": {"method": "irm"},
    "V-REx": {"method": "vrex"}, "IB-IRM": {"method": "ib-irm"}, "CIGA v1": {"method": "ciga-v1"},
    "CIGA v2": {"method": "ciga-v2"},
}  # fmt: skip
HMA: Rows = {"HMA": MEMORY, **ALONE, **NULLS}
PEOPLE: Rows = {ERM: {}, NULL: {"neck": "param"}, **CHANGES, **PARTS, **HMA}
SIZE: Rows = {ERM: {}, NULL: {"neck": "param"}, **RULES, **HMA}
DIGITS: Rows = {ERM: {}, NULL: {"neck": "param"}, "IRM": {"method": "irm"}, "V-REx": {"method": "vrex"}, **HMA}
OF_SIZES = "HMA, sizes searched"
SEARCHED = {"context": "batch", "real": 512, "slots": 32, "support": 32}
MOLECULES: Rows = {ERM: {}, NULL: {"neck": "param"}, **HMA}
GRAPHS = {
    "gcn": "GCN",
    "gin": "GIN",
    "gcn-virtual": "GCN with a virtual node",
    "gin-virtual": "GIN with a virtual node",
}
# what a recipe calls the rows that were published
PRINTED = {
    ERM: "erm", "ASAP pooling": "asap", "DIR": "dir", "IRM": "irm", "V-REx": "vrex", "IB-IRM": "ib-irm",
    "CIGA v1": "ciga-v1", "CIGA v2": "ciga-v2", "HMA": "hma", "DropEdge": "drop-edge", "DropNode": "drop-node",
    "Subgraph": "subgraph", "M-Mixup": "m-mixup", "G-Mixup": "g-mixup", "RMA, the queue": "rma",
    "ABD, batch-mates": "abd", "ABD+SYN": "abd-syn",
}  # fmt: skip


def _row(record: RunRecord, rows: Rows, context: str) -> str:
    spec = record.spec
    told = {**PLAIN, "context": context, **spec, **spec["neck_args"]}
    if spec["neck"] in ("none", "param"):
        told["context"] = context
    said = {key: told[key] for key in PLAIN if told[key] != {**PLAIN, "context": context}[key]}
    if spec["encoder"].endswith("-asap"):
        said["encoder"] = spec["encoder"]
    (name,) = (name for name, row in rows.items() if row == said)
    return name


def _scores(
    folder: str, rows: Rows, score: Callable[[RunRecord], dict[str, float]], *, context: str = "batch", **only: Any
) -> dict[str, Any]:
    """`score` gives the columns of a record; `only` says which records count, by their spec."""
    found: dict[str, Any] = defaultdict(lambda: defaultdict(dict))
    for record in records(f"hma/{folder}"):
        if all(record.spec[key] == value for key, value in only.items()):
            for column, value in score(record).items():
                found[_row(record, rows, context)][column][record.spec["seed"]] = 100 * value
    return found


def _published(recipe: str, columns: Sequence[str], *, times: float = 1.0, **names: str) -> dict[str, float]:
    """By row, the mean of what was printed in these columns; `names` replaces those of rows."""
    cells = catalog.lookup("recipes", recipe).load()().cells
    found = {(cell.row.name, cell.column.name): cell.published for cell in cells}
    means = {}
    for row, name in {**PRINTED, **names}.items():
        printed = [found.get((name, column)) for column in columns]
        if all(printed):
            means[row] = times * fmean(value for value in printed if value)
    return means


def _by_target(metric: str) -> Callable[[RunRecord], dict[str, float]]:
    return lambda record: {target: told[metric] for target, told in record.stages[-1]["test"].items()}


def _by_set(metric: str) -> Callable[[RunRecord], dict[str, float]]:
    def score(record: RunRecord) -> dict[str, float]:
        (told,) = record.stages[-1]["test"].values()
        return {record.spec["data"].partition("@")[0]: told[metric]}

    return score


def _by_colour(size: int) -> Callable[[RunRecord], dict[str, float]]:
    """How often the colour errs in training, and the mean of the two tests where it does not help."""

    def score(record: RunRecord) -> dict[str, float]:
        given = dict(each.split("=") for each in record.spec["data"].partition("@")[2].split(","))
        if int(given["size"]) != size:
            return {}
        tests = record.stages[-1]["test"]
        return {f"{given['first']}, {given['second']}": fmean(tests[name]["accuracy"] for name in ("reversed", "grey"))}

    return score


class Measured(NamedTuple):
    """What one table is made of."""

    found: Scores
    rows: Rows
    columns: Sequence[str]
    seeds: int
    published: Mapping[str, float] | None = None

    def table(self) -> list[str]:
        return compared(
            self.found, self.rows, self.columns, seeds=self.seeds, against=AGAINST, published=self.published
        )

    def means(self, row: str) -> list[float]:
        """Over columns, by seed."""
        return [fmean(self.found[row][column][seed] for column in self.columns) for seed in range(self.seeds)]


def amazon() -> Measured:
    """HMA as a neck on MiniLM, one domain left out."""
    found = _scores("amazon", TEXTS, _by_target("macro_f1"), context="support")
    return Measured(found, TEXTS, sorted(found[ERM]), 3)


def people() -> Measured:
    """Networks of people beside augmentations."""
    sets = ("imdb-binary", "imdb-multi", "reddit-binary")
    printed = _published("hma/table4", sets, **{ERM: "vanilla"})
    return Measured(_scores("people", PEOPLE, _by_set("accuracy")), PEOPLE, sets, 5, printed)


def size() -> Measured:
    """From small graphs to large ones, Matthews correlation."""
    sets = ("nci1", "nci109", "proteins", "dd")
    printed = _published("hma/table6", sets, times=100)
    found = _scores("size", SIZE, _by_set("mcc"))
    for folder in ("size-searched", "search-size"):  # the first two seeds of three sets are those of the search
        chosen = _scores(folder, SIZE, _by_set("mcc"), neck_args=SEARCHED)["HMA"]
        for name, by_seed in chosen.items():
            found[OF_SIZES][name].update(by_seed)
    return Measured(found, {**SIZE, OF_SIZES: MEMORY}, sets, 5, printed)


def searched() -> list[str]:
    """What sizes of the memory gave on validation graphs of three sets: Matthews correlation, two seeds."""
    rows, slots = (32, 128, 512), (4, 32, 128)
    by_size: dict[tuple[int, int], list[float]] = defaultdict(list)
    for record in records("hma/search-size"):
        given = record.spec["neck_args"]
        told = record.stages[-1]["valid"].values()
        by_size[given["real"], given["slots"]].append(100 * fmean(each["mcc"] for each in told))
    assert {len(values) for values in by_size.values()} == {6}
    lines = [f"| rows of the queue | {' | '.join(f'{each} slots a class' for each in slots)} |", "|---|---|---|---|"]
    return lines + [f"| {m} | {' | '.join(f'{fmean(by_size[m, n]):.1f}' for n in slots)} |" for m in rows]


def molecules(encoder: str) -> Measured:
    """Molecules by their scaffold with one network, area under the curve."""
    sets = ("bace", "bbbp", "hiv")
    printed = _published("hma/table3", sets, **{ERM: encoder, "HMA": f"{encoder}+hma"})
    found = _scores("molecules", MOLECULES, _by_set("roc_auc"), encoder=encoder)
    return Measured(found, MOLECULES, sets, 3, printed)


def digits(encoder: str, pixels: int) -> Measured:
    """Coloured digits, one network and one size of the pictures."""
    points = ("0.2, 0.1", "0.15, 0.08", "0.1, 0.06", "0.05, 0.04", "0, 0.02")
    return Measured(_scores("digits", DIGITS, _by_colour(pixels), encoder=encoder), DIGITS, points, 3)


def summary() -> list[str]:
    """HMA on each kind of data against plain training, its nulls, and itself predicted the other way."""
    kinds: dict[str, list[Measured]] = {
        "Amazon, MiniLM": [amazon()],
        "small to large graphs, GIN": [size()],
        "people, GIN": [people()],
        "molecules, four networks": [molecules(encoder) for encoder in GRAPHS],
        "digits, perceptron": [digits("pixel-mlp", pixels) for pixels in (28, 14)],
        "digits, convolutional": [digits("cnn", pixels) for pixels in (28, 14)],
    }
    head = ["data", "against ERM", "against PARAM", "against a queue of noise", "against slots that never learn"]
    head.append("support against batch")
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for name, parts in kinds.items():
        means = {row: [fmean(each) for each in zip(*(part.means(row) for part in parts), strict=True)]
                 for row in parts[0].rows}  # fmt: skip
        (alone,), (beside,) = ALONE, BESIDE
        other = (means["HMA"], means[beside]) if beside in means else (means[alone], means["HMA"])
        pairs = [*((means["HMA"], means[row]) for row in (ERM, NULL, *NULLS)), other]
        lines.append(f"| {name} | {' | '.join(difference(*pair) for pair in pairs)} |")
    return lines
