"""Tables of docs/benchmarks.md, computed from the records in results/bench."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from studies.tables import RESULTS, header

DEVICES = {"cpu": "CPU", "cuda": "H200"}
LOWER_BOUNDS = (
    "second/first",
    "repeated-read/read",
    "served/offline, 32 clients",
    "watched/unwatched, 32 clients",
)  # cases whose target is a minimum, in records that do not state it


def _results(bench: str, device: str) -> dict[str, dict[str, Any]]:
    path = RESULTS / "bench" / f"{bench}-{device}.json"
    if not path.exists():
        return {}
    return {result["case"]: result for result in json.loads(path.read_text(encoding="utf-8"))["results"]}


def _ratio(result: dict[str, Any] | None) -> str:
    if result is None or result["ratio"] is None:
        return "-"
    value = result["ratio"]
    text = f"{value:.0f}" if value >= 20 or value == 0 else f"{value:.2f}"
    return text if result["ok"] else f"{text} (missed)"


def _target(results: list[dict[str, Any]], case: str) -> str:
    targets = list(dict.fromkeys(result["bar"] for result in results if result["bar"] is not None))
    minimum = case in LOWER_BOUNDS or any(result.get("at_least") for result in results)
    bound = "at least" if minimum else "at most"
    return f"{bound} {' / '.join(f'{target:.3g}' for target in targets)}" if targets else "-"


def ratios(bench: str) -> list[str]:
    """Ratio and target of every case of a benchmark, per device; differing targets are CPU / H200."""
    by_device = {label: _results(bench, device) for device, label in DEVICES.items()}
    by_device = {label: results for label, results in by_device.items() if results}
    lines = header("case", *by_device, "target")
    for case in dict.fromkeys(case for results in by_device.values() for case in results):
        measured = [results[case] for results in by_device.values() if case in results]
        cells = [_ratio(results.get(case)) for results in by_device.values()]
        lines.append(f"| {case} | {' | '.join(cells)} | {_target(measured, case)} |")
    return lines


def expert_variants() -> list[str]:
    """Training step with each implementation of the expert layer, one and two experts per token."""
    record = json.loads((RESULTS / "bench" / "experts-variants-cuda.json").read_text(encoding="utf-8"))
    rows = [row for row in record["variants"] if row["work"] == "training step" and row["images"] == 160]
    modes = list(dict.fromkeys(row["mode"] for row in rows))
    cells: dict[str, dict[tuple[str, int], str]] = {}
    for row in rows:
        cells.setdefault(row["variant"], {})[row["mode"], row["experts_per_token"]] = f"{row['ratio']:.2f}"
    lines = header("implementation", *(f"{mode}, one / two experts" for mode in modes))
    for variant, by_mode in cells.items():
        pairs = [" / ".join(by_mode.get((mode, top), "-") for top in (1, 2)) for mode in modes]
        lines.append(f"| {variant} | {' | '.join(pairs)} |")
    return lines


def extrapolation(nodes: int = 100, cpus: int = 8, runs: int = 10_000, seconds: float = 60.0) -> list[str]:
    """Expected load of many runs on a large cluster, computed from the measured costs per run."""
    from holdfast.engines.ray import MAX_SUBMITTED, PROGRESS_INTERVAL

    costs = {case: result["ratio"] for case, result in _results("cluster", "cpu").items()}
    overhead, driver = (
        costs["overhead per run, ms of a slot"] / 1000,
        costs["CPU time of the driver per run, ms"] / 1000,
    )
    slots = nodes * cpus
    total = costs["start-up, ms"] / 1000 + runs * (seconds + overhead) / slots
    rows = {
        "time": f"{total:.0f} s, of which {overhead / seconds:.1%} is overhead",
        "finished runs per second": f"{slots / seconds:.1f}",
        "CPU time of the driver": f"{runs * driver:.0f} s in total, {driver * slots / seconds:.1%} of a core",
        "run length below which the driver is the limit": f"{slots * driver:.1f} s",
        "records": f"{runs * costs['record, bytes'] / 1e6:.1f} MB in {runs:,} files",
        "progress messages": f"at most {slots / PROGRESS_INTERVAL:.0f} per second, to a separate actor",
        "pending tasks in the cluster": f"at most {MAX_SUBMITTED:,}, each below 2 kB",
    }
    return header("quantity", "expected") + [f"| {name} | {value} |" for name, value in rows.items()]


TABLES: dict[str, Callable[[], list[str]]] = {
    name: partial(ratios, name)
    for name in (
        "loop", "cache", "methods", "read", "mil", "recurrent", "hma", "gmap", "experts", "kernels", "serve",
        "engines", "cluster", "serve-watch", "tables", "simple", "batched", "domainbed", "gpu", "scaling",
    )
}  # fmt: skip
TABLES["expert-variants"] = expert_variants
SCALING_TABLES = {"cluster": partial(ratios, "cluster"), "extrapolation": extrapolation}
