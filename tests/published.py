"""Write small files in the formats of the published data sets."""

import random
from pathlib import Path

import numpy as np
from PIL import Image

from tests.tables import write_rows

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
    """Write one csv per data set with `size` examples per domain; labels alternate, then splits."""
    folder.mkdir(exist_ok=True)
    if not names or "dialogue" in names:
        _write_dialogue(folder, size)
    for name in [name for name in names if name != "dialogue"] or (() if names else tuple(DOMAINS)):
        pair = name in PAIRS
        classes, splits = CLASSES[pair], SPLITS.get(name, ("train", "dev", "test"))
        rng = random.Random(name)
        rows = []
        for domain in DOMAINS[name]:
            for i in range(size):
                label = classes[i % len(classes)]
                text = f"{domain} {rng.randrange(99)} is {'good' if i % len(classes) else 'bad'}"
                inputs = (text, f"it was {label[:4]}") if pair else (text,)
                rows.append([*inputs, label, domain, splits[i // len(classes) % len(splits)]])
        inputs = ("premise", "hypothesis") if pair else ("text",)
        write_rows(folder / f"{name}.csv", [*inputs, "label", "domain", "split"], rows)
    return folder


def _write_dialogue(folder: Path, size: int) -> None:
    """Write two tables of pairs; the split of the first is not train, dev or test."""
    for stem, domain, splits in (
        ("cornell_pairs", "cornell_movie", ("all",)),
        ("irc_pairs", "ubuntu", ("train", "dev", "test")),
    ):
        rng = random.Random(stem)
        numbers = [rng.randrange(9) for _ in range(size)]
        rows = [
            [f"{domain} has {number}, yes?", f"yes, {number} it is", domain, splits[i % len(splits)]]
            for i, number in enumerate(numbers)
        ]
        write_rows(folder / f"{stem}.csv", ["message", "response", "domain", "split"], rows)


def write_molecules(path: Path, domains: tuple[str, ...], size: int = 20) -> Path:
    """Write one csv of SMILES: carbon chains with or without an oxygen atom, with splits."""
    splits = ("train", "train", "valid", "test")
    rows = [["C" * (i + 2) + "O" * (i % 2), i % 2, d, splits[i // 2 % 4]] for d in domains for i in range(size)]
    return write_rows(path, ["smiles", "label", "domain", "split"], rows)


def write_digits(path: Path, size: int = 48) -> Path:
    """Write images and digits in the arrays of MNIST."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (2 * size, 28, 28), dtype=np.uint8)
    digits = np.arange(2 * size) % 10
    np.savez(path, x_train=images[:size], y_train=digits[:size], x_test=images[size:], y_test=digits[size:])
    return path


def write_images(folder: Path, size: int = 12) -> Path:
    """Write the binary files of CIFAR, and three sets of tiny images as SPLIT/CLASS/FILE."""
    rng = np.random.default_rng(0)
    files = {"cifar-10-batches-bin": [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"],
             "cifar-100-binary": ["train.bin", "test.bin"]}  # fmt: skip
    for name, names in files.items():
        (folder / name).mkdir()
        labels = 2 if "100" in name else 1
        for file in names:
            rows = rng.integers(0, 256, (size, labels + 3072), dtype=np.uint8)
            rows[:, :labels] = np.arange(size)[:, None] % 4
            rows.tofile(folder / name / file)
    for name, splits in (("dtd", ("train", "val", "test")), ("pets", ("trainval", "test")),
                         ("flowers", ("train", "valid", "test"))):  # fmt: skip
        for split in splits:
            for label in ("a", "b"):
                place = folder / name / split / label
                place.mkdir(parents=True)
                for i in range(size // 2):
                    pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                    Image.fromarray(pixels).save(place / f"{i}.png")
    return folder
