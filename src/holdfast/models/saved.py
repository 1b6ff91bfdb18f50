"""A model folder: weights, configuration, preparation and a card; load it and it predicts.

n examples, c classes
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from holdfast import catalog
from holdfast.core.checkpoint import AllocationLimit, load_tensors, save_tensors
from holdfast.core.errors import BadInput, Damaged
from holdfast.core.files import LOCK_NAME as LOCK
from holdfast.core.files import read_json, write_error, write_text
from holdfast.data.batches import Examples, prepare
from holdfast.data.raw import Raw, Subset
from holdfast.data.sample import Sample, load_sample, save_sample
from holdfast.data.splits import HeldOut
from holdfast.models.calibration import Gauge, probabilities, seeing, seen
from holdfast.models.card import card
from holdfast.models.versions import OWN, current_folder, has_versions
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.decoding import Responder
from holdfast.nn.experts.graft import describe_experts
from holdfast.nn.model import Model
from holdfast.record import RunRecord, read
from holdfast.tasks.base import ColumnTask, InferenceTask, Structured

FORMAT = 1
WINDOW = 4096  # rows prepared and predicted at a time: a file piece by piece gives what it gives as a whole
GAUGE, HELD_OUT, SAMPLE = "gauge.safetensors", "heldout.json", "sample.safetensors"
OURS = (LOCK, "checkpoints", GAUGE, SAMPLE, *OWN)  # all that a folder has in which a model is not yet whole


class Judged(NamedTuple):
    """Probabilities (n, c), and in percent how foreign each example is and how undecided its memory, where known."""

    probabilities: np.ndarray
    foreign: np.ndarray | None
    undecided: np.ndarray | None


@dataclass(frozen=True)
class SavedModel:
    """A network, how raw examples get into it, what its outputs mean, and the record of its training.

    `gauge` holds what predictions are compared with, `held_out` which examples it was never trained on, `kept` a
    sample of its data; models of earlier formats have none of them.
    """

    model: Model
    encoder: Backbone
    classes: tuple[str, ...]
    record: RunRecord
    gauge: Gauge | None = None
    held_out: HeldOut | None = None
    kept: Sample | None = None
    columns: tuple[str, ...] | None = None  # of the table that its vectors were, where they had names

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains it was trained on, in their order."""
        return tuple(dict.fromkeys(name for stage in self.record.stages for name in stage["train"]))

    @property
    def task(self) -> str:
        return self.record.spec["task"]

    @property
    def parts(self) -> dict[str, Any]:
        """The neck, and the experts if there are any, for whoever runs the model elsewhere."""
        return {"neck": self.record.spec["neck"], "experts": describe_experts(self.model.backbone)}

    @property
    def answers(self) -> bool:
        """Whether it answers messages."""
        return self.task == "respond"

    def responses(self, raw: Raw, *, device: torch.device | str = "cpu") -> list[str]:
        """An answer to each message; of pairs the first text is the message."""
        if not self.answers or not isinstance(self.encoder, Responder):
            raise BadInput("this model classifies: it has probabilities of classes and no responses")
        answers = self._over(raw, self.encoder.answer, device)
        return [] if answers is None else self.encoder.texts(answers.long())

    def probabilities(self, raw: Raw, *, device: torch.device | str = "cpu", calibrated: bool = True) -> np.ndarray:
        """(n, c) the probability of each class."""
        return self.judge(raw, device=device, calibrated=calibrated).probabilities

    def judge(self, raw: Raw, *, device: torch.device | str = "cpu", calibrated: bool = True) -> Judged:
        """Probabilities, and how foreign each example is to what the model was trained on."""
        if self.answers:
            raise BadInput("this model answers messages: it has responses and no probabilities of classes")
        if self.task != "classify":
            raise BadInput(f"this model is for the task {self.task}: it has no probabilities of classes")
        found = self._over(raw, self.model if self.gauge is None else seeing(self.model), device)
        if found is None:
            none = np.zeros(0) if self.gauge is not None else None
            return Judged(np.zeros((0, len(self.classes))), none, None)
        if self.gauge is None:
            _check_finite(found.numpy())
            return Judged(probabilities(found.numpy()), None, None)
        told = seen(found, len(self.classes))
        _check_finite(np.concatenate([told.outputs, told.features], axis=1))
        temperature = self.gauge.temperature if calibrated else 1.0
        foreign = self.gauge.foreign.percentiles(told.features)
        return Judged(probabilities(told.outputs, temperature), foreign, self.gauge.undecided(told.entropy))

    def told(self, raw: Raw, *, device: torch.device | str = "cpu") -> dict[str, list[Any]]:
        """What it says of each example, by column: tokens and tags, an answer and its score, or words and theirs."""
        task = catalog.build("tasks", self.task, options=self.record.spec.get("task_args", {}))
        if not isinstance(task, Structured) or not isinstance(task, ColumnTask):
            raise BadInput(f"a model for the task {self.task} has probabilities or responses: ask for those")
        asking = isinstance(task, InferenceTask)
        made = task.prepare_inference(self.encoder, raw) if asking else task.prepare(self.encoder, raw, self.classes)
        examples = Examples(made.store, made.y, (), device=device, starts=made.starts)
        self._ready(device)
        found: list[Any] = [None] * len(made.store)
        with torch.no_grad():
            rows = np.arange(len(made.store))
            for at, x, _ in examples.iter_batches(rows, prediction_batch=self.model.prediction_batch):
                outputs = self.model(x)
                outputs = made.task.compress(outputs) if isinstance(made.task, InferenceTask) else outputs.float()
                for place, output in zip(at.tolist(), outputs.cpu(), strict=True):
                    found[place] = output
        assert isinstance(made.task, ColumnTask)
        return made.task.prediction_columns(raw, found, made.y)

    def _over(self, raw: Raw, function: Callable[[Any], Tensor], device: torch.device | str) -> Tensor | None:
        """A function of the network over raw examples, (n, ..); None where there are none."""
        if raw.kind != self.encoder.takes:
            raise BadInput(f"this model takes {self.encoder.takes}s but the data holds {raw.kind}s")
        self._ready(device)
        found = []
        for start in range(0, len(raw), WINDOW):
            rows = np.arange(start, min(start + WINDOW, len(raw)))
            piece = raw if len(rows) == len(raw) else Subset(raw, rows)
            store = prepare(piece, self.encoder.prepare, size=self.encoder.size)
            examples = Examples(store, torch.zeros(len(piece), dtype=torch.long), (), device=device)
            found.append(examples.map(function, np.arange(len(piece)), prediction_batch=self.model.prediction_batch))
        return torch.cat(found) if found else None

    def _ready(self, device: torch.device | str) -> None:
        some, there = next(self.model.parameters(), None), torch.device(device)
        if self.model.training or some is None or some.device.type != there.type or there.index is not None:
            self.model.to(device).eval()  # a walk over all parts, which a server need not take for every batch
        # bf16 is for the GPU it was trained on; elsewhere the same weights run in fp32
        self.model.precision = self.record.spec["precision"] if torch.device(device).type == "cuda" else "fp32"

    def save(self, folder: Path, *, name: str | None = None) -> Path:
        """Write the folder; config.json comes last, so a folder that has it is whole. The card says its `name`."""
        check_folder(folder)
        weights = {name: t.detach().cpu().contiguous().clone() for name, t in self.model.state_dict().items()}
        spec, preparation_key = self.record.spec, folder / "preparation"
        try:
            for gone in ("config.json", GAUGE, HELD_OUT, SAMPLE):
                (folder / gone).unlink(missing_ok=True)
            preparation_key.mkdir(parents=True, exist_ok=True)
            settings = self.encoder.save(preparation_key)
        except OSError as error:
            raise write_error(preparation_key, error) from error
        encoder = {"name": spec["encoder"], "settings": settings}
        head = {"name": spec["head"], "settings": self.model.head.settings}
        config = {"format": FORMAT, "spec": spec, "classes": list(self.classes), "encoder": encoder, "head": head}
        if self.columns is not None:
            config["columns"] = list(self.columns)
        save_tensors(folder / "model.safetensors", weights)
        write_text(folder / "record.json", self.record.text())
        write_text(folder / "README.md", card(name or folder.name, self.classes, self.record))
        if self.gauge is not None:
            self.gauge.save(folder / GAUGE)
        if self.held_out is not None:
            write_text(folder / HELD_OUT, json.dumps(self.held_out.to_json(), indent=1) + "\n")
        if self.kept is not None:
            save_sample(folder / SAMPLE, self.kept, size=self.encoder.size)
        return write_text(folder / "config.json", json.dumps(config, indent=1) + "\n").parent


