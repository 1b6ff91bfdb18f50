"""Small files in the form of the published data sets, for the real reading code."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import numpy as np
from PIL import Image

DOMAINS = {
    "amazon": ("books", "dvd", "electronics", "kitchen"),
    "mnli": ("fiction", "government", "slate", "telephone", "travel"),
    "multinli": ("fiction", "government", "slate", "telephone", "travel"),
    "snli": ("snli",),
    "sick": ("sick",),
    "sst2": ("sst2",),
    "imdb": ("imdb",),
}
PAIRS = ("mnli", "multinli", "snli", "sick")
SPLITS = {
    "amazon": ("train", "train", "dev"),
    "mnli": ("train", "train", "dev"),
    "multinli": ("train", "train", "dev"),
    "imdb": ("test",),
}
CLASSES = {True: ("entailment", "neutral", "contradiction"), False: ("positive", "negative")}


def write_published(folder: Path, *names: str, size: int = 24) -> Path:
    """One csv a data set, `size` examples of each domain: labels in turn, then splits in turn."""
    folder.mkdir(exist_ok=True)
    if not names or "dialogue" in names:
        _write_dialogue(folder, size)
    for name in [name for name in names if name != "dialogue"] or (() if names else tuple(DOMAINS)):
        pair = name in PAIRS
        classes, splits = CLASSES[pair], SPLITS.get(name, ("train", "dev", "test"))
        chance = random.Random(name)
        with (folder / f"{name}.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow([*(("premise", "hypothesis") if pair else ("text",)), "label", "domain", "split"])
            for domain in DOMAINS[name]:
                for i in range(size):
                    label = classes[i % len(classes)]
                    said = f"{domain} {chance.randrange(99)} is {'good' if i % len(classes) else 'bad'}"
                    given = (said, f"it was {label[:4]}") if pair else (said,)
                    table.writerow([*given, label, domain, splits[i // len(classes) % len(splits)]])
    return folder


def _write_dialogue(folder: Path, size: int) -> None:
    """Two tables of pairs; the first names no split that is known."""
    for stem, domain, splits in (
        ("cornell_pairs", "cornell_movie", ("all",)),
        ("irc_pairs", "ubuntu", ("train", "dev", "test")),
    ):
        chance = random.Random(stem)
        with (folder / f"{stem}.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["message", "response", "domain", "split"])
            for i in range(size):
                number = chance.randrange(9)
                said = (f"{domain} has {number}, yes?", f"yes, {number} it is")
                table.writerow([*said, domain, splits[i % len(splits)]])


def write_molecules(path: Path, domains: tuple[str, ...], size: int = 20) -> Path:
    """One csv of SMILES: chains of carbon, or of carbon and one oxygen, with the splits of a scaffold cut."""
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["smiles", "label", "domain", "split"])
        for domain in domains:
            for i in range(size):
                split = ("train", "train", "valid", "test")[i // 2 % 4]
                table.writerow(["C" * (i + 2) + "O" * (i % 2), i % 2, domain, split])
    return path


def write_digits(path: Path, size: int = 48) -> Path:
    """Images and digits in the arrays of MNIST."""
    chance = np.random.default_rng(0)
    images = chance.integers(0, 256, (2 * size, 28, 28), dtype=np.uint8)
    digits = np.arange(2 * size) % 10
    np.savez(path, x_train=images[:size], y_train=digits[:size], x_test=images[size:], y_test=digits[size:])
    return path


def write_pictures(folder: Path, size: int = 12) -> Path:
    """CIFAR's binary files, and three sets of tiny images as SPLIT/CLASS/FILE."""
    chance = np.random.default_rng(0)
    files = {"cifar-10-batches-bin": [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"],
             "cifar-100-binary": ["train.bin", "test.bin"]}  # fmt: skip
    for name, names in files.items():
        (folder / name).mkdir()
        labels = 2 if "100" in name else 1
        for file in names:
            rows = chance.integers(0, 256, (size, labels + 3072), dtype=np.uint8)
            rows[:, :labels] = np.arange(size)[:, None] % 4
            rows.tofile(folder / name / file)
    for name, splits in (("dtd", ("train", "val", "test")), ("pets", ("trainval", "test")),
                         ("flowers", ("train", "valid", "test"))):  # fmt: skip
        for split in splits:
            for label in ("a", "b"):
                place = folder / name / split / label
                place.mkdir(parents=True)
                for i in range(size // 2):
                    pixels = chance.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                    Image.fromarray(pixels).save(place / f"{i}.png")
    return folder
