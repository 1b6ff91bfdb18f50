"""The number of tokens per text is chosen from the data, and specs that were made without it keep their meaning."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

from holdfast.data.readers.memory import as_dataset
from holdfast.models.adapt import Terms, _request
from holdfast.record import run_id
from holdfast.run.lengths import counted_rows
from holdfast.run.settings import make_spec, spec_settings
from tests.tiny import VOCABULARY, tiny_bert

CLASSES, DOMAINS = ["a", "b"] * 20, ["x"] * 20 + ["y"] * 20


def dataset(words):
    return as_dataset(["good " * count for count in words], CLASSES, DOMAINS)


LONG = dataset([10] * 20 + [150, 180] * 10)
SHORT = dataset([10] * 40)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tiny_bert(tmp_path_factory.mktemp("bert"))
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    config = BertConfig(**shape, vocab_size=len(VOCABULARY), max_position_embeddings=400, pad_token_id=1)
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    return f"hf:{folder}"


def test_covers_nine_in_ten_texts_and_is_part_of_the_spec(bert):
    assert make_spec(LONG, encoder=bert).encoder_args == {"length": 192}
    assert make_spec(LONG, encoder=bert, settings={"encoder.length": 40}).encoder_args == {"length": 40}
    hybrid = make_spec(LONG, encoder="hybrid", settings={"encoder.base": bert.removeprefix("hf:")})
    assert hybrid.encoder_args["length"] == 192
    longest = dataset([390] * 40)
    assert make_spec(longest, encoder=bert).encoder_args == {"length": 256}  # a limit of the cost
    pairs = as_dataset([("good " * 100, "bad " * 100)] * 40, CLASSES, DOMAINS)
    assert make_spec(pairs, encoder=bert).encoder_args == {"length": 256}


def test_short_texts_keep_the_ids_of_earlier_specs(bert, tmp_path):
    assert make_spec(SHORT, encoder=bert).encoder_args == {}
    limited = f"hf:{tiny_bert(tmp_path)}"  # it has 66 positions, so that its default is already its maximum
    assert make_spec(LONG, encoder=limited).encoder_args == {}
    assert make_spec(LONG, encoder="tfidf").encoder_args == {}


def test_settings_of_an_earlier_spec_give_this_spec(bert):
    """A spec without a length reads 128 tokens, whatever the data would suggest."""
    earlier = make_spec(LONG, encoder=bert, settings={"encoder.length": None})
    assert earlier.encoder_args == {}
    for spec in (earlier, make_spec(LONG, encoder=bert)):
        again = make_spec(LONG, encoder=bert, lr=spec.lr, tune=spec.tune, settings=spec_settings(spec.json()))
        assert run_id(again.json(), "x") == run_id(spec.json(), "x")
        carried = _request(spec, "erm", Terms(), {}, device=torch.device("cpu")).settings
        assert carried["encoder.length"] == spec.encoder_args.get("length")


def test_rows_marked_as_test_are_not_counted():
    marked = as_dataset(["good"] * 40, CLASSES, DOMAINS)
    split = np.asarray([2] * 15 + [0] * 5 + [2] * 20)
    assert counted_rows(replace(marked, split=split)).tolist() == [15, 16, 17, 18, 19]
