"""Kill commands during their writes and repeat them: the results equal those of an uninterrupted run."""

import gc
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from holdfast.cli import main
from holdfast.core.checkpoint import load_tensors, state_digest
from holdfast.folders.format import load_model
from tests.calls import write_table
from tests.generators.user_tables import numbers
from tests.soak.faulty import CHANGES, Ended, FaultyFiles, run_forked, wait

SAVE_SECONDS = "0.2"
ACTIONS = ("kill before", "kill half", "kill after")
CHAIN = 8  # most kills before a command may finish
OUTSIDE = 0.2  # fraction of kills that come from another process at a random time
SMALL = ["--batch", "4", "--device", "cpu", "--lr", "0.01"]
MLP = [*SMALL, "--encoder", "mlp", "--set", "encoder.hidden=[8]", "--no-search-rate"]
COMPARE = ["compare", "data.csv", "--methods", "erm", "--seeds", "1", "--no-baselines", "--no-model", *MLP]
VOLATILE = ("cost", "machine", "code", "checksum", "made", "files", "time")  # contain times or hashes of them
IGNORED = (".html", ".md", ".draft", ".pt2", ".lock", ".log")  # compared in another way, or not at all


@dataclass(frozen=True)
class Scenario:
    """A command, the folder of the model that must stay usable, and the share of kills."""

    words: list[str]
    share: int
    model: str | None = None


SCENARIOS = {
    "fit": Scenario(["fit", "data.csv", "--out", "new", "--steps", "80", "--keep-sample", "4", *MLP], 30),
    "compare": Scenario([*COMPARE, "--out", "runs", "--steps", "25"], 20),
    "adapt": Scenario(
        ["adapt", "model", "new.csv", "--earlier", "data.csv", "--force", "--steps", "60", *SMALL], 25, "model"
    ),
    "rollback": Scenario(["rollback", "versions", "1"], 12, "versions"),
    "export": Scenario(["export", "model", "program.pt2", "--format", "torch"], 8, "model"),
    "watch": Scenario(["watch", "model", "data.csv", "--rows", "24", "--state", "history"], 5, "model"),
}  # fmt: skip


def call(words: list[str]) -> int:
    """Run a command in this process; return its exit code."""
    sys.argv = ["holdfast", *words]
    try:
        main()
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    return 0


