"""Build the wheel and the source archive, install the wheel outside the repository and use it: python -m tests.dist.

`--share` installs the wheel alone and takes its dependencies from the present environment, which saves minutes.
"""

import argparse
import json
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
import venv
import zipfile
from pathlib import Path

from tests.e2e.conftest import write_reviews

ROOT = Path(__file__).resolve().parents[1]
NEEDED = (
    "py.typed",
    "report/base.html",
    "report/page.html",
    "serve/docs.html",
    "data/known/sets.toml",
    "cli/__init__.py",
)
ROOTS = {"holdfast"}  # folders that a wheel may have, next to its metadata
SMALL = ["--methods", "erm", "--encoder", "bilstm", "--set", "encoder.hidden=8", "--steps", "4", "--batch", "4"]


def run(*words: object, cwd: Path) -> str:
    """Run a command; print its output and stop if it fails."""
    done = subprocess.run([str(word) for word in words], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


def check_wheel(names: list[str]) -> list[str]:
    """Return what is wrong with the files of a wheel: files that do not belong there, and missing ones."""
    wrong = [name for name in names if name.split("/")[0] not in ROOTS and ".dist-info/" not in name]
    wrong += [name for name in names if name.endswith((".jsonl.gz", ".pyc")) or "/tests/" in name]
    return wrong + [f"missing: {name}" for name in NEEDED if f"holdfast/{name}" not in names]


def build(folder: Path) -> tuple[Path, Path]:
    """Return the wheel and the source archive."""
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=folder)
    (wheel,), (archive,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, archive


def install(wheel: Path, folder: Path, *, share: bool) -> Path:
    """Install a wheel into a new environment and return the folder of its commands."""
    venv.create(folder, with_pip=True)
    commands = folder / ("Scripts" if sys.platform == "win32" else "bin")
    python = commands / "python"
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    if share:
        site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
        paths = [path for path in sys.path if path.endswith("site-packages")] or [sysconfig.get_path("purelib")]
        (site / "shared.pth").write_text("\n".join(paths) + "\n")
        run(*pip, "--no-deps", wheel, cwd=folder)
    else:
        torch = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
        run(*pip, "-c", ROOT / "constraints.txt", torch, cwd=folder)
        run(*pip, "-c", ROOT / "constraints.txt", wheel, cwd=folder)
    return commands


def smoke(commands: Path, folder: Path) -> None:
    """Compare, fit and predict with the installed command, in a folder outside the repository."""
    python, holdfast = commands / "python", commands / "holdfast"
    location = run(python, "-c", "import holdfast; print(holdfast.__file__)", cwd=folder).strip()
    assert Path(location).is_relative_to(commands.parent), f"{location} is not the installed package"
    assert run(holdfast, "--version", cwd=folder).startswith("holdfast ")
    assert json.loads(run(holdfast, "doctor", "--json", cwd=folder))["ok"]
    write_reviews(folder / "reviews.csv", size=16)
    compared = json.loads(run(holdfast, "compare", "reviews.csv", *SMALL, "--seeds", "1", "--json", cwd=folder))
    assert (folder / compared["report"]).is_file()
    fitted = ["reviews.csv", "--method", "erm", *SMALL[2:], "--out", "model"]
    run(holdfast, "fit", *fitted, cwd=folder)
    (folder / "new.csv").write_text("text\na superb thing\n")
    run(holdfast, "predict", "model", "new.csv", "--out", "predictions.csv", cwd=folder)
    assert len((folder / "predictions.csv").read_text().splitlines()) == 2


def main() -> None:
    """Build, check, install and use the package."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", action="store_true", help="take dependencies from the present environment")
    options = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel, archive = build(folder)
        wrong = check_wheel(zipfile.ZipFile(wheel).namelist())
        assert not wrong, wrong
        with tarfile.open(archive) as files:
            assert any(member.endswith("/LICENSE") for member in files.getnames())
        commands = install(wheel, folder / "environment", share=options.share)
        (folder / "work").mkdir()
        smoke(commands, folder / "work")
        sizes = (
            f"{wheel.name} {wheel.stat().st_size / 1e6:.1f} MB, {archive.name} {archive.stat().st_size / 1e6:.1f} MB"
        )
    sys.stdout.write(f"{sizes}: installed and used in {time.monotonic() - started:.0f} s\n")


if __name__ == "__main__":
    main()
