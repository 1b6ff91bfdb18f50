"""Hidden words: the same ones whenever a text is scored, others in every step; the loss is the whole model's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Question
from holdfast.core.seeds import generator
from holdfast.data.batches import Batches, Examples
from holdfast.data.raw import Texts
from holdfast.data.readers.questions import Questions
from holdfast.data.readers.tags import Sentences
from holdfast.data.splits import Part
from holdfast.nn.backbones.text import TextEncoder
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from holdfast.nn.vocabulary import Vocabulary, write_checkpoint
from holdfast.tasks.masked import Masked
from tests.annotated import said
from tests.tiny import tiny_bert, tiny_bytes, tiny_masked

FAMILIES = ("bert", "roberta", "mpnet", "distilbert", "electra")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {family: tiny_masked(tmp_path_factory.mktemp(family), family) for family in FAMILIES}


@pytest.fixture(scope="module")
def encoder(folders):
    return TextEncoder.build(list, name=str(folders["bert"]), length=20)


def network(name) -> Model:
    encoder = TextEncoder.build(list, name=str(name), length=20)
    return Model(encoder, NoNeck(encoder.width), Vocabulary.build(encoder.width, (), encoder)).eval()


def prepared(encoder, texts):
    return Masked().prepare(encoder, Texts.of(texts), ())


def whole(x, y):
    """The texts before anything was hidden."""
    at = x.at.clamp(min=0)
    return x.ids.scatter(1, at, torch.where(y >= 0, y, x.ids.gather(1, at)))


def test_what_is_hidden_to_score_a_text_depends_on_the_text_alone(encoder):
    texts = said(40)
    made, other = prepared(encoder, texts), prepared(encoder, texts[20:])
    first = int(made.starts[20])
    for i in range(len(other.store)):
        a, b = made.store.take(torch.tensor([first + i])), other.store.take(torch.tensor([i]))
        assert torch.equal(a.ids, b.ids)
        assert torch.equal(a.at, b.at)
        assert torch.equal(made.y.take(torch.tensor([first + i])), other.y.take(torch.tensor([i])))


def test_nothing_is_lost_and_only_words_are_hidden(encoder):
    texts = said(40)
    made = prepared(encoder, texts)
    assert len(made.store) == int(made.starts[-1]) > 40
    special = set(encoder.tokenizer.all_special_ids)
    for i, text in enumerate(texts):
        rows = torch.arange(int(made.starts[i]), int(made.starts[i + 1]))
        x, y = made.store.take(rows), made.y.take(rows)
        clean = whole(x, y)
        inside = [t for row, mask in zip(clean, x.mask, strict=True) for t in row[mask].tolist() if t not in special]
        assert inside == encoder.tokenizer(text, add_special_tokens=False)["input_ids"]
        assert bool(((y >= 0).sum(1) >= 1).all())
        assert not special & set(y[y >= 0].tolist())


def test_shares_of_what_is_hidden_and_how(encoder):
    made = prepared(encoder, said(40) * 10)
    rows = torch.arange(len(made.store))
    x, y = made.store.take(rows), made.y.take(rows)
    clean = whole(x, y)
    for shown, words in ((x, y), made.task.augment(x, y, generator(0, "a"))):
        assert torch.equal(whole(shown, words), clean)
        places = words >= 0
        now = shown.ids.gather(1, shown.at.clamp(min=0))[places]
        count, ordinary = int(places.sum()), int((x.mask & made.task.ordinary[clean]).sum())
        assert 0.14 < count / ordinary < 0.19  # at least one of a short text
        masked = (now == encoder.tokenizer.mask_token_id).float().mean()
        same = (now == words[places]).float().mean()
        assert 0.76 < float(masked) < 0.84
        assert 0.07 < float(same) < 0.14  # another word is at times the same


def test_a_step_hides_other_words_and_a_stopped_run_goes_on_with_the_same(encoder):
    made = prepared(encoder, said(40))
    examples = Examples(made.store, made.y, ("d",), starts=made.starts)
    part = Part("d", np.arange(30))

    def batches():
        return Batches(examples, [part], 8, generator=generator(0, "b"), augment=made.task.augment)

    straight = batches()
    ran = [next(straight) for _ in range(12)]
    again = batches()
    for _ in range(5):
        next(again)
    state = again.state_dict()
    other = batches()
    other.load_state_dict(state)
    for one, two in zip(ran[5:], (next(other) for _ in range(7)), strict=True):
        assert torch.equal(one.x.ids, two.x.ids)
        assert torch.equal(one.y, two.y)
    x, y = examples.inputs_and_targets(torch.arange(8))
    first, _ = made.task.augment(x, y, generator(0, "x"))
    second, _ = made.task.augment(x, y, generator(1, "x"))
    assert not torch.equal(first.ids, second.ids)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_risk_is_that_of_the_whole_model_at_the_hidden_places(folders, family):
    model = network(folders[family])
    made = prepared(model.backbone, said(12))
    rows = torch.arange(8)
    x, y = made.store.take(rows), made.y.take(rows)
    theirs = AutoModelForMaskedLM.from_pretrained(folders[family]).eval()
    with torch.no_grad():
        logits = theirs(input_ids=x.ids, attention_mask=x.mask.long()).logits
        labels = torch.full_like(x.ids, -100)
        for i, row in enumerate(x.at.tolist()):
            for place, word in zip(row, y[i].tolist(), strict=True):
                if place >= 0:
                    labels[i, place] = word
        wanted = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        output = model(x)
        torch.testing.assert_close(made.task.loss(output, y), wanted, rtol=1e-4, atol=1e-4)
        kept = made.task.stats(output, y)
    torch.testing.assert_close(made.task.loss_from_stats(kept, y), wanted, rtol=1e-4, atol=1e-4)
    scores = made.task.scores(kept, y, made.task.metrics)
    assert scores["perplexity"] == pytest.approx(np.exp(scores["nll"]))
    assert output.shape[:2] == y.shape
    assert 0 <= scores["accuracy"] <= 1


@pytest.mark.parametrize("family", FAMILIES)
def test_a_trained_network_is_written_as_transformers_has_it(folders, family, tmp_path):
    model = network(folders[family])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    assert write_checkpoint(model.backbone, model.head, tmp_path / "out")
    again = network(tmp_path / "out")
    x = prepared(model.backbone, said(4)).store.take(torch.arange(4))
    with torch.no_grad():
        torch.testing.assert_close(model(x), again(x))
    assert torch.equal(again.head.weight, again.backbone.module.get_input_embeddings().weight)


def test_where_a_checkpoint_has_no_head_one_is_added_that_shares_the_word_vectors(tmp_path):
    model = network(tiny_bert(tmp_path / "bert"))
    table = model.backbone.module.get_input_embeddings().weight
    assert model.head.weight is table
    assert sum(p is table for p in model.parameters()) == 1
    assert write_checkpoint(model.backbone, model.head, tmp_path / "out")
    x = prepared(model.backbone, said(3)).store.take(torch.arange(3))
    with torch.no_grad():
        torch.testing.assert_close(model(x), network(tmp_path / "out")(x))


def test_texts_of_tagged_sentences_and_of_questions(encoder):
    plain = prepared(encoder, ["the film was good", "we saw a bad film"])
    tagged = Sentences([["the", "film", "was", "good"], ["we", "saw", "a", "bad", "film"]], [[0] * 4, [0] * 5])
    asked = Questions([Question(text, "which?") for text in ("the film was good", "we saw a bad film")])
    for raw in (tagged, asked):
        found = Masked().prepare(encoder, raw, ())
        every = torch.arange(2)
        assert torch.equal(found.store.take(every).ids, plain.store.take(every).ids)


def test_pairs_are_refused(encoder):
    for made in (Masked().prepare, lambda encoder, raw, _: Masked().prepare_inference(encoder, raw)):
        with pytest.raises(BadInput, match="needs plain texts"):
            made(encoder, Texts.of([("a", "b")]), ())


def filled(model, texts):
    """What is said of texts, by the way that a model folder goes."""
    made = Masked().prepare_inference(model.backbone, Texts.of(texts))
    with torch.no_grad():
        found = made.task.compress(model(made.store.take(torch.arange(len(made.store)))))
    return made.task.prediction_columns(Texts.of(texts), list(found), made.y)


def test_hidden_words_are_the_best_of_the_whole_model(folders):
    model = network(folders["bert"])
    texts = ["the [MASK] was very [MASK]", "nothing", " ".join(["the film was [MASK]"] * 12), "a [MASK]"]
    told = filled(model, texts)
    assert [len(each) for each in told["words"]] == [len(each) for each in told["scores"]] == [2, 0, 12, 1]
    tokenizer, theirs = model.backbone.tokenizer, AutoModelForMaskedLM.from_pretrained(folders["bert"]).eval()
    for i in (0, 3):
        x = tokenizer(texts[i], return_tensors="pt")
        with torch.no_grad():
            chance = theirs(**x).logits[0][x["input_ids"][0] == tokenizer.mask_token_id].softmax(-1)
        chance[:, tokenizer.all_special_ids] = 0
        assert told["words"][i] == tokenizer.convert_ids_to_tokens(chance.argmax(-1).tolist())
        assert told["scores"][i] == pytest.approx(chance.amax(-1).tolist(), rel=1e-4)


def test_a_mask_may_be_written_in_one_way_for_all_tokenizers(tmp_path):
    model = network(tiny_bytes(tmp_path / "bytes"))
    one, other = filled(model, ["was <mask> bad", "was"]), filled(model, ["was [MASK] bad", "was"])
    assert one == other
    assert len(one["words"][0]) == 1
    assert one["words"][0][0] == one["words"][0][0].strip()


def test_texts_that_hide_nothing_are_told_so(encoder):
    with pytest.raises(BadInput, match=r"\[MASK\]"):
        Masked().prepare_inference(encoder, Texts.of(["the film", "was good"]))
