"""Published sets of tagged sentences, of questions with answers, and of plain texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from holdfast.core.errors import BadInput
from holdfast.data.dataset import Dataset
from holdfast.data.known.base import TABLE_FILE, KnownSet
from holdfast.data.readers import formats
from holdfast.data.readers.corpus import read_corpus
from holdfast.data.readers.questions import read_questions
from holdfast.data.readers.tags import read_tags


def read_tag_set(known: KnownSet, *, data_dir: Path | None = None) -> Dataset:
    """Read sentences with one tag per word from a table or a folder of CoNLL files."""
    path = known.find(data_dir) or known.find(data_dir, ("",))
    if path is None:
        columns = "the columns tokens, tags and split (train, dev, test)"
        folder = "a folder of train.conll, dev.conll, test.conll"
        raise known.absent(data_dir, f"{TABLE_FILE.format(known.name)} into FOLDER, with {columns}, or {folder}")
    dataset = read_tags(path)
    entities = {tag[2:] for tag in dataset.classes if "-" in tag}
    expected = known.options["entities"]
    if entities != set(expected):
        raise BadInput(
            f"{path} has the entities {', '.join(sorted(entities))}, but {known.name} has {', '.join(expected)}: "
            "replace the file"
        )
    return known.finish(dataset.as_one_domain(known.name))


def read_question_set(known: KnownSet, *, data_dir: Path | None = None) -> Dataset:
    """Read questions whose answers are spans of a text, from a table or a SQuAD file."""
    path = known.find(data_dir, (*formats.SUFFIXES, ".json"))
    if path is None:
        columns = "the columns context, question, answers, answer_start and split (train, dev, test)"
        raise known.absent(data_dir, f"{TABLE_FILE.format(known.name)} into FOLDER, with {columns}")
    dataset = read_questions(path)
    return known.finish(dataset if known.options.get("keep_domains") else dataset.as_one_domain(known.name))


def read_text_corpus(known: KnownSet, *, data_dir: Path | None = None) -> Dataset:
    """Read plain texts of one field from a text file or a table of several fields; at most the published number."""
    expected = (
        f"{known.name}.txt, with one text per line, into FOLDER, or {TABLE_FILE.format('corpora')} with the columns "
        "text and domain"
    )
    path = known.find(data_dir, (*formats.SUFFIXES, ".txt"))
    if path is None:
        raise known.absent(data_dir, expected)
    dataset = read_corpus(path)
    if path.stem != known.name:
        codes = [i for i, domain in enumerate(dataset.domains) if domain.lower() in known.options["fields"]]
        rows = np.flatnonzero(np.isin(dataset.domain, codes))
        if not len(rows):
            raise known.absent(data_dir, expected, reason=f"{path} has no texts of {known.name}; ")
        dataset = dataset.subset(rows)
    return known.finish(dataset.as_one_domain(known.name).limited(known.sizes["all"]))
