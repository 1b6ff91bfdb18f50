"""Tables of the HMA study (docs/studies/hma.md), computed from the records in results/hma."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

from holdfast.record import RunRecord
from lab.recipes.recipe import load_recipe
from studies.tables import Scores, compared, difference, header, records

Rows = Mapping[str, dict[str, Any]]  # name -> the settings in which a run differs from plain training

PLAIN = {"method": "erm", "neck": "none", "augment": False, "context": "", "written": True, "frozen": False}
ERM, PARAM = "ERM", "PARAM, parameters alone"
AGAINST = {ERM: "ERM", PARAM: "PARAM"}
MEMORY: dict[str, Any] = {"method": "hma", "neck": "heterogeneous"}
ABLATIONS: Rows = {
    "RMA, queue only": {"method": "hma", "neck": "rma"},
    "ABD, batch only": {"method": "hma", "neck": "abd"},
    "ABD+RMA": {"method": "hma", "neck": "abd-rma"},
    "ABD+SYN": {"method": "hma", "neck": "abd-syn"},
}
NULLS: Rows = {
    "HMA, noise queue": {**MEMORY, "written": False},
    "HMA, frozen slots": {**MEMORY, "frozen": True},
}
# a neck predicts with training rows as context by default, the recipes predict in batches, as published
IN_BATCHES: Rows = {"HMA, predicted in batches": {**MEMORY, "context": "batch"}}
WITH_SUPPORT: Rows = {"HMA, predicted with training rows": {**MEMORY, "context": "support"}}
TEXT: Rows = {ERM: {}, PARAM: {"neck": "param"}, **ABLATIONS, "HMA": MEMORY, **IN_BATCHES, **NULLS}
AUGMENTATIONS: Rows = {
    "DropEdge": {"augment": "drop-edge"}, "DropNode": {"augment": "drop-node"}, "Subgraph": {"augment": "subgraph"},
    "M-Mixup": {"method": "manifold-mixup"}, "G-Mixup": {"method": "g-mixup"},
}  # fmt: skip
METHODS: Rows = {
    "ASAP pooling": {"encoder": "gin-asap"}, "DIR": {"method": "dir"}, "IRM": {"method": "irm"},
    "V-REx": {"method": "vrex"}, "IB-IRM": {"method": "ib-irm"}, "CIGA v1": {"method": "ciga-v1"},
    "CIGA v2": {"method": "ciga-v2"},
}  # fmt: skip
HMA: Rows = {"HMA": MEMORY, **WITH_SUPPORT, **NULLS}
SOCIAL: Rows = {ERM: {}, PARAM: {"neck": "param"}, **AUGMENTATIONS, **ABLATIONS, **HMA}
SIZE: Rows = {ERM: {}, PARAM: {"neck": "param"}, **METHODS, **HMA}
DIGITS: Rows = {ERM: {}, PARAM: {"neck": "param"}, "IRM": {"method": "irm"}, "V-REx": {"method": "vrex"}, **HMA}
MOLECULES: Rows = {ERM: {}, PARAM: {"neck": "param"}, **HMA}
SEARCHED_ROW, SEARCHED = "HMA, sizes searched", {"context": "batch", "real": 512, "slots": 32, "support": 32}
GRAPH_ENCODERS = {
    "gcn": "GCN",
    "gin": "GIN",
    "gcn-virtual": "GCN with a virtual node",
    "gin-virtual": "GIN with a virtual node",
}
# names of the published rows in the recipes
RECIPE_ROWS = {
    ERM: "erm", "ASAP pooling": "asap", "DIR": "dir", "IRM": "irm", "V-REx": "vrex", "IB-IRM": "ib-irm",
    "CIGA v1": "ciga-v1", "CIGA v2": "ciga-v2", "HMA": "hma", "DropEdge": "drop-edge", "DropNode": "drop-node",
    "Subgraph": "subgraph", "M-Mixup": "m-mixup", "G-Mixup": "g-mixup", "RMA, queue only": "rma",
    "ABD, batch only": "abd", "ABD+SYN": "abd-syn",
}  # fmt: skip


def _row(record: RunRecord, rows: Rows, context: str) -> str:
    """Return the row of a record; `context` is the default way to predict in its study."""
    spec, default = record.spec, {**PLAIN, "context": context}
    settings = {**default, **spec, **spec["neck_args"]}
    if spec["neck"] in ("none", "param"):
        settings["context"] = context
    changed = {key: settings[key] for key in PLAIN if settings[key] != default[key]}
    if spec["encoder"].endswith("-asap"):
        changed["encoder"] = spec["encoder"]
    (name,) = (name for name, row in rows.items() if row == changed)
    return name


def _scores(
    study: str, rows: Rows, score: Callable[[RunRecord], dict[str, float]], *, context: str = "batch", **only: Any
) -> dict[str, Any]:
    """Return row -> column -> seed -> score; `score` returns the columns of a record, `only` filters by spec."""
    scores: dict[str, Any] = defaultdict(lambda: defaultdict(dict))
    for record in records(f"hma/{study}"):
        if all(record.spec[key] == value for key, value in only.items()):
            for column, value in score(record).items():
                scores[_row(record, rows, context)][column][record.spec["seed"]] = 100 * value
    return scores


def _published(
    recipe: str, columns: Sequence[str], names: Mapping[str, str] | None = None, *, scale: float = 1.0
) -> dict[str, float]:
    """Return the published mean over these columns per row; `names` overrides the recipe's row names."""
    cells = load_recipe(recipe).cells
    values = {(cell.row.name, cell.column.name): cell.published for cell in cells}
    means = {}
    for row, name in {**RECIPE_ROWS, **(names or {})}.items():
        printed = [values.get((name, column)) for column in columns]
        if all(printed):
            means[row] = scale * fmean(value for value in printed if value)
    return means


