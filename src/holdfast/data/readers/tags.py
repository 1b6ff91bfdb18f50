"""Read sentences with one tag per word: CoNLL files, or tables with lists of words and tags."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Sentence
from holdfast.data.dataset import SPLITS, Dataset
from holdfast.data.raw import Records
from holdfast.data.readers.codes import SPLIT_NAMES
from holdfast.data.readers.columns import ReadOptions
from holdfast.data.readers.formats import read_lines
from holdfast.data.readers.images import files_below
from holdfast.data.readers.tables import METADATA, column_finder, role_rows, unlabelled_dataset

TABLES = (".csv", ".jsonl", ".ndjson", ".parquet")
CONLL = (".conll", ".conll03", ".bio", ".iob", ".iob2", ".tsv", ".txt", ".train", ".testa", ".testb")
OUTSIDE = "O"
TAGGED = ReadOptions(need=("tags",))
# prefixes of the BIOES, BILOU and BMES schemes -> BIO
PREFIXES = {"B": "B", "I": "I", "E": "I", "L": "I", "M": "I", "S": "B", "U": "B"}
FILE_SPLITS = {**SPLIT_NAMES, "devel": 1, "testa": 1, "testb": 2}

Tagged = tuple[list[str], list[str] | None, Mapping[str, Any]]  # words, their tags as written, metadata


def read_tags(path: Path, options: ReadOptions = TAGGED, *, column: int = -1) -> Dataset:
    """Read a table, a CoNLL file or a folder of them; `column` is the position of the tag in a line, from 1.

    In a folder, each file is a domain, or a split if the files are named after splits; subfolders are domains.
    """
    columns, required = options.columns, "tags" in options.need
    table = path.suffix.lower() in TABLES and path.is_file()
    if columns and not table:
        raise BadInput(f"{path} has no named columns: remove --column, and choose a column with @column=3")
    rows = list(_read_table(path, columns, required) if table else _read_conll(path, column, required))
    if not rows:
        raise BadInput(f"{path} has no sentences: write one word and its tag per line, and a blank line after each one")
    metadata = {role: [values[role] for _, _, values in rows] for role in rows[0][2]}
    words, tags = [words for words, _, _ in rows], [tags for _, tags, _ in rows if tags is not None]
    if len(tags) < len(words):
        return unlabelled_dataset(path, Records(list(map(Sentence, words))), metadata)
    codes, classes, notes = _encode_tags(path, tags)
    return unlabelled_dataset(path, Records(list(map(Sentence, words, codes))), metadata, classes=classes, notes=notes)


def _read_table(path: Path, columns: Mapping[str, str] | None, required: bool) -> Iterator[Tagged]:
    finder = column_finder(path, columns)
    present = finder.roles(("tokens", "tags") if required else (), ("tokens", "tags", *METADATA))
    if "tokens" not in present and (text := finder.role("text")) is not None:
        present["tokens"] = text
    if "tokens" not in present:
        raise finder.missing("tokens")
    for number, row, metadata in role_rows(path, present):
        words = _as_list(row["tokens"])
        tags = _as_list(row["tags"]) if "tags" in row else None
        if not words or any(not word.strip() for word in words):
            raise BadInput(f"{path}: row {number}, column '{present['tokens']}' has no words or a blank one: remove it")
        if tags is not None and len(tags) != len(words):
            raise BadInput(f"{path}: row {number} has {len(words)} words but {len(tags)} tags: write one tag per word")
        yield words, tags, metadata


def _as_list(value: Any) -> list[str]:
    """Convert a list, or a text separated by spaces, to a list of strings."""
    return [str(item) for item in value] if isinstance(value, list) else str("" if value is None else value).split()


def _read_conll(path: Path, column: int, required: bool) -> Iterator[Tagged]:
    files = [path] if path.is_file() else sorted(p for p in files_below(path) if p.suffix.lower() in CONLL)
    if not files:
        raise BadInput(f"{path} has no file of words and tags: use one of the suffixes {', '.join(CONLL)}")
    splits = {file: _file_split(file) for file in files}
    for file, split in splits.items():
        metadata = {"domain": file.stem if split is None else file.parent.name if path.is_dir() else "all"}
        if split is not None and None not in splits.values() and path.is_dir():
            metadata["split"] = split
        for words, tags in _parse_conll(file, column, required):
            yield words, tags, metadata


def _file_split(file: Path) -> str | None:
    """Return the split that a file is named after, such as `train.conll` or `eng.testa`."""
    words = (file.stem.lower(), file.suffix.lower().lstrip("."))
    return next((SPLITS[FILE_SPLITS[word]] for word in words if word in FILE_SPLITS), None)


def _parse_conll(file: Path, column: int, required: bool) -> Iterator[tuple[list[str], list[str] | None]]:
    words, tags = [], []
    for number, line in enumerate([*read_lines(file), ""], start=1):
        fields = line.split()
        if not fields or fields[0] == "-DOCSTART-":
            if words:
                yield words, tags if len(tags) == len(words) else None
            words, tags = [], []
            continue
        words.append(fields[0])
        position = column if column < 0 else column - 1
        if len(fields) > 1 and -len(fields) <= position < len(fields):
            tags.append(fields[position])
        elif required:
            raise BadInput(f"{file}: line {number} has no tag for '{fields[0]}': write one word and its tag per line")


def _encode_tags(path: Path, sentences: Sequence[Sequence[str]]) -> tuple[list[list[int]], tuple[str, ...], list[str]]:
    """Convert tags to BIO and encode them; the classes contain B- and I- of every entity type."""
    repaired, converted = 0, []
    for number, tags in enumerate(sentences, start=1):
        previous, sentence = OUTSIDE, []
        for tag in tags:
            prefix, _, entity = tag.partition("-")
            if tag != OUTSIDE and (prefix not in PREFIXES or not entity):
                fix = "use O, B-TYPE or I-TYPE, or choose another column with @column=NUMBER or --column tags=NAME"
                raise BadInput(f"{path}: sentence {number} has the tag '{tag}': {fix}")
            if tag != OUTSIDE:
                begins = PREFIXES[prefix] == "I" and previous != entity
                repaired += begins
                tag = f"{'B' if begins else PREFIXES[prefix]}-{entity}"
            previous = tag.partition("-")[2] or OUTSIDE
            sentence.append(tag)
        converted.append(sentence)
    entities = sorted({tag[2:] for tags in converted for tag in tags if tag != OUTSIDE})
    if not entities:
        raise BadInput(f"{path} has only the tag O and no entity: there is nothing to learn")
    classes = (OUTSIDE, *(f"{prefix}-{entity}" for entity in entities for prefix in "BI"))
    index = {name: i for i, name in enumerate(classes)}
    notes = [f"{repaired:,} entities of {path.name} begin with I- and are read as B-"] if repaired else []
    return [[index[tag] for tag in tags] for tags in converted], classes, notes
