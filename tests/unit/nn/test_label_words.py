"""Label words: equality with the masked language model, and error messages."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from transformers import AutoModelForMaskedLM

from holdfast.core.errors import BadInput
from holdfast.nn.backbones.pretrained import quiet
from holdfast.nn.backbones.small import Features
from holdfast.nn.backbones.text import TextEncoder
from holdfast.nn.label_words import LabelWords
from tests import tiny

FAMILIES = ["bert", "roberta", "mpnet", "distilbert", "electra"]
CLASSES = ("maybe", "no", "yes")
WORDS = {"no": ["bad", "not"], "yes": ["good", "very", "phone"], "maybe": "film"}
TEXTS = ["the food was good", "bad", "a very very good phone, not bad at all! " * 9]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("tiny")
    built = {name: tiny.tiny_masked(base / name, name) for name in FAMILIES}
    return {**built, "bytes": tiny.tiny_bytes(base / "bytes"), "headless": tiny.tiny_bert(base / "headless")}


def encode(folder, **options) -> TextEncoder:
    return TextEncoder.build(list, name=str(folder), length=32, **{"template": "sentiment-0", **options}).eval()


def build(encoder, **options) -> LabelWords:
    return LabelWords.build(encoder.width, CLASSES, encoder, **{"words": WORDS, **options})


def at_the_mask(folder, encoder) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the features and the vocabulary scores (b, v) of the complete model at the mask."""
    x = encoder.prepare(TEXTS).take(torch.arange(len(TEXTS)))
    with quiet(), torch.no_grad():
        model = AutoModelForMaskedLM.from_pretrained(folder).eval()
        scores = model(input_ids=x.ids, attention_mask=x.mask.long()).logits
        return encoder(x), scores[x.ids == encoder.tokenizer.mask_token_id]


def log_softmax(scores: np.ndarray) -> np.ndarray:
    return scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_scores_equal_the_masked_language_model(folders, family):
    encoder = encode(folders[family])
    z, scores = at_the_mask(folders[family], encoder)
    few, full = build(encoder), build(encoder, full=True)
    ids = [tiny.VOCABULARY.index(word) for word in ("film", "bad", "not", "good", "very", "phone")]
    assert few.decoder.out_features == len(ids)
    assert_close(few.decoder(few.transform(z)), scores[:, ids], atol=1e-4, rtol=1e-4)
    assert_close(full.decoder(full.transform(z)), scores, atol=1e-4, rtol=1e-4)
    assert float(scores.std()) > 0.1  # not trivially equal
    log_p = log_softmax(scores[:, ids].double().numpy())  # over the label words
    expected = np.stack([log_p[:, 0], log_p[:, 1:3].mean(1), log_p[:, 3:].mean(1)], axis=1)
    assert_close(few(z).detach().double().numpy(), expected, atol=1e-4, rtol=1e-4)
    log_p = log_softmax(scores.double().numpy())[:, ids]  # over the vocabulary
    expected = np.stack([log_p[:, 0], log_p[:, 1:3].mean(1), log_p[:, 3:].mean(1)], axis=1)
    assert_close(full(z).detach().double().numpy(), expected, atol=1e-4, rtol=1e-4)
    assert_close(few(z).softmax(-1), full(z).softmax(-1), atol=1e-5, rtol=1e-4)  # the normaliser cancels


def test_byte_level_words_include_the_preceding_space(folders):
    encoder = encode(folders["bytes"])
    z, scores = at_the_mask(folders["bytes"], encoder)
    head = LabelWords.build(32, ("n", "p"), encoder, words={"n": "bad", "p": ["good", " no"]})
    index = encoder.tokenizer.get_vocab()
    assert head.settings["words"] == [[index["Ġbad"]], [index["Ġgood"], index["Ġno"]]]
    ids = [index["Ġbad"], index["Ġgood"], index["Ġno"]]
    assert_close(head.decoder(head.transform(z)), scores[:, ids], atol=1e-4, rtol=1e-4)


def test_word_with_several_tokens(folders):
    encoder = encode(folders["bert"])
    words = {**WORDS, "maybe": "uncertain"}
    with pytest.raises(BadInput, match=r"'uncertain' has 9 tokens \(u, ##n.*first_piece=true"):
        build(encoder, words=words)
    head = build(encoder, words=words, first_piece=True)
    assert head.settings["words"][0] == [tiny.VOCABULARY.index("u")]
    with pytest.raises(BadInput, match=r"'food' and 'food'.*token"):
        build(encoder, words={**WORDS, "maybe": ["food", "food"]})
    with pytest.raises(BadInput, match=r"'gooda' and 'good'.*token"):
        build(encoder, words={**WORDS, "maybe": "gooda"}, first_piece=True)


def test_every_class_needs_words(folders):
    encoder = encode(folders["bert"])
    for words in (None, ["bad"], {"no": "bad", "yes": "good"}, {**WORDS, "yes": []}, {**WORDS, "yes": [3]}):
        with pytest.raises(BadInput, match=r'head\.words=\{"maybe": \["\.\.\."\], "no"'):
            build(encoder, words=words)
    with pytest.raises(BadInput, match=r"unknown class in head\.words 'yess': did you mean 'yes'"):
        build(encoder, words={**WORDS, "yess": "a"})
    with pytest.raises(BadInput, match=r"tokenizer.*'漢'"):
        build(encoder, words={**WORDS, "yes": "漢"})


def test_checkpoint_without_a_masked_word_head(folders):
    encoder = encode(folders["headless"])
    with pytest.raises(BadInput, match=r"masked-LM head .*head\.tied=true"):
        build(encoder)
    head = build(encoder, tied=True)
    table = encoder.module.get_input_embeddings().weight
    z = torch.randn(4, 32)
    ids = [tiny.VOCABULARY.index(word) for word in ("film", "bad", "not", "good", "very", "phone")]
    assert_close(head.decoder(head.transform(z)), z @ table[ids].T)
    assert head.decoder.weight.data_ptr() != table.data_ptr()  # a copy
    with pytest.raises(BadInput, match=r"head.tied.* 32.* 16"):
        build(encode(folders["electra"]), tied=True)


def test_unsupported_encoders_raise(folders):
    with pytest.raises(BadInput, match=r"encoder.template"):
        build(encode(folders["bert"], template=None))
    build(encode(folders["bert"], template=None, pooling="mask"))  # texts that contain a mask
    with pytest.raises(BadInput, match="masked language model"):
        LabelWords.build(4, CLASSES, Features(inputs=4), words=WORDS)
    with pytest.raises(BadInput, match=r"32 features.* 256"):
        LabelWords.build(256, CLASSES, encode(folders["bert"]), words=WORDS)


def test_unsupported_masked_word_head_raises(folders, monkeypatch):
    from transformers import BertForMaskedLM

    usual = BertForMaskedLM.forward

    def scaled(self, *args, **kwargs):
        out = usual(self, *args, **kwargs)
        out.logits = out.logits * 2
        return out

    monkeypatch.setattr(BertForMaskedLM, "forward", scaled)
    with pytest.raises(BadInput, match="BertForMaskedLM"):
        LabelWords.build(32, ("a", "b"), encode(folders["bert"]), words={"a": "a", "b": "b"})
