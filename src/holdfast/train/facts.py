"""Facts that defaults depend on: the data, the machine, and the sizes of texts and images."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from holdfast import catalog
from holdfast.catalog.entry import EXAMPLE_TASKS, EncoderEntry
from holdfast.core import parallel
from holdfast.core.errors import BadInput
from holdfast.core.forking import import_early
from holdfast.core.inputs import Question
from holdfast.data.dataset import Dataset
from holdfast.data.decode import open_image
from holdfast.data.splits import TEST
from holdfast.defaults import LENGTH, SIDE
from holdfast.spec import Spec

SAMPLE = 100  # texts per domain whose tokens are counted
CHARACTERS_PER_TOKEN, OVERLAP = 4, 1.5  # of English texts; tokens of windows per token of a text
FILES = 40  # images whose sides are read


@dataclass(frozen=True)
class DataFacts:
    """A data set, the task and the encoder of a run, and the device; sizes are measured when they are needed."""

    dataset: Dataset
    task: str
    encoder: EncoderEntry
    device: str

    @property
    def rows(self) -> int:
        return len(self.dataset)

    @property
    def domains(self) -> int:
        return len(self.dataset.domains)

    @property
    def bf16(self) -> bool:
        return self.device == "cuda" and torch.cuda.is_bf16_supported()

    @property
    def processes(self) -> int:
        return parallel.world_size()

    def length(self, options: Mapping[str, Any]) -> int | None:
        """Return the number of tokens that suits the texts, unless it is the encoder's own."""
        if not self.encoder.tokens or self.task not in EXAMPLE_TASKS:
            return None
        import_early(self.encoder.target.partition(":")[0])  # as the next line, imports transformers: seconds
        from holdfast.nn.backbones.length import choose_length

        examples = self.dataset.raw.take(counted_rows(self.dataset))
        package = {"package": self.encoder.packaged} if self.encoder.packaged else {}
        try:
            return choose_length(examples, {**package, **self.encoder.fixed, **options})
        except BadInput:  # building the encoder raises the same error
            return None

    def side(self) -> float:
        """Return the median of the longer sides of some images."""
        rows = counted_rows(self.dataset)
        rows, files = rows[:: -(-len(rows) // FILES)], self.dataset.raw.files()
        if files is None:
            return max(self.dataset.raw.take(rows[:1]).shape[-2:])
        return float(np.median([_longer_side(files[row]) for row in rows]))


def tokens_to_encode(dataset: Dataset, spec: Spec) -> int:
    """Return the tokens of a text that an encoder reads: at most its length, of questions all windows of the text."""
    examples = dataset.raw.take(counted_rows(dataset)) if spec.task not in EXAMPLE_TASKS else ()
    characters = [len(each.context) for each in examples if isinstance(each, Question)]
    if characters:
        return round(np.mean(characters) / CHARACTERS_PER_TOKEN * OVERLAP)
    return spec.encoder_args.get(LENGTH) or 0


def size_settings(encoder: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with which `make_spec` keeps the sizes of a spec with this encoder and these settings."""
    try:
        entry = catalog.lookup("encoders", encoder)
    except BadInput:  # of a plug-in that this installation does not have
        return {}
    if not isinstance(entry, EncoderEntry):
        return {}
    names = [*([LENGTH] if entry.tokens else []), *entry.cpu, *([SIDE] if entry.cpu_sides else [])]
    return {f"encoder.{name}": options.get(name) for name in names}


def _longer_side(file: Any) -> int:
    """Return the pixels of the longer side that the header of an image states; 0 if it cannot be read."""
    try:
        with open_image(file) as image:
            return max(image.size)
    except Exception:  # a corrupt file can raise any exception; decoding it reports the error
        return 0


def counted_rows(dataset: Dataset) -> np.ndarray:
    """Return at most 100 rows per domain, at equal distances; rows that are marked as test rows are left out."""
    chosen = []
    for name in dataset.domains:
        rows = dataset.rows_of(name)
        rows = rows if dataset.split is None else rows[dataset.split[rows] != TEST]
        at = np.linspace(0, len(rows) - 1, min(SAMPLE, len(rows))).astype(np.int64)
        chosen.append(rows[at])
    return np.concatenate(chosen)