def _by_target(metric: str) -> Callable[[RunRecord], dict[str, float]]:
    return lambda record: {target: scores[metric] for target, scores in record.stages[-1]["test"].items()}


def _by_dataset(metric: str) -> Callable[[RunRecord], dict[str, float]]:
    def score(record: RunRecord) -> dict[str, float]:
        (scores,) = record.stages[-1]["test"].values()
        return {record.spec["data"].partition("@")[0]: scores[metric]}

    return score


def _by_colour_error(size: int) -> Callable[[RunRecord], dict[str, float]]:
    """Score records of one image size: the mean of the two tests in which the colour does not help."""

    def score(record: RunRecord) -> dict[str, float]:
        options = dict(pair.split("=") for pair in record.spec["data"].partition("@")[2].split(","))
        if int(options["size"]) != size:
            return {}
        tests = record.stages[-1]["test"]
        column = f"{options['first']}, {options['second']}"
        return {column: fmean(tests[name]["accuracy"] for name in ("reversed", "grey"))}

    return score


class Measured(NamedTuple):
    """Scores of one table with its rows and columns."""

    scores: Scores
    rows: Rows
    columns: Sequence[str]
    seeds: int
    published: Mapping[str, float] | None = None

    def table(self) -> list[str]:
        return compared(
            self.scores, self.rows, self.columns, seeds=self.seeds, against=AGAINST, published=self.published
        )

    def means(self, row: str) -> list[float]:
        """Return the mean over columns per seed."""
        return [fmean(self.scores[row][column][seed] for column in self.columns) for seed in range(self.seeds)]


def amazon() -> Measured:
    """HMA as a neck of MiniLM, leave one domain out."""
    scores = _scores("amazon", TEXT, _by_target("macro_f1"), context="support")
    return Measured(scores, TEXT, sorted(scores[ERM]), 3)


def social() -> Measured:
    """Social networks, with augmentations as baselines."""
    columns = ("imdb-binary", "imdb-multi", "reddit-binary")
    published = _published("hma/table4", columns, {ERM: "vanilla"})
    return Measured(_scores("people", SOCIAL, _by_dataset("accuracy")), SOCIAL, columns, 5, published)


