"""Write small files in the formats of G-MAP's data sets."""

import json
from pathlib import Path

from holdfast.data.known.known_set import KnownSet
from tests.annotated import tagged_sentences
from tests.tables import write_rows

CLASSIFICATION = {
    name: KnownSet.of(name)
    for name in (
        "chemprot", "rct", "acl-arc", "scierc", "csabstruct", "hyperpartisan", "ag-news", "helpfulness",
    )
}  # fmt: skip
SPLITS = ("train", "train", "dev", "test")


def write_tasks(folder: Path, *names: str, times: int = 1) -> Path:
    """Write one csv per set: `times` texts per label in four splits, two of them train; one test text is in train."""
    folder.mkdir(exist_ok=True)
    for name in names or (*CLASSIFICATION, "imdb"):
        _write(folder, KnownSet.of(name), times)
    return folder


def _write(folder: Path, known: KnownSet, times: int) -> None:
    rows = []
    for turn, split in enumerate(SPLITS):
        for i, label in enumerate(known.labels):
            for j in range(times):
                number = turn * 1000 + i * 100 + j if (turn, i) != (3, 0) else j  # equal to the first split
                word = "good" if i % 2 else "bad film"
                rows.append([f"{known.name[:2]} {number} was {word} {i}", label.upper(), split])
    write_rows(folder / f"{known.name}.csv", ["text", "label", "split"], rows)


def write_places(folder: Path, size: int = 8) -> Path:
    """Write tags as a folder of CoNLL files and as a table, questions as tables, texts of two fields as one table."""
    folder.mkdir(exist_ok=True)
    kinds = {"ncbi-disease": ("Disease",), "conll2003": ("LOC", "MISC", "ORG", "PER")}
    (folder / "conll2003").mkdir()
    for name, known in kinds.items():
        sentences = [
            (words, [tag if tag == "O" else f"{tag[0]}-{known[i % len(known)]}" for tag in tags])
            for i, (words, tags) in enumerate(tagged_sentences("sea", 3 * size))
        ]
        for place, split in enumerate(("train", "dev", "test")):
            part = sentences[place::3]
            if name == "conll2003":
                lines = ["\n".join(f"{w} {t}" for w, t in zip(*each, strict=True)) for each in part]
                (folder / name / f"{split}.conll").write_text("\n\n".join(lines) + "\n")
                continue
            with (folder / f"{name}.jsonl").open("a") as file:
                for words, tags in part:
                    file.write(json.dumps({"tokens": words, "tags": tags, "split": split}) + "\n")
    for name in ("medication", "newsqa"):
        with (folder / f"{name}.jsonl").open("w") as file:
            for i in range(3 * size):
                split = ("train", "test", "train" if name == "newsqa" else "dev")[i % 3]
                context = f"the food was {('good', 'bad')[i % 2]} at {i}"
                question = {"context": context, "question": "how was the food", "answers": [("good", "bad")[i % 2]]}
                file.write(json.dumps({**question, "answer_start": [13], "split": split}) + "\n")
    domains = ("biomedical", "computer science")
    rows = [[f"the very good {domain} film {i}", domain] for domain in domains for i in range(3 * size)]
    write_rows(folder / "corpora.csv", ["text", "domain"], rows)
    return folder
