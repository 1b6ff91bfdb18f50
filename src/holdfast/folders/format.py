"""Model folders: weights, configuration, preprocessing and a model card (n examples, c classes)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from holdfast import catalog
from holdfast.core.checkpoint import load_tensors, save_tensors
from holdfast.core.errors import BadInput, Damaged
from holdfast.core.files import read_json, write_folder, write_text
from holdfast.core.limits import ConstructionLimit
from holdfast.core.settings import without_retired
from holdfast.data.align import align_features, model_columns
from holdfast.data.dataset import Dataset
from holdfast.data.load import load_data
from holdfast.data.readers.forms import Form
from holdfast.data.readers.forms import from_json as forms_from_json
from holdfast.data.readers.forms import to_json as forms_to_json
from holdfast.data.readers.in_memory import Source
from holdfast.data.sample import Sample, load_sample, save_sample
from holdfast.data.splits import HeldOut
from holdfast.folders.card import card
from holdfast.folders.config import (
    AGAIN,
    EXTENDED_FORMAT,
    FORMAT,
    SHARED_FORMAT,
    check_folder,
    check_model,
    check_settings,
    checked_config,
    checked_scale,
    member_weights,
    size_bound,
)
from holdfast.folders.predictor import Predictor
from holdfast.folders.shared import MEMBERS, WEIGHTS, Shared, changes_backbone, member_folder, shared_encoders
from holdfast.folders.versions import OWN, current_folder
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.small import check_side
from holdfast.nn.experts.graft import describe_experts
from holdfast.nn.memory.recall import load_recall, save_recall
from holdfast.nn.model import Model
from holdfast.record import RunRecord, read
from holdfast.train.assemble import Assembly
from holdfast.uncertainty.arrays import example_ids
from holdfast.uncertainty.calibration import (
    Calibration,
)
from holdfast.uncertainty.left_out import FILE as LEFT_OUT
from holdfast.uncertainty.left_out import LeftOut
from holdfast.uncertainty.reference import FILE as REFERENCE
from holdfast.uncertainty.reference import Reference

SETS_OF_CLASSES = ("classify", "ordinal", "multilabel")  # tasks with one output per class
CALIBRATION, HELD_OUT, SAMPLE = "gauge.safetensors", "heldout.json", "sample.safetensors"
RECALL = "recall.safetensors"  # stored examples that predictions read; it changes without a new version
MODEL_FILES = (*OWN, CALIBRATION, SAMPLE, RECALL, LEFT_OUT, REFERENCE, MEMBERS)  # config.json is the first
READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {  # files that not every model has, by the field they hold
    "calibration": (CALIBRATION, Calibration.load),
    "held_out": (HELD_OUT, lambda path: HeldOut.from_json(read_json(path))),
    "sample": (SAMPLE, load_sample),
    "left_out": (LEFT_OUT, LeftOut.load),
    "reference": (REFERENCE, Reference.load),
}


@dataclass(frozen=True)
class SavedModel(Predictor):
    """A trained network with its preprocessing, class names and training record.

    `calibration` holds temperature and foreign score, `held_out` the examples it was not trained on, `sample` some of
    its data; models of earlier formats have none of them. With further `members`, probabilities, numbers, intervals and
    thresholds are the weighted average of this network and the members.
    """

    model: Model
    encoder: Backbone
    classes: tuple[str, ...]
    record: RunRecord
    calibration: Calibration | None = None
    held_out: HeldOut | None = None
    sample: Sample | None = None
    columns: tuple[str, ...] | None = None  # names of the features of a table
    members: tuple[Member, ...] = ()  # further models, with weights that sum to less than 1
    left_out: LeftOut | None = None  # outputs of runs that left out one domain each
    reference: Reference | None = None  # statistics of held-out examples, for `watch`
    forms: Mapping[str, Form] = field(default_factory=dict)  # how the training data writes numbers and dates

    @staticmethod
    def of(assembly: Assembly, dataset: Dataset, record: RunRecord, held_out: HeldOut, **stored: Any) -> SavedModel:
        """Return the trained network of a run on a data set with what its folder stores."""
        model = assembly.deploy()
        if model.recall is not None and model.recall.rows:  # stored examples can be deleted by their content
            model.recall.ids, model.recall.rows = example_ids(dataset.raw, model.recall.rows), []
        about = {"classes": dataset.classes, "columns": dataset.columns, "forms": dataset.forms, **stored}
        return SavedModel(model, assembly.encoder, record=record, held_out=held_out, **about)

    def read_columns(self, columns: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Return the roles to read new data with: those of the user and the model's columns."""
        return model_columns(columns, self.encoder.schema, self.columns, self.forms, size=self.encoder.size)

    def read(self, data: Source, *, columns: Mapping[str, Any] | None = None, **options: Any) -> Dataset:
        """Read new data with the model's columns; `options` are those of `load_data`."""
        return self.align(load_data(data, columns=self.read_columns(columns), **options))

    def align(self, dataset: Dataset) -> Dataset:
        """Return new data with the model's columns, in their order."""
        return align_features(dataset, self.columns, self.encoder.schema)

    @property
    def weight(self) -> float:
        """Weight of this network; the rest is that of the members."""
        return 1.0 - sum(member.weight for member in self.members)

    @property
    def depends_on_batch(self) -> bool:
        """Whether other examples of a request may change a prediction."""
        return any(saved.model.prediction_batch is not None for _, saved in self.all_members)

    @property
    def domains(self) -> tuple[str, ...]:
        """Training domains in order."""
        return tuple(dict.fromkeys(name for stage in self.record.stages for name in stage["train"]))

    @property
    def components(self) -> dict[str, Any]:
        """Neck and expert layers, for exported and served models."""
        names = {"neck": self.record.spec["neck"], "experts": describe_experts(self.model.backbone)}
        if self.members:
            specs = [(weight, saved.record.spec) for weight, saved in self.all_members]
            names["members"] = [
                {"weight": weight, **{name: str(spec[name]) for name in ("method", "encoder", "neck")}}
                for weight, spec in specs
            ]
        return names

    @property
    def all_members(self) -> tuple[Member, ...]:
        """This network and the further members."""
        return (Member(self.weight, self), *self.members)

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
            config["forms"] = forms_to_json(self.forms)
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


