"""A model folder: weights, configuration, preparation and a card; load it and it predicts.

n examples, c classes
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from holdfast import catalog
from holdfast.assembly import Assembled
from holdfast.core.errors import BadInput
from holdfast.core.files import write_text, write_whole
from holdfast.data.examples import Examples, prepare
from holdfast.data.raw import Raw
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.model import Model
from holdfast.record import RunRecord

FORMAT = 1
FILES = ("config.json", "model.safetensors", "record.json")


@dataclass(frozen=True)
class SavedModel:
    """A network, how raw examples get into it, and what its outputs mean."""

    model: Model
    encoder: Backbone
    classes: tuple[str, ...]
    config: dict[str, Any]

    def probabilities(self, raw: Raw, *, device: torch.device | str = "cpu") -> np.ndarray:
        """(n, c) the probability of each class."""
        if raw.kind != self.encoder.takes:
            raise BadInput(f"this model takes {self.encoder.takes}s but the data holds {raw.kind}s")
        store = prepare(raw, self.encoder.prepare, size=self.encoder.size)
        examples = Examples(store, torch.zeros(len(raw), dtype=torch.long), (), device=device)
        self.model.to(device).eval()
        return examples.map(self.model, np.arange(len(raw))).double().softmax(dim=-1).numpy()


def save_model(folder: Path, built: Assembled, record: RunRecord, classes: tuple[str, ...]) -> SavedModel:
    """Write the folder; config.json comes last, so a folder that has it is whole."""
    check_folder(folder)
    (folder / "config.json").unlink(missing_ok=True)
    model = built.deploy()
    weights = {name: t.detach().cpu().contiguous().clone() for name, t in model.state_dict().items()}
    preparation = folder / "preparation"
    preparation.mkdir(parents=True, exist_ok=True)
    config = {
        "format": FORMAT,
        "spec": record.spec,
        "classes": list(classes),
        "encoder": {"name": record.spec["encoder"], "settings": built.encoder.save(preparation)},
        "precision": model.precision,
        "code": record.code,
    }
    write_whole(folder / "model.safetensors", lambda draft: save_file(weights, draft))
    write_text(folder / "record.json", json.dumps(asdict(record), indent=1, sort_keys=True) + "\n")
    write_text(folder / "README.md", _card(folder, config, record))
    write_text(folder / "config.json", json.dumps(config, indent=1) + "\n")
    return SavedModel(model, built.encoder, classes, config)


def check_folder(folder: Path) -> None:
    """A folder to write a model to is new, empty, or held a model or its beginning before."""
    if folder.is_file():
        raise BadInput(f"{folder} is a file: name a folder with --out")
    if folder.is_dir() and not (folder / "config.json").exists():
        others = sorted(p.name for p in folder.iterdir() if p.name != "checkpoints")
        if others and "model.safetensors" not in others:
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
        neck = catalog.make("necks", spec["neck"], encoder.width, given=spec["neck_args"])
        head = catalog.make("tasks", spec["task"], given={}).head(neck.width, len(classes))
        model = Model(encoder, neck, head)
        model.load_state_dict(weights)
    except (OSError, KeyError, json.JSONDecodeError, SafetensorError, RuntimeError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadInput(f"{folder} is not a whole model folder ({first}): fit it again") from error
    return SavedModel(model.eval(), encoder, classes, config)


def _card(folder: Path, config: dict[str, Any], record: RunRecord) -> str:
    spec, stage = record.spec, record.stages[-1]
    metric = spec["metric"]
    lines = [
        f"| {domain} | {stage['sizes']['train'].get(domain, 0)} | {scores[metric]:.3f} |"
        for domain, scores in stage["valid"].items()
        if scores[metric] is not None
    ]
    return "\n".join(
        [
            f"# {folder.name}",
            "",
            f"A classifier of {len(config['classes'])} labels ({', '.join(config['classes'][:20])}), trained by "
            f"Holdfast {record.code['version']} with method `{spec['method']}` on encoder `{spec['encoder']}` "
            f"({spec['tune']}).",
            "",
            f"Data: {spec['data']} (content {spec['fingerprint']}), seed {spec['seed']}, step {stage['step']} of "
            f"{spec['steps']} kept by {spec['select']}.",
            "",
            f"| domain | training examples | {metric} on held-out rows of the domain |",
            "|---|---|---|",
            *lines,
            "",
            "These scores are inside the training domains. For a domain never seen, see `holdfast compare`.",
            "",
            "```bash",
            f"holdfast predict {folder.name} NEW.csv --out predictions.csv",
            "```",
            "",
        ]
    )
