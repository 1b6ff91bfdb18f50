"""Known sets of sentences with tags, of questions with answers, and of plain texts, brought as files.

n examples
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from holdfast.core.errors import Absent, BadInput
from holdfast.data.dataset import Dataset
from holdfast.data.known.published import Sizes, differences, find_table
from holdfast.data.readers.corpus import read_corpus
from holdfast.data.readers.questions import read_questions
from holdfast.data.readers.tags import read_tags

COLUMNS = {
    "tags": "the columns tokens, tags and split (train, dev, test), or a folder of train.conll, dev.conll, test.conll",
    "questions": "the columns context, question, answers, answer_start and split (train, dev, test)",
}


@dataclass(frozen=True, kw_only=True)
class Annotated:
    """One set of sentences with tags or of questions; `domains` are those of its file, by default one of its name."""

    name: str
    home: str
    stems: tuple[str, ...]  # further names of the file
    form: str  # tags or questions
    kinds: tuple[str, ...] = ()  # of entities
    several: bool = False
    sizes: Sizes = field(default_factory=dict)

    def read(self, *, data_dir: Path | None = None) -> Dataset:
        """The file of this set in a folder, or the folder of its name in there."""
        path = self._find(data_dir)
        found = read_tags(path) if self.form == "tags" else read_questions(path)
        kinds = {tag[2:] for tag in found.classes if "-" in tag}
        if self.kinds and kinds != set(self.kinds):
            raise BadInput(f"{path} has entities of {', '.join(sorted(kinds))}, {self.name} {', '.join(self.kinds)}")
        made = replace(found, name=self.name)
        if not self.several:
            made = replace(made, domain=np.zeros(len(found), dtype=np.int64), domains=(self.name,))
        return replace(made, notes=(*made.notes, *differences(self.name, self.sizes, made)))

    def _find(self, folder: Path | None) -> Path:
        stems = (self.name, *self.stems)
        path = find_table(stems, folder, (".json",) if self.form == "questions" else ())
        if path is not None:
            return path
        for stem in stems if folder is not None and self.form == "tags" else ():
            if (Path(folder or "").expanduser() / stem).is_dir():
                return Path(folder or "").expanduser() / stem
        place = "a folder that you name with --data-dir" if folder is None else str(folder)
        raise Absent(
            f"the data set {self.name} is not downloaded by itself: get it from {self.home} and put {self.name}.csv, "
            f".jsonl or .parquet into {place}, with {COLUMNS[self.form]}"
        )


@dataclass(frozen=True, kw_only=True)
class Plain:
    """Plain texts of one field, from a table of several fields or a file of lines; at most so many, drawn once."""

    name: str
    home: str
    spelt: tuple[str, ...]  # how a table of several fields calls this one
    most: int = 50_000

    def read(self, *, data_dir: Path | None = None) -> Dataset:
        path = find_table((self.name, "corpora", "corpora_unlabelled"), data_dir, (".txt",))
        if path is None:
            raise self._absent(data_dir, "")
        found = read_corpus(path)
        if path.stem != self.name:
            codes = [i for i, domain in enumerate(found.domains) if domain.lower() in (self.name, *self.spelt)]
            rows = np.flatnonzero(np.isin(found.domain, codes))
            if not len(rows):
                raise self._absent(data_dir, f"{path} has no texts of {self.name}; ")
            found = found.subset(rows)
        whole = replace(found, name=self.name, domain=np.zeros(len(found), dtype=np.int64), domains=(self.name,))
        kept = whole.limited(self.most)
        sizes: Mapping[str, Mapping[str, int]] = {self.name: {"all": self.most}}
        return replace(kept, notes=(*kept.notes, *differences(self.name, sizes, kept)))

    def _absent(self, folder: Path | None, why: str) -> Absent:
        place = "a folder that you name with --data-dir" if folder is None else str(folder)
        return Absent(
            f"the data set {self.name} is not downloaded by itself: {why}get texts from {self.home} and put "
            f"{self.name}.txt, one a line, into {place}, or corpora.csv, .jsonl or .parquet with text and domain"
        )


NCBI_DISEASE = Annotated(
    name="ncbi-disease",
    home="https://www.ncbi.nlm.nih.gov/CBBresearch/Dogan/DISEASE/",
    stems=("ncbi_disease",),
    form="tags",
    kinds=("Disease",),
    sizes={"ncbi-disease": {"train": 5433, "valid": 924, "test": 941}},
)
CONLL2003 = Annotated(
    name="conll2003",
    home="https://www.clips.uantwerpen.be/conll2003/ner/",
    stems=("conll03", "conll"),
    form="tags",
    kinds=("LOC", "MISC", "ORG", "PER"),
    sizes={"conll2003": {"train": 14_041, "valid": 3250, "test": 3453}},
)
NEWSQA = Annotated(
    name="newsqa",
    home="https://github.com/Maluuba/newsqa",
    stems=(),
    form="questions",
    sizes={"newsqa": {"train": 74_160, "test": 674}},
)
MEDICATION = Annotated(
    name="medication",
    home="https://github.com/panushri25/emrQA",
    stems=("emrqa_medication", "emrqa"),
    form="questions",
    sizes={"medication": {"train": 7518, "valid": 1858, "test": 4005}},
)
QA_EXTRACTIVE = Annotated(
    name="qa-extractive",
    home="https://github.com/megagonlabs/SubjQA, https://github.com/deepset-ai/COVID-QA and "
    "https://github.com/google-deepmind/xquad",
    stems=("qa_extractive",),
    form="questions",
    several=True,
)
BIOMEDICAL_TEXTS = Plain(name="biomedical-texts", home="https://github.com/allenai/s2orc", spelt=("biomedical",))
CS_TEXTS = Plain(name="cs-texts", home="https://github.com/allenai/s2orc", spelt=("computer science", "cs"))
BOOKS_TEXTS = Plain(name="books-texts", home="https://github.com/soskek/bookcorpus", spelt=("books", "bookcorpus"))
