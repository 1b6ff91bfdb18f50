"""Texts of four fields: each from a small file, a split that is drawn, texts on both sides of a split."""

import numpy as np
import pytest

from holdfast.core.errors import BadInput
from holdfast.data.known.task_sets import ACL_ARC, AG_NEWS, CHEMPROT, HYPERPARTISAN
from holdfast.data.load import load_data
from tests.task_files import CLASSIFYING, write_tasks


@pytest.mark.parametrize("name", CLASSIFYING)
def test_each_is_read_by_its_name(tmp_path, name):
    write_tasks(tmp_path, name)
    found = load_data(name, data_dir=tmp_path)
    assert (found.name, found.domains, found.classes) == (name, (name,), tuple(CLASSIFYING[name].labels))
    assert np.bincount(found.y).tolist() == [4] * len(found.classes)
    assert any("not the published number of examples" in note for note in found.notes)
    for folder in (None, tmp_path / "none"):
        with pytest.raises(BadInput, match=f"{name}.csv") as error:
            load_data(name, data_dir=folder)
        assert CLASSIFYING[name].home in str(error.value)


def test_sizes_are_those_of_the_paper():
    classes = {name: len(each.labels) for name, each in CLASSIFYING.items()}
    assert classes == {
        "chemprot": 13, "rct": 5, "acl-arc": 6, "scierc": 7, "csabstruct": 5, "hyperpartisan": 2, "ag-news": 4,
        "helpfulness": 2,
    }  # fmt: skip
    assert sum(CHEMPROT.sizes["chemprot"].values()) == 10_065


def test_texts_that_are_trained_on_too_are_told_and_can_be_left_out(tmp_path):
    write_tasks(tmp_path, "acl-arc", times=2)
    whole = ACL_ARC.read(data_dir=tmp_path)
    assert whole.split is not None
    assert whole.notes[-1] == (
        "acl-arc: 2 of 12 test and 0 of 12 valid texts are in train too; acl-arc@leaks=drop leaves them out"
    )
    clean = load_data("acl-arc@leaks=drop", data_dir=tmp_path)
    assert clean.name == "acl-arc@leaks=drop"
    assert clean.split is not None
    assert [int((clean.split == i).sum()) for i in range(3)] == [24, 12, 10]
    texts = clean.raw.take(np.arange(len(clean)))
    train = {text for text, split in zip(texts, clean.split, strict=True) if split == 0}
    assert not train & {text for text, split in zip(texts, clean.split, strict=True) if split}
    gone = set(whole.raw.take(np.arange(len(whole)))) - set(texts)
    assert not gone  # they are still trained on
    assert clean.notes[-1].endswith("texts are in train too and are left out")
    assert whole.fingerprint != clean.fingerprint
    with pytest.raises(BadInput, match="unknown setting leaks 'out'"):
        load_data("acl-arc@leaks=out", data_dir=tmp_path)


def test_a_set_without_a_split_is_cut_by_a_seed(tmp_path):
    (tmp_path / "hyperpartisan.csv").write_text(
        "text,label,split\n" + "".join(f"text {i},{str(i % 3 == 0).lower()},byarticle_train\n" for i in range(645))
    )
    found = [HYPERPARTISAN.read(data_dir=tmp_path, seed=seed) for seed in (None, 0, 1)]
    splits = [each.split for each in found if each.split is not None]
    assert np.array_equal(splits[0], splits[1])
    assert not np.array_equal(splits[1], splits[2])
    assert [np.bincount(split).tolist() for split in splits] == [[515, 65, 65]] * 3
    assert found[0].notes == ()
    write_tasks(tmp_path, "ag-news")
    with pytest.raises(BadInput, match="has a split of its own"):
        AG_NEWS.read(data_dir=tmp_path, seed=1)


def test_splits_with_numbers_in_their_names(tmp_path):
    rows = "a,World,train10k\nb,Sports,train10k_alps\nc,Business,test\nd,Sci/Tech,test\n"
    (tmp_path / "ag_news.csv").write_text("text,label,split\n" + rows)
    found = AG_NEWS.read(data_dir=tmp_path)
    assert found.split is not None
    assert found.split.tolist() == [0, 0, 2, 2]
    assert [found.classes[i] for i in found.y] == ["world", "sports", "business", "sci/tech"]
