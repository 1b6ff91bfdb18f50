"""The VADER sentiment data, downloaded once as a package archive and verified by its sha256."""

import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np

from holdfast.core.errors import BadInput
from holdfast.core.files import cache_folder, file_digest, write_atomic
from holdfast.data.dataset import Dataset
from holdfast.data.known.known_set import KnownSet
from holdfast.data.raw import Texts

ARCHIVE = "vaderSentiment-3.3.2.tar.gz"
SHA256 = "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9"
_INNER = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
_FILES = {
    "tweets": "hutto_ICWSM_2014/tweets_GroundTruth.txt",
    "films": "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt",
    "products": "hutto_ICWSM_2014/amazonReviewSnippets_GroundTruth.txt",
    "news": "hutto_ICWSM_2014/nytEditorialSnippets_GroundTruth.txt",
}
_MIN_RATING = 0.5  # ratings range from -4 to 4; annotators disagree on the sign of those nearer to zero
_TIMEOUT = 300  # seconds


def read_vader(known: KnownSet, *, data_dir: Path | None = None) -> Dataset:
    """Read sentiment of tweets, films, products and news, rated by people (Hutto and Gilbert, ICWSM 2014)."""
    archive = _fetch() if data_dir is None else Path(data_dir) / ARCHIVE
    if not archive.is_file():
        raise BadInput(f"{data_dir} does not hold {ARCHIVE}: put the source archive of vaderSentiment 3.3.2 there")
    texts, ids, labels, sizes, notes = [], [], [], [], []
    for domain, lines in _lines(_verified(archive)).items():
        rated = [line.split("\t", 2) for line in lines if line.strip()]
        clear = [(key, float(rating), text) for key, rating, text in rated if abs(float(rating)) >= _MIN_RATING]
        ids += [f"{domain}-{key}" for key, _, _ in clear]
        labels += [int(rating > 0) for _, rating, _ in clear]
        texts += [text.strip() for _, _, text in clear]
        sizes.append(len(clear))
        dropped = f"{len(rated) - len(clear)} dropped whose mean rating is within {_MIN_RATING} of neutral"
        notes.append(f"{domain}: {len(clear)} used, {dropped}")
    y, domain = np.asarray(labels, dtype=np.int64), np.repeat(np.arange(len(sizes)), sizes)
    classes, domains = ("negative", "positive"), tuple(_FILES)
    return Dataset(known.name, Texts.of(texts), y, classes, domain, domains, ids=ids, notes=tuple(notes))


def _fetch() -> Path:
    """Return the archive in the cache; the first time it is downloaded with pip, so that its index settings apply."""
    path = cache_folder() / "downloads" / ARCHIVE
    if path.is_file() and file_digest(path) == SHA256:
        return path
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
                   "--no-deps", "--no-binary", "vaderSentiment", "vaderSentiment==3.3.2",
                   "--dest", folder]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
            reason = " ".join(done.stderr.split())[-200:]
        except subprocess.TimeoutExpired:
            reason = f"no answer within {_TIMEOUT} seconds"
        downloaded = Path(folder) / ARCHIVE
        if not downloaded.is_file():
            fix = "get it from the files of vaderSentiment 3.3.2 on pypi.org, and pass its folder with --data-dir"
            raise BadInput(f"{ARCHIVE} could not be downloaded ({reason}): {fix}")
        _verified(downloaded)
        return write_atomic(path, lambda draft: shutil.copyfile(downloaded, draft))


def _verified(path: Path) -> Path:
    digest = file_digest(path)
    if digest != SHA256:
        hashes = f"its sha256 is {digest[:12]}..., expected {SHA256[:12]}..."
        raise BadInput(f"{path} is not the expected archive ({hashes}): delete it and download it again")
    return path


def _lines(archive: Path) -> dict[str, list[str]]:
    """Return the lines of each domain's file, read from the archive inside the archive."""
    try:
        with tarfile.open(archive, "r:gz") as outer:
            inner = _member(outer, _INNER)
        with tarfile.open(fileobj=io.BytesIO(inner), mode="r:gz") as files:
            return {domain: _member(files, name).decode().split("\r\n") for domain, name in _FILES.items()}
    except (tarfile.TarError, OSError, EOFError, KeyError, UnicodeDecodeError) as error:
        raise BadInput(f"{archive} cannot be unpacked ({error}): delete it and download it again") from error


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise KeyError(f"{name} is not a file")
    return file.read()
