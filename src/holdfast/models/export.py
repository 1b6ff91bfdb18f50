"""export: a model folder to one program, ONNX or torch.export's, with a page of JSON that says how to feed it.

b batch, c classes
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput, unknown
from holdfast.core.files import write_atomic, write_text
from holdfast.core.inputs import Inputs, Tokens
from holdfast.data.raw import Pixels, Raw, Texts, Vectors
from holdfast.models.saved import SavedModel, load_model

FORMATS = {"onnx": ".onnx", "torch": ".pt2"}
CLOSE = 1e-4  # how far probabilities may lie apart
OUTPUT = "probabilities"


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written, and how far its probabilities lie from the model's own on a few examples."""

    program: Path
    about: Path
    difference: float


def export(model: str | Path, out: str | Path, *, format: str = "onnx", pairs: bool = False) -> Exported:
    """Write the program to `out` and what one must know of it beside it; it is run once and compared."""
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    out = Path(out)
    if out.suffix != FORMATS[format]:
        raise BadInput(f"a program in the format {format} ends in {FORMATS[format]}: name the file so, not '{out}'")
    saved = load_model(Path(model))
    module, sample = flat(saved, pairs=pairs)
    with _quiet():
        program = _recorded(saved, module, sample)
        if format == "onnx":
            found = _onnx(program, sample, out)
        else:
            write_atomic(out, lambda draft: _saved(program, draft))
            found = torch.export.load(out).module()(**_fewer(sample)).detach().numpy()
    difference = float(np.abs(found - saved.probabilities(sample.raw)[: len(found)]).max())
    if not difference <= CLOSE:
        out.unlink()
        raise BadInput(f"the program's probabilities differ from the model's by {difference:.2g}: it was not kept")
    about = write_text(_beside(out, "json"), json.dumps(_about(saved, sample, out, format), indent=1) + "\n")
    return Exported(out, about, difference)


def _beside(out: Path, ending: str) -> Path:
    """A file of this program alone: one of the same name in the other format has its own."""
    return out.with_name(f"{out.name}.{ending}")


def _recorded(saved: SavedModel, module: torch.nn.Module, sample: Sample) -> Any:
    try:
        return torch.export.export(module, (), sample.inputs, dynamic_shapes=sample.free, strict=False)
    except Exception as error:  # whatever a network does that cannot be recorded
        name = saved.record.spec["encoder"]
        raise BadInput(
            f"this model cannot be exported: its encoder {name} or neck {saved.record.spec['neck']} decides by the "
            f"values of an input what to do ({type(error).__name__})"
        ) from error


def _fewer(sample: Sample) -> dict[str, Tensor]:
    """Another number of examples than the program was recorded with."""
    return {name: value[:3] for name, value in sample.inputs.items()}


def _saved(program: Any, draft: Path) -> None:
    with draft.open("wb") as file:
        torch.export.save(program, file)


def _onnx(program: Any, sample: Sample, out: Path) -> np.ndarray:
    """Write it, and what it says of the sample."""
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise BadInput("ONNX needs onnx, onnxruntime and onnxscript: run `pip install 'holdfast[export]'`") from error
    try:
        made = torch.onnx.export(program, dynamo=True, verbose=False, output_names=[OUTPUT])
    except Exception as error:  # operations that ONNX lacks
        raise BadInput(f"ONNX has no way to say this model ({type(error).__name__}): try --format torch") from error
    assert made is not None
    proto = made.model_proto
    if proto.ByteSize() >= 1 << 31:
        raise BadInput("this model has more than 2 GB of weights, which one ONNX file cannot hold: use --format torch")
    write_atomic(out, lambda draft: onnx.save(proto, str(draft), format="protobuf"))
    onnx.checker.check_model(str(out))
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    fed = {name: value.numpy() for name, value in _fewer(sample).items()}
    return np.asarray(session.run([OUTPUT], fed)[0])


def _about(saved: SavedModel, sample: Sample, out: Path, format: str) -> dict[str, Any]:
    """Inputs by name, how raw examples become them, what the outputs mean."""
    free = {0: "batch", 1: "length"}
    inputs = [
        {
            "name": name,
            "type": str(value.dtype).removeprefix("torch."),
            "shape": [free[i] if i in sample.free[name] else size for i, size in enumerate(value.shape)],
        }
        for name, value in sample.inputs.items()
    ]
    return {
        "program": out.name,
        "format": format,
        "task": saved.task,
        "labels": list(saved.classes),
        "inputs": inputs,
        "output": {"name": OUTPUT, "shape": ["batch", len(saved.classes)]},
        "preprocessing": _preprocessing(saved, out),
        **saved.parts,
        "trained": {"version": saved.record.code["version"], "method": saved.record.spec["method"]},
    }


