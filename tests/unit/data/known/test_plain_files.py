"""Published sets in plain files: texts, tags, questions, graphs and molecules."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from holdfast.core.errors import Absent, BadInput
from holdfast.data.known import table
from holdfast.data.known.known_set import KnownSet
from holdfast.data.load import load_data
from holdfast.train.training_data import training_data
from tests.graphs import rings_and_stars, text_form, write_layout, write_zip
from tests.published import DOMAINS, PAIRS, write_published
from tests.task_files import CLASSIFICATION, write_places, write_tasks


@pytest.mark.parametrize("name", DOMAINS)
def test_set_is_read_by_its_name(tmp_path, name):
    write_published(tmp_path, name)
    found = load_data(name, data_dir=tmp_path)
    assert (found.name, found.domains) == (name, DOMAINS[name])
    assert [len(found.rows_of(domain)) for domain in found.domains] == [24] * len(found.domains)
    three = ("contradiction", "entailment", "neutral")
    assert found.classes == (three if name in PAIRS else ("negative", "positive"))
    assert np.bincount(found.y).tolist() == [len(found) // len(found.classes)] * len(found.classes)
    (first,) = found.raw.take(np.array([0]))
    assert isinstance(first, tuple if name in PAIRS else str)
    assert len(found.notes) == 1
    assert "published number of examples" in found.notes[0]


def test_small_subset_is_used_if_the_complete_set_is_missing(tmp_path):
    write_published(tmp_path, "mnli")
    (note,) = load_data("multinli", data_dir=tmp_path).notes
    assert "fiction train 18 instead of 77,348" in note
    write_published(tmp_path, "multinli", size=48)
    assert len(load_data("multinli", data_dir=tmp_path)) == 5 * 48
    assert len(load_data("mnli", data_dir=tmp_path)) == 5 * 24
    sizes = KnownSet.of("multinli").sizes.values()
    assert [sum(size[kind] for size in sizes) for kind in ("train", "valid")] == [392_702, 9_815]


@pytest.mark.parametrize(("stem", "suffix"), [("imdb_test_5k", "parquet"), ("imdb", "jsonl"), ("imdb", "csv")])
def test_file_names_and_suffixes(tmp_path, stem, suffix):
    table = pd.DataFrame({"text": ["a", "b"], "label": ["pos", "neg"], "split": ["test", "test"]})
    path = tmp_path / f"{stem}.{suffix}"
    if suffix == "parquet":
        table.to_parquet(path)
    else:
        path.write_text(table.to_csv(index=False) if suffix == "csv" else table.to_json(orient="records", lines=True))
    found = load_data("imdb", data_dir=tmp_path)
    assert found.domains == ("imdb",)
    assert found.y.tolist() == [1, 0]


def test_spellings_of_labels_and_splits(tmp_path):
    (tmp_path / "sst2.csv").write_text("text,label,split\nx,1,train_phrases\ny,0,train_sentences\nz,Positive,Test\n")
    found = load_data("sst2", data_dir=tmp_path)
    assert found.y.tolist() == [1, 0, 1]
    assert found.split.tolist() == [0, 0, 2]
    (tmp_path / "sick.csv").write_text(
        "sentence1,sentence2,label,split\na,b,ENTAILMENT,TRIAL\nc,d,NEUTRAL,TRAIN\ne,f,contradiction,TEST\n"
    )
    found = load_data("sick", data_dir=tmp_path)
    assert found.y.tolist() == [1, 2, 0]
    assert found.split.tolist() == [1, 0, 2]


def test_pairs_without_a_gold_label_are_dropped_with_a_note(tmp_path):
    head = "premise,hypothesis,label,split\n"
    (tmp_path / "snli.csv").write_text(head + "a,b,-,test\nc,d,neutral,test\ne,f,entailment,test\n")
    found = load_data("snli", data_dir=tmp_path)
    assert found.raw.take(np.arange(2)) == [("c", "d"), ("e", "f")]
    assert found.y.tolist() == [2, 1]
    assert "1 examples without a label" in found.notes[0]


REFUSED = {
    "a label of another task": ("sst2", "text,label\nx,1\ny,2\n", r"label '2' is not one of negative, positive"),
    "inference by numbers": ("snli", "premise,hypothesis,label\na,b,0\nc,d,1\n", r"label '0' is not one of contra"),
    "another domain": ("amazon", "text,label,domain\nx,pos,toys\ny,neg,books\n", r"domain 'toys' is not one of books"),
    "a missing domain": ("amazon", "text,label,domain\nx,pos,dvd\ny,neg,books\n", r"domain 'electronics' of amazon"),
    "no pair": ("sick", "text,label\nx,neutral\n", r"needs the columns premise, hypothesis, label"),
    "a pair": ("imdb", "premise,hypothesis,label\na,b,pos\n", r"needs the columns text, label"),
    "no domain": ("amazon", "text,label\nx,pos\n", r"no domain column"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_tables_are_rejected(tmp_path, case):
    name, content, message = REFUSED[case]
    (tmp_path / f"{name}.csv").write_text(content)
    with pytest.raises(BadInput, match=message):
        load_data(name, data_dir=tmp_path)


@pytest.mark.parametrize("name", CLASSIFICATION)
def test_task_set_is_read_by_its_name(tmp_path, name):
    write_tasks(tmp_path, name)
    found = load_data(name, data_dir=tmp_path)
    assert (found.name, found.domains, found.classes) == (name, (name,), tuple(CLASSIFICATION[name].labels))
    assert np.bincount(found.y).tolist() == [4] * len(found.classes)
    assert any("published number of examples" in note for note in found.notes)


def test_task_sets_have_the_published_classes_and_sizes():
    classes = {name: len(known.labels) for name, known in CLASSIFICATION.items()}
    assert classes == {
        "chemprot": 13, "rct": 5, "acl-arc": 6, "scierc": 7, "csabstruct": 5, "hyperpartisan": 2, "ag-news": 4,
        "helpfulness": 2,
    }  # fmt: skip
    assert sum(CLASSIFICATION["chemprot"].sizes.values()) == 10_065


def test_leaked_texts_are_reported_and_can_be_dropped(tmp_path):
    write_tasks(tmp_path, "acl-arc", times=2)
    leaky = load_data("acl-arc", data_dir=tmp_path)
    assert leaky.split is not None
    assert "2 of 12 test and 0 of 12 valid" in leaky.notes[-1]
    assert "acl-arc@leaks=drop" in leaky.notes[-1]
    clean = load_data("acl-arc@leaks=drop", data_dir=tmp_path)
    assert clean.name == "acl-arc@leaks=drop"
    assert clean.split is not None
    assert [int((clean.split == i).sum()) for i in range(3)] == [24, 12, 10]
    texts = clean.raw.take(np.arange(len(clean)))
    train = {text for text, split in zip(texts, clean.split, strict=True) if split == 0}
    assert not train & {text for text, split in zip(texts, clean.split, strict=True) if split}
    assert not set(leaky.raw.take(np.arange(len(leaky)))) - set(texts)  # the training copies remain
    assert "2 of 12 test" in clean.notes[-1]
    assert leaky.fingerprint != clean.fingerprint
    with pytest.raises(BadInput, match="leaks 'out'"):
        load_data("acl-arc@leaks=out", data_dir=tmp_path)


def test_missing_split_is_drawn_with_the_seed(tmp_path):
    (tmp_path / "hyperpartisan.csv").write_text(
        "text,label,split\n" + "".join(f"text {i},{str(i % 3 == 0).lower()},byarticle_train\n" for i in range(645))
    )
    known = KnownSet.of("hyperpartisan")
    found = [known.load_reader()(data_dir=tmp_path, seed=seed) for seed in (None, 0, 1)]
    splits = [each.split for each in found if each.split is not None]
    assert np.array_equal(splits[0], splits[1])
    assert not np.array_equal(splits[1], splits[2])
    assert [np.bincount(split).tolist() for split in splits] == [[515, 65, 65]] * 3
    assert found[0].notes == ()
    write_tasks(tmp_path, "ag-news")
    with pytest.raises(BadInput, match=r"ag-news.*seed=1"):
        load_data("ag-news@seed=1", data_dir=tmp_path)


def test_split_names_may_contain_numbers(tmp_path):
    rows = "a,World,train10k\nb,Sports,train10k_alps\nc,Business,test\nd,Sci/Tech,test\n"
    (tmp_path / "ag_news.csv").write_text("text,label,split\n" + rows)
    found = load_data("ag-news", data_dir=tmp_path)
    assert found.split.tolist() == [0, 0, 2, 2]
    assert [found.classes[i] for i in found.y] == ["world", "sports", "business", "sci/tech"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_places(tmp_path_factory.mktemp("places"))


@pytest.mark.parametrize(
    ("name", "task", "classes"),
    [("ncbi-disease", "tag", 3), ("conll2003", "tag", 9), ("medication", "span", 2), ("newsqa", "span", 2)],
)
def test_tags_and_questions_are_read_by_their_name(folder, name, task, classes):
    found = training_data(name, task=task, data_dir=folder)
    assert (found.name, found.domains, len(found.classes), len(found)) == (name, (name,), classes, 24)
    assert found.split is not None
    assert [int((found.split == i).sum()) for i in range(3)] == ([16, 0, 8] if name == "newsqa" else [8, 8, 8])
    assert "published number of examples" in found.notes[-1]


def test_entities_of_another_set_are_rejected(folder, tmp_path):
    (tmp_path / "conll2003.jsonl").write_text((folder / "ncbi-disease.jsonl").read_text())
    with pytest.raises(BadInput, match=r"Disease.*conll2003.*LOC, MISC, ORG, PER"):
        training_data("conll2003", task="tag", data_dir=tmp_path)


def test_questions_of_several_domains_keep_domains_and_missing_splits(tmp_path):
    rows = [
        {"context": "it was good", "question": "how ?", "answers": ["good"], "answer_start": [7], "domain": domain,
         "split": split}
        for domain, split in (("covid", "all"), ("books", "train"), ("books", "test"))
    ]  # fmt: skip
    (tmp_path / "qa_extractive.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = load_data("qa-extractive", data_dir=tmp_path)
    assert found.domains == ("covid", "books")
    assert found.split.tolist() == [-1, 0, 2]


def test_plain_texts_of_one_field(folder, tmp_path):
    found = training_data("cs-texts", task="masked", data_dir=folder)
    assert found.domains == ("cs-texts",)
    assert len(found) == 24
    assert all("computer science" in text for text in found.raw.take(np.arange(24)))
    with pytest.raises(Absent, match=r"no texts of books-texts.*bookcorpus"):
        load_data("books-texts", data_dir=folder)
    (tmp_path / "books-texts.txt").write_text("".join(f"line {i}\n" for i in range(9)))
    few = replace(KnownSet.of("books-texts"), sizes={"all": 5})
    first, second = (few.load_reader()(data_dir=tmp_path) for _ in range(2))
    assert len(first) == 5
    assert first.notes == ()
    assert first.fingerprint == second.fingerprint


SETS = [name for name, row in table().items() if row["reader"] == "plain_files:read_graph_set"]


@pytest.mark.parametrize("name", SETS)
def test_graphs_are_read_by_their_name(tmp_path, name):
    known = KnownSet.of(name)
    write_zip(tmp_path / f"{known.files[0].replace('-', '')}.zip", rings_and_stars(20), folds=True)
    found = load_data(name, data_dir=tmp_path)
    assert (found.name, found.domains, len(found)) == (name, (name,), 20)
    (note,) = found.notes
    assert f"20 instead of {known.sizes['all']:,}" in note
    assert found.split is None


def test_folder_or_text_file_is_read(tmp_path):
    write_layout(tmp_path / "NCI1", "NCI1", rings_and_stars(6))
    (tmp_path / "PROTEINS.txt").write_text(text_form(rings_and_stars(8)))
    assert len(load_data("nci1", data_dir=tmp_path)) == 6
    assert len(load_data("proteins", data_dir=tmp_path)) == 8


@pytest.mark.molecules
def test_molecules_are_read_from_their_table_or_a_shared_one(tmp_path):
    (tmp_path / "bace.csv").write_text("smiles,label,split\nC,1,train\nCC,0,valid\nCCC,0,test\n")
    found = load_data("bace", data_dir=tmp_path)
    assert found.domains == ("bace",)
    assert found.split.tolist() == [0, 1, 2]
    assert "train 1 instead of 1,210, valid 1 instead of 151, test 1 instead of 152" in found.notes[0]
    (tmp_path / "bace.csv").unlink()
    rows = "\n".join(["smiles,label,domain", "C,1,hiv", "CC,0,bace", "CCC,1,bace", "no molecule,1,hiv"])
    (tmp_path / "molecules.csv").write_text(rows)
    found = load_data("bace", data_dir=tmp_path)  # rows of other sets are not parsed
    assert [len(g.nodes) for g in found.raw.take(np.arange(2))] == [2, 3]
    assert found.domains == ("bace",)
    with pytest.raises(BadInput, match=r"domain bbbp.*hiv, bace"):
        load_data("bbbp", data_dir=tmp_path)
