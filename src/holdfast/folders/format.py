"""Model folders: weights, configuration, preprocessing and a model card.

| file | content |
|---|---|
| `config.json` | format, spec, classes, settings of encoder and head, columns, weights of further members |
| `model.safetensors` | weights of the network |
| `preparation/` | files of the encoder: tokenizer, vocabulary, statistics of columns |
| `record.json`, `README.md` | record of the training; model card |
| `gauge.safetensors` | temperature, foreign score, margins and thresholds |
| `heldout.json`, `sample.safetensors` | hashes of held-out examples; some of the data, for `adapt` |
| `leftout.safetensors`, `reference.safetensors` | outputs for left-out domains; statistics for `watch` |
| `recall.safetensors` | stored examples that predictions read |
| `members/N` | further members of an average |
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from holdfast import catalog
from holdfast.core.checkpoint import load_tensors, save_tensors
from holdfast.core.errors import BadInput, Damaged
from holdfast.core.files import LOCK_NAME, read_json, write_folder, write_text
from holdfast.core.limits import ConstructionLimit, check_sizes
from holdfast.core.settings import type_error, without_retired
from holdfast.data.dataset import Dataset
from holdfast.data.readers import forms
from holdfast.data.sample import Sample, load_sample, save_sample
from holdfast.data.splits import HeldOut, Part
from holdfast.folders.card import card
from holdfast.folders.predictor import Member as Member
from holdfast.folders.predictor import Predictor
from holdfast.folders.shared import MEMBERS, WEIGHTS, Shared, changes_backbone, member_folder, shared_encoders
from holdfast.folders.versions import OPTIONAL, OWN, current_folder, has_versions
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.small import check_side
from holdfast.nn.memory.recall import load_recall, save_recall
from holdfast.nn.model import Model, OutputScale
from holdfast.record import RunRecord, read
from holdfast.train.assemble import Assembly
from holdfast.uncertainty.arrays import example_ids
from holdfast.uncertainty.calibration import Calibration
from holdfast.uncertainty.left_out import FILE as LEFT_OUT
from holdfast.uncertainty.left_out import LeftOut
from holdfast.uncertainty.reference import FILE as REFERENCE
from holdfast.uncertainty.reference import Reference, fit_reference

FORMAT = 1
EXTENDED_FORMAT = 2  # of a folder with further members or stored examples, which change its predictions
SHARED_FORMAT = 3  # of a member whose encoder another member stores
FORMATS = (FORMAT, EXTENDED_FORMAT, SHARED_FORMAT)
CALIBRATION, HELD_OUT, SAMPLE = "gauge.safetensors", "heldout.json", "sample.safetensors"
RECALL = "recall.safetensors"  # stored examples that predictions read; it changes without a new version
MODEL_FILES = (*OWN, CALIBRATION, SAMPLE, RECALL, LEFT_OUT, REFERENCE, MEMBERS)  # config.json is the first
INCOMPLETE = (LOCK_NAME, "checkpoints", RECALL, *OWN, *OPTIONAL)  # files of an incomplete model folder
READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {  # files that not every model has, by the field they hold
    "calibration": (CALIBRATION, Calibration.load),
    "held_out": (HELD_OUT, lambda path: HeldOut.from_json(read_json(path))),
    "sample": (SAMPLE, load_sample),
    "left_out": (LEFT_OUT, LeftOut.load),
    "reference": (REFERENCE, Reference.load),
}
SETS_OF_CLASSES = ("classify", "ordinal", "multilabel")  # tasks with one output per class
MAX_FILES = 10_000  # in a model folder
AGAIN = "fit the model again"


@dataclass(frozen=True)
class SavedModel(Predictor):
    """A trained network with everything that its folder stores.

    `held_out` names the examples it was not trained on, `sample` has some of its data, `left_out` the outputs of runs
    that left out one domain each, and `reference` statistics of held-out examples. Models of earlier formats have none
    of them.
    """

    held_out: HeldOut | None = None
    sample: Sample | None = None
    left_out: LeftOut | None = None
    reference: Reference | None = None

    @staticmethod
    def of(
        assembly: Assembly, dataset: Dataset, record: RunRecord, held_out: HeldOut, *,
        calibration: Calibration | None = None, train: Sequence[Part] = (), scored: Sequence[Part] = (), seed: int = 0,
        **stored: Any,
    ) -> SavedModel:  # fmt: skip
        """Return the trained network of a run on a data set with what its folder stores.

        The reference for monitoring is computed from the parts `train` and `scored`; without them there is none.
        """
        about = {"classes": dataset.classes, "columns": dataset.columns, "forms": dataset.forms, **stored}
        reference = fit_reference(
            assembly, dataset, train, scored, calibration=calibration, columns=about["columns"], seed=seed
        )
        model = assembly.deploy()
        if model.recall is not None and model.recall.rows:  # stored examples can be deleted by their content
            model.recall.ids, model.recall.rows = example_ids(dataset.raw, model.recall.rows), []
        return SavedModel(
            model, assembly.encoder, record=record, held_out=held_out, calibration=calibration, reference=reference,
            **about,
        )  # fmt: skip

    def save(self, folder: Path, *, name: str | None = None, shared: Shared | None = None) -> Path:
        """Write the folder; config.json comes last, so a folder with it is complete. `name` is the card's title.

        The files are written to a draft first, so that an error leaves an earlier model as it was. `shared` names the
        encoders that another member of an average stores.
        """
        check_folder(folder)
        write = partial(self._write, name=name or folder.name, shared=shared or Shared())
        return write_folder(folder, write, names=MODEL_FILES)

    def _write(self, folder: Path, *, name: str, shared: Shared) -> None:
        state = self.model.state_dict()
        weights = {name: t.detach().cpu().contiguous().clone() for name, t in shared.own(state).items()}
        spec, preparation = self.record.spec, folder / "preparation"
        preparation.mkdir()
        # `save` returns the settings, needed in any case; its files are removed if a member shares them
        settings = self.encoder.save(preparation)
        if shared.preparation is not None:
            shutil.rmtree(preparation)
        encoder = {"name": spec["encoder"], "settings": settings}
        head = {"name": spec["head"], "settings": self.model.head.settings}
        config = {"format": FORMAT, "spec": spec, "classes": list(self.classes), "encoder": encoder, "head": head}
        if earlier := catalog.lookup("necks", spec["neck"]).earlier:  # a later version may have other defaults
            config["neck"] = {"settings": {name: getattr(self.model.neck.options, name) for name in earlier}}
        if self.columns is not None:
            config["columns"] = list(self.columns)
        if self.forms:
            config["forms"] = forms.to_json(self.forms)
        if self.model.scale is not None:
            config["scale"] = list(self.model.scale)
        if self.members:
            config |= {"format": EXTENDED_FORMAT, "members": [member.weight for member in self.members]}
            shared_by_member = shared_encoders([saved.model for _, saved in self.all_members])
            for number, member in enumerate(self.members, start=1):
                own = replace(member.saved, reference=None)  # that of the first network is used
                own.save(member_folder(folder, number), shared=shared_by_member[number])
        if self.model.recall is not None:
            config |= {"format": EXTENDED_FORMAT, "recall": self.model.recall.name}
            save_recall(folder / RECALL, self.model.recall)
        if shared:
            config["format"], encoder["shared"] = SHARED_FORMAT, shared.json()
        save_tensors(folder / WEIGHTS, weights)
        write_text(folder / "record.json", self.record.text())
        members = [(each["weight"], each) for each in self.components.get("members", ())]
        about = card(name, self.classes, self.record, members=members, left_out=self.left_out)
        write_text(folder / "README.md", about)
        for part, file in ((self.calibration, CALIBRATION), (self.left_out, LEFT_OUT), (self.reference, REFERENCE)):
            if part is not None:
                part.save(folder / file)
        if self.held_out is not None:
            write_text(folder / HELD_OUT, json.dumps(self.held_out.to_json(), indent=1) + "\n")
        if self.sample is not None:
            save_sample(folder / SAMPLE, self.sample, size=self.encoder.size)
        write_text(folder / "config.json", json.dumps(config, indent=1) + "\n")


def load_model(folder: Path) -> SavedModel:
    """Load the current version of a model folder; nothing in it is executed or unpickled."""
    check_model(folder)
    folder = current_folder(folder)
    saved = _load(folder)
    weights, loaded = _member_weights(folder), [saved]
    for number in range(1, len(weights) + 1):
        member = _load(member_folder(folder, number), [each.model for each in loaded])
        if (member.classes, member.encoder.takes) != (saved.classes, saved.encoder.takes):
            raise BadInput(f"{folder} is not a valid model folder (its members differ in their classes): {AGAIN}")
        loaded.append(member)
    return replace(saved, members=tuple(map(Member, weights, loaded[1:])))


def _load(folder: Path, earlier: Sequence[Model] = ()) -> SavedModel:
    """Load one network; a member may share encoders with `earlier` ones of the same average."""
    try:
        config = _checked_config(read_json(folder / "config.json"), folder)
        shared = Shared.read(config, folder)
        weights = load_tensors(folder / WEIGHTS)[0] | shared.weights(folder, earlier)
        record = read(folder / "record.json")
        spec, classes, preparation = config["spec"], tuple(config["classes"]), shared.preparation_folder(folder)
        family = catalog.lookup("encoders", config["encoder"]["name"]).load().__self__
        limit = _size_limit(family, config, folder, shared)
        build = partial(family.load, preparation, without_retired(family, config["encoder"]["settings"]))
        # sizes in an untrusted folder are limited before memory is allocated, by the bytes of its files
        with ConstructionLimit(limit, where=str(folder)):
            encoder: Backbone = shared.backbone(earlier) or build()
            stated = config.get("neck", {"settings": {}})["settings"]
            options = {**catalog.lookup("necks", spec["neck"]).earlier, **spec["neck_args"], **stated}
            neck = catalog.build_neck(spec["neck"], encoder.width, len(classes), options=options)
            head = catalog.lookup("heads", config["head"]["name"]).load().__self__(**config["head"]["settings"])
            # parts that are inserted into a shared backbone would also change the network that it belongs to
            if shared and changes_backbone(neck, head):
                encoder = build()
            model = Model(encoder, neck, head)
        if encoder.size is not None:
            check_side(encoder.size)
        if spec.get("task") in SETS_OF_CLASSES and head.outputs != len(classes):
            raise TypeError(f"its head has {head.outputs} outputs for {len(classes)} classes")
        model.load_state_dict(weights)
        shared.tie(model, earlier)
        model.recall = load_recall(folder / RECALL, width=model.width) if "recall" in config else None
        model.scale = _checked_scale(config["scale"]) if spec.get("task") == "regress" else None
        stored = {name: load(folder / file) for name, (file, load) in READERS.items() if (folder / file).exists()}
        stored["columns"] = tuple(config["columns"]) if "columns" in config else None
        stored["forms"] = forms.from_json(config.get("forms", {}))
    except Exception as error:  # an untrusted folder can make any step fail
        if isinstance(error, BadInput) and not isinstance(error, Damaged):
            raise
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadInput(f"{folder} is not a valid model folder ({first}): {AGAIN}") from error
    return SavedModel(model.eval(), encoder, classes, record, **stored)


def _checked_config(config: Any, folder: Path) -> dict[str, Any]:
    """Validate the configuration before anything is built from it."""
    if config["format"] not in FORMATS:
        known = f"{FORMATS[0]} to {FORMATS[-1]}"
        raise BadInput(f"{folder} has model format {config['format']}, this version reads {known}: update holdfast")
    mappings = [config["spec"], config["spec"]["neck_args"], config["encoder"]["settings"], config["head"]["settings"]]
    mappings += [config["neck"], config["neck"]["settings"]] if "neck" in config else []
    if len(set(config["classes"])) < len(config["classes"]):
        raise TypeError("config.json has a class twice")
    names = [config["spec"]["neck"], config["encoder"]["name"], config["head"]["name"], *config["classes"]]
    if not all(isinstance(mapping, dict) for mapping in mappings) or not all(isinstance(name, str) for name in names):
        raise TypeError("config.json has an invalid structure")
    return config


def _checked_scale(pair: Any) -> OutputScale:
    """Validate mean and scale of a regression's target."""
    mean, scale = map(float, pair)
    if not math.isfinite(mean) or not 0 < scale < math.inf:
        raise TypeError("config.json has an invalid scale of the target")
    return OutputScale(mean, scale)


