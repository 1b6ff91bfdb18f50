"""MemoryRNN: texts and pairs, words, growth of slots and words, saving and loading."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from holdfast.core.errors import BadInput
from holdfast.nn.backbones.memory_rnn import MemoryRNN
from holdfast.nn.backbones.words import PAD, UNKNOWN

TEXTS = ["The food was good, the wine 3.5!", "Bad film.", "don't go, the film was bad", "", "good good good"]
PAIRS = list(zip(TEXTS, ["no", "The film was bad , really bad", "", "good", "Bad"], strict=True))
SMALL = {"embedding": 6, "hidden": 4, "slots": 5, "slot_width": 3, "joint": 7}
ALL = torch.arange(5)


def net(examples=TEXTS, **options) -> MemoryRNN:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return MemoryRNN.build(lambda: examples, **{**SMALL, **options})


def test_poolings_of_a_text():
    last, mean = (net(pooling=pooling).eval() for pooling in ("last", "mean"))
    x = last.prepare(TEXTS).take(torch.tensor([1]))  # three words
    states = last.rnn(last.table(x.ids), torch.tensor([3])).padded()[0]
    assert_close(last(x)[0], torch.cat([states[2, :4], states[0, 4:]]))
    assert_close(mean(x)[0], states.mean(0))


def test_pair_features_equal_the_published_ones():
    pair, single = net(PAIRS).eval(), net([text for both in PAIRS for text in both]).eval()
    single.load_state_dict({k: v for k, v in pair.state_dict().items() if not k.startswith("joint")})
    u, v = (single(single.prepare([both[i] for both in PAIRS]).take(ALL)) for i in (0, 1))
    expected = pair.joint[0](torch.cat([u, v, u * v, (u - v).abs()], 1)).relu()
    assert_close(pair(pair.prepare(PAIRS).take(ALL)), expected)
    assert bool((expected >= 0).all())
    swapped = pair(pair.prepare([(b, a) for a, b in PAIRS]).take(ALL))
    assert not torch.allclose(swapped, expected)


def test_prepare_words_lengths_and_kinds():
    encoder = net(length=3)
    index = encoder.table.index
    assert set(index) >= {"3.5", "don't", ",", "!"}
    result = encoder.prepare(["the zebra", "good " * 9, ""]).take(torch.arange(3))
    the, good = index["the"], index["good"]
    assert result.ids.tolist() == [[the, UNKNOWN, PAD], [good] * 3, [UNKNOWN, PAD, PAD]]
    pairs = net(PAIRS, length=3).prepare([("good " * 9, "bad"), ("", "bad bad")]).take(torch.arange(2))
    assert pairs.mask.sum(1).tolist() == [4, 3]
    assert pairs.types.tolist() == [[0, 0, 0, 1], [0, 1, 1, 0]]
    with pytest.raises(BadInput, match="built for single texts"):
        encoder.prepare(PAIRS)
    with pytest.raises(BadInput, match="built for pairs"):
        net(PAIRS).prepare(TEXTS)
    assert len(encoder.prepare([])) == len(net(PAIRS).prepare([])) == 0


@pytest.mark.parametrize("kind", ["txt", "npz"])
def test_word_vectors(kind, tmp_path):
    path, vectors = tmp_path / f"vectors.{kind}", {"good": np.arange(6.0), "film": -np.arange(6.0)}
    if kind == "txt":
        path.write_text("".join(f"{word} {' '.join(map(str, v))}\n" for word, v in vectors.items()))
    else:
        np.savez(path, words=np.array([*vectors]), vectors=np.stack([*vectors.values()]))
    texts = [*TEXTS, " ".join(f"w{i}" for i in range(2000))]
    encoder = net(texts, vectors=str(path))
    rows, index = encoder.table.tables[0].detach(), encoder.table.index
    assert rows[index["good"]].tolist() == list(range(6))
    assert rows[index["film"]].tolist() == [-i for i in range(6)]
    assert float(rows[[index[f"w{i}"] for i in range(2000)]].std()) == pytest.approx(0.05, rel=0.05)
    assert "vectors" not in encoder.settings  # the model folder does not need the file
    (new,) = encoder.grow_words(["zebra", "good"], vectors=str(path))
    assert len(new) == 1
    assert float(new.detach().abs().max()) < 0.5
    assert rows[index["good"]].tolist() == list(range(6))
    with pytest.raises(BadInput, match=r"numbers per word|must be strings"):
        net(vectors=str(path), embedding=5)


def test_new_words_with_vectors_from_a_file(tmp_path):
    (tmp_path / "vectors.txt").write_text("zebra 1 2 3 4 5 6\n")
    encoder = net()
    encoder.grow_words(["yak", "zebra"], vectors=str(tmp_path / "vectors.txt"))
    assert encoder.table(torch.tensor(encoder.table.ids(["zebra"])))[0].tolist() == [1, 2, 3, 4, 5, 6]


def test_new_words_leave_prepared_examples_valid():
    encoder = net().eval()
    columns = ["good zebra", "bad film"]
    old = encoder.prepare(columns).take(torch.arange(2))
    before, name = encoder(old), encoder.preparation_key()
    (new,) = encoder.grow_words(["zebra", "film", "yak"])
    assert new.shape == (2, 6)
    assert torch.equal(encoder(old), before)
    fresh = encoder.prepare(columns).take(torch.arange(2))
    assert fresh.ids[1].tolist() == old.ids[1].tolist()
    assert fresh.ids[0, 1] == encoder.table.index["zebra"] != UNKNOWN == old.ids[0, 1]
    assert not torch.equal(encoder(fresh)[0], before[0])
    assert encoder.preparation_key() != name
    encoder(fresh).sum().backward()
    assert bool(new.grad[0].any())
    assert not new.grad[1].any()


def test_without_slots_equals_the_plain_network():
    names = [name for name, _ in net(slots=0).named_parameters()]
    assert not any("bank" in name or "content" in name for name in names)
    with pytest.raises(BadInput, match="slots"):
        net(slots=0).grow(3, domain=1)
