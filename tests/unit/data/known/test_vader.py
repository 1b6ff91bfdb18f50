"""VADER: parsing a small archive with the published layout, checksums, downloads, and the real file."""

import hashlib
import io
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest

from holdfast.core.errors import BadInput
from holdfast.core.files import cache_folder
from holdfast.data.known import vader
from holdfast.data.load import load_data

LINES = {
    "tweets": ["1\t2.5\tSo lucky.", "2\t-0.5\tsad: \ta tab", "3\t0.49\tmeh"],
    "movieReviewSnippets": ["1\t-3.1\tTepid caf\u00e9"],
    "amazonReviewSnippets": ["1_1\t0.5\tworks", "1_2\t-0.4999\tbox"],
    "nytEditorialSnippets": ["1_1\t1.5\tIt's a holiday", "1_2\t-2\tgrim"],
}


def tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def archive(lines: dict[str, list[str]]) -> bytes:
    inner = {
        f"hutto_ICWSM_2014/{name}_GroundTruth.txt": "".join(f"{line}\r\n" for line in rows).encode()
        for name, rows in lines.items()
    }
    return tar({"vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz": tar(inner)})


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    content = archive(LINES)
    (tmp_path / vader.ARCHIVE).write_bytes(content)
    monkeypatch.setattr(vader, "SHA256", hashlib.sha256(content).hexdigest())
    return tmp_path


def test_the_four_domains(folder):
    found = load_data("vader", data_dir=folder)
    assert (found.name, found.classes) == ("vader", ("negative", "positive"))
    assert found.domains == ("tweets", "films", "products", "news")
    assert found.domain.tolist() == [0, 0, 1, 2, 3, 3]
    assert found.y.tolist() == [1, 0, 0, 1, 1, 0]
    assert found.raw.take(np.arange(3)) == ["So lucky.", "sad: \ta tab", "Tepid caf\u00e9"]
    assert found.ids == ["tweets-1", "tweets-2", "films-1", "products-1_1", "news-1_1", "news-1_2"]
    assert found.notes[0].startswith("tweets: 2 used, 1 dropped")
    assert found.notes[1].startswith("films: 1 used, 0 dropped")
    assert len(found.notes) == 4


def test_another_archive_is_rejected(folder, monkeypatch):
    monkeypatch.setattr(vader, "SHA256", "0" * 64)
    with pytest.raises(BadInput, match="sha256"):
        load_data("vader", data_dir=folder)
    with pytest.raises(BadInput, match=r"does not hold vaderSentiment-3\.3\.2\.tar\.gz"):
        load_data("vader", data_dir=folder / "empty")


def test_archive_without_the_files_is_rejected(tmp_path, monkeypatch):
    for content in (tar({"other": b""}), archive({"tweets": []}), b"no archive"):
        (tmp_path / vader.ARCHIVE).write_bytes(content)
        monkeypatch.setattr(vader, "SHA256", hashlib.sha256(content).hexdigest())
        with pytest.raises(BadInput, match="cannot be unpacked"):
            load_data("vader", data_dir=tmp_path)


def test_archive_is_downloaded_once_and_cached(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    content, calls = (folder / vader.ARCHIVE).read_bytes(), []

    def pip(command, **_):
        calls.append(command)
        (Path(command[command.index("--dest") + 1]) / vader.ARCHIVE).write_bytes(content)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(vader.subprocess, "run", pip)
    assert len(load_data("vader")) == len(load_data("vader")) == 6
    assert len(calls) == 1
    assert "vaderSentiment==3.3.2" in calls[0]
    cached = cache_folder() / "downloads" / vader.ARCHIVE
    cached.write_bytes(b"damaged")
    assert len(load_data("vader")) == 6
    assert len(calls) == 2
    assert [path.name for path in cached.parent.iterdir()] == [vader.ARCHIVE]


def test_failed_downloads_are_reported(monkeypatch, tmp_path):
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))

    def refuse(command, **_):
        return subprocess.CompletedProcess(command, 1, "", "ERROR: no\nnetwork")

    def hang(command, **_):
        raise subprocess.TimeoutExpired(command, 1)

    def cheat(command, **_):
        (Path(command[command.index("--dest") + 1]) / vader.ARCHIVE).write_bytes(b"something else")
        return subprocess.CompletedProcess(command, 0, "", "")

    for run, message in (
        (refuse, r"ERROR: no network.*--data-dir"),
        (hang, "no answer.*--data-dir"),
        (cheat, "sha256"),
    ):
        monkeypatch.setattr(vader.subprocess, "run", run)
        with pytest.raises(BadInput, match=message):
            load_data("vader")
    assert not (tmp_path / "downloads" / vader.ARCHIVE).exists()


@pytest.mark.slow
@pytest.mark.download
def test_the_real_archive():
    try:
        found = load_data("vader")
    except BadInput as error:
        if "could not be downloaded" not in str(error):
            raise
        pytest.skip(str(error))
    sizes = [len(found.rows_of(name)) for name in found.domains]
    assert sizes == [3432, 10072, 2985, 2970]
    assert found.fingerprint == "b1c0ac5c6dd05cba"
    assert len(set(found.ids or ())) == len(found)
