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
    for name in names or tuple(DOMAINS):
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
