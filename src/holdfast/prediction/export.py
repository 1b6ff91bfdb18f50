"""Export a model folder to ONNX or torch.export, with a JSON description of its inputs (b batch, c classes)."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput, check_known
from holdfast.core.files import write_atomic, write_text
from holdfast.core.inputs import Inputs, Joint, Tokens
from holdfast.core.table import TableRows, category_columns, numeric_columns
from holdfast.data.raw import Pixels, Raw, Table, Texts, Vectors
from holdfast.folders.format import SavedModel, load_model
from holdfast.nn.backbones.bag import BagBackbone
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.mixed import TwoParts
from holdfast.nn.backbones.tabular import FIRST, MISSING, UNKNOWN, TableBackbone
from holdfast.prediction.outputs import INTERVAL, label_thresholds
from holdfast.tasks.regress import in_units
from holdfast.uncertainty.calibration import temperature_of

FORMATS = {"onnx": ".onnx", "torch": ".pt2"}
TOLERANCE = 1e-4  # of probabilities
MAX_BATCH = 1024  # upper bound of the dynamic batch size
MAX_COUNTS = 1 << 16  # upper bound of the entries of a bag of n-grams
SAMPLE_TEXTS = ("one", "two words", "three short words", "a few more words than that")


@dataclass(frozen=True, slots=True)
class Exported:
    """Written files, and the largest difference of its predictions from the model's on a few examples."""

    program: Path
    about: Path
    difference: float


def export(model: str | Path, out: str | Path, *, format: str = "onnx", pairs: bool = False) -> Exported:
    """Write the program to `out` and its description next to it; the program is run once and verified."""
    check_known("format", format, FORMATS)
    out = Path(out)
    if out.suffix != FORMATS[format]:
        raise BadInput(f"a file of format {format} must end in {FORMATS[format]}; got '{out}'")
    saved = load_model(Path(model))
    module, sample = export_module(saved, pairs=pairs)
    with _quiet():
        program = _traced(saved, module, sample)
        if format == "onnx":
            outputs = _onnx(program, sample, out, output_name(saved))
        else:
            write_atomic(out, lambda draft: _save(program, draft))
            outputs = torch.export.load(out).module()(**sample.smaller).detach().numpy()
    predicted = saved.predict(sample.raw)
    expected = predicted.values if predicted.ends is None else np.hstack([predicted.values, predicted.ends])
    difference = float(np.abs(outputs - expected[: len(outputs)]).max())
    unit = 1.0 if saved.model.scale is None else saved.model.scale.scale
    if not difference <= TOLERANCE * unit:
        out.unlink()
        reason = f"its {output_name(saved)} differ from the model's by {difference:.2g}"
        raise BadInput(f"{out} was deleted because {reason}: use --format torch")
    description = json.dumps(_description(saved, sample, out, format), indent=1) + "\n"
    return Exported(out, write_text(out.with_name(f"{out.name}.json"), description), difference)


def _traced(saved: SavedModel, module: torch.nn.Module, sample: Sample) -> Any:
    try:
        return torch.export.export(module, (), sample.inputs, dynamic_shapes=sample.dynamic, strict=False)
    except Exception as error:  # networks with data-dependent control flow
        network = f"encoder {saved.record.spec['encoder']} or neck {saved.record.spec['neck']}"
        reason = f"{network} has data-dependent control flow ({type(error).__name__})"
        raise BadInput(f"this model cannot be exported because {reason}: use `holdfast serve` instead") from error


def _save(program: Any, draft: Path) -> None:
    buffer = io.BytesIO()  # the writer of torch prints a C++ stack if a file cannot be written
    torch.export.save(program, buffer)
    draft.write_bytes(buffer.getbuffer())


