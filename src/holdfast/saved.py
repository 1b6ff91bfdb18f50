"""A model folder: weights, configuration, preparation and a card; load it and it predicts.

n examples, c classes
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from holdfast import catalog
from holdfast.card import card
from holdfast.core.checkpoint import save_tensors
from holdfast.core.errors import BadInput
from holdfast.core.files import cannot_write, write_text
from holdfast.data.examples import Examples, prepare
from holdfast.data.raw import Raw
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.decoding import Answering
from holdfast.nn.model import Model
from holdfast.record import RunRecord, read
from holdfast.tasks.base import Structured, Telling

FORMAT = 1
BEGUN = ("checkpoints", "preparation", "model.safetensors", "record.json", "README.md")  # a model not yet whole


@dataclass(frozen=True)
class SavedModel:
    """A network, how raw examples get into it, what its outputs mean, and the record of its training."""

    model: Model
    encoder: Backbone
    classes: tuple[str, ...]
    record: RunRecord

    @property
    def task(self) -> str:
        return self.record.spec["task"]

    @property
    def answers(self) -> bool:
        """Whether it answers messages."""
        return self.task == "respond"

    def responses(self, raw: Raw, *, device: torch.device | str = "cpu") -> list[str]:
        """An answer to each message; of pairs the first text is the message."""
        if not self.answers or not isinstance(self.encoder, Answering):
            raise BadInput("this model classifies: it has probabilities of classes and no responses")
        answers = self._over(raw, self.encoder.answer, device)
        return [] if answers is None else self.encoder.texts(answers.long())

    def probabilities(self, raw: Raw, *, device: torch.device | str = "cpu") -> np.ndarray:
        """(n, c) the probability of each class."""
        if self.answers:
            raise BadInput("this model answers messages: it has responses and no probabilities of classes")
        if self.task != "classify":
            raise BadInput(f"this model is for the task {self.task}: it has no probabilities of classes")
        found = self._over(raw, self.model, device)
        return np.zeros((0, len(self.classes))) if found is None else found.double().softmax(dim=-1).numpy()

    def told(self, raw: Raw, *, device: torch.device | str = "cpu") -> dict[str, list[Any]]:
        """What it says of each example, by column: tokens and tags, or an answer and its score."""
        task = catalog.make("tasks", self.task, given={})
        if not isinstance(task, Structured) or not isinstance(task, Telling):
            raise BadInput(f"a model for the task {self.task} says nothing of single examples: {_use(self.task)}")
        made = task.prepare(self.encoder, raw, self.classes)
        examples = Examples(made.store, made.y, (), device=device, starts=made.starts)
        self._ready(device)
        found: list[Any] = [None] * len(made.store)
        with torch.no_grad():
            for at, x, _ in examples.over(np.arange(len(made.store)), together=self.model.together):
                for place, output in zip(at.tolist(), self.model(x).float().cpu(), strict=True):
                    found[place] = output
        assert isinstance(made.task, Telling)
        return made.task.tell(raw, found, made.y)

    def _over(self, raw: Raw, function: Callable[[Any], Tensor], device: torch.device | str) -> Tensor | None:
        """A function of the network over raw examples, (n, ..); None where there are none."""
        if raw.kind != self.encoder.takes:
            raise BadInput(f"this model takes {self.encoder.takes}s but the data holds {raw.kind}s")
        if not len(raw):
            return None
        store = prepare(raw, self.encoder.prepare, size=self.encoder.size)
        examples = Examples(store, torch.zeros(len(raw), dtype=torch.long), (), device=device)
        self._ready(device)
        return examples.map(function, np.arange(len(raw)), together=self.model.together)

    def _ready(self, device: torch.device | str) -> None:
        self.model.to(device).eval()
        # bf16 is for the GPU it was trained on; elsewhere the same weights run in fp32
        self.model.precision = self.record.spec["precision"] if torch.device(device).type == "cuda" else "fp32"

    def save(self, folder: Path) -> Path:
        """Write the folder; config.json comes last, so a folder that has it is whole."""
        check_folder(folder)
        weights = {name: t.detach().cpu().contiguous().clone() for name, t in self.model.state_dict().items()}
        spec, preparation = self.record.spec, folder / "preparation"
        try:
            (folder / "config.json").unlink(missing_ok=True)
            preparation.mkdir(parents=True, exist_ok=True)
            settings = self.encoder.save(preparation)
        except OSError as error:
            raise cannot_write(preparation, error) from error
        encoder = {"name": spec["encoder"], "settings": settings}
        head = {"name": spec["head"], "settings": self.model.head.settings}
        config = {"format": FORMAT, "spec": spec, "classes": list(self.classes), "encoder": encoder, "head": head}
        save_tensors(folder / "model.safetensors", weights)
        write_text(folder / "record.json", self.record.text())
        write_text(folder / "README.md", card(folder.name, self.classes, self.record))
        return write_text(folder / "config.json", json.dumps(config, indent=1) + "\n").parent


def _use(task: str) -> str:
    if task == "masked":
        return "its encoder is what is used, which `holdfast pretrain` writes so that hf:FOLDER takes it"
    return "see probabilities and responses"


def check_folder(folder: Path) -> None:
    """A folder to write a model to is new, empty, or held a model or its beginning before."""
    if folder.is_file():
        raise BadInput(f"{folder} is a file: name a folder with --out")
    if folder.is_dir() and not (folder / "config.json").exists():
        others = sorted(p.name for p in folder.iterdir() if p.name not in BEGUN and not p.name.endswith(".draft"))
        if others:
            raise BadInput(f"{folder} holds other files ({others[0]}): name a new folder with --out")


def load_model(folder: Path) -> SavedModel:
    """Read a model folder; nothing in it is executed or unpickled."""
    if not (folder / "config.json").is_file():
        raise BadInput(f"{folder} is no model folder (no config.json): make one with `holdfast fit`")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if config["format"] != FORMAT:
            raise BadInput(f"{folder} has model format {config['format']}, this version reads {FORMAT}")
        spec, classes = config["spec"], tuple(config["classes"])
        family = catalog.entry("encoders", config["encoder"]["name"]).load().__self__
        encoder: Backbone = family.load(folder / "preparation", config["encoder"]["settings"])
        weights = load_file(folder / "model.safetensors")
        neck = catalog.make_neck(spec["neck"], encoder.width, len(classes), given=spec["neck_args"])
        head = catalog.entry("heads", config["head"]["name"]).load().__self__.load(config["head"]["settings"])
        model = Model(encoder, neck, head)
        model.load_state_dict(weights)
        record = read(folder / "record.json")
    except (OSError, KeyError, json.JSONDecodeError, SafetensorError, RuntimeError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadInput(f"{folder} is not a whole model folder ({first}): fit it again") from error
    return SavedModel(model.eval(), encoder, classes, record)
