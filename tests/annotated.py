"""Small data sets of tagged sentences, questions and plain texts."""

import json
import random
from pathlib import Path

PLAIN = ("the", "was", "a", "very", "good", "bad", "not")
DOMAINS = ("home", "shop", "road")


def tagged_sentences(domain: str, size: int = 24) -> list[tuple[list[str], list[str]]]:
    """Return sentences in which `phone` is a THING, sometimes with a second word, and `film` a WORK; IOB1 tags."""
    rng = random.Random(domain)
    rows = []
    for i in range(size):
        words = rng.choices(PLAIN, k=rng.randrange(2, 5))
        tags = ["O"] * len(words)
        words.append("phone")
        tags.append("I-THING")
        if i % 2:
            words += ["food", "film"]
            tags += ["I-THING", "I-WORK"]
        rows.append((words, tags))
    return rows


def write_conll(path: Path, sentences: list[tuple[list[str], list[str]]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["-DOCSTART- -X- O\n"]
    for words, tags in sentences:
        lines.append("".join(f"{word} NN {tag}\n" for word, tag in zip(words, tags, strict=True)))
    path.write_text("\n".join(lines))
    return path


def write_names(folder: Path, size: int = 24) -> Path:
    """Write a folder with one file of sentences per domain."""
    for domain in DOMAINS:
        write_conll(folder / f"{domain}.conll", tagged_sentences(domain, size))
    return folder


def question_rows(domain: str, size: int = 24, longest: int = 40) -> list[dict]:
    """Return questions whose answer is `phone` and the next word, in texts that may need several windows."""
    rng = random.Random(domain)
    rows = []
    for i in range(size):
        words = rng.choices(PLAIN, k=rng.randrange(6, longest))
        at = rng.randrange(len(words) - 1)
        words[at] = "phone"
        start = len(" ".join(words[:at])) + (at > 0)
        answer = " ".join(words[at : at + 2])
        rows.append(
            {"id": f"{domain}{i}", "context": " ".join(words), "question": "the phone ?", "answers": [answer],
             "answer_start": [start], "domain": domain}
        )  # fmt: skip
    return rows


def write_questions(path: Path, size: int = 24) -> Path:
    rows = [row for domain in DOMAINS for row in question_rows(domain, size)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def corpus(size: int = 90) -> list[str]:
    """Return texts made of three sentences that a network can learn to complete, some of them long."""
    rng = random.Random(0)
    known = ("the film was very good", "a phone was not bad", "the food was a bad film")
    return [" ".join(rng.choice(known) for _ in range(rng.randrange(1, 8))) for _ in range(size)]


def write_corpus(path: Path, size: int = 90) -> Path:
    path.write_text("\n".join(corpus(size)) + "\n")
    return path
