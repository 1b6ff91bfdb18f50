"""Sizes of inputs and networks are chosen from the data and the machine, and specs without them keep their meaning."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import BertConfig, BertModel

from holdfast import catalog
from holdfast.adaptation.adapt import Terms, _request
from holdfast.data.load import load_data
from holdfast.data.readers.in_memory import as_dataset
from holdfast.data.synthetic import world
from holdfast.record import run_id
from holdfast.train.settings import counted_rows, make_spec, spec_settings
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


CPU, GPU = torch.device("cpu"), torch.device("cuda")


def image_folders(folder, side: int):
    """Write images of one side as domain/class/file, and read them."""
    for domain in ("a", "b", "c"):
        for kind in ("cat", "dog"):
            (folder / domain / kind).mkdir(parents=True)
            for i in range(2):
                Image.new("RGB", (side, side // 2), (40 * i, 9, 90)).save(folder / domain / kind / f"{i}.png")
    return load_data(folder)


@pytest.mark.parametrize(("side", "expected"), [(28, 64), (70, 96), (300, 128)])
def test_a_cpu_reads_images_with_fewer_pixels(tmp_path, side, expected):
    data = image_folders(tmp_path / "images", side)
    name = "efficientnet-lite0"
    assert make_spec(data, encoder=name, device=CPU).encoder_args == {"size": expected}
    assert make_spec(data, encoder=name, device=GPU).encoder_args == {}
    assert make_spec(data, encoder=name, device=CPU, settings={"encoder.size": 32}).encoder_args == {"size": 32}


def test_sizes_of_a_cpu_are_kept_when_a_spec_is_built_again():
    data = world("graph", "size", size=20)
    small, large = (make_spec(data, device=device) for device in (CPU, GPU))
    assert small.encoder_args == {"hidden": 64}
    assert large.encoder_args == {}
    for spec in (small, large):
        known = {"tune": spec.tune, "lr": spec.lr, "steps": spec.steps, "batch": spec.batch, "device": CPU}
        assert make_spec(data, settings=spec_settings(spec.json()), **known).json() == spec.json()


def test_the_default_encoder_of_images_without_pretrained_weights_is_small_on_a_cpu(tmp_path, monkeypatch):
    data = image_folders(tmp_path / "images", 40)
    monkeypatch.setattr(catalog, "PREFERRED_ENCODER", {})
    small, large = (make_spec(data, device=device) for device in (CPU, GPU))
    assert (small.encoder, small.encoder_args, small.steps) == ("cnn", {"size": 16}, 100)
    assert (large.encoder, large.encoder_args, large.steps) == ("resnet18", {}, 300)
