"""Published data sets read from tables: each from a small file, labels and domains unified, clear refusals."""

import numpy as np
import pandas as pd
import pytest

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.data.known.published import AMAZON, IMDB, MNLI, MULTINLI, SICK, SNLI, SST2
from holdfast.data.load import load_data
from tests.published import DOMAINS, PAIRS, write_published

ALL = {each.name: each for each in (AMAZON, MNLI, MULTINLI, SNLI, SICK, SST2, IMDB)}


@pytest.mark.parametrize("name", ALL)
def test_each_is_read_by_its_name(tmp_path, name):
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
    assert "not the published number of examples" in found.notes[0]


def test_every_set_is_in_the_catalog():
    targets = {entry.target.partition(":")[2] for entry in catalog.DATASETS.values() if "published" in entry.target}
    assert targets == {f"{name.upper()}.read" for name in ALL}


def test_the_small_cut_serves_where_all_pairs_are_not_there_and_its_size_is_told(tmp_path):
    write_published(tmp_path, "mnli")
    (note,) = MULTINLI.read(data_dir=tmp_path).notes
    assert "multinli has not the published number of examples: fiction train 18 instead of 77,348" in note
    write_published(tmp_path, "multinli", size=48)
    assert len(MULTINLI.read(data_dir=tmp_path)) == 5 * 48
    assert len(MNLI.read(data_dir=tmp_path)) == 5 * 24
    assert sum(sizes["train"] for sizes in MULTINLI.sizes.values()) == 392_702
    assert sum(sizes["valid"] for sizes in MULTINLI.sizes.values()) == 9_815


@pytest.mark.parametrize(("stem", "suffix"), [("imdb_test_5k", "parquet"), ("imdb", "jsonl"), ("imdb", "csv")])
def test_stems_and_suffixes(tmp_path, stem, suffix):
    table = pd.DataFrame({"text": ["a", "b"], "label": ["pos", "neg"], "split": ["test", "test"]})
    path = tmp_path / f"{stem}.{suffix}"
    if suffix == "parquet":
        table.to_parquet(path)
    else:
        path.write_text(table.to_csv(index=False) if suffix == "csv" else table.to_json(orient="records", lines=True))
    found = IMDB.read(data_dir=tmp_path)
    assert found.domains == ("imdb",)
    assert found.y.tolist() == [1, 0]


def test_other_spellings_and_splits_with_more_words(tmp_path):
    (tmp_path / "sst2.csv").write_text("text,label,split\nx,1,train_phrases\ny,0,train_sentences\nz,Positive,Test\n")
    found = SST2.read(data_dir=tmp_path)
    assert found.y.tolist() == [1, 0, 1]
    assert found.split is not None
    assert found.split.tolist() == [0, 0, 2]
    (tmp_path / "sick.csv").write_text(
        "sentence1,sentence2,label,split\na,b,ENTAILMENT,TRIAL\nc,d,NEUTRAL,TRAIN\ne,f,contradiction,TEST\n"
    )
    found = SICK.read(data_dir=tmp_path)
    assert found.y.tolist() == [1, 2, 0]
    assert found.split is not None
    assert found.split.tolist() == [1, 0, 2]


def test_pairs_without_a_gold_label_are_left_out_and_told(tmp_path):
    head = "premise,hypothesis,label,split\n"
    (tmp_path / "snli.csv").write_text(head + "a,b,-,test\nc,d,neutral,test\ne,f,entailment,test\n")
    found = SNLI.read(data_dir=tmp_path)
    assert found.raw.take(np.arange(2)) == [("c", "d"), ("e", "f")]
    assert found.y.tolist() == [2, 1]
    assert "1 examples without a label left out" in found.notes[0]


def test_the_published_sizes_need_no_note(tmp_path):
    write_published(tmp_path, "amazon", size=2000)
    assert AMAZON.read(data_dir=tmp_path).notes == ()


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
def test_what_is_refused(tmp_path, case):
    name, content, said = REFUSED[case]
    (tmp_path / f"{name}.csv").write_text(content)
    with pytest.raises(BadInput, match=said):
        ALL[name].read(data_dir=tmp_path)


@pytest.mark.parametrize("name", ALL)
def test_an_absent_file_is_named_with_its_columns_and_its_home(tmp_path, name):
    for folder in (None, tmp_path):
        with pytest.raises(BadInput) as error:
            ALL[name].read(data_dir=folder)
        said = str(error.value)
        assert f"{name}.csv" in said
        assert ALL[name].home in said
        assert ("premise, hypothesis, label" if name in PAIRS else "text, label") in said
        assert (str(tmp_path) if folder else "--data-dir") in said
