"""Continue the masked-word training of a text encoder on training and unlabelled texts before a fit."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.data.dataset import Dataset
from holdfast.models.pretrain import pretrain
from holdfast.run.progress import ProgressListener


def pretrain_for(
    dataset: Dataset, encoder: str, folder: Path, *, steps: int, batch: int | None = None, lr: float | None = None,
    length: int | None = None, seed: int = 0, device: str = "auto", watch: ProgressListener | None = None,
) -> tuple[str, tuple[str, ...]]:  # fmt: skip
    """Return the name of the encoder to use, and notes.

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
    done = pretrain(
        corpus, encoder=name, out=folder, steps=steps, batch=batch, lr=lr, length=length, seed=seed, device=device,
        watch=watch,
    )  # fmt: skip
    before, after = (float(np.mean([losses[domain] for domain in targets])) for losses in (done.before, done.after))
    change = f"the loss per masked word of the unlabelled texts changed from {before:.2f} to {after:.2f}"
    if after >= before:
        return name, (f"the masked-word training was refused and {name} is used as it is, because {change}",)
    return f"hf:{folder}", (f"the encoder was trained on masked words for {steps} steps: {change}",)
