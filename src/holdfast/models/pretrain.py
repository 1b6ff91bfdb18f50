"""pretrain: a text encoder goes on learning masked words on a corpus, to a folder that transformers loads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast import catalog
from holdfast.comparison import training_data
from holdfast.core.errors import BadInput
from holdfast.core.files import LOCK_NAME as LOCK
from holdfast.core.files import locked, write_text
from holdfast.data.dataset import Dataset
from holdfast.nn.backbones.text import TextEncoder
from holdfast.nn.vocabulary import Vocabulary, write_checkpoint
from holdfast.protocols.evaluate import score
from holdfast.protocols.plan import Stage
from holdfast.protocols.resume import Saver, stop_at_signal
from holdfast.record import RunRecord, read, run_id
from holdfast.report.page import write_report
from holdfast.run.assemble import Assembly, Workspace
from holdfast.run.occupied import check_own_model
from holdfast.run.progress import ProgressListener
from holdfast.run.settings import choose_device, make_spec
from holdfast.run.train import episodes, train, training_steps

RECORD, REPORT = "record.json", "report.html"
OWN = ("checkpoints", RECORD, REPORT)
HELD = 0.05  # of each domain's texts to choose the step by, and as many to test


@dataclass(frozen=True)
class Pretraining:
    """Where the encoder is, its record and page, and the loss of a hidden word before and after, by domain."""

    folder: Path
    record: RunRecord
    report: Path
    before: dict[str, float]
    after: dict[str, float]
    notes: tuple[str, ...] = ()


def pretrain(
    corpus: str | Path | Dataset,
    *,
    encoder: str,
    out: str | Path,
    steps: int = 1000,
    batch: int | None = None,
    lr: float | None = None,
    length: int | None = None,
    seed: int = 0,
    device: str = "auto",
    columns: Mapping[str, str] | None = None,
    examples: int | None = None,
    data_dir: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    watch: ProgressListener | None = None,
) -> Pretraining:
    """Train on all texts but a few held out of each domain; stopped, it goes on where it was when called again.

    Where rows are marked as training, validation and test, those that train are the first alone.
    """
    out, watch = Path(out), watch or ProgressListener()
    _check(out)
    where = choose_device(device)
    folder = None if data_dir is None else Path(data_dir)
    dataset = training_data(corpus, task="masked", columns=columns, data_dir=folder)
    if examples is not None:
        dataset = dataset.limited(examples)
    given = {"task": "masked", "plan.valid": HELD, "plan.test": HELD, **(settings or {})}
    if length is not None:
        given["encoder.length"] = length
    spec = make_spec(
        dataset, encoder=_named(encoder), settings=given, device=where, plan="all", seed=seed,
        steps=steps, batch=batch, lr=lr, every=max(1, min(100, steps // 10)),
    )  # fmt: skip
    if spec.task != "masked" or spec.plan != "all" or spec.neck != "none":
        raise BadInput("pretrain learns masked words on all domains without a neck: leave task, plan and neck alone")
    check_own_model(out, spec)
    workspace = Workspace(dataset, device=where, cache=None, watch=watch.encoding)
    (episode,) = episodes(spec, workspace)
    name = run_id(spec.json(), episode.name)
    if (out / RECORD).exists() and (out / "config.json").exists() and read(out / RECORD).id == name:
        return _told(out, read(out / RECORD), dataset.notes)
    saver = Saver(out / "checkpoints" / f"{name}.safetensors")
    watch.start(1, 0)
    watch.begin(f"masked words of {len(dataset.domains)} domains", training_steps(spec))
    with locked(out):
        with stop_at_signal():
            record, built = train(spec, episode, workspace, saver=saver, tick=watch.step)
        watch.end(record)
        record.analysis["before"] = _before(built, episode.stages[0])
        notes = _write(built, out)
        told = (*dataset.notes, *notes)
        write_report([record], out / REPORT, title=f"Holdfast: {dataset.name}", metric="nll", notes=told)
        write_text(out / RECORD, record.text())
        saver.finish()
    return _told(out, record, told)


def _named(encoder: str) -> str:
    """An encoder of the catalog, or a folder or a name on the hub without the `hf:` before it."""
    return encoder if encoder in catalog.ENCODERS or encoder.startswith(("hf:", "auto")) else f"hf:{encoder}"


def _check(folder: Path) -> None:
    """A folder to write to is new, empty, or one that was written, or begun, here."""
    if folder.is_file():
        raise BadInput(f"{folder} is a file: name a folder with --out")
    there = sorted(path.name for path in folder.iterdir() if path.name != LOCK) if folder.is_dir() else []
    if there and not any(name in there for name in OWN):
        raise BadInput(f"{folder} holds other files ({there[0]}): name a new folder with --out")


def _before(built: Assembly, stage: Stage) -> dict[str, Any]:
    """What the network scored on the test texts before its first step."""
    return score(built.make(), built.examples, stage.test, built.task, built.task.metrics)


def _write(built: Assembly, out: Path) -> list[str]:
    model = built.deploy()
    assert isinstance(model.backbone, TextEncoder)
    assert isinstance(model.head, Vocabulary)
    if write_checkpoint(model.backbone, model.head, out):
        return []
    return ["the encoder is written without its masked-word head: its family makes it otherwise, or it read a memory"]


def _told(out: Path, record: RunRecord, notes: tuple[str, ...]) -> Pretraining:
    before = {domain: scores["nll"] for domain, scores in record.analysis["before"].items()}
    after = {domain: scores["nll"] for domain, scores in record.stages[-1]["test"].items()}
    return Pretraining(out, record, out / REPORT, before, after, notes)
