"""Inject faults of the file system into every write: the previous artefact stays intact or the new one is complete."""

import errno
import io
import json
import os
import random
import shutil
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from PIL import Image

from holdfast import graft, load_graft, save_graft
from holdfast.adaptation.adapt import ledger_of, version_of
from holdfast.adaptation.pretrain import pretrain
from holdfast.core.checkpoint import load_tensors, load_tree, state_digest
from holdfast.core.errors import BadInput, one_line
from holdfast.core.files import locked, path_error
from holdfast.data.cache import cached_features, decoded_images
from holdfast.data.raw import ImageFiles, Vectors
from holdfast.data.readers.tables import read_table
from holdfast.data.write import write_tables
from holdfast.folders.format import SavedModel, load_model
from holdfast.folders.memory import change_memory
from holdfast.folders.versions import add_version, use_version
from holdfast.prediction.export import export
from holdfast.record import RunRecord
from holdfast.record import read as read_record
from holdfast.report.page import write_report
from holdfast.stats.summary import summarise
from holdfast.train.resume import Saver
from tests.annotated import write_corpus
from tests.calls import write_table
from tests.generators.user_tables import numbers
from tests.soak.faulty import CHANGES, ENDLESS, FaultyFiles, run_forked, wait
from tests.soak.kills import MLP, call
from tests.tiny import tiny_masked

REJECTED = 42  # exit code of a forked process after an error in one sentence


@dataclass(frozen=True)
class Fault:
    """An action at the n-th operation of some kinds, and at how many operations from there."""

    operations: tuple[str, ...]
    error: int = 0
    action: str = "fail"
    count: int = 1


FAULTS = {
    "write: no space left": Fault(("write",), errno.ENOSPC),
    "write: half, then no space left": Fault(("write",), errno.ENOSPC, "short fail"),
    "write: no space left from then on": Fault(("write", "truncate", "mkdir"), errno.ENOSPC, count=ENDLESS),
    "write: quota exceeded": Fault(("write",), errno.EDQUOT),
    "write: file too large": Fault(("write",), errno.EFBIG),
    "write: input/output error": Fault(("write",), errno.EIO),
    "write: half, then input/output error": Fault(("write",), errno.EIO, "short fail"),
    "write: interrupted": Fault(("write",), errno.EINTR),
    "write: half of the bytes": Fault(("write",), action="short once"),
    "write: one byte": Fault(("write",), action="one byte"),
    "open: no space left": Fault(("open",), errno.ENOSPC),
    "open: permission denied": Fault(("open",), errno.EACCES),
    "open: read-only file system": Fault(("open", "mkdir", "rename", "unlink"), errno.EROFS, count=ENDLESS),
    "open: too many open files": Fault(("open",), errno.EMFILE),
    "open: input/output error": Fault(("open",), errno.EIO),
    "fsync: input/output error": Fault(("fsync",), errno.EIO),
    "fsync: no space left": Fault(("fsync",), errno.ENOSPC),
    "rename: input/output error": Fault(("rename",), errno.EIO),
    "rename: no space left": Fault(("rename",), errno.ENOSPC),
    "rename: not permitted": Fault(("rename",), errno.EPERM),
    "mkdir: no space left": Fault(("mkdir",), errno.ENOSPC),
    "unlink: busy": Fault(("unlink",), errno.EBUSY),
    "close: input/output error": Fault(("close",), errno.EIO),
    "stale file handle from then on": Fault(CHANGES, errno.ESTALE, count=ENDLESS),
}


@dataclass(frozen=True)
class Artefact:
    """How to write an artefact over an earlier one, and how to describe its present state."""

    write: Callable[[Path], object]
    describe: Callable[[Path], object]  # raises if it is not readable
    may_be_missing: bool = False  # a cache, or a file that the next command writes again
    is_folder: bool = False  # several files, which a fault that does not end may leave incomplete
    cases: int = 1000  # most cases per fault, for slow writers