def _check_finite(found: np.ndarray) -> None:
    """One sentence where a network counted beyond what numbers can be."""
    wrong = np.flatnonzero(~np.isfinite(found).all(axis=1))
    if len(wrong):
        raise BadInput(
            f"example {wrong[0] + 1} of {len(found)} has numbers too large for the network to count with: mend "
            "them, or take it out"
        )


def check_folder(folder: Path) -> None:
    """A folder to write a model to is new, empty, or held a model or its beginning before."""
    if folder.is_file():
        raise BadInput(f"{folder} is a file: name a folder with --out")
    if has_versions(folder):
        raise BadInput(f"{folder} holds a model with several versions: name a new folder with --out")
    if folder.is_dir() and not all((folder / name).exists() for name in ("config.json", "record.json")):
        others = sorted(p.name for p in folder.iterdir() if p.name not in OURS and not p.name.endswith(".draft"))
        if others:
            raise BadInput(f"{folder} holds other files ({others[0]}): name a new folder with --out")


def check_model(folder: Path) -> None:
    """One sentence where a folder holds no model."""
    if not (folder / "config.json").is_file():
        raise BadInput(f"{folder} is no model folder (no config.json): make one with `holdfast fit`")


def load_model(folder: Path) -> SavedModel:
    """Read a model folder, of several versions the one in use; nothing in it is executed or unpickled."""
    check_model(folder)
    folder = current_folder(folder)
    try:
        config = _checked(read_json(folder / "config.json"), folder)
        weights, _ = load_tensors(folder / "model.safetensors")
        record = read(folder / "record.json")
        spec, classes = config["spec"], tuple(config["classes"])
        family = catalog.lookup("encoders", config["encoder"]["name"]).load().__self__
        with AllocationLimit(_size(folder), where=str(folder)):
            encoder: Backbone = family.load(folder / "preparation", config["encoder"]["settings"])
            neck = catalog.build_neck(spec["neck"], encoder.width, len(classes), options=spec["neck_args"])
            head = catalog.lookup("heads", config["head"]["name"]).load().__self__(**config["head"]["settings"])
        if spec.get("task") == "classify" and head.outputs != len(classes):
            raise TypeError(f"its head has {head.outputs} outputs for {len(classes)} classes")
        model = Model(encoder, neck, head)
        model.load_state_dict(weights)
        gauge = Gauge.load(folder / GAUGE) if (folder / GAUGE).exists() else None
        held = HeldOut.from_json(read_json(folder / HELD_OUT)) if (folder / HELD_OUT).exists() else None
        kept = load_sample(folder / SAMPLE) if (folder / SAMPLE).exists() else None
        columns = tuple(config["columns"]) if "columns" in config else None
    except Exception as error:  # a folder from elsewhere may make any part fail in any way
        if isinstance(error, BadInput) and not isinstance(error, Damaged):
            raise
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadInput(f"{folder} is not a whole model folder ({first}): fit it again") from error
    return SavedModel(model.eval(), encoder, classes, record, gauge, held, kept, columns)


def _checked(config: Any, folder: Path) -> dict[str, Any]:
    """The configuration, where it has the form of one; nothing is made of it before."""
    if config["format"] != FORMAT:
        raise BadInput(f"{folder} has model format {config['format']}, this version reads {FORMAT}")
    parts = [config["spec"], config["spec"]["neck_args"], config["encoder"]["settings"], config["head"]["settings"]]
    names = [config["spec"]["neck"], config["encoder"]["name"], config["head"]["name"], *config["classes"]]
    if not all(isinstance(part, dict) for part in parts) or not all(isinstance(name, str) for name in names):
        raise TypeError("config.json has another form")
    return config


def _size(folder: Path) -> int:
    """The most numbers that a tensor of this model can have: a byte each of all its files, and room for small ones."""
    files = [*folder.glob("*.safetensors"), *(folder / "preparation").rglob("*")]
    return max(1 << 24, sum(path.stat().st_size for path in files if path.is_file()))
