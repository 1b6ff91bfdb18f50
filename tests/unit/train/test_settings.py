"""Settings become specs: defaults, dotted names, necks of methods, and errors that name the offending setting."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import BertConfig, BertModel

from holdfast import catalog
from holdfast.adaptation.adapt import Terms, _request
from holdfast.core.errors import BadInput
from holdfast.data.load import load_data
from holdfast.data.readers.in_memory import as_dataset
from holdfast.data.synthetic import world
from holdfast.record import run_id
from holdfast.spec import Spec
from holdfast.train.assemble import assemble
from holdfast.train.settings import counted_rows, make_spec, parse_settings, spec_settings
from holdfast.train.training_data import training_data
from holdfast.train.workspace import Workspace
from tests.annotated import write_questions
from tests.talks import talks
from tests.tiny import VOCABULARY, tiny_bert

DATA = world("vector", "rotation", domains=3, size=40, classes=2, seed=0)


def test_defaults_of_the_task():
    plain = make_spec(DATA)
    assert (plain.task, plain.encoder, plain.head, plain.metric) == ("classify", "mlp", "linear", "accuracy")
    with pytest.raises(BadInput, match=r"clasify.*classify"):
        make_spec(DATA, settings={"task": "clasify"})


def test_classifiers_need_labels():
    with pytest.raises(BadInput, match=r"labels.*--task respond"):
        training_data(talks(4))


def test_error_for_a_neck_setting_names_the_necks_that_have_it():
    with pytest.raises(BadInput, match=r"'none'.*'count'.*--set neck=experts"):
        make_spec(DATA, settings={"neck.count": 4})
    with pytest.raises(BadInput, match=r"memory or memory-4.8m or product-memory \(--set neck=memory\)"):
        make_spec(DATA, settings={"neck.share": 0.2})
    with pytest.raises(BadInput, match=r"'cuont' cannot be set$"):
        make_spec(DATA, settings={"neck.cuont": 4})


def test_task_settings(tmp_path):
    data = training_data(write_questions(tmp_path / "asked.jsonl", 3), task="span")
    plain = make_spec(data, settings={"task": "span"})
    assert "task_args" not in plain.json()
    spec = make_spec(data, settings={"task": "span", **parse_settings(["task.stride=5", "task.answer=7"])})
    assert spec.json()["task_args"] == {"stride": 5, "answer": 7}
    assert spec_settings(spec.json()).items() >= {"task": "span", "task.stride": 5, "task.answer": 7}.items()
    assert Spec(**spec.json()).json() == spec.json()
    with pytest.raises(BadInput, match=r"span.*'strid'.*'stride'"):
        make_spec(data, settings={"task": "span", "task.strid": 5})
    with pytest.raises(BadInput, match=r"span.*stride.*'wide'"):
        make_spec(data, settings={"task": "span", "task.stride": "wide"})
    for task in ("classify", "tag", "masked"):
        with pytest.raises(BadInput, match=rf"{task}.*'stride'"):
            catalog.check_settings("tasks", task, {"stride": 5})


def test_examples_are_prepared_once_per_stride(tmp_path):
    data = training_data(write_questions(tmp_path / "asked.jsonl", 4), task="span")
    workspace, settings = Workspace(data, cache=None), {"task": "span", "encoder.length": 24}
    encoder = f"hf:{tiny_bert(tmp_path / 'bert')}"
    sizes = []
    for stride in (None, 2, 10):
        more = {} if stride is None else {"task.stride": stride}
        spec = make_spec(data, encoder=encoder, plan="all", settings={**settings, **more})
        assembly = assemble(spec, workspace.episodes(spec)[0], workspace)
        assert assembly.task.stride == stride
        sizes.append(len(assembly.examples))
    assert sizes[1] < sizes[0] < sizes[2]
    assert len(workspace.structured) == 3


def test_lists_of_integers_need_no_brackets():
    assert parse_settings(["neck.at=0,2"]) == parse_settings(["neck.at=[0,2]"]) == {"neck.at": [0, 2]}
    assert parse_settings(["encoder.mean=[.48, 0.45,.4]"]) == {"encoder.mean": [0.48, 0.45, 0.4]}
    assert parse_settings(["plan.targets=1.10,1.20"]) == {"plan.targets": ["1.10", "1.20"]}
    assert parse_settings(["neck.at=-1,10"]) == {"neck.at": [-1, 10]}
    assert parse_settings(["a=0,b", "b=01,2", "c={x},1"]) == {"a": ["0", "b"], "b": ["01", "2"], "c": "{x},1"}
    spec = make_spec(DATA, settings=parse_settings(["plan.targets=0,1"]))
    assert spec.plan_args == {"targets": ["0", "1"]}
    assert make_spec(DATA, settings=parse_settings(["plan.targets=2019"])).plan_args == {"targets": ["2019"]}


def test_nested_settings_have_a_second_dot():
    data = world("text", "none", domains=2, size=4, classes=2, seed=0)
    spec = make_spec(data, head="words", settings={"head.words.a": "bad", "head.words.b": "good"})
    assert spec.head_args == {"words": {"a": "bad", "b": "good"}}
    with pytest.raises(BadInput, match=r"words=bad and words\.b"):
        make_spec(data, head="words", settings={"head.words": "bad", "head.words.b": "good"})
    with pytest.raises(BadInput, match=r"words.*'word'"):
        make_spec(data, head="words", settings={"head.word.a": "bad"})


def test_compile_is_stored_only_if_it_is_off():
    base = {"data": "d", "fingerprint": "f"}
    assert "compile" not in Spec(**base).json()  # ids of earlier records stay the same
    assert Spec(**base, compile="off").json()["compile"] == "off"
    with pytest.raises(BadInput, match=r"compile.*'fast'.*auto"):
        Spec(**base, compile="fast")


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
