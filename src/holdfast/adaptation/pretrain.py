"""Continue the masked-word training of a text encoder on a corpus; the result is a folder that transformers loads."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.core.files import LOCK_NAME, locked, write_text
from holdfast.data.dataset import Dataset
from holdfast.nn.backbones.text import TextEncoder
from holdfast.nn.vocabulary import Vocabulary, write_checkpoint
from holdfast.record import RunRecord, read
from holdfast.report.page import write_report
from holdfast.stats.summary import summarise
from holdfast.train.assemble import Assembly
from holdfast.train.evaluate import score
from holdfast.train.progress import ProgressListener
from holdfast.train.resolve import resolve, single_run
from holdfast.train.resume import Saver, stop_at_signal
from holdfast.train.run import train
from holdfast.train.training_data import training_data
from holdfast.train.workspace import Workspace, choose_device

RECORD, REPORT = "record.json", "report.html"
OWN = ("checkpoints", RECORD, REPORT)
HELD = 0.05  # share of the texts per domain for validation, and the same share for testing


@dataclass(frozen=True)
class Pretraining:
    """Result: folder of the encoder, record, report, and the loss per masked word before and after, by domain."""

    folder: Path
    record: RunRecord
    report: Path
    before: dict[str, float]
    after: dict[str, float]
    notes: tuple[str, ...] = ()


def pretrain(
    corpus: str | Path | Dataset, *, encoder: str, out: str | Path, steps: int = 1000, batch: int | None = None,
    lr: float | None = None, length: int | None = None, seed: int = 0, device: str = "auto",
    columns: Mapping[str, str] | None = None, examples: int | None = None, data_dir: str | Path | None = None,
    settings: Mapping[str, Any] | None = None, watch: ProgressListener | None = None,
) -> Pretraining:  # fmt: skip
    """Train on all texts except 5% per domain for validation and 5% for testing; an interrupted training resumes.

    If the rows are marked as training, validation and test rows, these splits are used instead.
    """
    out, watch = Path(out), watch or ProgressListener()
    _check_folder(out)
    folder = None if data_dir is None else Path(data_dir)
    dataset = training_data(corpus, task="masked", columns=columns, data_dir=folder, examples=examples)
    workspace = Workspace(dataset, choose_device(device), cache=None)
    options = {"task": "masked", "plan": "all", "neck": "none", "plan.valid": HELD, "plan.test": HELD}
    for key in ("task", "plan", "neck"):
        if settings is not None and settings.get(key, options[key]) != options[key]:
            raise BadInput(f"pretrain always uses {key}={options[key]}: leave {key}={settings[key]} out")
    options |= settings or {}
    if length is not None:
        options["encoder.length"] = length
    in_catalog = encoder in catalog.buildable_names("encoders") or encoder.startswith(("hf:", "auto"))
    name = encoder if in_catalog else f"hf:{encoder}"  # other names are folders or hub names
    request = single_run(
        "erm", seed, options, encoder=name, plan="all",
        steps=steps, batch=batch, lr=lr, every=max(1, min(100, steps // 10)), model=out,
    )  # fmt: skip
    (job,) = resolve(request, workspace)
    if (out / RECORD).exists() and (out / "config.json").exists() and read(out / RECORD).id == job.id:
        return _result(out, read(out / RECORD), dataset.notes)
    checkpoints, episode = out / "checkpoints", job.episode_in(workspace)
    saver = Saver(checkpoints / f"{job.id}.safetensors")
    watch.start(1, 0)
    watch.begin(f"masked words of {len(dataset.domains)} domains", job.steps)
    with locked(out):
        checkpoints.mkdir(exist_ok=True)  # shows that incomplete files of this folder are from an earlier call
        with stop_at_signal():
            record, assembly = train(job.spec, episode, workspace, saver=saver, tick=watch.step)
        watch.end(record)
        test, task = episode.stages[0].test, assembly.task
        record.analysis["before"] = score(assembly.make(), assembly.examples, test, task, task.metrics)
        notes = (*dataset.notes, *_write_encoder(assembly, out))
        write_report(summarise([record], "nll"), out / REPORT, title=f"Holdfast: {dataset.name}", notes=notes)
        write_text(out / RECORD, record.text())
        saver.finish()
        with suppress(OSError):
            checkpoints.rmdir()
    return _result(out, record, notes)


def pretrain_for(
    dataset: Dataset, encoder: str, folder: Path, *, steps: int, **options: Any
) -> tuple[str, tuple[str, ...]]:  # fmt: skip
    """Return the name of the encoder to use, and notes; `options` are those of `pretrain`.

    The encoder in `folder` is refused, and the original one returned, if its loss on held-out unlabelled texts did not
    fall. Labels are not used.
    """
    name = catalog.resolve_encoder(dataset.raw.kind, encoder)
    if not dataset.unlabelled or dataset.raw.kind != "text":
        what = "texts" if dataset.raw.kind != "text" else "unlabelled examples: add --unlabelled FILE"
        raise BadInput(f"--pretrain-steps continues the masked-word training on unlabelled texts and needs {what}")
    catalog.check_task("encoders", name, "masked")
    targets = [dataset.domains[code] for code in np.unique(dataset.domain[dataset.y < 0])]
    blank = np.full(len(dataset), -1, dtype=np.int64)
    corpus = replace(dataset, y=blank, classes=(), split=None, ids=None, notes=(), unlabelled=False)
    done = pretrain(corpus, encoder=name, out=folder, steps=steps, **options)
    before, after = (float(np.mean([losses[domain] for domain in targets])) for losses in (done.before, done.after))
    change = f"the loss per masked word of the unlabelled texts changed from {before:.2f} to {after:.2f}"
    if after >= before:
        return name, (f"the masked-word training was refused and {name} is used as it is, because {change}",)
    return f"hf:{folder}", (f"the encoder was trained on masked words for {steps} steps: {change}",)


def _check_folder(folder: Path) -> None:
    """Raise unless a folder is new, empty, or from an earlier call."""
    if folder.is_file():
        raise BadInput(f"--out {folder} is a file: choose a folder")
    files = sorted(path.name for path in folder.iterdir() if path.name != LOCK_NAME) if folder.is_dir() else []
    if files and not any(name in files for name in OWN):
        raise BadInput(f"--out {folder} holds other files ({files[0]}): choose a new folder")


def _write_encoder(assembly: Assembly, out: Path) -> list[str]:
    """Write the encoder as a transformers checkpoint; return notes."""
    model = assembly.deploy()
    assert isinstance(model.backbone, TextEncoder)
    assert isinstance(model.head, Vocabulary)
    if write_checkpoint(model.backbone, model.head, out):
        return []
    return ["the encoder was written without its masked-word head, because its family or its memory does not allow one"]


def _result(out: Path, record: RunRecord, notes: tuple[str, ...]) -> Pretraining:
    before = {domain: scores["nll"] for domain, scores in record.analysis["before"].items()}
    after = {domain: scores["nll"] for domain, scores in record.stages[-1]["test"].items()}
    return Pretraining(out, record, out / REPORT, before, after, notes)
