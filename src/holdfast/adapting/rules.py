"""By which rule a trained model learns one more domain, and the spec of that run: what a network is stays as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.data.domain import Dataset
from holdfast.nn.growth import GrowsWords, holders
from holdfast.nn.model import Model
from holdfast.settings import GROUPS, make_spec
from holdfast.spec import Spec

FIXED = ("encoder", "neck", "head", "task", "tune", "plan", "data", "fingerprint")


def choose_rule(asked: str, model: Model, task: str, *, examples: bool) -> tuple[str, dict[str, Any]]:
    """The rule's name and settings of its own; `examples` says whether some of the earlier domains are there.

    `auto` grows where the network has slots, rehearses where there are examples, else is taught by the model as it was.
    """
    letters = ("M" if any(True for _ in holders(model)) else "") + (
        "V" if isinstance(model.backbone, GrowsWords) else ""
    )
    if asked == "auto":
        asked = "progressive" if letters else "replay" if examples else "lwf" if task == "classify" else "erm"
    if asked == "progressive":
        asked = "progressive(erm)"
    own = {"method.expand": letters} if asked.startswith("progressive(") and letters else {}
    for name, layer in catalog.layers("methods", asked):
        match layer.load().looks_back:
            case "examples" if not examples:
                raise BadInput(
                    f"method {name} looks at training examples of the earlier domains: give them with --earlier FILE, "
                    "fit with --keep-sample, or use lwf or progressive"
                )
            case "path":
                raise BadInput(
                    f"method {name} needs what the training of the earlier domains left on its way, which a model "
                    "folder does not hold: use ewc, replay, lwf or progressive"
                )
    return asked, own


def make_adapting_spec(
    before: Spec,
    dataset: Dataset,
    method: str,
    *,
    given: Mapping[str, Any],
    settings: Mapping[str, Any],
    device: torch.device,
) -> Spec:
    """The spec of the model as it was, with another rule and what is given; None in `given` stays as it was."""
    for key in settings:
        if key.partition(".")[0] in FIXED:
            raise BadInput(f"'{key}' belongs to the model as it was fitted and cannot be set now: leave it out")
    own = {f"{group}_args" for group in GROUPS}
    skipped = {*FIXED, *own, "method", "select", "processes"}
    carried = {each.name: getattr(before, each.name) for each in fields(before) if each.name not in skipped}
    for group in ("encoder", "neck", "head", "task"):
        carried |= {f"{group}.{name}": value for name, value in getattr(before, f"{group}_args").items()}
    carried |= {"task": before.task, "neck": before.neck, "head": before.head}
    carried["precision"] = before.precision if device.type == "cuda" else "fp32"
    carried |= {name: value for name, value in given.items() if value is not None}
    if given.get("steps") is not None:
        carried["every"] = max(1, min(before.every, given["steps"] // 4))
    spec = make_spec(
        dataset, encoder=before.encoder, tune=before.tune, settings={**carried, **settings}, device=device,
        method=method, plan="stream",
    )  # fmt: skip
    if spec.neck != before.neck:
        raise BadInput(
            f"method {method} needs a neck such as {spec.neck}, and this model was fitted with the neck {before.neck}: "
            "use another method, such as lwf or replay"
        )
    return spec