def _onnx(program: Any, sample: Sample, out: Path, output: str) -> np.ndarray:
    """Write the ONNX file and return its outputs for the sample."""
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise BadInput("ONNX needs onnx, onnxruntime and onnxscript: run `pip install 'holdfast[export]'`") from error
    try:
        exported = torch.onnx.export(program, dynamo=True, verbose=False, output_names=[output])
    except Exception as error:  # operators that ONNX does not support
        raise BadInput(f"ONNX does not support this model ({type(error).__name__}): use --format torch") from error
    assert exported is not None
    proto = exported.model_proto
    if proto.ByteSize() >= 1 << 31:
        raise BadInput("the weights exceed the 2 GB limit of an ONNX file: use --format torch")
    write_atomic(out, lambda draft: onnx.save(proto, str(draft), format="protobuf"))
    onnx.checker.check_model(str(out))
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    inputs = {name: value.numpy() for name, value in sample.smaller.items()}
    return np.asarray(session.run([output], inputs)[0])


def _description(saved: SavedModel, sample: Sample, out: Path, format: str) -> dict[str, Any]:
    """Return inputs, preprocessing and outputs as JSON."""
    dimensions = {0: "batch", 1: "length"}
    inputs = [
        {
            "name": name,
            "type": str(value.dtype).removeprefix("torch."),
            "shape": [dimensions[i] if i in sample.dynamic[name] else size for i, size in enumerate(value.shape)],
        }
        for name, value in sample.inputs.items()
    ]
    return {
        "program": out.name, "format": format, "task": saved.task, "labels": list(saved.classes), "inputs": inputs,
        "output": _output(saved),
        "preprocessing": _preprocessing(saved.encoder, out), **saved.components,
        "trained": {"version": saved.record.code["version"], "method": saved.record.spec["method"]},
    }  # fmt: skip


def output_name(saved: SavedModel) -> str:
    """Return the name of the program's output."""
    return "predictions" if saved.predicts == "numbers" else "probabilities"


def _output(saved: SavedModel) -> dict[str, Any]:
    """Describe the output; the thresholds of labels are not part of the program."""
    count, extra = len(saved.classes), dict[str, Any]()
    if saved.predicts == "numbers":
        count = _columns(saved)
        extra = {"columns": list(INTERVAL[:count])}
    elif saved.predicts == "labels":
        extra = {"thresholds": label_thresholds(saved).tolist()}
    return {"name": output_name(saved), "shape": ["batch", count], **extra}


def _columns(saved: SavedModel) -> int:
    """Return the number of columns of a regression: with an interval if all members have one."""
    calibrations = [member.calibration for _, member in saved.all_members]
    return len(INTERVAL) if all(each is not None and each.margin is not None for each in calibrations) else 1


def _preprocessing(encoder: Backbone, out: Path) -> dict[str, Any]:
    """Describe how raw examples become the inputs of the program; vocabularies and tokenizers are files next to it."""
    if isinstance(encoder, TwoParts):
        steps = _preprocessing(encoder.other, out)
        return {"takes": "mixed", **_table_steps(encoder.table), encoder.kind: steps}
    if isinstance(encoder, TableBackbone):
        return {"takes": "table", **_table_steps(encoder)}
    if encoder.takes == "vector":
        return {"takes": "vector", "features": encoder.settings["inputs"], "scaling": "inside the program"}
    if encoder.takes == "image":
        return {"takes": "image", "size": encoder.size, "values": "uint8, 0 to 255", "scaling": "inside the program"}
    if isinstance(encoder, BagBackbone):
        path = write_text(out.with_name(f"{out.name}.vocabulary.json"), json.dumps(encoder.vocabulary))
        about = "ids: columns in the order of the blocks; types: their counts; weights and norms inside the program"
        return {"takes": "text", "vocabulary": path.name, "inputs": about, **encoder.settings}
    tokenizer: Any = encoder.tokenizer  # recurrent encoders have none and cannot be traced
    path = write_text(out.with_name(f"{out.name}.tokenizer.json"), tokenizer.backend_tokenizer.to_str())
    settings = {key: encoder.settings.get(key) for key in ("length", "template")}
    return {"takes": "text", "tokenizer": path.name, "padding": tokenizer.pad_token_id, **settings}


