"""Small files in the form of the published data sets, for the real reading code."""

from __future__ import annotations

import csv
import random
from pathlib import Path

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