class Setting:
    """Models, records and tables that the artefacts are made of."""

    def __init__(self, folder: Path) -> None:
        write_table(folder / "data.csv", numbers("a", "b"))
        write_table(folder / "new.csv", numbers("new", size=4))
        os.chdir(folder)
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            for words in (
                ["fit", "data.csv", "--out", "first", "--steps", "2", "--set", "predict=knn", *MLP],
                ["fit", "data.csv", "--out", "second", "--steps", "3", "--keep-sample", "3", *MLP],
            ):
                assert call(words) == 0, words
        self.folder = folder
        self.first, self.second = load_model(folder / "first"), load_model(folder / "second")
        self.data = read_table(folder / "data.csv")
        for number, colour in enumerate(("red", "green", "blue")):
            Image.new("RGB", (4, 4), colour).save(folder / f"{number}.png")
        self.images = ImageFiles([folder / f"{number}.png" for number in range(3)])
        self.vectors = Vectors(np.arange(8, dtype=np.float32).reshape(4, 2))
        tiny_masked(folder / "tiny")
        write_corpus(folder / "texts.txt", 20)

    def record(self, steps: int) -> RunRecord:
        return replace(self.first.record, cost={"seconds": float(steps)})


def _network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))


def _grafted(slots: int) -> torch.nn.Module:
    return graft(_network(), memory={"at": ["0"], "slots": slots})


def _probabilities(saved: SavedModel) -> list[list[float]]:
    rows = np.array([[0.5, -1.0], [1.0, 2.0]], dtype=np.float32)
    return saved.probabilities(Vectors(rows)).round(6).tolist()


def _model_state(folder: Path) -> object:
    saved = load_model(folder)
    return _probabilities(saved), saved.held_out, None if saved.sample is None else len(saved.sample.dataset)


