"""Decoder networks as text encoders: maximum length and tokenizers without a padding token."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.testing import assert_close
from transformers import PreTrainedTokenizerFast

from holdfast.core.errors import BadInput
from holdfast.nn.backbones.gmap import GMap
from holdfast.nn.backbones.text import TextEncoder
from tests import tiny
from tests.unit.nn.graft.test_attention import tiny_gpt2

END = "<|endoftext|>"
TEXTS = ["the food was good", "bad", "a very very good phone"]


def write_stock(folder, *, end: str | None = END):
    """Write a GPT-2 with its usual tokenizer: bytes, an end of text, no padding and no mask token."""
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), END]
    network = Tokenizer(models.BPE({word: i for i, word in enumerate(letters)}, []))
    network.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tiny_gpt2(words=len(letters)).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=network, eos_token=end).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    return str(write_stock(tmp_path_factory.mktemp("stock")))


def test_length_beyond_positions_raises(stock, tmp_path):
    with pytest.raises(BadInput, match=r"length 17 .* 2 to 16"):
        TextEncoder.build(list, name=stock, length=17)
    with pytest.raises(BadInput, match="2 to 16"):
        GMap.build(list, domain=stock, length=17)
    assert TextEncoder.build(list, name=stock).length == 16
    tiny_gpt2(words=len(tiny.VOCABULARY)).save_pretrained(tmp_path)
    tiny.tiny_tokenizer(tmp_path)
    with pytest.raises(BadInput, match="5 to 16"):
        TextEncoder.build(list, name=str(tmp_path), length=24)


def test_padding_with_end_of_text_changes_nothing(stock, tmp_path):
    encoder = TextEncoder.build(list, name=stock).eval()
    assert encoder.tokenizer.pad_token == END
    store = encoder.prepare(TEXTS)
    with torch.no_grad():
        whole = encoder(store.take(torch.arange(3)))
        for i in range(3):
            assert_close(encoder(store.take(torch.tensor([i])))[0], whole[i], rtol=1e-4, atol=1e-5)
    settings = encoder.save(tmp_path)
    again = TextEncoder.load(tmp_path, settings).eval()
    again.load_state_dict(encoder.state_dict())
    assert again.preparation_key() == encoder.preparation_key()
    with torch.no_grad():
        assert_close(again(again.prepare(TEXTS).take(torch.arange(3))), whole)


def test_tokenizer_without_padding_and_end_raises(tmp_path):
    with pytest.raises(BadInput, match="neither a padding token nor an end of text"):
        TextEncoder.build(list, name=str(write_stock(tmp_path, end=None)))