def _table_steps(encoder: TableBackbone) -> dict[str, Any]:
    """Describe how a row becomes numbers and codes: the columns of both inputs, in their order."""
    numbers = [{"name": column.name, "kind": column.kind} for column in numeric_columns(encoder.schema)]
    codes = [
        {"name": column.name, "codes": {value: i for i, value in enumerate(column.categories, start=FIRST)}}
        for column in category_columns(encoder.schema)
    ]
    rule = "NaN where a value is missing; booleans are 0 and 1, dates are days since 1970-01-01"
    return {
        "numbers": numbers, "numbers_are": rule, "codes": codes, "missing": MISSING, "unknown": UNKNOWN,
        "scaling": "inside the program",
    }  # fmt: skip


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings of torch's exporters."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


@dataclass(frozen=True, slots=True)
class Sample:
    """Example inputs for tracing, and their dynamic dimensions."""

    inputs: dict[str, Tensor]
    dynamic: dict[str, dict[int, Any]]
    raw: Raw

    @property
    def smaller(self) -> dict[str, Tensor]:
        """A batch of another size than the traced one."""
        return {name: value[:3] for name, value in self.inputs.items()}


class MemberModule(nn.Module):
    """Predictions of one network: calibrated probabilities (b, c) of classes or of labels, or numbers (b, 1 or 3)."""

    def __init__(self, saved: SavedModel) -> None:
        super().__init__()
        self.model, self.temperature, self.predicts = saved.model, temperature_of(saved.calibration), saved.predicts
        self.margin = None if saved.calibration is None else saved.calibration.margin

    def forward(self, x: Inputs) -> Tensor:
        outputs = self.model(x)
        if self.model.scale is not None:
            return in_units(outputs, self.margin, self.model.scale)
        return outputs.sigmoid() if self.predicts == "labels" else (outputs / self.temperature).softmax(dim=-1)


