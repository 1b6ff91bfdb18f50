"""The tables of MultiNLI's genres as a stream in docs/reproduction.md, made from the records in results/pmb."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from statistics import fmean

from holdfast.record import RunRecord
from holdfast.report.significance import correctness, shared_correctness
from holdfast.report.statistics import bootstrap_signed_rank
from studies.tables import difference, records

SEEDS = 5
GROWN, PLAIN, NULL = "F+M+V", "F", "F+M, new slots random and frozen"
ONE_WAY, OTHER_WAY = "fiction>government", "government>fiction"
# row -> (method, what it grows, slots from the start, other settings, the episode, the stage that is scored)
TWO = {
    "RNN, S": ("progressive(erm)", "F", 0, "", ONE_WAY, 0),
    "RNN, T": ("progressive(erm)", "F", 0, "", OTHER_WAY, 0),
    "RNN+Mem, S": ("progressive(erm)", "F", 500, "", ONE_WAY, 0),
    "RNN+Mem, T": ("progressive(erm)", "F", 500, "", OTHER_WAY, 0),
    "RNN+Mem, S+T": ("erm", "", 500, "", "joint", -1),
    "F": ("progressive(erm)", "F", 500, "", ONE_WAY, -1),
    "F+M": ("progressive(erm)", "M", 500, "", ONE_WAY, -1),
    "F+M+V": ("progressive(erm)", "MV", 500, "", ONE_WAY, -1),
    "F+H": ("progressive(erm)", "H", 500, "", ONE_WAY, -1),
    "F+H+V": ("progressive(erm)", "HV", 500, "", ONE_WAY, -1),
    "EWC": ("progressive(ewc)", "F", 500, "", ONE_WAY, -1),
    "EWC, weight 10,000": ("progressive(ewc)", "F", 500, "10000.0", ONE_WAY, -1),
    "EWC, weight 1,000,000": ("progressive(ewc)", "F", 500, "1000000.0", ONE_WAY, -1),
    "progressive network": ("progressive(erm)", "C", 500, "", ONE_WAY, -1),
    "F+M, old parts frozen": ("progressive(erm)", "M", 500, "old", ONE_WAY, -1),
    "F+M+V, new words from GloVe": ("progressive(erm)", "MV", 500, "vectors", ONE_WAY, -1),
    NULL: ("progressive(erm)", "M", 500, "new", ONE_WAY, -1),
    "F, all 1,000 slots from the start": ("progressive(erm)", "F", 1000, "", ONE_WAY, -1),
    "RNN, F": ("progressive(erm)", "F", 0, "", ONE_WAY, -1),
    "RNN, EWC": ("progressive(ewc)", "F", 0, "", ONE_WAY, -1),
    "RNN, S+T": ("erm", "", 0, "", "joint", -1),
}
IN_TURN = "fiction>government>slate>telephone>travel"
FIVE = {
    "in-domain": ("erm", "", 500, "", "in-", -1),
    "multi-task": ("erm", "", 500, "", "joint", -1),
    "F": ("progressive(erm)", "F", 500, "", IN_TURN, -1),
    "F+V": ("progressive(erm)", "V", 500, "", IN_TURN, -1),
    "F+M+V": ("progressive(erm)", "MV", 500, "", IN_TURN, -1),
    "EWC": ("progressive(ewc)", "F", 500, "", IN_TURN, -1),
    "progressive network": ("progressive(erm)", "C", 500, "", IN_TURN, -1),
    NULL: ("progressive(erm)", "M", 500, "new", IN_TURN, -1),
}
Row = tuple[str, str, int, str, str, int]


def _is(record: RunRecord, row: Row) -> bool:
    given, spec = record.spec["method_args"], record.spec
    other = given.get("freeze", "") or ("vectors" if "vectors" in given else str(given.get("weight", "")))
    said = (spec["method"], given.get("expand", ""), spec["encoder_args"].get("slots", 0), other)
    return said == row[:4] and (record.episode.startswith("in-") if row[4] == "in-" else record.episode == row[4])


def scores(folder: str, row: Row) -> dict[str, list[float]]:
    """Domain -> accuracy in per cent, seed by seed."""
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for record in records(f"pmb/{folder}"):
        if _is(record, row):
            for domain, told in record.stages[row[5]]["test"].items():
                found[domain][record.spec["seed"]] = 100 * told["accuracy"]
    return {domain: [by_seed[seed] for seed in range(SEEDS)] for domain, by_seed in sorted(found.items())}


def _ends(folder: str, row: Row) -> list[float]:
    """The mean over domains at the end, seed by seed."""
    return [fmean(values) for values in zip(*scores(folder, row).values(), strict=True)]


def _transfer(folder: str, row: Row) -> str:
    """How the earlier domains changed since they were learnt, the mean over them and the seeds."""
    changes = []
    for record in records(f"pmb/{folder}"):
        if _is(record, row) and len(record.stages) > 1 and row[5] == -1:
            last = record.stages[-1]["test"]
            for stage in record.stages[:-1]:
                (learnt,) = stage["train"]
                changes.append(100 * (last[learnt]["accuracy"] - stage["test"][learnt]["accuracy"]))
    return f"{fmean(changes):+.1f}" if changes else "-"


def _bootstrap(folder: str, rows: dict[str, Row], row: str) -> str:
    """The published test: is F+M+V better than a row, on ten draws of 200 test pairs, with the first seed of each."""
    both = []
    for name in (GROWN, row):
        chosen = [r for r in records(f"pmb/{folder}") if _is(r, rows[name]) and r.spec["seed"] == 0]
        right = correctness(chosen, stage=rows[name][5])
        both.append({("", "", domain): each for (_, _, domain), each in right.items()})
    mine, theirs = shared_correctness(*both)
    return f"{bootstrap_signed_rank(mine, theirs).p:.3f}" if mine else "-"


def _table(folder: str, rows: dict[str, Row], more: tuple[str, Callable[[str], str]]) -> list[str]:
    domains = list(scores(folder, rows[PLAIN]))
    lines = [
        f"| row | {' | '.join(domains)} | mean | backward transfer | against F | against random slots | {more[0]} |",
        f"|---|{'---|' * (len(domains) + 5)}",
    ]
    for name, row in rows.items():
        found = [fmean(values) for values in scores(folder, row).values()]
        pair = ["-" if name == o else difference(_ends(folder, row), _ends(folder, rows[o]), 1) for o in (PLAIN, NULL)]
        shown = " | ".join(f"{value:.1f}" for value in [*found, fmean(found)])
        lines.append(f"| {name} | {shown} | {_transfer(folder, row)} | {pair[0]} | {pair[1]} | {more[1](name)} |")
    return lines


def two() -> list[str]:
    """Table 2 and its controls."""
    test = ("p that F+M+V is no better", lambda name: "-" if name == GROWN else _bootstrap("genres-two", TWO, name))
    return _table("genres-two", TWO, test)


def five() -> list[str]:
    """Table 4 and its control; the cost is that of all five domains."""

    def seconds(name: str) -> str:
        chosen = [r for r in records("pmb/genres-five") if _is(r, FIVE[name])]
        return f"{sum(r.cost['seconds'] for r in chosen) / SEEDS:.0f}"

    return _table("genres-five", FIVE, ("seconds", seconds))


def in_turn(name: str = GROWN) -> list[str]:
    """Table 3: scores on every genre after each one, F+M+V beside fine-tuning alone."""
    domains = IN_TURN.split(">")
    lines = [f"| after | {' | '.join(domains)} | mean |", f"|---|{'---|' * (len(domains) + 1)}"]
    for row in (name, PLAIN):
        for at, learnt in enumerate(domains):
            means = {d: fmean(values) for d, values in scores("genres-five", (*FIVE[row][:5], at)).items()}
            shown = " | ".join(f"{means[domain]:.1f}" for domain in domains)
            lines.append(f"| {row}, {learnt} | {shown} | {fmean(means.values()):.1f} |")
    return lines