def _member_weights(folder: Path) -> list[float]:
    """Return the weights of further members; empty for a single network."""
    weights = read_json(folder / "config.json").get("members", [])
    valid = isinstance(weights, list) and all(isinstance(w, float) and 0 < w < 1 for w in weights)
    if not valid or sum(weights) >= 1:
        raise BadInput(f"{folder} is not a valid model folder (weights of its members are invalid): {AGAIN}")
    return weights


def _size_limit(family: Any, config: dict[str, Any], folder: Path, shared: Shared) -> int:
    """Check types and sizes of the settings; return an upper bound for the elements of a tensor.

    It is the number of bytes of all files, at least 16 million.
    """
    patterns = ("*.safetensors", "preparation/**/*")
    files = [path for each in shared.folders(folder) for pattern in patterns for path in each.glob(pattern)]
    limit = max(1 << 24, sum(path.stat().st_size for path in files if path.is_file()))
    if problem := type_error(family, config["encoder"]["settings"]):
        raise TypeError(problem)
    check_sizes([config[part]["settings"] for part in ("encoder", "head")], limit, where=str(folder / "config.json"))
    for path in sorted(shared.preparation_folder(folder).rglob("config.json")):
        check_sizes(read_json(path), limit, where=str(path))
    return limit


def check_model(folder: Path) -> None:
    """Raise unless a folder has a configuration, and only regular files that lie inside it."""
    if not (folder / "config.json").is_file():
        raise BadInput(f"{folder} is not a model folder (no config.json): create one with `holdfast fit`")
    root = folder.resolve()
    inside = [root, *([root.parents[1] / "blobs"] if root.parent.name == "snapshots" else [])]  # of a hub's cache
    for number, path in enumerate(folder.rglob("*")):
        target = path.resolve()
        if not any(target.is_relative_to(each) for each in inside):
            raise BadInput(f"{path} is a link out of the model folder: replace it with the file")
        if not (target.is_file() or target.is_dir()) or number > MAX_FILES:
            raise BadInput(f"{path} is not a regular file, or one of too many, in a model folder: remove it")


def check_folder(folder: Path) -> None:
    """Raise unless a folder is new, empty, or contains a complete or partial model."""
    if folder.is_file():
        raise BadInput(f"{folder} is a file: choose a folder with --out")
    if has_versions(folder):
        raise BadInput(f"{folder} is a model with several versions: choose a new folder with --out")
    if folder.is_dir() and not all((folder / name).exists() for name in ("config.json", "record.json")):
        others = sorted(p.name for p in folder.iterdir() if p.name not in INCOMPLETE and not p.name.endswith(".draft"))
        if others:
            raise BadInput(f"{folder} contains other files ({others[0]}): choose a new folder with --out")
