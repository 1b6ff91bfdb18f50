"""Tables of docs/audit.md, from the audit in results/audit."""

from __future__ import annotations

import json
from typing import Any

from studies.tables import RESULTS, header


def _audit() -> dict[str, Any]:
    return json.loads((RESULTS / "audit" / "amazon.json").read_text(encoding="utf-8"))


def duplicates() -> list[str]:
    """Duplicates per domain."""
    lines = header("domain", "rows", "repeated", "near", "clean")
    for domain in _audit()["domains"]:
        counts = [f"{domain[key]:,}" for key in ("examples", "again", "near", "kept")]
        lines.append(f"| {domain['domain']} | {' | '.join(counts)} |")
    return lines


def distances() -> list[str]:
    """A-distance of every two domains."""
    audit = _audit()
    names = [domain["domain"] for domain in audit["domains"]]
    values = {(d["one"], d["other"]): f"{d['mean']:.2f}" for d in audit["distances"]}
    values |= {(other, one): value for (one, other), value in values.items()}
    return header("A-distance", *names) + [
        f"| {one} | {' | '.join(values.get((one, other), '') for other in names)} |" for one in names
    ]


def costs() -> list[str]:
    """Accuracy of linear classifiers and the headroom."""
    lines = header("accuracy, %", "inside", "others", "headroom", "all others")
    for cost in _audit()["baseline"]:
        inside, outside, everything = (100 * cost[key] for key in ("inside", "outside", "everything"))
        gap = f"{inside - outside:.1f} ± {100 * cost['error']:.1f}"
        lines.append(f"| {cost['domain']} | {inside:.1f} | {outside:.1f} | {gap} | {everything:.1f} |")
    return lines


def erasures() -> list[str]:
    """Accuracy of a linear probe with and without erased domain information."""
    lines = header("accuracy, %", "unchanged", "erased", "change")
    for domain in _audit()["erasure"]["domains"]:
        plain, erased = 100 * domain["plain"], 100 * domain["erased"]
        lines.append(f"| {domain['domain']} | {plain:.1f} | {erased:.1f} | {erased - plain:+.1f} |")
    return lines


def findings() -> list[str]:
    """Headline and advice as printed."""
    audit = _audit()
    return ["```text", audit["headline"], *(f"- {sentence}" for sentence in audit["advice"]), "```"]


TABLES = {"duplicates": duplicates, "distances": distances, "costs": costs, "erasures": erasures, "findings": findings}
