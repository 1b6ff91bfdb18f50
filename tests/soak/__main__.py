"""Long-running robustness test: python -m tests.soak [inputs | kills | faults] --count N --workers N --out DIR."""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.train.cost import code_version
from tests.soak.faulty import LIBRARY, with_faults

FOLDER = Path("results/soak")
COUNTS = {"kills": 1000, "inputs": 1_000_000, "faults": 0}  # full size; faults always run all cases
LARGEST = ("seconds", "slowest", "operations", "save_seconds", "fault_types")


def say(sentence: str) -> None:
    """Print a line of progress."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {sentence}\n")
    sys.stderr.flush()


def options(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("sections", nargs="*", choices=[*COUNTS, []], default=list(COUNTS))
    parser.add_argument("--count", type=int, help="kills, inputs, or cases per fault and artefact")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop a section after this time")
    parser.add_argument("--only", nargs="+", default=[], help="kinds of inputs, commands or artefacts")
    parser.add_argument("--workers", type=int, default=1, help="processes that share the count, each with its own seed")
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), help=argparse.SUPPRESS)  # of a worker
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the JSON summaries")
    return parser.parse_args(words)


def words_of(chosen: argparse.Namespace, name: str, **changes: Any) -> list[str]:
    """Return the command line of one section with some options changed."""
    values = {**vars(chosen), **changes}
    words = [name, "--part", *map(str, values["part"])]
    for option in ("count", "seed", "seconds", "out"):
        words += [] if values[option] is None else [f"--{option}", str(values[option])]
    return words + (["--only", *chosen.only] if chosen.only else [])


def run_section(name: str, chosen: argparse.Namespace) -> dict[str, Any]:
    """Run one section and return its summary."""
    count = COUNTS[name] if chosen.count is None else chosen.count
    if name == "inputs":
        from tests.soak.inputs import run
    elif name == "kills":
        from tests.soak.kills import run
    else:
        from tests.soak.faults import run as run_faults

        run = partial(run_faults, part=tuple(chosen.part))
    return run(count, chosen.seed, say, seconds=chosen.seconds, only=chosen.only)


def run_workers(name: str, chosen: argparse.Namespace) -> dict[str, Any]:
    """Divide a section among processes and return the sum of their summaries."""
    count, workers = COUNTS[name] if chosen.count is None else chosen.count, chosen.workers
    shares = [count if name == "faults" else count // workers + (i < count % workers) for i in range(workers)]
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for i, share in enumerate(shares):
            out = Path(folder) / str(i)
            changes = {"count": share, "seed": 1000 * chosen.seed + i, "part": (i, workers), "out": out}
            command = [sys.executable, "-m", "tests.soak", *words_of(chosen, name, **changes)]
            processes.append(subprocess.Popen(command))
        codes = [process.wait() for process in processes]
        paths = [Path(folder) / str(i) / f"{name}.json" for i in range(workers)]
        missing = [f"worker {i} ended with code {code}" for i, code in enumerate(codes) if not paths[i].is_file()]
        parts = [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.is_file()]
    whole = {"workers": workers, **merge(parts)}
    whole["failures"] += [{"problem": sentence} for sentence in missing]
    return {key: value for key, value in whole.items() if key not in ("section", "seed", "code", "machine")}


def merge(parts: list[Any], key: str = "") -> Any:
    """Add up the numbers of summaries; of times that processes took at once, the longest counts."""
    first = parts[0]
    if isinstance(first, dict):
        keys = dict.fromkeys(key for part in parts for key in part)
        return {key: merge([part[key] for part in parts if key in part], key) for key in keys}
    if isinstance(first, list):
        return [entry for part in parts for entry in part]
    if isinstance(first, str) or key in LARGEST:
        return max(parts)
    return round(sum(parts), 1)


def main(words: list[str]) -> int:
    """Run the sections; return 1 if one of them has failures."""
    chosen = options(words)
    failed = False
    for name in chosen.sections:
        if chosen.workers == 1 and name != "inputs" and LIBRARY not in os.environ:
            with tempfile.TemporaryDirectory() as folder:
                failed = bool(with_faults(words_of(chosen, name), Path(folder))) or failed
            continue
        summary = run_workers(name, chosen) if chosen.workers > 1 else run_section(name, chosen)
        machine = {"python": platform.python_version(), "system": platform.system(), "cpu": platform.machine()}
        document = {"section": name, "seed": chosen.seed, "code": dict(code_version()), "machine": machine, **summary}
        chosen.out.mkdir(parents=True, exist_ok=True)
        path = chosen.out / f"{name}.json"
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        say(f"{name}: {len(summary['failures'])} failures; summary in {path}")
        for failure in summary["failures"][:20]:
            say(json.dumps(failure))
        failed = failed or bool(summary["failures"])
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
