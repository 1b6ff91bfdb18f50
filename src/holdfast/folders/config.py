"""Validation of the configuration of a model folder, before anything is built from it."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.core.errors import BadInput
from holdfast.core.files import LOCK_NAME, read_json
from holdfast.core.limits import check_sizes
from holdfast.core.settings import type_error
from holdfast.folders.versions import OPTIONAL, OWN, has_versions
from holdfast.nn.model import OutputScale

MAX_FILES = 10_000  # in a model folder
FORMAT = 1
EXTENDED_FORMAT = 2  # of a folder with further members or stored examples, which change its predictions
SHARED_FORMAT = 3  # of a member whose encoder another member stores
FORMATS = (FORMAT, EXTENDED_FORMAT, SHARED_FORMAT)
INCOMPLETE = (LOCK_NAME, "checkpoints", "recall.safetensors", *OWN, *OPTIONAL)  # files of an incomplete model folder
AGAIN = "fit the model again"


def checked_scale(pair: Any) -> OutputScale:
    """Validate mean and scale of a regression's target."""
    mean, scale = map(float, pair)
    if not math.isfinite(mean) or not 0 < scale < math.inf:
        raise TypeError("config.json has an invalid scale of the target")
    return OutputScale(mean, scale)


def checked_config(config: Any, folder: Path) -> dict[str, Any]:
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


def member_weights(folder: Path) -> list[float]:
    """Return the weights of further members; empty for a single network."""
    weights = read_json(folder / "config.json").get("members", [])
    valid = isinstance(weights, list) and all(isinstance(w, float) and 0 < w < 1 for w in weights)
    if not valid or sum(weights) >= 1:
        raise BadInput(f"{folder} is not a valid model folder (weights of its members are invalid): {AGAIN}")
    return weights


def size_bound(folders: Sequence[Path]) -> int:
    """Return an upper bound for the elements of a tensor: the bytes of all files, at least 16 million."""
    patterns = ("*.safetensors", "preparation/**/*")
    files = [path for folder in folders for pattern in patterns for path in folder.glob(pattern)]
    return max(1 << 24, sum(path.stat().st_size for path in files if path.is_file()))


def check_settings(family: Any, config: dict[str, Any], folder: Path, preparation: Path, limit: int) -> None:
    """Check types and sizes of the settings before anything is built from them."""
    if problem := type_error(family, config["encoder"]["settings"]):
        raise TypeError(problem)
    check_sizes([config[part]["settings"] for part in ("encoder", "head")], limit, where=str(folder / "config.json"))
    for path in sorted(preparation.rglob("config.json")):
        check_sizes(read_json(path), limit, where=str(path))


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
