"""Dialogue encoder: likelihood, decoding, growth, saving and loading."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Tokens
from holdfast.nn.backbones import word_vectors
from holdfast.nn.backbones.words import PAD, SEPARATOR, UNKNOWN
from lab.dialogue import encoder as dialogue
from lab.dialogue import seq2seq
from lab.dialogue.encoder import Dialogue
from lab.dialogue.similarity import load_similarity

PAIRS = [
    ("How are you today?", "fine, and you?"),
    ("where is the tea", "here"),
    ("fine!", "how is the tea, today and here"),
    ("you", "the tea is fine. how are you?"),
]
SMALL = {"embedding": 6, "hidden": 4, "slots": 5, "slot_width": 3, "joint": 7, "longest": 6}
ALL = torch.arange(4)


def net(*, columns=(), **options) -> Dialogue:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = Dialogue.build(lambda: PAIRS, **{**SMALL, **options}).eval()
        for units in columns:
            network.add_column(units)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter *= 2  # makes words and slots clearly different
        return network


def taken(encoder: Dialogue, examples=PAIRS) -> Tokens:
    return encoder.prepare(examples).take(torch.arange(len(examples)))


OPTIONS = [{}, {"cell": "lstm"}, {"slots": 0}, {"directions": 2}, {"attention": "general"}]
COLUMNS = [
    {"columns": [3]},
    {"columns": [2, 4], "directions": 2, "cell": "lstm"},
    {"columns": [2], "attention": "general"},
]


@pytest.mark.parametrize("options", [*OPTIONS, *COLUMNS], ids=str)
def test_likelihood_equals_step_by_step_decoding(options):
    encoder = net(**options)
    result = encoder(taken(encoder))
    for i, (message, response) in enumerate(PAIRS):
        words = [*encoder.split(response), "<eos>"]
        heard = torch.tensor([encoder.table.ids(encoder.split(message))])
        score, state = encoder.net.scorer(heard, torch.tensor([heard.shape[1]]))
        last, lost = torch.tensor([SEPARATOR]), 0.0
        for word in words:
            told, state = score(last, state)
            last = torch.tensor(encoder.table.ids([word]))
            lost = lost - told[0, last]
        assert_close(result[i], torch.cat([lost.detach(), torch.tensor([float(len(words))])]), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("beam", [1, 3])
def test_scores_computed_in_pieces_are_equal(beam, monkeypatch):
    encoder = net(beam=beam)
    x = taken(encoder)
    expected, pattern = encoder(x), encoder.answer(x)
    monkeypatch.setattr(seq2seq, "ENTRIES", 2 * len(encoder.table.words()))
    monkeypatch.setattr(dialogue, "ENTRIES", 2 * len(encoder.table.words()))
    assert_close(encoder(x), expected)
    assert torch.equal(encoder.answer(x), pattern)


def test_answer_depends_on_the_message_only():
    encoder = net()
    pattern = encoder.answer(taken(encoder))
    assert pattern.shape == (4, 6)
    assert torch.equal(encoder.answer(taken(encoder, [message for message, _ in PAIRS])), pattern)
    other = [(message, "tea tea") for message, _ in PAIRS]
    assert torch.equal(encoder.answer(taken(encoder, other)), pattern)
    alone = [encoder.answer(taken(encoder, PAIRS[i : i + 1])) for i in range(4)]
    assert torch.equal(torch.cat(alone), pattern)
    assert not set(pattern.flatten().tolist()) & {UNKNOWN, SEPARATOR, encoder.table.index["<eos>"]}
    assert torch.equal(encoder(taken(encoder, [message for message, _ in PAIRS])), torch.zeros(4, 2))
    words = encoder.table.words()
    assert encoder.texts(pattern)[0].replace(" ", "") == "".join(words[i] for i in pattern[0] if i != PAD)


def test_learns_to_answer():
    torch.manual_seed(0)
    encoder = Dialogue.build(lambda: PAIRS, embedding=16, hidden=24, slots=6, dropout=0.0, longest=12)
    x, optimizer = taken(encoder), torch.optim.Adam(encoder.parameters(), lr=0.02)
    for _ in range(80):
        lost, words = encoder(x).sum(0)
        optimizer.zero_grad()
        (lost / words).backward()
        optimizer.step()
    assert encoder.texts(encoder.answer(x)) == [
        "fine, and you?", "here", "how is the tea, today and here", "the tea is fine. how are you?",
    ]  # fmt: skip


def test_prepare_truncates_and_marks_types():
    encoder = net(length=3)
    index = encoder.table.index
    result = taken(encoder, [("the zebra", "tea " * 9), ("you", "zebra")])
    the, tea, you, end = (index[word] for word in ("the", "tea", "you", "<eos>"))
    assert result.ids.tolist() == [[the, UNKNOWN, tea, tea, tea, end], [you, UNKNOWN, end, PAD, PAD, PAD]]
    assert result.types.tolist() == [[0, 0, 1, 1, 1, 1], [0, 1, 1, 0, 0, 0]]
    assert encoder.references(result).tolist() == [[tea, tea, tea, PAD], [-1, PAD, PAD, PAD]]
    assert encoder.similarity(encoder.answer(result), result) is None
    assert len(encoder.prepare([])) == 0


def test_similarity_counts_words_outside_the_vocabulary(tmp_path):
    path = tmp_path / "vectors.npz"
    names = ["tea", "zebra", "fine", "you"]
    np.savez(path, words=np.array(names), vectors=np.array([[1.0, 0], [0, 1], [1, 1], [-1, 0]]))
    encoder, plain = net(vectors=str(path)), net()
    assert encoder.preparation_key() != plain.preparation_key()
    examples = [("you", "tea zebra"), ("you", "here"), ("you", "fine")]
    x = taken(encoder, examples)
    assert_close(encoder(x), plain(taken(plain, examples)))
    tea, fine, here = (encoder.table.index[word] for word in ("tea", "fine", "here"))
    answers = torch.tensor([[tea, here, PAD], [tea, tea, PAD], [here, PAD, PAD]])
    # mean of tea and zebra against tea; then a reference and an answer without known vectors
    assert_close(encoder.similarity(answers, x), torch.tensor([0.5**0.5, 0.0, 0.0]))
    assert encoder.similarity(torch.tensor([[fine], [fine], [fine]]), x).tolist() == pytest.approx([1, 0, 1])
    assert copy.deepcopy(encoder).text_similarity is encoder.text_similarity
    assert not any("similarity" in name for name in encoder.state_dict())


def test_slots_grow_in_both_banks():
    encoder = net()
    before = encoder(taken(encoder))
    new = encoder.grow(3, domain=1)
    assert [tuple(p.shape) for p in new] == [(1, 3, 4), (1, 3, 3)] * 2
    assert encoder.slots == 8
    assert not torch.equal(encoder(taken(encoder)), before)
    with torch.no_grad():
        for bank in (encoder.net.encoder.bank, encoder.net.decoder.bank):
            bank.keys[1].zero_()
            bank.values[1].zero_()
        state = encoder.state_dict()
    fresh = net()
    fresh.load_state_dict(state)
    assert torch.equal(fresh(taken(fresh)), encoder(taken(encoder)))


def test_new_words_extend_inputs_and_outputs(tmp_path):
    (tmp_path / "vectors.txt").write_text("zebra 1 2 3 4 5 6\n")
    encoder = net()
    told = [("the zebra", "zebra here")]
    old = taken(encoder, told)
    before = encoder(old)
    heard, pattern = encoder.grow_words(["zebra", "tea", "yak"], vectors=str(tmp_path / "vectors.txt"))
    assert heard.shape == (2, 6)
    assert pattern.shape == (2, 8)
    assert heard[0].tolist() == [1, 2, 3, 4, 5, 6]
    with torch.no_grad():
        pattern[:, -1] = -1e4  # never generated, so old outputs are unchanged
        assert_close(encoder(old), before)
        pattern[:, -1] = 0.0
    fresh = taken(encoder, told)
    assert fresh.ids[0, 1] == encoder.table.index["zebra"] != UNKNOWN
    encoder(fresh)[:, 0].sum().backward()
    assert bool(heard.grad[0].any())
    assert not heard.grad[1].any()
    assert bool(pattern.grad.any())
    with torch.no_grad():
        pattern[0, -1] = 1e4
    assert encoder.texts(encoder.answer(fresh)) == [" ".join(["zebra"] * 6)]


@pytest.mark.parametrize("options", [{}, {"cell": "lstm"}, {"slots": 0}], ids=str)
def test_widening_preserves_the_old_network(options):
    encoder = net(attention="general", **options)
    x, counted = taken(encoder), sum(p.numel() for p in encoder.parameters())
    before, cost = encoder(x), encoder.net.cost(3)
    assert encoder.widen(3).tolist() == [0, 1]
    assert sum(p.numel() for p in encoder.parameters()) == counted + cost
    assert not torch.allclose(encoder(x), before)
    with torch.no_grad():  # without weights from new to old units it is the old network
        for part in (encoder.net.encoder, encoder.net.decoder):
            part.by_state[:, 4:] = 0
            if part.bank is not None:
                part.bank.keys[0][..., 4:] = 0
        look = encoder.net.attention
        for weights in (
            look.joint.weight[:, 4:7],
            look.joint.weight[:, 11:],
            look.by_state.weight[:, 4:],
            look.by_state.weight[4:],
        ):
            weights.zero_()
    assert_close(encoder(x), before)


@pytest.mark.parametrize("column", [False, True])
def test_units_match_the_parameter_budget(column):
    encoder = Dialogue(words=["a"], embedding=30, hidden=96, slots=64)
    units = encoder.units_for(60_000, column=column)
    before = sum(p.numel() for p in encoder.parameters())
    encoder.add_column(units) if column else encoder.widen(units)
    assert sum(p.numel() for p in encoder.parameters()) - before == pytest.approx(60_000, rel=0.01)


@pytest.mark.parametrize("options", COLUMNS, ids=str)
def test_new_column_trains_while_the_rest_is_frozen(options):
    columns = options["columns"]
    encoder = net(**{**options, "columns": columns[:-1]})
    old = list(encoder.net.encoders), list(encoder.net.decoders), encoder.net.table
    before = encoder(taken(encoder))
    cost = encoder.net.cost(columns[-1], column=True)
    counted = sum(p.numel() for p in encoder.parameters())
    assert encoder.add_column(columns[-1]).tolist() == [0, 1]
    assert sum(p.numel() for p in encoder.parameters()) == counted + cost
    assert not torch.allclose(encoder(taken(encoder)), before)  # the output layer is new
    encoder(taken(encoder))[:, 0].sum().backward()
    resting = [p for part in (*old[0], *old[1], old[2]) for p in part.parameters()]
    assert all(p.grad is None for p in resting)
    learning = [p for p in encoder.parameters() if p.requires_grad]
    assert all(p.grad is not None and bool(p.grad.any()) for p in learning)
    assert {id(p) for p in learning} | {id(p) for p in resting} == {id(p) for p in encoder.parameters()}


@pytest.mark.parametrize("options", [*OPTIONS, *COLUMNS], ids=str)
def test_grown_network_loads_from_its_folder(options, tmp_path):
    encoder = net(**options)
    if encoder.slots and not encoder.settings["columns"]:
        encoder.grow(4, domain=2)
    encoder.grow_words(["zebra"])
    if encoder.settings["directions"] == 1 and not encoder.settings["columns"]:
        encoder.widen(2)
    encoder.grow_words(["yak"])
    again = Dialogue.load(tmp_path, json.loads(json.dumps(encoder.save(tmp_path)))).eval()
    again.load_state_dict(encoder.state_dict())
    asked = [*PAIRS, ("a zebra", "yak here")]
    assert torch.equal(again(taken(again, asked)), encoder(taken(encoder, asked)))
    assert torch.equal(again.answer(taken(again, asked)), encoder.answer(taken(encoder, asked)))
    assert again.preparation_key() == encoder.preparation_key()
    assert again.settings == encoder.settings


def test_bad_input():
    for options, pattern in [
        ({"length": 0}, "at least 1"),
        ({"beam": 0}, "beam.*0"),
        ({"attention": "dott"}, "did you mean 'dot'"),
        ({"directions": 2, "hidden": 5}, "even"),
        ({"min_count": 9}, "min_count"),
        ({"vectors": "nowhere.npz"}, "no file of word vectors"),
    ]:
        with pytest.raises(BadInput, match=pattern):
            net(**options)
    with pytest.raises(BadInput, match="message and response"):
        Dialogue.build(lambda: ["hello"])
    with pytest.raises(BadInput, match=r"encoder\.directions"):
        net(directions=2).widen(2)
    with pytest.raises(BadInput, match="without columns"):
        net(columns=[2]).widen(2)
    with pytest.raises(BadInput, match=r"column .* got 3"):
        net(directions=2).add_column(3)


def test_similarity_is_the_cosine_of_mean_vectors(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    vectors = {word: rng.normal(size=5) for word in ("a", "b", "c", "d")}
    np.savez(tmp_path / "v.npz", words=np.array([*vectors]), vectors=np.stack([*vectors.values()]))
    (tmp_path / "v.txt").write_text("".join(f"{w} {' '.join(map(str, v))}\n" for w, v in vectors.items()))
    for name in ("v.npz", "v.txt"):
        like = load_similarity(tmp_path / name)
        texts = [(["a", "b", "a"], ["c"]), (["a", "zebra"], ["a"]), (["zebra"], ["a"]), ([], ["a"])]
        result = like.cosines(*([like.ids(pair[i]) for pair in texts] for i in (0, 1)))
        mean = (2 * vectors["a"] + vectors["b"]) / 3
        expected = mean @ vectors["c"] / np.linalg.norm(mean) / np.linalg.norm(vectors["c"])
        np.testing.assert_allclose(result, [expected, 1.0, 0.0, 0.0], atol=1e-6)
        with monkeypatch.context() as patch:
            patch.setattr(word_vectors, "MAX_WORDS", 2)
            other = (tmp_path / name).rename(tmp_path / f"few-{name}")
            assert list(load_similarity(other).index) == ["a", "b"]
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(BadInput, match="no word vectors"):
        load_similarity(tmp_path / "empty.txt")
