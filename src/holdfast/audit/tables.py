"""The tables of an audit, for a terminal and a page alike."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.audit.facts import DomainFacts, Example, Leak
from holdfast.audit.shift import Apart, Distance, Quick
from holdfast.report.terminal import Cell, Grid, matrix

MOST_LABELS = 12  # columns; the others are together
MOST_ROWS = 4  # of an example


def domain_grid(facts: Sequence[DomainFacts]) -> Grid:
    """Sizes, splits and labels."""
    splits = list(dict.fromkeys(split for each in facts for split in each.splits))
    names = list(facts[0].labels)
    totals = {name: sum(each.labels[name] for each in facts) for name in names}
    common = sorted(names, key=lambda name: -totals[name])[:MOST_LABELS] if len(names) > MOST_LABELS else names
    rest = [name for name in names if name not in common]
    lines = []
    for each in facts:
        whole = max(1, sum(each.labels.values()))
        cells = [_count(each.examples), *(_count(each.splits.get(split, 0)) for split in splits)]
        cells += [_share(each.labels[name] / whole) for name in common]
        if rest:
            cells.append(_share(sum(each.labels[name] for name in rest) / whole))
        lines.append((each.domain, cells))
    columns = ("domain", "rows", *splits, *common, *([f"{len(rest)} more labels"] if rest else []))
    return Grid("Domains", "Of labels the share in percent." if names else "There are no labels.", columns, lines)


def copy_grid(facts: Sequence[DomainFacts], near: str) -> Grid:
    """Copies by domain."""
    keys = ("again", "elsewhere", "near", "near_elsewhere", "conflicts", "kept")
    about = (
        "Rows whose input is in the domain before (again), or in another domain too (elsewhere); rows with a nearly "
        f"equal one: {near}; rows whose input occurs with another label (conflict). Kept is what a clean table holds."
    )
    names = ("domain", "rows", "again", "elsewhere", "near", "near elsewhere", "conflict", "kept")
    lines = [(each.domain, [_count(each.examples), *(_count(getattr(each, key)) for key in keys)]) for each in facts]
    if len(facts) > 1:
        totals = [sum(getattr(each, key) for each in facts) for key in ("examples", *keys)]
        lines.append(("all", [_count(total) for total in totals]))
    return Grid("Copies", about, names, lines)


def leak_grid(leaks: Sequence[Leak]) -> Grid:
    lines = [
        (f"{each.split} in {each.also_in}", [_count(each.examples), _count(each.equal), _count(each.near)])
        for each in leaks
    ]
    return Grid("Splits", "Rows of one split whose input is in another.", ("split", "rows", "equal", "near"), lines)


def example_grid(examples: Sequence[Example]) -> Grid:
    lines = []
    for each in examples:
        more = f" and {len(each.rows) - MOST_ROWS} more" if len(each.rows) > MOST_ROWS else ""
        rows = ", ".join(map(str, each.rows[:MOST_ROWS])) + more
        told = [(", ".join(each.domains[:MOST_ROWS]), None), (", ".join(each.labels[:MOST_ROWS]), None)]
        lines.append((rows, [(each.what, None), *told, (each.text, None)]))
    about = "Rows are counted from 1."
    return Grid("Some of them", about, ("rows", "what", "domains", "labels", "begins"), lines, words=True)


def distance_grid(names: Sequence[str], distances: Sequence[Distance]) -> Grid:
    noise = max(each.noise for each in distances)
    matched = all(each.matched for each in distances)
    most = max(each.examples for each in distances)
    about = (
        "A-distance: 0 where a linear classifier cannot tell two domains apart, 2 where it never errs; up to "
        f"{most:,} rows a domain{', each label equally often on both sides' if matched else ''}. Domains "
        f"that are alike come out up to {min(2.0, 3 * noise):.2f} apart by chance; * marks more than chance gives."
    )
    cells: dict[tuple[str, str], Cell] = {
        pair: (f"{each.mean:.2f}{'*' if each.real else ''}", each.mean)
        for each in distances
        for pair in ((each.one, each.other), (each.other, each.one))
    }
    return matrix("Inputs apart", about, names, cells, corner="domain", top=2.0)


def label_grid(names: Sequence[str], shifts: Sequence[Apart]) -> Grid:
    about = (
        "Total variation between shares of labels: 0 where they are equal, 1 where no label is shared. * is more than "
        "chance (chi-square, p < 0.01 after Holm)."
    )
    cells: dict[tuple[str, str], Cell] = {
        pair: (f"{each.variation:.2f}{'*' if each.real else ''}", each.variation)
        for each in shifts
        for pair in ((each.one, each.other), (each.other, each.one))
    }
    return matrix("Labels apart", about, names, cells, corner="domain", top=1.0)


def word_grid(shares: dict[str, dict[str, float]], texts: int) -> Grid:
    about = f"Of all words said in a domain (row), the percentage that another (column) says too; {texts:,} texts each."
    cells = {(one, other): _share(value) for one, found in shares.items() for other, value in found.items()}
    return matrix("Words shared", about, list(shares), cells, corner="domain", top=1.0)


def quick_grid(quick: Sequence[Quick], rows: int) -> Grid:
    about = (
        f"Accuracy in percent of a linear classifier on held-out rows of each domain, of up to {rows:,} rows a domain "
        "without copies: trained on the rest of the domain (inside), on as many rows of the others, and on all of "
        "theirs. Cost is inside less others. Commonest is what needs no input."
    )
    lines = []
    for each in quick:
        cost: Cell = (f"{100 * each.cost:.1f} ± {100 * each.error:.1f}", each.cost)
        scores = [_share(each.inside), _share(each.outside), cost, _share(each.everything), _share(each.majority)]
        lines.append((each.domain, [*scores, _count(each.scored)]))
    names = ("domain", "inside", "others", "cost", "all others", "commonest", "scored")
    return Grid("What the shift costs", about, names, lines)


def _count(number: int) -> Cell:
    return f"{number:,}", number


def _share(share: float) -> Cell:
    return f"{100 * share:.1f}", share
