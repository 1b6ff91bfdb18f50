"""Positions in tokenized texts for several tokenizers, and windows that cover the texts."""

import pytest
import torch

from holdfast.core.errors import BadInput
from holdfast.nn.backbones.positions import first_tokens, question_windows, states_at, token_encoder, windows
from holdfast.nn.backbones.rnn import BiLSTM
from holdfast.nn.backbones.text import TextEncoder
from tests.tiny import tiny_bert, tiny_bytes, tiny_roberta

WORDS = [["the", "Zebra's", "phone", "was", "x-y"], ["bad"], ["a"] * 30]


@pytest.fixture(scope="module", params=[tiny_bert, tiny_roberta, tiny_bytes])
def encoder(request, tmp_path_factory):
    return TextEncoder.build(list, name=str(request.param(tmp_path_factory.mktemp("text"))), length=24).eval()


def test_first_token_of_each_word(encoder):
    store, there = first_tokens(encoder, WORDS)
    x = store.take(torch.arange(3))
    for i, words in enumerate(WORDS[:2]):
        assert all(there[i])
        for place, word in zip(x.at[i].tolist(), words, strict=False):
            pieces = encoder.tokenizer.convert_ids_to_tokens([int(x.ids[i, place])])
            assert pieces[0].replace("Ġ", "").lower()[0] == word.lower()[0], (word, pieces)
        assert len(set(x.at[i, : len(words)].tolist())) == len(words)
    assert there[2] == [True] * sum(there[2]) + [False] * (30 - sum(there[2]))
    assert 10 <= sum(there[2]) <= 22
    assert x.at[2, sum(there[2]) :].eq(0).all()


def test_states_at_positions_do_not_depend_on_padding(encoder):
    store, _ = first_tokens(encoder, WORDS[:2])
    x = store.take(torch.arange(2))
    with torch.no_grad():
        result, whole = encoder(x), encoder.states(x)
        alone = encoder(store.take(torch.tensor([1])))
    assert result.shape == (2, 5, encoder.width)
    for k, place in enumerate(x.at[0].tolist()):
        torch.testing.assert_close(result[0, k], whole[0, place])
    torch.testing.assert_close(result[1, :1], alone[0], rtol=1e-4, atol=1e-5)
    assert torch.equal(states_at(whole, torch.tensor([[-1], [0]]))[:, 0], whole[:, 0])


def test_windows_cover_the_text(encoder):
    texts = ["the film was very good " * 9, "bad"]
    rows, counts = windows(encoder, texts)
    assert len(rows) == sum(counts)
    assert counts[1] == 1
    assert counts[0] > 1
    special = set(encoder.tokenizer.all_special_ids)
    inside = [i for row in rows[: counts[0]] for i in row if i not in special]
    assert inside == encoder.tokenizer(texts[0], add_special_tokens=False)["input_ids"]
    assert max(map(len, rows)) <= 24


def test_question_windows_cover_the_text(encoder):
    text = " ".join(f"w{i}" for i in range(20))
    store, network, counts = question_windows(encoder, [("was it " * 30, text), ("a ?", "good film")], longest=64)
    assert counts[1] == 1
    assert len(network) == len(store) == sum(counts)
    assert int(store.lengths().max()) <= 24
    covered = set()
    for each, window in enumerate(network):
        x = store.take(torch.tensor([each]))
        assert x.at[0, 0] == 0
        assert len(window.spans) == int((x.at[0] >= 0).sum()) - 1
        source = (text, "good film")[window.owner]
        for place, (begin, end) in zip(x.at[0, 1:].tolist(), window.spans.tolist(), strict=False):
            piece = encoder.tokenizer.convert_ids_to_tokens([int(x.ids[0, place])])[0]
            assert piece.replace("##", "").replace("Ġ", "") == source[begin:end].strip().lower()
        if window.owner == 0:
            covered |= {at for begin, end in window.spans.tolist() for at in range(begin, end)}
    assert {i for i, letter in enumerate(text) if letter != " "} <= covered


def test_other_encoders_and_templates_raise(tmp_path):
    with pytest.raises(BadInput, match="task tag needs token states"):
        token_encoder(BiLSTM.build(lambda: ["a b", "a b"]), "tag")
    network = TextEncoder.build(list, name=str(tiny_bert(tmp_path / "b")), template="{text} was {mask}")
    with pytest.raises(BadInput, match=r"encoder\.template"):
        token_encoder(network, "tag")