def _preprocessing(saved: SavedModel, out: Path) -> dict[str, Any]:
    encoder = saved.encoder
    if encoder.takes == "vector":
        return {"takes": "vector", "features": encoder.settings["inputs"], "scaling": "inside the program"}
    if encoder.takes == "image":
        return {"takes": "image", "size": encoder.size, "values": "uint8, 0 to 255", "scaling": "inside the program"}
    tokenizer: Any = encoder.tokenizer  # recurrent encoders, which have none, are not recorded
    beside = _beside(out, "tokenizer.json")
    write_text(beside, tokenizer.backend_tokenizer.to_str())
    settings = {key: encoder.settings.get(key) for key in ("length", "template")}
    return {"takes": "text", "tokenizer": beside.name, "padding": tokenizer.pad_token_id, **settings}


@contextmanager
def _quiet() -> Iterator[None]:
    """Torch's exporters warn of packages that are not needed and of what they will change one day."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


MOST = 1024  # examples at once, which a program must be told
WORDS = ("one", "two words", "three short words", "a few more words than that")


@dataclass(frozen=True, slots=True)
class Sample:
    """Inputs by name to record a program with, and the dimensions in which others may differ."""

    inputs: dict[str, Tensor]
    free: dict[str, dict[int, Any]]
    raw: Raw


class Flat(nn.Module):
    """softmax(model(x) / temperature), (b, c): what the model says, calibrated as it is offline."""

    def __init__(self, model: nn.Module, temperature: float) -> None:
        super().__init__()
        self.model, self.temperature = model, temperature

    def probabilities(self, x: Inputs) -> Tensor:
        return (self.model(x) / self.temperature).softmax(dim=-1)


class FlatTensor(Flat):
    """Of vectors (b, d) or of images (b, 3, s, s)."""

    def forward(self, x: Tensor) -> Tensor:
        return self.probabilities(x)


class FlatTokens(Flat):
    """Of token ids (b, t) with their mask."""

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.probabilities(Tokens(ids, mask.bool()))


class FlatPairs(Flat):
    """The same with the segment of each token."""

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
        return self.probabilities(Tokens(ids, mask.bool(), types))


def flat(saved: SavedModel, *, pairs: bool = False) -> tuple[Flat, Sample]:
    """The module and a sample of its inputs, or one sentence where there can be none."""
    if saved.task != "classify":
        raise BadInput(f"a model for the task {saved.task} cannot be exported: only classifiers can")
    if saved.encoder.takes == "graph":
        raise BadInput("a model that takes graphs cannot be exported: texts, vectors and images can")
    if saved.model.prediction_batch is not None:
        raise BadInput(
            "this model cannot be exported: others of a batch change a prediction; fit it with neck.context=support, "
            "or, where experts have a capacity, with neck.eval_capacity=0"
        )
    raw = _raw(saved, pairs=pairs)
    store = saved.encoder.prepare(raw.take(np.arange(len(raw)), size=saved.encoder.size))
    saved.model.cpu().eval().requires_grad_(False)
    saved.model.precision = "fp32"
    return _module(saved, store.take(torch.arange(len(raw))), raw)


def _raw(saved: SavedModel, *, pairs: bool) -> Raw:
    """A few examples of the kind that the model takes."""
    encoder, chance = saved.encoder, np.random.default_rng(0)
    if encoder.takes == "text":
        return Texts.of([(text, WORDS[0]) for text in WORDS] if pairs else list(WORDS))
    if encoder.takes == "vector":
        return Vectors(chance.normal(size=(len(WORDS), int(encoder.settings["inputs"]))))
    size = encoder.size or 224
    return Pixels(chance.integers(0, 256, (len(WORDS), 3, size, size), dtype=np.uint8))


def _module(saved: SavedModel, x: Inputs, raw: Raw) -> tuple[Flat, Sample]:
    batch = torch.export.Dim("batch", min=1, max=MOST)
    temperature = 1.0 if saved.gauge is None else saved.gauge.temperature
    if isinstance(x, Tensor):
        return FlatTensor(saved.model, temperature), Sample({"x": x}, {"x": {0: batch}}, raw)
    assert isinstance(x, Tokens)
    length = torch.export.Dim("length", min=2, max=int(saved.encoder.settings.get("length", MOST)))
    named = {"ids": x.ids, "mask": x.mask.long()} | ({} if x.types is None else {"types": x.types})
    made = FlatTokens if x.types is None else FlatPairs
    return made(saved.model, temperature), Sample(named, {name: {0: batch, 1: length} for name in named}, raw)
