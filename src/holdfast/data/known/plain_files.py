"""Published sets in files that the readers of user data read: tables, texts, tags, questions, graphs and molecules."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from holdfast.core.errors import BadInput, check_known
from holdfast.core.seeds import generator
from holdfast.data.dataset import SPLITS, Dataset
from holdfast.data.known.known_set import TABLE_FILE, KnownSet
from holdfast.data.raw import Texts
from holdfast.data.readers import formats
from holdfast.data.readers.columns import ReadOptions
from holdfast.data.readers.corpus import read_corpus
from holdfast.data.readers.graphs import read_graphs
from holdfast.data.readers.molecules import as_molecules, smiles_column
from holdfast.data.readers.questions import read_questions
from holdfast.data.readers.tables import read_table
from holdfast.data.readers.tags import read_tags

LEAKS = ("keep", "drop")
NO_LABEL = ("-", "-1")  # marks pairs without annotator agreement in SNLI


def read_texts(
    known: KnownSet, *, data_dir: Path | None = None, leaks: str = "keep", seed: int | None = None
) -> Dataset:
    """Read the table of a data set; labels and domains get their published names.

    `leaks=drop` drops validation and test rows whose text is in the training split. `seed` (default 0) draws the split
    of a data set that was published without one.
    """
    pairs, draw = known.options.get("pairs", False), known.options.get("draw_split", False)
    check_known("setting leaks", leaks, LEAKS)
    if seed is not None and not draw:
        raise BadInput(f"{known.name} was published with a split, so `seed` has no effect: remove seed={seed}")
    path = known.find(data_dir, f"{TABLE_FILE.format(known.name)} into FOLDER, with {_columns(known)}")
    several = len(known.domains) > 1
    need = ("label", "domain") if several else ("label",)
    dataset = read_table(path, ReadOptions({"split": ""} if draw else None, need))
    if not isinstance(dataset.raw, Texts) or (dataset.raw.second is not None) != pairs:
        raise BadInput(f"{path} does not have the columns of {known.name}: it needs {_columns(known)}")
    unlabelled = np.isin(dataset.y, [dataset.classes.index(label) for label in NO_LABEL if label in dataset.classes])
    dataset = _drop(dataset, unlabelled, f"{int(unlabelled.sum()):,} examples without a label were dropped")
    dataset = dataset if several else dataset.as_one_domain(*known.domains)
    dataset = known.renamed(dataset, path).checked()
    if draw:
        dataset = replace(dataset, split=draw_split(dataset, known.sizes, seed or 0))
    leaked = _is_leaked(dataset)
    counts = f"{_count(dataset, leaked)} texts are also in train"
    if leaks == "drop":
        return _drop(dataset, leaked, f"{counts} and were dropped")
    report = known.options.get("report_leaks") and leaked.any()
    dataset = known.finish(dataset)
    return dataset.with_notes(f"{known.name}: {counts}; {known.name}@leaks=drop drops them") if report else dataset


def read_table_set(known: KnownSet, *, data_dir: Path | None = None) -> Dataset:
    """Read the table of a data set with one row per example; labels and domains get their published names.

    The key `columns` of the data set maps roles to the published column names; all other columns are inputs, whose
    kinds are inferred as for any table. Several spellings of one label, such as the grades 1 to 4 of a disease, become
    one class. Without `labels`, labels are the values of the column, such as numbers to predict.
    """
    columns: dict[str, str] = known.options["columns"]
    needed = ", ".join(columns[role] for role in ("label", "domain"))
    path = known.find(data_dir, f"the table of {known.name} into FOLDER, with the columns {needed}")
    return known.finish(known.renamed(read_table(path, ReadOptions(columns)), path).checked())


def _columns(known: KnownSet) -> str:
    inputs = "premise, hypothesis" if known.options.get("pairs") else "text"
    domain = f", domain ({', '.join(known.domains)})" if len(known.domains) > 1 else ""
    split = "" if known.options.get("draw_split") else " and split (train, dev, test)"
    return f"the columns {inputs}, label ({', '.join(known.labels)}){domain}{split}"


def _drop(dataset: Dataset, rows: np.ndarray, note: str) -> Dataset:
    """Drop the rows where the mask (n,) is true, with a note."""
    return dataset.subset(np.flatnonzero(~rows)).with_notes(f"{dataset.name}: {note}") if rows.any() else dataset


def draw_split(dataset: Dataset, sizes: Mapping[str, int], seed: int) -> np.ndarray:
    """Draw a split (n,) in the published sizes, or in their proportion if the number of rows differs."""
    valid, test = (round(len(dataset) * sizes[kind] / sum(sizes.values())) for kind in SPLITS[1:])
    order = torch.randperm(len(dataset), generator=generator(seed, "cut", dataset.name)).numpy()
    split = np.zeros(len(dataset), dtype=np.int64)
    split[order[:valid]] = 1
    split[order[valid : valid + test]] = 2
    return split


def _is_leaked(dataset: Dataset) -> np.ndarray:
    """Return a mask (n,) of validation and test rows whose text is also in the training split."""
    texts = dataset.raw.take(np.arange(len(dataset)))
    pairs = list(zip(texts, dataset.split_codes, strict=True))
    seen = {text for text, split in pairs if split == 0}
    return np.asarray([split > 0 and text in seen for text, split in pairs], dtype=bool)


def _count(dataset: Dataset, leaked: np.ndarray) -> str:
    """Return for example `52 of 139 test and 43 of 114 valid`."""
    rows = {kind: dataset.split_codes == SPLITS.index(kind) for kind in ("test", "valid")}
    return " and ".join(f"{int((leaked & at).sum()):,} of {int(at.sum()):,} {kind}" for kind, at in rows.items())


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


CONVERTED = ", with TU's files A, graph_indicator, graph_labels and node_attributes: published pickles are not opened"
MOLECULE_COLUMNS = "the columns smiles, label (0, 1) and split (train, valid, test: the scaffold split)"


def read_graph_set(known: KnownSet, *, data_dir: Path | None = None) -> Dataset:
    """Read a zip, a folder or a text file."""
    expected = f"{known.files[0]}.zip into FOLDER{CONVERTED if known.options.get('converted') else ''}"
    path = known.find(data_dir, expected, (".zip", "", ".txt"))
    dataset = read_graphs(path)
    if len(dataset.domains) > 1:
        raise BadInput(f"{path} holds {len(dataset.domains)} sets of graphs, {known.name} is one: remove the others")
    return known.finish(dataset.as_one_domain(known.name), "graphs").checked()


def read_molecule_set(known: KnownSet, *, data_dir: Path | None = None) -> Dataset:
    """Read a table with SMILES, or the rows of the set in a table `molecules` of several sets."""
    path = known.find(data_dir, f"{TABLE_FILE.format(known.name)} into FOLDER, with {MOLECULE_COLUMNS}")
    shared = path.stem == "molecules"
    column = smiles_column(path, None)
    if column is None:
        raise BadInput(f"{path} has no column smiles: it needs {MOLECULE_COLUMNS}")
    table = read_table(path, ReadOptions({"text": column}, ("label", "domain") if shared else ("label",)))
    if shared and known.name not in table.domains:
        raise BadInput(f"{path} has no rows with the domain {known.name}: its domains are {', '.join(table.domains)}")
    rows = table.rows_of(known.name) if shared else np.arange(len(table))
    return known.finish(as_molecules(table, rows, str(path)).as_one_domain(known.name), "molecules").checked()
