"""Tables of an audit for the terminal and the HTML report."""

from collections.abc import Sequence

from holdfast.auditing.columns import ColumnFacts, Contrast
from holdfast.auditing.compared import Compared
from holdfast.auditing.erasure import Erasure
from holdfast.auditing.facts import DomainFacts, Example, Leak
from holdfast.auditing.headroom import FOLDS, ShiftCost
from holdfast.auditing.probe import MAX_LABELS as PROBED
from holdfast.auditing.shift import Distance, LabelShift
from holdfast.auditing.verdict import listed
from holdfast.report.sections import Cell
from holdfast.report.terminal import Grid, matrix

MAX_LABELS = 12  # columns; further labels are summed
MAX_ROWS = 4  # row numbers per example
MAX_COLUMNS = 20  # columns of the data that are listed


def domain_grid(facts: Sequence[DomainFacts], task: str) -> Grid:
    """Sizes, splits and label distribution per domain."""
    splits = list(dict.fromkeys(split for domain in facts for split in domain.splits))
    names = list(facts[0].labels)
    totals = {name: sum(domain.labels[name] for domain in facts) for name in names}
    common = sorted(names, key=lambda name: -totals[name])[:MAX_LABELS] if len(names) > MAX_LABELS else names
    rest = [name for name in names if name not in common]
    numbers = next((list(domain.numbers) for domain in facts if domain.numbers), [])
    lines = []
    for domain in facts:
        total = max(1, domain.examples if task == "multilabel" else sum(domain.labels.values()))
        cells = [_count(domain.examples), *(_count(domain.splits.get(split, 0)) for split in splits)]
        cells += [_share(domain.labels[name] / total) for name in common]
        if rest:
            cells.append(_share(sum(domain.labels[name] for name in rest) / total))
        cells += [_number((domain.numbers or {}).get(name)) for name in numbers]
        lines.append((domain.domain, cells))
    columns = ("domain", "rows", *splits, *common, *([f"{len(rest)} more labels"] if rest else []), *numbers)
    about = "Labels in percent." if names else "Statistics of the label." if numbers else "There are no labels."
    if task == "multilabel":
        about = "Percentage of the rows that have a label."
    return Grid("Domains", about, columns, lines)


def duplicate_grid(facts: Sequence[DomainFacts], near: str) -> Grid:
    """Exact and near duplicates per domain."""
    keys = ("again", "elsewhere", "near", "near_elsewhere", "conflicts", "kept")
    about = (
        "Rows whose input occurs earlier in the domain (repeated) or in another domain (elsewhere); rows with a near "
        f"duplicate: {near}; rows whose input occurs with another label (conflict); rows of a clean table (clean)."
    )
    names = ("domain", "rows", "repeated", "elsewhere", "near", "near elsewhere", "conflict", "clean")
    lines = [(d.domain, [_count(d.examples), *(_count(getattr(d, key)) for key in keys)]) for d in facts]
    if len(facts) > 1:
        totals = [sum(getattr(domain, key) for domain in facts) for key in ("examples", *keys)]
        lines.append(("all", [_count(total) for total in totals]))
    return Grid("Duplicates", about, names, lines)


def column_grid(columns: Sequence[ColumnFacts]) -> Grid:
    """Shift, missing values and relation to the label per column, the most suspicious first."""

    def rank(column: ColumnFacts) -> tuple[bool, bool, float]:
        distances = [each.distance for each in (column.shift, column.drift) if each is not None and each.real]
        return not column.copy, not column.leaks, -max(distances, default=0.0)

    def contrast(each: Contrast | None) -> list[Cell]:
        if each is None:
            return [("", None), ("", None)]
        return [(f"{each.distance:.2f}{'*' if each.real else ''}", each.distance), (each.domain, None)]

    about = (
        "Shift: distance of the domain that differs most from the others (Kolmogorov-Smirnov for numbers, total "
        "variation for categories). Missing: percentage of the rows, then the difference of its share in the domain "
        "that differs most. * is significant (Kolmogorov-Smirnov or chi-square test, p < 0.01 after Holm's "
        "correction). Label: percentage of the errors of a constant prediction, or of the variance of a number, that "
        'this column alone removes on held-out rows; "copy" is the label under another name.'
    )
    lines = []
    for column in sorted(columns, key=rank)[:MAX_COLUMNS]:
        explained: Cell = ("", None) if column.explained is None else _share(column.explained)
        label: Cell = ("copy", 1.0) if column.copy else explained
        cells = [(column.kind, None), *contrast(column.shift), _share(column.missing), *contrast(column.drift), label]
        lines.append((column.column, cells))
    if len(columns) > MAX_COLUMNS:
        about += f" {len(columns) - MAX_COLUMNS:,} more columns are in the JSON output."
    names = ("column", "kind", "shift", "in", "missing", "drift", "of", "label")
    return Grid("Columns", about, names, lines)


def leak_grid(leaks: Sequence[Leak]) -> Grid:
    counts = {f"{leak.split} in {leak.also_in}": (leak.examples, leak.equal, leak.near) for leak in leaks}
    lines = [(name, list(map(_count, values))) for name, values in counts.items()]
    about = "Rows of one split whose input occurs in another split."
    return Grid("Leaks between splits", about, ("split", "rows", "equal", "near"), lines)


