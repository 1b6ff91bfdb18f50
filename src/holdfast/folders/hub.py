"""Hugging Face conventions: the header of a model card, and pushing a model folder to the hub."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.folders.versions import current_folder


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
