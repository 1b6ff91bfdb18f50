"""Published sets of tagged sentences, of questions with answers, and of plain texts."""

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
    columns = "the columns tokens, tags and split (train, dev, test), or a folder of train.conll, dev.conll, test.conll"
    expected = f"{TABLE_FILE.format(known.name)} into FOLDER, with {columns}"
    path = known.find(data_dir, expected, (*formats.SUFFIXES, ""))
    dataset = read_tags(path)
    entities = {tag[2:] for tag in dataset.classes if "-" in tag}
    if entities != set(known.options["entities"]):
        fix = f"replace the file by one with {', '.join(known.options['entities'])}"
        raise BadInput(f"{path} has the entities {', '.join(sorted(entities))}, not those of {known.name}: {fix}")
    return known.finish(dataset.as_one_domain(known.name))


def read_question_set(known: KnownSet, *, data_dir: Path | None = None) -> Dataset:
    """Read questions whose answers are spans of a text, from a table or a SQuAD file."""
    columns = "the columns context, question, answers, answer_start and split (train, dev, test)"
    expected = f"{TABLE_FILE.format(known.name)} into FOLDER, with {columns}"
    dataset = read_questions(known.find(data_dir, expected, (*formats.SUFFIXES, ".json")))
    return known.finish(dataset if known.options.get("keep_domains") else dataset.as_one_domain(known.name))


def read_text_corpus(known: KnownSet, *, data_dir: Path | None = None) -> Dataset:
    """Read plain texts of one field from a text file or a table of several fields; at most the published number."""
    table = f"{TABLE_FILE.format('corpora')} with the columns text and domain"
    expected = f"{known.name}.txt, with one text per line, into FOLDER, or {table}"
    path = known.find(data_dir, expected, (*formats.SUFFIXES, ".txt"))
    dataset = read_corpus(path)
    if path.stem != known.name:
        codes = [i for i, domain in enumerate(dataset.domains) if domain.lower() in known.options["fields"]]
        rows = np.flatnonzero(np.isin(dataset.domain, codes))
        if not len(rows):
            raise known.absent(data_dir, expected, reason=f"{path} has no texts of {known.name}; ")
        dataset = dataset.subset(rows)
    return known.finish(dataset.as_one_domain(known.name).limited(known.sizes["all"]))
