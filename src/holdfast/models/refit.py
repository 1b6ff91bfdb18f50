"""From a comparison to a model: the configuration that was chosen, trained on all domains and saved."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from holdfast.comparison import Comparison
from holdfast.core import parallel
from holdfast.core.errors import BadInput
from holdfast.data.splits import drop_test_domains
from holdfast.estimator import DomainClassifier
from holdfast.models.saved import check_folder
from holdfast.record import read
from holdfast.run.occupied import COMPARED
from holdfast.run.progress import ProgressListener
from holdfast.run.settings import settings_of

# a model of all domains differs from the runs that were compared in these, and in nothing else
OWN = ("plan", "plan_args", "select", "seed", "precision", "processes")


def refit(
    done: Comparison,
    folder: str | Path,
    *,
    device: str = "auto",
    cache: bool = True,
    watch: ProgressListener | None = None,
) -> Path:
    """Train the choice of a comparison on all its domains; a folder that holds that very model is left as it is."""
    folder, reason = Path(folder), done.why_no_model
    if reason is not None or done.decision is None:
        raise BadInput(reason or "nothing was chosen")
    dataset = drop_test_domains(done.dataset)
    if parallel.from_first(partial(_holds, folder, {**done.decision.spec, "fingerprint": dataset.fingerprint})):
        return folder
    check_folder(folder)
    spec = done.decision.spec
    classifier = DomainClassifier(
        spec["method"], encoder=spec["encoder"], tune=spec["tune"], steps=spec["steps"], batch=spec["batch"],
        lr=spec["lr"], metric=spec["metric"], seed=spec["seed"], device=device, cache=cache,
        settings={key: value for key, value in settings_of(spec).items() if key not in OWN},
    )  # fmt: skip
    classifier.fit_dataset(dataset, folder=folder, watch=watch, agrees=COMPARED)
    return folder


def _holds(folder: Path, wanted: dict[str, Any]) -> bool:
    path = folder / "record.json"
    if not path.is_file() or not (folder / "config.json").is_file():
        return False
    try:
        found = read(path).spec
    except BadInput:
        return False
    return all(found.get(key) == value for key, value in wanted.items() if key not in OWN)
