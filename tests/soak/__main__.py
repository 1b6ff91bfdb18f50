"""Long-running robustness test: python -m tests.soak [inputs | kills | faults] --count N --out DIR."""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from holdfast.train.measure import code_version
from tests.soak.faulty import LIBRARY, with_faults

FOLDER = Path("results/soak")
COUNTS = {"kills": 1000, "inputs": 1_000_000, "faults": 0}  # full size; faults always run all cases


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
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the JSON summaries")
    return parser.parse_args(words)


def words_of(chosen: argparse.Namespace, name: str) -> list[str]:
    """Return the command line of one section."""
    words = [name]
    for option in ("count", "seed", "seconds", "out"):
        value = getattr(chosen, option)
        words += [] if value is None else [f"--{option}", str(value)]
    return words + (["--only", *chosen.only] if chosen.only else [])


def run_section(name: str, chosen: argparse.Namespace) -> dict[str, Any]:
    """Run one section and return its summary."""
    count = COUNTS[name] if chosen.count is None else chosen.count
    if name == "inputs":
        from tests.soak.inputs import run
    elif name == "kills":
        from tests.soak.kills import run
    else:
        from tests.soak.faults import run
    return run(count, chosen.seed, say, seconds=chosen.seconds, only=chosen.only)


def main(words: list[str]) -> int:
    """Run the sections; return 1 if one of them has failures."""
    chosen = options(words)
    failed = False
    for name in chosen.sections:
        if name != "inputs" and LIBRARY not in os.environ:
            with tempfile.TemporaryDirectory() as folder:
                failed = bool(with_faults(words_of(chosen, name), Path(folder))) or failed
            continue
        summary = run_section(name, chosen)
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
