import numpy as np
import pytest

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Sentence
from holdfast.data.dataset import Dataset
from holdfast.data.raw import Texts
from holdfast.data.readers.tags import Sentences
from holdfast.data.sample import check_sample, draw_sample, load_sample, save_sample
from holdfast.data.splits import TEST, TRAIN, Part, row_hashes, split_parts
from holdfast.data.synthetic import world

KINDS = ["vector", "text", "image", pytest.param("graph", marks=pytest.mark.graph)]


@pytest.mark.parametrize("kind", KINDS)
def test_saved_sample_is_loaded_exactly(kind, tmp_path):
    data = world(kind, "none", domains=2, size=12, classes=2, seed=0)
    held = [Part(name, data.rows_of(name)[:5]) for name in data.domains]
    train = [Part(name, data.rows_of(name)[5:]) for name in data.domains]
    kept = draw_sample(data, train, held, limit=3, seed=0)
    again = load_sample(save_sample(tmp_path / "sample.safetensors", kept, size=16))
    assert again.limit == 3
    assert [len(part) for part in split_parts(again.dataset, TRAIN)] == [3, 3]
    every = np.arange(12)
    assert row_hashes(again.dataset, every) == row_hashes(kept.dataset, every)
    for mark, parts in ((TRAIN, train), (TEST, held)):
        for own, part in zip(split_parts(again.dataset, mark), parts, strict=True):
            assert set(row_hashes(again.dataset, own.rows)) <= set(row_hashes(data, part.rows))


def test_pairs_of_texts_stay_pairs(tmp_path):
    pairs = [(f"a {i}", f"b {i}") for i in range(6)]
    data = Dataset("p", Texts.of(pairs), np.arange(6) % 2, ("n", "y"), np.zeros(6, dtype=np.int64), ("d",))
    kept = draw_sample(data, [Part("d", np.arange(3))], [Part("d", np.arange(3, 6))], limit=5, seed=0)
    again = load_sample(save_sample(tmp_path / "s.safetensors", kept, size=None)).dataset
    assert again.raw.take(np.arange(6)) == pairs


def test_unsupported_samples_are_rejected_before_training():
    tags = Sentences([["a"]], [[0]])
    assert isinstance(tags.take(np.arange(1))[0], Sentence)
    data = Dataset("t", tags, np.zeros(1, dtype=np.int64), ("O",), np.zeros(1, dtype=np.int64), ("d",))
    with pytest.raises(BadInput, match=r"--keep-sample .*tags or answers"):
        check_sample(data, 5)
    check_sample(data, 0)
    with pytest.raises(BadInput, match=r"--keep-sample .*-1"):
        check_sample(data, -1)
