"""Small data of the tasks that ask for places: sentences with tags, questions about texts, plain texts."""

from __future__ import annotations

import json
import random
from pathlib import Path

PLAIN = ("the", "was", "a", "very", "good", "bad", "not")
DOMAINS = ("home", "shop", "road")


def tagged(domain: str, size: int = 24) -> list[tuple[list[str], list[str]]]:
    """Sentences in which `phone` is a thing, with a second word at times, and `film` a work; tags in the old way."""
    chance = random.Random(domain)
    made = []
    for i in range(size):
        words = chance.choices(PLAIN, k=chance.randrange(2, 5))
        tags = ["O"] * len(words)
        words.append("phone")
        tags.append("I-THING")
        if i % 2:
            words += ["food", "film"]
            tags += ["I-THING", "I-WORK"]
        made.append((words, tags))
    return made


def write_conll(path: Path, sentences: list[tuple[list[str], list[str]]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["-DOCSTART- -X- O\n"]
    for words, tags in sentences:
        lines.append("".join(f"{word} NN {tag}\n" for word, tag in zip(words, tags, strict=True)))
    path.write_text("\n".join(lines))
    return path


def write_names(folder: Path, size: int = 24) -> Path:
    """A folder with a file of sentences for each domain."""
    for domain in DOMAINS:
        write_conll(folder / f"{domain}.conll", tagged(domain, size))
    return folder


def asked(domain: str, size: int = 24, longest: int = 40) -> list[dict]:
    """Questions whose answer is `phone` and the word after it, in texts that may need several windows."""
    chance = random.Random(domain)
    made = []
    for i in range(size):
        words = chance.choices(PLAIN, k=chance.randrange(6, longest))
        at = chance.randrange(len(words) - 1)
        words[at] = "phone"
        start = len(" ".join(words[:at])) + (at > 0)
        answer = " ".join(words[at : at + 2])
        made.append(
            {"id": f"{domain}{i}", "context": " ".join(words), "question": "the phone ?", "answers": [answer],
             "answer_start": [start], "domain": domain}
        )  # fmt: skip
    return made


def write_questions(path: Path, size: int = 24) -> Path:
    rows = [row for domain in DOMAINS for row in asked(domain, size)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def said(size: int = 90) -> list[str]:
    """Texts of three sentences that a network can learn to complete, some of them long."""
    chance = random.Random(0)
    known = ("the film was very good", "a phone was not bad", "the food was a bad film")
    return [" ".join(chance.choice(known) for _ in range(chance.randrange(1, 8))) for _ in range(size)]


def write_corpus(path: Path, size: int = 90) -> Path:
    path.write_text("\n".join(said(size)) + "\n")
    return path