def size() -> Measured:
    """Train on small graphs, test on large ones: Matthews correlation."""
    columns = ("nci1", "nci109", "proteins", "dd")
    published = _published("hma/table6", columns, scale=100)
    scores = _scores("size", SIZE, _by_dataset("mcc"))
    for study in ("size-searched", "search-size"):  # the first two seeds of three data sets come from the search
        searched = _scores(study, SIZE, _by_dataset("mcc"), neck_args=SEARCHED)["HMA"]
        for name, by_seed in searched.items():
            scores[SEARCHED_ROW][name].update(by_seed)
    return Measured(scores, {**SIZE, SEARCHED_ROW: MEMORY}, columns, 5, published)


def searched() -> list[str]:
    """Matthews correlation on validation graphs by the sizes of the memories, two seeds on three data sets."""
    queues, slots = (32, 128, 512), (4, 32, 128)
    by_size: dict[tuple[int, int], list[float]] = defaultdict(list)
    for record in records("hma/search-size"):
        settings, valid = record.spec["neck_args"], record.stages[-1]["valid"].values()
        by_size[settings["real"], settings["slots"]].append(100 * fmean(scores["mcc"] for scores in valid))
    assert {len(values) for values in by_size.values()} == {6}
    lines = header("rows of the queue", *(f"{count} slots per class" for count in slots))
    return lines + [f"| {m} | {' | '.join(f'{fmean(by_size[m, n]):.1f}' for n in slots)} |" for m in queues]


def molecules(encoder: str) -> Measured:
    """Molecules by scaffold with one encoder: area under the ROC curve."""
    columns = ("bace", "bbbp", "hiv")
    published = _published("hma/table3", columns, {ERM: encoder, "HMA": f"{encoder}+hma"})
    scores = _scores("molecules", MOLECULES, _by_dataset("roc_auc"), encoder=encoder)
    return Measured(scores, MOLECULES, columns, 3, published)


def digits(encoder: str, pixels: int) -> Measured:
    """Coloured digits with one encoder and one image size."""
    columns = ("0.2, 0.1", "0.15, 0.08", "0.1, 0.06", "0.05, 0.04", "0, 0.02")
    return Measured(_scores("digits", DIGITS, _by_colour_error(pixels), encoder=encoder), DIGITS, columns, 3)


def summary() -> list[str]:
    """HMA per kind of data against ERM, its null controls, and prediction with training rows against batches."""
    kinds: dict[str, list[Measured]] = {
        "Amazon, MiniLM": [amazon()],
        "small to large graphs, GIN": [size()],
        "social networks, GIN": [social()],
        "molecules, four encoders": [molecules(encoder) for encoder in GRAPH_ENCODERS],
        "digits, MLP": [digits("pixel-mlp", pixels) for pixels in (28, 14)],
        "digits, CNN": [digits("cnn", pixels) for pixels in (28, 14)],
    }
    bases = (ERM, PARAM, *NULLS)
    lines = header("data", *(f"against {base}" for base in (ERM, "PARAM", *NULLS)), "support against batch")
    for name, group in kinds.items():
        means = {
            row: [fmean(values) for values in zip(*(measured.means(row) for measured in group), strict=True)]
            for row in group[0].rows
        }
        (support,), (batch,) = WITH_SUPPORT, IN_BATCHES
        contexts = (means["HMA"], means[batch]) if batch in means else (means[support], means["HMA"])
        pairs = [*((means["HMA"], means[base]) for base in bases), contexts]
        lines.append(f"| {name} | {' | '.join(difference(*pair) for pair in pairs)} |")
    return lines


TABLES: dict[str, Callable[[], list[str]]] = {
    "amazon": lambda: amazon().table(),
    "size": lambda: size().table(),
    "search-size": searched,
    "social": lambda: social().table(),
    "summary": summary,
}
for _encoder in ("pixel-mlp", "cnn"):
    for _pixels in (28, 14):
        TABLES[f"digits-{_encoder}-{_pixels}"] = partial(lambda *key: digits(*key).table(), _encoder, _pixels)
for _encoder in GRAPH_ENCODERS:
    TABLES[f"molecules-{_encoder}"] = partial(lambda encoder: molecules(encoder).table(), _encoder)
