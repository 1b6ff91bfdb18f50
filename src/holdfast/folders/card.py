"""Model cards: the README of a model folder, written from its record, and publication on the Hugging Face hub."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.folders.versions import current_folder
from holdfast.record import RunRecord
from holdfast.uncertainty.conformal import LEVEL, measure
from holdfast.uncertainty.left_out import LeftOut


def to_predict(spec: Mapping[str, Any]) -> str:
    """Return a placeholder for the input of `holdfast predict`."""
    return "IMAGES/" if catalog.lookup("encoders", str(spec["encoder"])).takes == "image" else "NEW.csv"


def card(
    name: str, classes: Sequence[str], record: RunRecord, *, members: Sequence[tuple[float, Mapping[str, str]]] = (),
    left_out: LeftOut | None = None,
) -> str:  # fmt: skip
    """Return the card: training data, scores on held-out rows of the training domains, members, and usage.

    With outputs of left-out domains, it also has the coverage of prediction sets there.
    """
    spec, stage = record.spec, record.stages[-1]
    metric = spec["metric"]
    sizes = {domain: count for trained in record.stages for domain, count in trained["sizes"]["train"].items()}
    lines = [
        f"| {domain} | {sizes.get(domain, 0)} | {scores[metric]:.3f} |"
        for domain, scores in {**stage["test"], **stage["valid"]}.items()
        if scores[metric] is not None
    ]
    labels = ", ".join(classes[:20]) + (", ..." if len(classes) > 20 else "")
    task = catalog.lookup("tasks", str(spec.get("task", "classify")))
    kind = task.card.format(count=len(classes), labels=labels)
    neck = "" if spec.get("neck") in (None, "none") else f" and neck `{spec['neck']}`"
    average = "" if not members else _members_text(members)
    if len(seeds := record.analysis.get("soup", {}).get("averaged", [])) > 1:
        average = f"\nIts weights are the mean of the networks of the seeds {', '.join(map(str, seeds))}.\n"
    takes = catalog.lookup("encoders", str(spec["encoder"])).takes
    return f"""{header(spec, takes)}
# {name}

{kind}, trained by Holdfast {record.code["version"]} with method
`{spec["method"]}`{neck} on encoder `{spec["encoder"]}` ({spec["tune"]}).
{average}
Data: {spec["data"]} (content {spec["fingerprint"]}), seed {spec["seed"]}; step {stage["step"]} of {spec["steps"]} was
selected by {spec["select"]}.

| domain | training examples | {metric} on held-out rows of the domain |
|---|---|---|
{chr(10).join(lines)}

These scores are for the training domains. For unseen domains, see `holdfast compare`.
{_coverage_text(spec, left_out)}
```bash
holdfast predict {name} {to_predict(spec)} --out predictions.csv
```
"""


def _coverage_text(spec: Mapping[str, Any], left_out: LeftOut | None) -> str:
    """Describe the coverage of prediction sets on left-out domains; empty if it was not measured."""
    ordered = spec.get("task") == "ordinal"
    measured = [] if left_out is None else measure(left_out, LEVEL, ordered=ordered)
    if not measured:
        return ""
    size = "mean interval width" if spec.get("task") == "regress" else "mean labels per set"
    lines = [f"| {each.domain} | {each.examples} | {each.coverage:.3f} | {each.size:.4g} |" for each in measured]
    return f"""
Prediction sets with a nominal coverage of {LEVEL:g} (`--coverage {LEVEL:g}`), for each domain with a model that was not
trained on it and thresholds of the other domains:

| domain | examples | measured coverage | {size} |
|---|---|---|---|
{chr(10).join(lines)}
"""


def _members_text(members: Sequence[tuple[float, Mapping[str, str]]]) -> str:
    """Describe a weighted average; the first member is the network that the rest of the card describes."""
    lines = [f"| {weight:.2f} | {each['method']} | {each['encoder']} | {each['neck']} |" for weight, each in members]
    return f"""
Its probabilities are the weighted average of {len(members)} models. The other models are in `members`; the rest of this
card describes the first one.

| weight | method | encoder | neck |
|---|---|---|---|
{chr(10).join(lines)}
"""


def header(spec: Mapping[str, Any], takes: str) -> str:
    """Return the YAML header of a model card: library, task and tags."""
    task = catalog.lookup("tasks", str(spec.get("task", "classify"))).hub.get(takes)
    neck = spec.get("neck")
    names = [spec["method"], spec["encoder"], *([] if neck in (None, "none") else [neck])]
    tags = ["domain-generalization", *dict.fromkeys(_tag(str(name)) for name in names)]
    lines = ["library_name: holdfast", *([f"pipeline_tag: {task}"] if task else []), "tags:"]
    return "\n".join(["---", *lines, *(f'  - "{tag}"' for tag in tags), "---", ""])


def _tag(name: str) -> str:
    """Return the name of a part without local paths and characters that end a quoted string."""
    kind, colon, path = name.partition(":")
    return "".join(c for c in (f"{kind}:{Path(path).name}" if colon else name) if c.isprintable() and c not in '"\\')


def push_to_hub(
    folder: str | Path, repository: str, *, private: bool = True, token: str | None = None,
    message: str = "Upload model",
) -> str:  # fmt: skip
    """Upload the current version of a model folder to the Hugging Face hub and return its address.

    Args:
        folder: model folder that `holdfast fit` or `save_pretrained` wrote.
        repository: name on the hub, such as `user/reviews`; it is created if it does not exist.
        private: whether a new repository is visible to its owner only.
        token: access token; by default that of `hf auth login`.
        message: commit message.
    """
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise BadInput("pushing needs the package huggingface_hub: pip install huggingface_hub") from error
    if repository.count("/") > 1 or not repository.strip("/"):
        raise BadInput(f"'{repository}' is no name of a repository on the hub: use NAME or OWNER/NAME")
    current = current_folder(Path(folder))
    if not (current / "config.json").is_file():
        raise BadInput(f"{folder} is no model folder: name one that `holdfast fit` wrote")
    api = HfApi(token=token)
    address = api.create_repo(repository, private=private, exist_ok=True, repo_type="model")
    api.upload_folder(
        repo_id=repository, folder_path=str(current), commit_message=message, ignore_patterns=["versions/*", ".*"]
    )
    return str(address)