def artefacts(setting: Setting) -> dict[str, tuple[Artefact, Callable[[Path], object] | None]]:
    """Return every artefact with the function that writes its earlier state; None if there is none."""
    record, other = setting.record(1), setting.record(2)
    tensors = {"w": torch.arange(600.0), "steps": 3}
    columns = {"id": ["a", "b"], "x": [1.0, 2.0]}

    def predictions(suffix: str) -> tuple[Artefact, Callable[[Path], object]]:
        def write(folder: Path, copies: int = 2) -> object:
            return write_tables(folder / f"p{suffix}", iter([pa.table(columns)] * copies))

        return Artefact(write, lambda folder: (folder / f"p{suffix}").read_bytes()), lambda folder: write(folder, 1)

    def saver(folder: Path) -> Saver:
        return Saver(folder / "checkpoints" / "run.safetensors", seconds=0)

    def checkpoint(folder: Path) -> object:
        loaded = saver(folder).load()
        return None if loaded is None else (loaded["fit"]["steps"], loaded["fit"]["w"].tolist())

    def version(folder: Path) -> object:
        about = version_of(setting.second.record)
        return add_version(folder / "model", ledger_of(folder / "model"), about, setting.second.save)

    def two_versions(folder: Path) -> object:
        setting.first.save(folder / "model")
        return version(folder)

    def features(folder: Path) -> object:
        rows = [np.arange(4)]
        return cached_features(setting.vectors, rows, lambda r: torch.ones(len(r), 300), key="k", folder=folder)

    def cached(folder: Path) -> object:
        return [load_tree(path)["features"].sum().item() for path in sorted(folder.rglob("*.safetensors"))]

    def images(folder: Path) -> list[Any]:
        decoded = decoded_images(setting.images, 8, folder)
        return decoded.flatten().tolist()

    def lock(folder: Path) -> None:
        with locked(folder / "runs"):
            (folder / "runs" / "x").write_text("x")

    def graft_state(folder: Path) -> object:
        return {k: v.tolist() for k, v in load_graft(_network(), folder / "graft").state_dict().items()}

    def encoder(folder: Path, steps: int = 2) -> object:
        corpus, options = str(setting.folder / "texts.txt"), {"steps": steps, "batch": 2, "length": 16, "device": "cpu"}
        return pretrain(corpus, encoder=str(setting.folder / "tiny"), out=folder / "encoder", **options)

    def encoder_state(folder: Path) -> object:
        names = sorted(path.name for path in (folder / "encoder").iterdir())
        weights, _ = load_tensors(folder / "encoder" / "model.safetensors")
        return state_digest(weights), [name for name in names if name[0] != "."]

    def export_program(folder: Path) -> object:
        return export(setting.folder / "second", folder / "p.pt2", format="torch")

    def program(folder: Path) -> object:
        about = json.loads((folder / "p.pt2.json").read_text())
        return torch.export.load(folder / "p.pt2").module()(x=torch.ones(2, 2)).tolist(), about["labels"]

    def model_of(folder: Path) -> Path:
        return folder / "model"

    every: dict[str, tuple[Artefact, Callable[[Path], object] | None]] = {
        "record": (
            Artefact(lambda f: other.save(f), lambda f: read_record(f / f"{record.id}.json").cost),
            lambda f: record.save(f),
        ),
        "checkpoint": (
            Artefact(lambda f: saver(f).save({**tensors, "steps": 4}), checkpoint),
            lambda f: saver(f).save(tensors),
        ),
        "new model": (Artefact(lambda f: setting.second.save(model_of(f)), lambda f: _model_state(model_of(f))), None),
        "replaced model": (
            Artefact(lambda f: setting.second.save(model_of(f)), lambda f: _model_state(model_of(f)), is_folder=True),
            lambda f: setting.first.save(model_of(f)),
        ),
        "model version": (
            Artefact(version, lambda f: (_model_state(model_of(f)), ledger_of(model_of(f)).current)),
            lambda f: setting.first.save(model_of(f)),
        ),
        "ledger": (
            Artefact(
                lambda f: use_version(model_of(f), ledger_of(model_of(f)), 1), lambda f: ledger_of(model_of(f)).current
            ),
            two_versions,
        ),
        "stored examples": (
            Artefact(
                lambda f: change_memory(model_of(f), add=str(setting.folder / "new.csv"), device="cpu"),
                lambda f: _probabilities(load_model(model_of(f))),
            ),
            lambda f: setting.first.save(model_of(f)),
        ),
        "feature cache": (Artefact(features, cached, may_be_missing=True), None),
        "image cache": (Artefact(images, images), None),
        "predictions (csv)": predictions(".csv"),
        "predictions (jsonl)": predictions(".jsonl"),
        "predictions (parquet)": predictions(".parquet"),
        "report": (
            Artefact(
                lambda f: write_report(summarise([other], "accuracy"), f / "r.html", title="new"),
                lambda f: (f / "r.html").read_text(),
            ),
            lambda f: write_report(summarise([record], "accuracy"), f / "r.html", title="old"),
        ),
        "lock": (Artefact(lock, lambda f: (f / "runs" / "x").read_text(), may_be_missing=True), None),
        "graft": (
            Artefact(lambda f: save_graft(_grafted(9), f / "graft"), graft_state, is_folder=True),
            lambda f: save_graft(_grafted(5), f / "graft"),
        ),
        "pretrained encoder": (Artefact(encoder, encoder_state, may_be_missing=True, cases=1), None),
        "exported program": (Artefact(export_program, program, cases=1), None),
    }
    return every