class ExportModule(nn.Module):
    """Predictions from plain tensors: those of one network, or the weighted average of several.

    The tensors are vectors (b, d) or images (b, 3, s, s) `x`; token ids (b, t) with their mask and, for text pairs,
    segment ids; or rows of a table: numbers (b, p), NaN where one is missing, and codes of categories (b, q), alone or
    with a text or an image.
    """

    def __init__(self, saved: SavedModel) -> None:
        super().__init__()
        self.members = nn.ModuleList([MemberModule(member) for _, member in saved.all_members])
        self.weights = [weight for weight, _ in saved.all_members]
        self.columns = _columns(saved) if saved.predicts == "numbers" else None

    def forward(
        self, x: Tensor | None = None, numbers: Tensor | None = None, codes: Tensor | None = None,
        ids: Tensor | None = None, mask: Tensor | None = None, types: Tensor | None = None, image: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        tensors: list[Inputs] = [each for each in (x, image) if each is not None]
        if ids is not None and mask is not None:
            tensors.append(Tokens(ids, mask.bool(), types))
        if numbers is not None and codes is not None:
            tensors.insert(0, Joint(numbers, codes))
        joined = tensors[0] if len(tensors) == 1 else Joint(*tensors)
        if len(self.members) == 1:
            return self.members[0](joined)
        terms = zip(self.weights, self.members, strict=True)
        return torch.stack([weight * member(joined)[:, : self.columns] for weight, member in terms]).sum(dim=0)


def export_module(saved: SavedModel, *, pairs: bool = False) -> tuple[ExportModule, Sample]:
    """Return the module to trace and example inputs; raise if the model cannot be exported."""
    if not saved.predicts:
        fix = "only classifiers, regressions and multi-label models are supported"
        raise BadInput(f"a model of the task {saved.task} cannot be exported: {fix}")
    if saved.encoder.takes == "graph":
        raise BadInput("graph models cannot be exported: only texts, vectors, tables and images are supported")
    if saved.depends_on_batch:
        fix = "fit it with neck.context=support, or with neck.eval_capacity=0 if it has experts"
        raise BadInput(f"this model cannot be exported because its predictions depend on the batch: {fix}")
    encoder, key = saved.encoder, saved.encoder.preparation_key()
    for number, (_, member) in enumerate(saved.all_members):
        if member.encoder.preparation_key() != key:
            names = " and ".join(str(each.record.spec["encoder"]) for each in (saved, member))
            fix = f"use `holdfast serve`, or export a single member such as members/{number}"
            raise BadInput(f"this average of models cannot be exported because {names} have different inputs: {fix}")
        member.model.cpu().eval().requires_grad_(False)
        member.model.precision = "fp32"
    raw = _example_inputs(saved, pairs=pairs)
    store = encoder.prepare(raw.take(np.arange(len(raw)), size=encoder.size))
    named = _named_inputs(encoder, store.take(torch.arange(len(raw))))
    if named is None:
        raise BadInput(
            f"models with the encoder {saved.record.spec['encoder']} cannot be exported: use `holdfast serve`"
        )
    batch = torch.export.Dim("batch", min=1, max=MAX_BATCH)
    sequences = ("ids", "mask", "types")
    text = encoder.other if isinstance(encoder, TwoParts) else encoder
    longest = int(text.settings.get("length", MAX_COUNTS if isinstance(text, BagBackbone) else MAX_BATCH))
    length = torch.export.Dim("length", min=2, max=longest) if "ids" in named else None
    dynamic = {name: {0: batch, 1: length} if name in sequences else {0: batch} for name in named}
    return ExportModule(saved), Sample(named, dynamic, raw)


def _named_inputs(encoder: Backbone, x: Inputs) -> dict[str, Tensor] | None:
    """Return the inputs of a program as named tensors; None for inputs of another kind."""
    if isinstance(x, Tensor):
        return {"image" if isinstance(encoder, TwoParts) else "x": x}
    if isinstance(x, Tokens):
        return {"ids": x.ids, "mask": x.mask.long()} | ({} if x.types is None else {"types": x.types})
    if isinstance(x, Joint) and isinstance(encoder, TwoParts):
        first, second = _named_inputs(encoder.table, x.first), _named_inputs(encoder, x.second)
        return None if first is None or second is None else {**first, **second}
    if isinstance(x, Joint) and isinstance(encoder, TableBackbone):
        assert isinstance(x.first, Tensor)
        assert isinstance(x.second, Tensor)
        return {"numbers": x.first, "codes": x.second}
    return None


def _example_inputs(saved: SavedModel, *, pairs: bool) -> Raw:
    """Return a few examples of the kind the model expects."""
    encoder, rng = saved.encoder, np.random.default_rng(0)
    count, size = len(SAMPLE_TEXTS), encoder.size or 224
    pixels = partial(rng.integers, 0, 256, (count, 3, size, size), dtype=np.uint8)
    if isinstance(encoder, TwoParts):
        companion = torch.from_numpy(pixels()) if encoder.kind == "image" else _example_texts(encoder.other)
        return Table.of(replace(_example_rows(encoder.table, rng), companion=companion))
    if encoder.takes == "text":
        texts = _example_texts(encoder)
        return Texts.of([(text, texts[0]) for text in texts] if pairs else texts)
    if isinstance(encoder, TableBackbone):
        return Table.of(_example_rows(encoder, rng))
    if encoder.takes == "vector":
        return Vectors(rng.normal(size=(count, int(encoder.settings["inputs"]))))
    return Pixels(pixels())


def _example_texts(encoder: Backbone) -> list[str]:
    """Return texts of different lengths; those for counts of n-grams have some that the model knows."""
    if not isinstance(encoder, BagBackbone):
        return list(SAMPLE_TEXTS)
    known = [gram for grams in encoder.vocabulary.values() for gram in grams[:4]]
    return [f"{text} {' '.join(known[i:])}" for i, text in enumerate(SAMPLE_TEXTS)]


def _example_rows(encoder: TableBackbone, rng: np.random.Generator) -> TableRows:
    """Return rows with missing numbers, missing categories and unknown categories."""
    rows, knots = len(SAMPLE_TEXTS), encoder.knots.cpu().float()
    numbers = torch.full((rows, len(knots)), torch.nan)
    numbers[1 : 1 + knots.shape[1]] = knots.T[: rows - 1].where(knots.T[: rows - 1].isfinite(), torch.nan)
    limits = [len(column.categories) for column in category_columns(encoder.schema)]
    return TableRows(encoder.schema, numbers, torch.from_numpy(rng.integers(-2, limits, (rows, len(limits)), np.int32)))
