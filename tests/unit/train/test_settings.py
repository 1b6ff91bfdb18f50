"""Settings become specs: defaults, dotted names, necks of methods, and errors that name the offending setting."""

import pytest

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.data.synthetic import world
from holdfast.spec import Spec
from holdfast.train.assemble import assemble
from holdfast.train.settings import make_spec, parse_settings, spec_settings
from holdfast.train.training_data import training_data
from holdfast.train.workspace import Workspace
from tests.annotated import write_questions
from tests.talks import talks
from tests.tiny import tiny_bert

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