def state(folder: Path) -> dict[str, Any]:
    """Return everything in a folder that must not depend on interruptions."""
    content: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if not path.is_file() or path.suffix in IGNORED or ".draft" in name:
            continue
        if path.suffix == ".safetensors":
            tensors, metadata = load_tensors(path)
            content[name] = (state_digest(tensors), metadata)
        elif path.suffix == ".json":
            content[name] = _stable(json.loads(path.read_text(encoding="utf-8")))
        elif path.suffix == ".jsonl":
            content[name] = [_stable(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
        else:
            content[name] = path.read_bytes()
    return content


def _stable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _stable(inner) for key, inner in value.items() if key not in VOLATILE}
    return [_stable(inner) for inner in value] if isinstance(value, list) else value


def difference(expected: dict[str, Any], folder: Path) -> str:
    """Describe how the content of a folder differs; empty if it does not."""
    try:
        actual = state(folder)
    except ValueError as error:
        return f"unreadable: {error}"
    wrong = [name for name in sorted({*expected, *actual}) if expected.get(name) != actual.get(name)]
    return f"different: {', '.join(wrong[:5])}" if wrong else ""


class Killer:
    """Runs one command in copies of a folder and kills it."""

    def __init__(
        self, scenario: Scenario, template: Path, here: Path, files: FaultyFiles, rng: random.Random,
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.say = say
        self.scenario, self.template, self.here, self.files, self.rng = scenario, template, here, files, rng
        self.log = here.with_name("printed.log")
        self.counts: Counter[str] = Counter()
        self.failures: list[dict[str, Any]] = []
        self.restore()
        began = time.monotonic()
        ended, self.operations = self.attempt(None)
        self.duration = time.monotonic() - began
        if ended.code:
            raise RuntimeError(f"{scenario.words} does not work: {ended.text[-2000:]}")
        self.expected = state(here)

    def restore(self) -> None:
        """Start again from the template."""
        shutil.rmtree(self.here, ignore_errors=True)
        shutil.copytree(self.template, self.here)

    def attempt(self, kill: tuple[str, int] | float | None) -> tuple[Ended, int]:
        """Run the command and kill it at (action, operation) or after some seconds; return how it ended."""
        counted = self.here.with_name("operations")

        def work() -> int:
            os.chdir(self.here)
            torch.set_num_threads(1)
            self.files.watch(self.here)
            action, first = kill if isinstance(kill, tuple) else ("kill before", 0)
            self.files.arm(CHANGES, action, first=first, count=1 if first else 0)
            code = call(self.scenario.words)
            count = self.files.matched
            self.files.arm(())
            counted.write_text(str(count))
            return code

        pid = run_forked(work, self.log)
        if isinstance(kill, float):
            time.sleep(kill)
            os.kill(pid, signal.SIGKILL)
        ended = wait(pid, self.log)
        return ended, int(counted.read_text()) if ended.code >= 0 else 0

    def chain(self, most: int) -> None:
        """Kill a command up to `most` times, let it finish, and compare its results."""
        self.restore()
        history = []
        for _ in range(self.rng.randint(1, most)):
            outside = self.rng.random() < OUTSIDE
            moment = (self.rng.choice(ACTIONS), self.rng.randint(1, self.operations))
            kill = self.rng.random() * self.duration if outside else moment
            ended, _ = self.attempt(kill)
            history.append(kill)
            if ended.code != -signal.SIGKILL:  # it finished, or resumed with fewer operations
                self.counts["finished"] += 1
                if ended.code:
                    self.fail(history, f"exit code {ended.code}: {ended.text[-600:]}")
                    return
                break
            self.counts["outside" if outside else moment[0]] += 1
            if problem := self.unusable():
                self.fail(history, problem)
                return
        ended, _ = self.attempt(None)
        if ended.code:
            self.fail(history, f"exit code {ended.code}: {ended.text[-600:]}")
        elif problem := difference(self.expected, self.here):
            self.fail(history, problem)

    def unusable(self) -> str:
        """Return why the model that the command works on cannot be loaded; empty if it can."""
        if self.scenario.model is None:
            return ""
        try:
            load_model(self.here / self.scenario.model)
        except ValueError as error:
            return f"after the kill: {error}"
        return ""

    def fail(self, history: list[Any], problem: str) -> None:
        self.failures.append({"command": self.scenario.words[0], "kills": history, "problem": problem})
        self.say(f"kills: failure {json.dumps(self.failures[-1])}")

    @property
    def kills(self) -> int:
        return self.counts.total() - self.counts["finished"]


def prepare(folder: Path) -> Path:
    """Write data, a model, and a model with two versions."""
    write_table(folder / "data.csv", numbers("a", "b", "c"))
    write_table(folder / "new.csv", numbers("new"))
    os.chdir(folder)
    for words in (
        ["fit", "data.csv", "--out", "model", "--steps", "20", *MLP],
        ["fit", "data.csv", "--out", "versions", "--steps", "20", *MLP],
        ["adapt", "versions", "new.csv", "--earlier", "data.csv", "--force", "--steps", "5", *SMALL],
        ["export", "model", "first.pt2", "--format", "torch"],  # this and the next load what the commands import
        [*COMPARE, "--out", "first", "--steps", "1"],
    ):
        printed = io.StringIO()
        with redirect_stdout(printed), redirect_stderr(printed):
            code = call(words)
        if code:
            raise RuntimeError(f"{words} failed: {printed.getvalue()}")
    for path in folder.glob("first*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    gc.freeze()  # forked processes share these objects
    return folder


def run(
    count: int, seed: int, say: Callable[[str], None], *, seconds: float = float("inf"), only: Sequence[str] = ()
) -> dict[str, Any]:
    """Kill commands `count` times in all; stop earlier after `seconds`."""
    torch.set_num_threads(1)
    os.environ["HOLDFAST_SAVE_SECONDS"] = SAVE_SECONDS
    started, files, home = time.monotonic(), FaultyFiles(), Path.cwd()
    scenarios = {which: scenario for which, scenario in SCENARIOS.items() if not only or which in only}
    shares = sum(scenario.share for scenario in scenarios.values())
    with tempfile.TemporaryDirectory(prefix="holdfast-soak-") as name:
        (Path(name) / "template").mkdir()
        os.environ["HOLDFAST_CACHE"] = str(Path(name) / "cache")
        template = prepare(Path(name) / "template")
        os.chdir(home)
        killers = {}
        for which, scenario in scenarios.items():
            here = Path(name) / which.replace(" ", "-") / "here"
            here.parent.mkdir()
            killers[which] = Killer(scenario, template, here, files, random.Random(f"{seed} {which}"), say)
            say(f"kills: {which} has {killers[which].operations} operations in {killers[which].duration:.2f} s")
        goals = {which: max(1, count * scenario.share // shares) for which, scenario in scenarios.items()}
        goals[next(iter(goals))] += max(0, count - sum(goals.values()))
        spoken = time.monotonic()
        while any(killer.kills < goals[which] for which, killer in killers.items()):
            if time.monotonic() - started > seconds:
                break
            for which, killer in killers.items():
                if killer.kills < goals[which] and len(killer.failures) < 10:
                    killer.chain(min(CHAIN, goals[which] - killer.kills))
            if all(killer.kills >= goals[which] or len(killer.failures) >= 10 for which, killer in killers.items()):
                break
            if time.monotonic() - spoken > 30:
                spoken, done = time.monotonic(), sum(killer.kills for killer in killers.values())
                failed = sum(len(killer.failures) for killer in killers.values())
                say(f"kills: {done} of {count}, {failed} failures, {spoken - started:.0f} s")
    return {
        "requested": count,
        "kills": sum(killer.kills for killer in killers.values()),
        "seconds": round(time.monotonic() - started, 1),
        "save_seconds": float(SAVE_SECONDS),
        "commands": {
            which: {"kills": killer.kills, "operations": killer.operations, **killer.counts}
            for which, killer in killers.items()
        },
        "failures": [failure for killer in killers.values() for failure in killer.failures],
    }