class Injector:
    """Writes one artefact with faults in forked processes and checks what is left."""

    def __init__(
        self, name: str, artefact: Artefact, earlier: Callable[[Path], object] | None, folder: Path, files: FaultyFiles
    ) -> None:
        self.name, self.artefact, self.files = name, artefact, files
        self.template, self.here, self.log = folder / "template", folder / "here", folder / "printed.log"
        self.template.mkdir(parents=True)
        self.before = None
        if earlier is not None:
            earlier(self.template)
            self.before = artefact.describe(self.template)
        self.counts: Counter[str] = Counter()
        self.failures: list[dict[str, Any]] = []
        self.restore()
        artefact.write(self.here)
        self.after = artefact.describe(self.here)

    @property
    def cases(self) -> int:
        return self.counts["succeeded"] + self.counts["rejected"]

    def restore(self) -> None:
        """Start again from the earlier state."""
        shutil.rmtree(self.here, ignore_errors=True)
        shutil.copytree(self.template, self.here)

    def count(self, fault: Fault) -> int:
        """Return the number of operations at which the fault can happen."""
        self.restore()
        self.files.watch(self.here)
        self.files.arm(fault.operations, first=ENDLESS)
        self.artefact.write(self.here)
        count = self.files.matched
        self.files.arm(())
        return count

    def case(self, name: str, fault: Fault, first: int) -> None:
        """Write with one fault, describe what is left, then write without a fault."""
        self.restore()

        def work() -> int:
            warnings.simplefilter("ignore")
            self.files.watch(self.here)
            self.files.arm(fault.operations, fault.action, fault.error, first=first, count=fault.count)
            try:
                self.artefact.write(self.here)
                return 0
            except BadInput as error:
                sentence = str(error)
            except OSError as error:
                if error.errno is None:
                    raise
                sentence = str(path_error(error))  # as the command line does
            finally:
                self.files.arm(())
            assert 10 < len(one_line(sentence)) < 1000, sentence
            assert "\n" not in sentence.strip(), sentence
            return REJECTED

        ended = wait(run_forked(work, self.log), self.log)
        problem = ""
        if ended.code not in (0, REJECTED):
            problem = f"exit code {ended.code}: {ended.text[-700:]}"
        else:
            problem = self.problem(succeeded=ended.code == 0, endless=fault.count == ENDLESS)
        self.counts["succeeded" if ended.code == 0 else "rejected"] += 1
        if problem:
            self.failures.append({"artefact": self.name, "fault": name, "operation": first, "problem": problem})

    def problem(self, *, succeeded: bool, endless: bool) -> str:
        """Return what is wrong with the artefact; empty if it is the earlier one or the new one."""
        for attempt in ("after the fault", "after the next write"):
            try:
                present = self.artefact.describe(self.here)
            except Exception as error:
                absent = self.before is None and not succeeded
                incomplete = self.artefact.is_folder and endless and not succeeded
                if attempt == "after the fault" and (absent or incomplete or self.artefact.may_be_missing):
                    present = self.before
                    self.counts["incomplete"] += incomplete and not absent
                else:
                    return f"{attempt}: unreadable, {type(error).__name__}: {str(error)[:300]}"
            allowed = [self.after] if succeeded or attempt != "after the fault" else [self.before, self.after]
            if present not in allowed and not (self.artefact.may_be_missing and attempt == "after the fault"):
                return f"{attempt}: neither the earlier nor the new state"
            if present == self.after and self.artefact.cases > 1:
                return ""
            try:
                self.artefact.write(self.here)
            except (BadInput, OSError) as error:
                return f"the next write failed: {str(error)[:300]}"
        return ""


def run(
    count: int, seed: int, say: Callable[[str], None], *, seconds: float = float("inf"), only: Sequence[str] = ()
) -> dict[str, Any]:
    """Inject every fault at up to `count` operations of every artefact, at all operations if it is 0."""
    torch.set_num_threads(1)
    started, files, rng, home = time.monotonic(), FaultyFiles(), random.Random(seed), Path.cwd()
    injectors: dict[str, Injector] = {}
    by_fault: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="holdfast-soak-") as name:
        (Path(name) / "setting").mkdir()
        setting = Setting(Path(name) / "setting")
        os.chdir(home)
        for which, (artefact, earlier) in artefacts(setting).items():
            if only and which not in only:
                continue
            injector = Injector(which, artefact, earlier, Path(name) / which.replace(" ", "-"), files)
            injectors[which] = injector
            for title, fault in FAULTS.items():
                if time.monotonic() - started > seconds:
                    break
                total = injector.count(fault)
                limit = min(count or total, artefact.cases)
                moments = range(1, total + 1) if total <= limit else sorted(rng.sample(range(1, total + 1), limit))
                for first in moments:
                    injector.case(title, fault, first)
                    by_fault[title] += 1
            cases, failed = injector.cases, len(injector.failures)
            say(f"faults: {which}: {cases} cases, {failed} failures, {time.monotonic() - started:.0f} s")
    return {
        "fault_types": len(FAULTS),
        "artefacts": {
            which: {**injector.counts, "failures": len(injector.failures)} for which, injector in injectors.items()
        },
        "faults": dict(by_fault),
        "cases": sum(injector.cases for injector in injectors.values()),
        "seconds": round(time.monotonic() - started, 1),
        "failures": [failure for injector in injectors.values() for failure in injector.failures],
    }