class Member(NamedTuple):
    """A model whose predictions are averaged with this weight."""

    weight: float
    saved: SavedModel


def load_model(folder: Path) -> SavedModel:
    """Load the current version of a model folder; nothing in it is executed or unpickled."""
    check_model(folder)
    folder = current_folder(folder)
    saved = _load(folder)
    weights, loaded = member_weights(folder), [saved]
    for number in range(1, len(weights) + 1):
        member = _load(member_folder(folder, number), [each.model for each in loaded])
        if (member.classes, member.encoder.takes) != (saved.classes, saved.encoder.takes):
            raise BadInput(f"{folder} is not a valid model folder (its members differ in their classes): {AGAIN}")
        loaded.append(member)
    return replace(saved, members=tuple(map(Member, weights, loaded[1:])))


def _load(folder: Path, earlier: Sequence[Model] = ()) -> SavedModel:
    """Load one network; a member may share encoders with `earlier` ones of the same average."""
    try:
        config = checked_config(read_json(folder / "config.json"), folder)
        shared = Shared.read(config, folder)
        weights = load_tensors(folder / WEIGHTS)[0] | shared.weights(folder, earlier)
        record = read(folder / "record.json")
        spec, classes = config["spec"], tuple(config["classes"])
        limit, preparation = size_bound(shared.folders(folder)), shared.preparation_folder(folder)
        family = catalog.lookup("encoders", config["encoder"]["name"]).load().__self__
        check_settings(family, config, folder, preparation, limit)
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
        model.scale = checked_scale(config["scale"]) if spec.get("task") == "regress" else None
        forms = forms_from_json(config.get("forms", {}))
        stored = {name: load(folder / file) for name, (file, load) in READERS.items() if (folder / file).exists()}
        stored["columns"] = tuple(config["columns"]) if "columns" in config else None
    except Exception as error:  # an untrusted folder can make any step fail
        if isinstance(error, BadInput) and not isinstance(error, Damaged):
            raise
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadInput(f"{folder} is not a valid model folder ({first}): {AGAIN}") from error
    return SavedModel(model.eval(), encoder, classes, record, forms=forms, **stored)
