"""Tables of the PMB study (docs/studies/pmb.md), computed from the records in results/pmb."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any, NamedTuple

from holdfast.record import RunRecord
from holdfast.stats.decision import correctness, shared_correctness
from holdfast.stats.streams import backward_transfer
from lab.analysis.bootstrap import bootstrap_signed_rank
from studies.tables import difference, header, match_row, records

FINE_TUNING, GROWN, NULL = "F", "F+M+V", "F+M, new slots random and frozen"


class Row(NamedTuple):
    """Conditions on the records of a row, and the stage that is scored."""

    method: str
    expand: str  # the parts that grow
    slots: int  # at the start
    variant: str  # frozen parts, word vectors or the weight of EWC
    episode: str
    stage: int


# Amazon reviews as a stream, with a memory as neck of MiniLM
AMAZON_SEEDS = 5
AMAZON: dict[str, dict[str, Any]] = {
    "fine-tuning (F)": {"method": "progressive(erm)", "neck": "none"},
    "memory, not grown (F)": {"method": "progressive(erm)", "expand": "F", "sharp": True},
    "growing memory (F+M)": {"method": "progressive(erm)", "expand": "M", "sharp": False},
    "growing memory, sharper read": {"method": "progressive(erm)", "expand": "M", "sharp": True, "freeze": "none"},
    "new slots random and frozen": {"method": "progressive(erm)", "freeze": "new"},
    "parameters alone (+ FFN, F)": {"neck": "ffn"},
    "EWC": {"method": "progressive(ewc)"},
    "LwF": {"method": "lwf"},
    "replay": {"method": "progressive(replay)", "neck": "none"},
    "replay, growing memory": {"method": "progressive(replay)", "neck": "memory"},
    "joint": {"plan": "joint"},
}


def _amazon_facts(spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "method": spec["method"],
        "neck": spec["neck"],
        "plan": spec["plan"],
        "expand": spec["method_args"].get("expand", ""),
        "freeze": spec["method_args"].get("freeze", "none"),
        "sharp": "temperature" in spec["neck_args"],
    }


def _transfer_matrix(record: RunRecord, metric: str) -> list[list[float]]:
    """Return the scores after each stage, domains in the order of training."""
    order = [stage["train"][0] for stage in record.stages]
    return [[100 * stage["test"][domain][metric] for domain in order] for stage in record.stages]


def amazon(metric: str = "macro_f1") -> list[str]:
    """Scores per domain after the last stage, backward transfer, and differences to two baselines."""
    by_row: dict[str, dict[int, RunRecord]] = defaultdict(dict)
    for record in records("pmb/amazon"):
        by_row[match_row(AMAZON, _amazon_facts(record.spec))][record.spec["seed"]] = record
    bases = ("fine-tuning (F)", "new slots random and frozen")
    domains = [stage["train"][0] for stage in by_row[bases[0]][0].stages]

    def finals(row: str) -> list[float]:
        tests = [by_row[row][seed].stages[-1]["test"] for seed in range(AMAZON_SEEDS)]
        return [fmean(100 * scores[metric] for scores in test.values()) for test in tests]

    lines = header("row", *domains, "mean", "backward transfer", "against F", "against random slots")
    for row in (row for row in AMAZON if len(by_row[row]) == AMAZON_SEEDS):
        runs = by_row[row].values()
        ends = [fmean(100 * run.stages[-1]["test"][domain][metric] for run in runs) for domain in domains]
        streams = [backward_transfer(_transfer_matrix(run, metric)) for run in runs if len(run.stages) > 1]
        transfer = f"{fmean(value for value in streams if value is not None):+.2f}" if streams else "-"
        pairs = ["-" if row == base else difference(finals(row), finals(base)) for base in bases]
        shown = " | ".join(f"{value:.1f}" for value in [*ends, fmean(ends)])
        lines.append(f"| {row} | {shown} | {transfer} | {' | '.join(pairs)} |")
    return lines


# genres of MultiNLI, a memory bank in the time loop
GENRE_SEEDS = 5
FORTH, REVERSE = "fiction>government", "government>fiction"
TWO = {
    "RNN, S": Row("progressive(erm)", "F", 0, "", FORTH, 0),
    "RNN, T": Row("progressive(erm)", "F", 0, "", REVERSE, 0),
    "RNN+Mem, S": Row("progressive(erm)", "F", 500, "", FORTH, 0),
    "RNN+Mem, T": Row("progressive(erm)", "F", 500, "", REVERSE, 0),
    "RNN+Mem, S+T": Row("erm", "", 500, "", "joint", -1),
    FINE_TUNING: Row("progressive(erm)", "F", 500, "", FORTH, -1),
    "F+M": Row("progressive(erm)", "M", 500, "", FORTH, -1),
    GROWN: Row("progressive(erm)", "MV", 500, "", FORTH, -1),
    "F+H": Row("progressive(erm)", "H", 500, "", FORTH, -1),
    "F+H+V": Row("progressive(erm)", "HV", 500, "", FORTH, -1),
    "EWC": Row("progressive(ewc)", "F", 500, "", FORTH, -1),
    "EWC, weight 10,000": Row("progressive(ewc)", "F", 500, "10000.0", FORTH, -1),
    "EWC, weight 1,000,000": Row("progressive(ewc)", "F", 500, "1000000.0", FORTH, -1),
    "progressive network": Row("progressive(erm)", "C", 500, "", FORTH, -1),
    "F+M, old parts frozen": Row("progressive(erm)", "M", 500, "old", FORTH, -1),
    "F+M+V, new words from GloVe": Row("progressive(erm)", "MV", 500, "vectors", FORTH, -1),
    NULL: Row("progressive(erm)", "M", 500, "new", FORTH, -1),
    "F, all 1,000 slots from the start": Row("progressive(erm)", "F", 1000, "", FORTH, -1),
    "RNN, F": Row("progressive(erm)", "F", 0, "", FORTH, -1),
    "RNN, EWC": Row("progressive(ewc)", "F", 0, "", FORTH, -1),
    "RNN, S+T": Row("erm", "", 0, "", "joint", -1),
}
STREAM = "fiction>government>slate>telephone>travel"
FIVE = {
    "in-domain": Row("erm", "", 500, "", "in-", -1),
    "multi-task": Row("erm", "", 500, "", "joint", -1),
    FINE_TUNING: Row("progressive(erm)", "F", 500, "", STREAM, -1),
    "F+V": Row("progressive(erm)", "V", 500, "", STREAM, -1),
    GROWN: Row("progressive(erm)", "MV", 500, "", STREAM, -1),
    "EWC": Row("progressive(ewc)", "F", 500, "", STREAM, -1),
    "progressive network": Row("progressive(erm)", "C", 500, "", STREAM, -1),
    NULL: Row("progressive(erm)", "M", 500, "new", STREAM, -1),
}


def _matches(record: RunRecord, row: Row) -> bool:
    spec, settings = record.spec, record.spec["method_args"]
    variant = settings.get("freeze", "") or ("vectors" if "vectors" in settings else str(settings.get("weight", "")))
    facts = (spec["method"], settings.get("expand", ""), spec["encoder_args"].get("slots", 0), variant)
    in_episode = record.episode.startswith("in-") if row.episode == "in-" else record.episode == row.episode
    return facts == row[:4] and in_episode


def genre_scores(study: str, row: Row) -> dict[str, list[float]]:
    """Return the accuracy in percent by domain, one value per seed."""
    by_domain: dict[str, dict[int, float]] = defaultdict(dict)
    for record in (record for record in records(f"pmb/{study}") if _matches(record, row)):
        for domain, scores in record.stages[row.stage]["test"].items():
            by_domain[domain][record.spec["seed"]] = 100 * scores["accuracy"]
    return {domain: [seeds[seed] for seed in range(GENRE_SEEDS)] for domain, seeds in sorted(by_domain.items())}


def _genre_means(study: str, row: Row) -> list[float]:
    """Return the mean over domains per seed."""
    return [fmean(values) for values in zip(*genre_scores(study, row).values(), strict=True)]


def _genre_transfer(study: str, row: Row) -> str:
    """Return the mean change of earlier domains since they were learned."""
    changes = []
    for record in records(f"pmb/{study}"):
        if _matches(record, row) and len(record.stages) > 1 and row.stage == -1:
            last = record.stages[-1]["test"]
            for stage in record.stages[:-1]:
                (domain,) = stage["train"]
                changes.append(100 * (last[domain]["accuracy"] - stage["test"][domain]["accuracy"]))
    return f"{fmean(changes):+.1f}" if changes else "-"


def _bootstrap(study: str, rows: Mapping[str, Row], name: str) -> str:
    """Return the p value of the published test: is F+M+V better on ten bootstrap samples of 200 test pairs, seed 0."""
    correct = []
    for row in (rows[GROWN], rows[name]):
        runs = [run for run in records(f"pmb/{study}") if _matches(run, row) and run.spec["seed"] == 0]
        by_key = correctness(runs, stage=row.stage)
        correct.append({("", "", domain): values for (_, _, domain), values in by_key.items()})
    grown, other = shared_correctness(*correct)
    return f"{bootstrap_signed_rank(grown, other).p:.3f}" if grown else "-"


def _genre_table(study: str, rows: Mapping[str, Row], last: tuple[str, Callable[[str], str]]) -> list[str]:
    domains = list(genre_scores(study, rows[FINE_TUNING]))
    lines = header("row", *domains, "mean", "backward transfer", "against F", "against random slots", last[0])
    for name, row in rows.items():
        means = [fmean(values) for values in genre_scores(study, row).values()]
        pairs = [
            "-" if name == base else difference(_genre_means(study, row), _genre_means(study, rows[base]), 1)
            for base in (FINE_TUNING, NULL)
        ]
        cells = [*(f"{value:.1f}" for value in [*means, fmean(means)]), _genre_transfer(study, row), *pairs]
        lines.append(f"| {name} | {' | '.join([*cells, last[1](name)])} |")
    return lines


def two_genres() -> list[str]:
    """Table 2 of the paper and its controls."""
    test = ("p, F+M+V better", lambda name: "-" if name == GROWN else _bootstrap("genres-two", TWO, name))
    return _genre_table("genres-two", TWO, test)


def five_genres() -> list[str]:
    """Table 4 of the paper and its control; the cost is the sum over all five domains."""

    def seconds(name: str) -> str:
        runs = [run for run in records("pmb/genres-five") if _matches(run, FIVE[name])]
        return f"{sum(run.cost['seconds'] for run in runs) / GENRE_SEEDS:.0f}"

    return _genre_table("genres-five", FIVE, ("seconds", seconds))


def after_each_genre() -> list[str]:
    """Table 3 of the paper: scores on every genre after each stage, F+M+V and fine-tuning."""
    domains = STREAM.split(">")
    lines = header("after", *domains, "mean")
    for name in (GROWN, FINE_TUNING):
        for stage, domain in enumerate(domains):
            row = FIVE[name]._replace(stage=stage)
            means = {genre: fmean(values) for genre, values in genre_scores("genres-five", row).items()}
            shown = " | ".join(f"{means[genre]:.1f}" for genre in domains)
            lines.append(f"| {name}, {domain} | {shown} | {fmean(means.values()):.1f} |")
    return lines


# dialogue: film subtitles, then the Ubuntu support channel
DIALOGUE_SEEDS = 3
FILMS_FIRST, UBUNTU_FIRST = "films>ubuntu", "ubuntu>films"
DIALOGUE = {
    "RNN, S": Row("progressive(erm)", "F", 0, "", FILMS_FIRST, 0),
    "RNN, T": Row("progressive(erm)", "F", 0, "", UBUNTU_FIRST, 0),
    "RNN+Mem, S": Row("progressive(erm)", "F", 512, "", FILMS_FIRST, 0),
    "RNN+Mem, T": Row("progressive(erm)", "F", 512, "", UBUNTU_FIRST, 0),
    "RNN+Mem, S+T": Row("erm", "", 512, "", "joint", -1),
    FINE_TUNING: Row("progressive(erm)", "F", 512, "", FILMS_FIRST, -1),
    "F+M": Row("progressive(erm)", "M", 512, "", FILMS_FIRST, -1),
    GROWN: Row("progressive(erm)", "MV", 512, "", FILMS_FIRST, -1),
    "F+H": Row("progressive(erm)", "H", 512, "", FILMS_FIRST, -1),
    "F+H+V": Row("progressive(erm)", "HV", 512, "", FILMS_FIRST, -1),
    "EWC": Row("progressive(ewc)", "F", 512, "", FILMS_FIRST, -1),
    "progressive network": Row("progressive(erm)", "C", 512, "", FILMS_FIRST, -1),
    NULL: Row("progressive(erm)", "M", 512, "new", FILMS_FIRST, -1),
    "RNN, F": Row("progressive(erm)", "F", 0, "", FILMS_FIRST, -1),
}
METRICS = (
    ("BLEU-2", "bleu2", 100, 2),
    ("W2V-Sim", "w2v_similarity", 1, 3),
    ("perplexity", "perplexity", 1, 0),
)


def _dialogue_scores(name: str, domain: str, metric: str, scale: float) -> list[float]:
    """Return the score of a row on a domain per seed."""
    row, by_seed = DIALOGUE[name], {}
    for record in records("pmb/dialogue"):
        spec, settings = record.spec, record.spec["method_args"]
        facts = (spec["method"], settings.get("expand", ""), spec["encoder_args"]["slots"], settings.get("freeze", ""))
        if (*facts, record.episode) == row[:5]:
            by_seed[spec["seed"]] = scale * record.stages[row.stage]["test"][domain][metric]
    return [by_seed[seed] for seed in range(DIALOGUE_SEEDS)]


def dialogue() -> list[str]:
    """Table 5 of the paper with its control: all metrics on both domains, and differences of the mean BLEU-2."""
    domains = {"S": "films", "T": "ubuntu"}

    def bleu(name: str) -> list[float]:
        both = (_dialogue_scores(name, domain, "bleu2", 100) for domain in domains.values())
        return [fmean(pair) for pair in zip(*both, strict=True)]

    heads = [f"{label} on {letter}" for label, *_ in METRICS for letter in domains]
    lines = header("row", *heads, "against F", "against random slots")
    for name in DIALOGUE:
        shown = [
            f"{fmean(_dialogue_scores(name, domain, metric, scale)):.{digits}f}"
            for _, metric, scale, digits in METRICS
            for domain in domains.values()
        ]
        pairs = ["-" if name == base else difference(bleu(name), bleu(base)) for base in (FINE_TUNING, NULL)]
        lines.append(f"| {name} | {' | '.join([*shown, *pairs])} |")
    return lines


TABLES = {
    "amazon": amazon,
    "two-genres": two_genres,
    "five-genres": five_genres,
    "after-each-genre": after_each_genre,
    "dialogue": dialogue,
}
