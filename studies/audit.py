"""Tables of docs/audit.md, from the audit in results/audit; `python -m studies.audit` measures the speed again."""

from __future__ import annotations

import csv
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from studies.tables import RESULTS, header

ROWS, DOMAINS, CHARACTERS = 100_000, 4, 125  # of the texts whose audit is measured


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


def speed() -> list[str]:
    """Time and memory of the audit of many texts."""
    measured = json.loads((RESULTS / "audit" / "speed.json").read_text(encoding="utf-8"))
    lines = header("texts", "characters per text", "domains", "CPU time, s", "peak memory, MB")
    names = ("examples", "characters_each", "domains", "cpu_seconds", "peak_memory_mb")
    return [*lines, f"| {' | '.join(f'{measured[name]:,.0f}' for name in names)} |"]


def write_texts(path: Path, rows: int) -> None:
    """Write random texts with two labels; every domain has its own words, and a few words depend on the label."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(3, 9))) for _ in range(5000)]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label", "domain"])
        for row in range(rows):
            domain, label = row % DOMAINS, rng.randint(0, 1)
            common = rng.choices(words[1000 * domain : 1000 * domain + 2000], k=30)
            text = " ".join([f"sign{label}{rng.randint(0, 20)}", *common])[:CHARACTERS]
            writer.writerow([text, f"label{label}", f"domain{domain}"])


def measure() -> dict[str, Any]:
    """Audit random texts in another process; return its time and memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "texts.csv"
        write_texts(path, ROWS)
        start = time.monotonic()
        command = [sys.executable, "-m", "holdfast", "audit", str(path), "--json"]
        subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "command": "holdfast audit texts.csv --json", "examples": ROWS, "characters_each": CHARACTERS,
        "domains": DOMAINS, "seconds": round(time.monotonic() - start, 1),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1), "peak_memory_mb": used.ru_maxrss // 1024,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores", "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip


TABLES = {
    "duplicates": duplicates,
    "distances": distances,
    "costs": costs,
    "erasures": erasures,
    "findings": findings,
    "speed": speed,
}


if __name__ == "__main__":
    (RESULTS / "audit" / "speed.json").write_text(json.dumps(measure(), indent=1) + "\n", encoding="utf-8")
