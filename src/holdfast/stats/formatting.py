"""Write numbers in text: percentages, units, differences, p-values, and names of metrics."""

import math
from collections.abc import Sequence

from holdfast.stats.statistics import Cell

UNITS = ("rmse", "mae", "interval_width")  # in the units of the target, of any magnitude
NOT_PERCENT = ("nll", "ece", "mcc", "loss", "perplexity", "w2v_similarity", "r2", "kappa", "rps", *UNITS)
DIGITS = 4  # significant digits of a metric in the units of the target
MISSING = "–"
MAX_NAMES = 5  # listed in a sentence
SPELLED = {
    "macro_f1": "macro-F1", "micro_f1": "micro-F1", "entity_f1": "entity F1", "answer_f1": "answer F1",
    "roc_auc": "ROC AUC", "rmse": "RMSE", "mae": "MAE", "r2": "R²", "map": "mAP", "rps": "RPS",
    "interval_width": "interval width", "kappa": "quadratic kappa",
}  # fmt: skip


def is_percent(metric: str) -> bool:
    """Whether the metric is shown in percent."""
    return metric not in NOT_PERCENT


def scaled(value: float, metric: str) -> float:
    """Return the value as it is shown: in percent or unchanged."""
    return 100 * value if is_percent(metric) else value


def format_number(value: float | None, metric: str) -> str:
    """Format a score with one decimal for percentages and three for other metrics."""
    return MISSING if value is None else f"{scaled(value, metric):.{decimals(value, metric)}f}"


def decimals(value: float, metric: str) -> int:
    """Return the number of decimals to show."""
    if metric in UNITS and value and math.isfinite(value):
        return max(0, DIGITS - 1 - math.floor(math.log10(abs(value))))
    return 1 if is_percent(metric) else 3


def format_difference(difference: float, metric: str) -> str:
    """Format a signed difference: `+1.2` percentage points, `-0.012`."""
    return f"{scaled(difference, metric):+.{decimals(difference, metric)}f}"


def format_p(p: float | None) -> str:
    """Format a p-value: `0.012`, `< 0.001`."""
    return MISSING if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def format_cell(cell: Cell | None, metric: str) -> str:
    """Format mean and standard error: `81.2 ± 0.4`, or the mean alone for a single seed."""
    if cell is None:
        return MISSING
    digits = decimals(cell.mean, metric)
    error = "" if cell.stderr is None else f" ± {scaled(cell.stderr, metric):.{digits}f}"
    return format_number(cell.mean, metric) + error


def metric_name(metric: str) -> str:
    """Spell a metric with its unit: `accuracy (%)`, `ece`."""
    return spelled(metric) + (" (%)" if is_percent(metric) else "")


def spelled(metric: str) -> str:
    """Spell a metric: `macro-F1`, `balanced accuracy`."""
    return SPELLED.get(metric, metric.replace("_", " "))


def listed(names: Sequence[str], *, most: int = MAX_NAMES, what: str = "") -> str:
    """Return the first names in one text, with the number of the others."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more{what}" if len(names) > most else "")


def shortened(text: str, most: int) -> str:
    """Return a text with at most this number of characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
