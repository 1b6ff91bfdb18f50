"""Masked task: fixed masks for evaluation, new masks per training step, loss of the complete model."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Question, Sentence
from holdfast.core.seeds import generator
from holdfast.data.batches import Batches, Examples
from holdfast.data.raw import Records, Texts
from holdfast.data.splits import Part
from holdfast.nn.backbones.text import TextEncoder
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from holdfast.nn.vocabulary import Vocabulary, write_checkpoint
from holdfast.tasks.masked import Masked
from tests.annotated import corpus
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
    """Return the token ids without masks."""
    at = x.at.clamp(min=0)
    return x.ids.scatter(1, at, torch.where(y >= 0, y, x.ids.gather(1, at)))


def test_evaluation_masks_depend_on_the_text_only(encoder):
    texts = corpus(40)
    bound, other = prepared(encoder, texts), prepared(encoder, texts[20:])
    first = int(bound.starts[20])
    for i in range(len(other.store)):
        a, b = bound.store.take(torch.tensor([first + i])), other.store.take(torch.tensor([i]))
        assert torch.equal(a.ids, b.ids)
        assert torch.equal(a.at, b.at)
        assert torch.equal(bound.y.take(torch.tensor([first + i])), other.y.take(torch.tensor([i])))


def test_windows_cover_the_texts_and_special_tokens_are_never_masked(encoder):
    texts = corpus(40)
    bound = prepared(encoder, texts)
    assert len(bound.store) == int(bound.starts[-1]) > 40
    special = set(encoder.tokenizer.all_special_ids)
    for i, text in enumerate(texts):
        rows = torch.arange(int(bound.starts[i]), int(bound.starts[i + 1]))
        x, y = bound.store.take(rows), bound.y.take(rows)
        clean = whole(x, y)
        inside = [t for row, mask in zip(clean, x.mask, strict=True) for t in row[mask].tolist() if t not in special]
        assert inside == encoder.tokenizer(text, add_special_tokens=False)["input_ids"]
        assert bool(((y >= 0).sum(1) >= 1).all())
        assert not special & set(y[y >= 0].tolist())


@pytest.mark.slow
def test_masking_rates(encoder):
    bound = prepared(encoder, corpus(40) * 10)
    rows = torch.arange(len(bound.store))
    x, y = bound.store.take(rows), bound.y.take(rows)
    clean = whole(x, y)
    for shown, words in ((x, y), bound.task.augment(x, y, generator(0, "a"))):
        assert torch.equal(whole(shown, words), clean)
        places = words >= 0
        now = shown.ids.gather(1, shown.at.clamp(min=0))[places]
        count, ordinary = int(places.sum()), int((x.mask & bound.task.ordinary[clean]).sum())
        assert 0.14 < count / ordinary < 0.19  # short texts have at least one
        masked = (now == encoder.tokenizer.mask_token_id).float().mean()
        same = (now == words[places]).float().mean()
        assert 0.76 < float(masked) < 0.84
        assert 0.07 < float(same) < 0.14  # a random word can be the same


def test_augmentation_changes_per_step_and_resumes_identically(encoder):
    bound = prepared(encoder, corpus(40))
    examples = Examples(bound.store, bound.y, ("d",), starts=bound.starts)
    part = Part("d", np.arange(30))

    def batches():
        return Batches(examples, [part], 8, generator=generator(0, "b"), augment=bound.task.augment)

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
    first, _ = bound.task.augment(x, y, generator(0, "x"))
    second, _ = bound.task.augment(x, y, generator(1, "x"))
    assert not torch.equal(first.ids, second.ids)


@pytest.mark.parametrize("family", FAMILIES)
def test_loss_equals_the_complete_masked_lm(folders, family):
    model = network(folders[family])
    bound = prepared(model.backbone, corpus(12))
    rows = torch.arange(8)
    x, y = bound.store.take(rows), bound.y.take(rows)
    theirs = AutoModelForMaskedLM.from_pretrained(folders[family]).eval()
    with torch.no_grad():
        logits = theirs(input_ids=x.ids, attention_mask=x.mask.long()).logits
        labels = torch.full_like(x.ids, -100)
        for i, row in enumerate(x.at.tolist()):
            for place, word in zip(row, y[i].tolist(), strict=True):
                if place >= 0:
                    labels[i, place] = word
        expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        output = model(x)
        torch.testing.assert_close(bound.task.loss(output, y), expected, rtol=1e-4, atol=1e-4)
        kept = bound.task.stats(output, y)
    torch.testing.assert_close(bound.task.loss_from_stats(kept, y), expected, rtol=1e-4, atol=1e-4)
    scores = bound.task.scores(kept, y, bound.task.metrics)
    assert scores["perplexity"] == pytest.approx(np.exp(scores["nll"]))
    assert output.shape[:2] == y.shape
    assert 0 <= scores["accuracy"] <= 1


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_checkpoint_loads_into_transformers(folders, family, tmp_path):
    model = network(folders[family])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    assert write_checkpoint(model.backbone, model.head, tmp_path / "out")
    again = network(tmp_path / "out")
    x = prepared(model.backbone, corpus(4)).store.take(torch.arange(4))
    with torch.no_grad():
        torch.testing.assert_close(model(x), again(x))
    assert torch.equal(again.head.weight, again.backbone.module.get_input_embeddings().weight)


def test_missing_head_is_added_with_tied_word_vectors(tmp_path):
    model = network(tiny_bert(tmp_path / "bert"))
    table = model.backbone.module.get_input_embeddings().weight
    assert model.head.weight is table
    assert sum(p is table for p in model.parameters()) == 1
    assert write_checkpoint(model.backbone, model.head, tmp_path / "out")
    x = prepared(model.backbone, corpus(3)).store.take(torch.arange(3))
    with torch.no_grad():
        torch.testing.assert_close(model(x), network(tmp_path / "out")(x))


def test_tagged_sentences_and_questions_provide_texts(encoder):
    plain = prepared(encoder, ["the film was good", "we saw a bad film"])
    tagged = Records([Sentence(text.split()) for text in ("the film was good", "we saw a bad film")])
    asked = Records([Question(text, "which?") for text in ("the film was good", "we saw a bad film")])
    for raw in (tagged, asked):
        result = Masked().prepare(encoder, raw, ())
        every = torch.arange(2)
        assert torch.equal(result.store.take(every).ids, plain.store.take(every).ids)


def test_pairs_raise(encoder):
    for bound in (Masked().prepare, lambda encoder, raw, _: Masked().prepare_inference(encoder, raw)):
        with pytest.raises(BadInput, match="needs plain texts"):
            bound(encoder, Texts.of([("a", "b")]), ())


def filled(model, texts):
    """Predict masked words as a model folder does."""
    bound = Masked().prepare_inference(model.backbone, Texts.of(texts))
    with torch.no_grad():
        result = bound.task.compress(model(bound.store.take(torch.arange(len(bound.store)))))
    return bound.task.prediction_columns(Texts.of(texts), list(result), bound.y)


def test_predicted_words_equal_the_complete_masked_lm(folders):
    model = network(folders["bert"])
    texts = ["the [MASK] was very [MASK]", "nothing", " ".join(["the film was [MASK]"] * 12), "a [MASK]"]
    columns = filled(model, texts)
    assert [len(each) for each in columns["words"]] == [len(each) for each in columns["scores"]] == [2, 0, 12, 1]
    tokenizer, theirs = model.backbone.tokenizer, AutoModelForMaskedLM.from_pretrained(folders["bert"]).eval()
    for i in (0, 3):
        x = tokenizer(texts[i], return_tensors="pt")
        with torch.no_grad():
            rng = theirs(**x).logits[0][x["input_ids"][0] == tokenizer.mask_token_id].softmax(-1)
        rng[:, tokenizer.all_special_ids] = 0
        assert columns["words"][i] == tokenizer.convert_ids_to_tokens(rng.argmax(-1).tolist())
        assert columns["scores"][i] == pytest.approx(rng.amax(-1).tolist(), rel=1e-4)


def test_mask_notation_works_for_every_tokenizer(tmp_path):
    model = network(tiny_bytes(tmp_path / "bytes"))
    one, other = filled(model, ["was <mask> bad", "was"]), filled(model, ["was [MASK] bad", "was"])
    assert one == other
    assert len(one["words"][0]) == 1
    assert one["words"][0][0] == one["words"][0][0].strip()


def test_texts_without_masks_raise(encoder):
    with pytest.raises(BadInput, match=r"\[MASK\]"):
        Masked().prepare_inference(encoder, Texts.of(["the film", "was good"]))
