"""The table of dialogue as a stream in docs/reproduction.md, made from the records in results/pmb."""

from __future__ import annotations

from statistics import fmean

from studies.tables import difference, records

SEEDS = 3
PLAIN, NULL = "F", "F+M, new slots random and frozen"
FORTH, BACK = "films>ubuntu", "ubuntu>films"
# row -> (method, what it grows, slots from the start, what is frozen, the episode, the stage that is scored)
ROWS = {
    "RNN, S": ("progressive(erm)", "F", 0, "", FORTH, 0),
    "RNN, T": ("progressive(erm)", "F", 0, "", BACK, 0),
    "RNN+Mem, S": ("progressive(erm)", "F", 512, "", FORTH, 0),
    "RNN+Mem, T": ("progressive(erm)", "F", 512, "", BACK, 0),
    "RNN+Mem, S+T": ("erm", "", 512, "", "joint", -1),
    PLAIN: ("progressive(erm)", "F", 512, "", FORTH, -1),
    "F+M": ("progressive(erm)", "M", 512, "", FORTH, -1),
    "F+M+V": ("progressive(erm)", "MV", 512, "", FORTH, -1),
    "F+H": ("progressive(erm)", "H", 512, "", FORTH, -1),
    "F+H+V": ("progressive(erm)", "HV", 512, "", FORTH, -1),
    "EWC": ("progressive(ewc)", "F", 512, "", FORTH, -1),
    "progressive network": ("progressive(erm)", "C", 512, "", FORTH, -1),
    NULL: ("progressive(erm)", "M", 512, "new", FORTH, -1),
    "RNN, F": ("progressive(erm)", "F", 0, "", FORTH, -1),
}
COLUMNS = (("BLEU-2", "bleu2", 100, 2), ("W2V-Sim", "w2v_similarity", 1, 3), ("perplexity", "perplexity", 1, 0))


def _scores(name: str, domain: str, metric: str, scale: float) -> list[float]:
    """Of a row on a domain, seed by seed."""
    row, found = ROWS[name], {}
    for record in records("pmb/dialogue"):
        spec, given = record.spec, record.spec["method_args"]
        said = (spec["method"], given.get("expand", ""), spec["encoder_args"]["slots"], given.get("freeze", ""))
        if (*said, record.episode) == row[:5]:
            found[spec["seed"]] = scale * record.stages[row[5]]["test"][domain][metric]
    return [found[seed] for seed in range(SEEDS)]


def _bleu(name: str) -> list[float]:
    """The mean over both domains, seed by seed."""
    both = (_scores(name, domain, "bleu2", 100) for domain in ("films", "ubuntu"))
    return [fmean(pair) for pair in zip(*both, strict=True)]


def table() -> list[str]:
    """Table 5 of the paper with its control: every measure on both domains, and differences of the mean BLEU-2."""
    heads = [f"{label} on {at}" for label, *_ in COLUMNS for at in "ST"]
    lines = [f"| row | {' | '.join(heads)} | against F | against random slots |", f"|---|{'---|' * (len(heads) + 2)}"]
    for name in ROWS:
        shown = [
            f"{fmean(_scores(name, domain, metric, scale)):.{digits}f}"
            for _, metric, scale, digits in COLUMNS
            for domain in ("films", "ubuntu")
        ]
        pair = ["-" if name == other else difference(_bleu(name), _bleu(other)) for other in (PLAIN, NULL)]
        lines.append(f"| {name} | {' | '.join(shown)} | {' | '.join(pair)} |")
    return lines