def example_grid(examples: Sequence[Example]) -> Grid:
    lines = []
    for example in examples:
        rows = listed(list(map(str, example.rows)), most=MAX_ROWS)
        domains, labels = (", ".join(names[:MAX_ROWS]) for names in (example.domains, example.labels))
        lines.append((rows, [(text, None) for text in (example.what, domains, labels, example.text)]))
    names = ("rows", "kind", "domains", "labels", "text")
    return Grid("Examples of duplicates", "Rows are counted from 1.", names, lines, words=True)


def distance_grid(names: Sequence[str], distances: Sequence[Distance]) -> Grid:
    noise = max(distance.noise for distance in distances)
    matched = all(distance.matched for distance in distances)
    rows = max(distance.examples for distance in distances)
    about = (
        "A-distance: 0 if a linear classifier cannot separate two domains, 2 if it always can; up to "
        f"{rows:,} rows per domain{', with equal label counts' if matched else ''}. Identical domains reach up to "
        f"{min(2.0, 3 * noise):.2f} by chance; * marks larger distances."
    )
    values = {(d.one, d.other): (d.mean, d.real) for d in distances}
    return matrix("Distance of inputs", about, names, _symmetric(values), corner="domain", top=2.0)


def label_grid(names: Sequence[str], shifts: Sequence[LabelShift], task: str) -> Grid:
    what, test = {
        "regress": ("Kolmogorov-Smirnov distance of the labels", "Kolmogorov-Smirnov"),
        "multilabel": ("Largest difference of the share of a label", "chi-square"),
    }.get(task, ("Total variation distance of the label distributions", "chi-square"))
    about = (
        f"{what}: 0 if they are equal, 1 if {'they do not overlap' if task == 'regress' else 'no label is shared'}. * "
        f"is significant ({test} test, p < 0.01 after Holm's correction)."
    )
    values = {(s.one, s.other): (s.variation, s.real) for s in shifts}
    return matrix("Label shift", about, names, _symmetric(values), corner="domain", top=1.0)


def _symmetric(values: dict[tuple[str, str], tuple[float, bool]]) -> dict[tuple[str, str], Cell]:
    """Return the cells of a symmetric matrix; significant values get an asterisk."""
    return {
        pair: (f"{value:.2f}{'*' if significant else ''}", value)
        for (one, other), (value, significant) in values.items()
        for pair in ((one, other), (other, one))
    }


def word_grid(shares: dict[str, dict[str, float]], texts: int) -> Grid:
    about = f"Percentage of the words of a domain (row) that another domain (column) also uses; {texts:,} texts each."
    cells = {(one, other): _share(value) for one, others in shares.items() for other, value in others.items()}
    return matrix("Shared words", about, list(shares), cells, corner="domain", top=1.0)


def headroom_grid(costs: Sequence[ShiftCost], compared: Sequence[Compared], rows: int) -> Grid:
    """Score of a linear probe inside and outside each domain."""
    metric = costs[0].metric
    gap, constant, meaning = {
        "rmse": ("others minus inside", "constant", "constant predicts the mean of the domain"),
        "micro_f1": ("inside minus others", "constant", "constant predicts the labels that most rows have"),
    }.get(metric, ("inside minus others", "majority", "majority predicts the most frequent label"))
    about = (
        f"{_measured(metric)} by {FOLDS}-fold cross-validation, up to {rows:,} rows per domain "
        "without duplicates: trained on the rest of the domain (inside), on the same number of rows of the other "
        f"domains (others), and on all their rows (all others). Headroom is {gap} ± its standard error "
        f"over folds; {meaning}."
    )
    if compared:
        about += " Columns of compare: its test accuracy on all rows of the domain."
    lines = []
    for cost in costs:
        room: Cell = (f"{100 * cost.cost:.1f} ± {100 * cost.error:.1f}", cost.cost)
        inside, outside, everything, majority = map(_share, (cost.inside, cost.outside, cost.everything, cost.majority))
        scores = [each.scores.get(cost.domain) for each in compared]
        others: list[Cell] = [("", None) if score is None else _share(score) for score in scores]
        lines.append((cost.domain, [inside, outside, room, everything, *others, majority, _count(cost.scored)]))
    beside = (f"compare: {each.label}" for each in compared)
    names = ("domain", "inside", "others", "headroom", "all others", *beside, constant, "scored")
    return Grid("Headroom", about, names, lines)


def erasure_grid(erasure: Erasure) -> Grid:
    """Score of a linear probe with and without erased domain information."""
    about = (
        f"{_measured(erasure.metric, model='ridge')} on the most frequent words, or on the features, trained on the "
        "other domains: unchanged, and after an erasure fitted on them, after which no linear model can tell them "
        "apart (LEACE, Belrose et al., 2023)."
    )
    lines = []
    for domain in erasure.domains:
        change: Cell = (f"{100 * (domain.erased - domain.plain):+.1f}", domain.erased - domain.plain)
        lines.append((domain.domain, [_share(domain.plain), _share(domain.erased), change]))
    return Grid("Erasing domain information", about, ("domain", "unchanged", "erased", "change"), lines)


def _measured(metric: str, model: str = "linear") -> str:
    """Describe the score of a probe."""
    if metric == "rmse":
        return "RMSE of a ridge regression in percent of the standard deviation of the label"
    if metric == "micro_f1":
        return f"Micro-averaged F1 in percent of a {model} classifier per label (at most {PROBED} labels)"
    return f"Accuracy in percent of a {model} classifier"


def _number(value: float | None) -> Cell:
    return ("", None) if value is None else (f"{value:.4g}", value)


def _count(number: int) -> Cell:
    return f"{number:,}", number


def _share(share: float) -> Cell:
    return f"{100 * share:.1f}", share
