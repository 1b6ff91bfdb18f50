"""Which neck each method of a comparison gets, whatever the order in which they are named."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from holdfast import catalog
from holdfast.api import compare
from holdfast.core.errors import BadInput
from holdfast.data.synthetic import world
from holdfast.run.analyses import choose_analyses
from holdfast.run.assemble import assemble
from holdfast.run.resolve import choose_methods, with_methods
from holdfast.run.settings import make_spec, parse_settings, spec_settings
from holdfast.run.workspace import Workspace, training_data
from holdfast.search.sweep import sweep
from holdfast.spec import Spec
from tests.annotated import write_questions
from tests.talks import talks
from tests.tiny import tiny_bert

DATA = world("vector", "rotation", domains=3, size=40, classes=2, seed=0)
QUICK = {"encoder.hidden": [8], "plan.targets": ["domain-0"]}
SMALL = {"neck.slots": 16, "neck.key_width": 4}


def necks(folder, *methods, **settings):
    """method -> its neck, of a short comparison."""
    ran = compare(DATA, methods=methods, seeds=1, steps=2, batch=4, out=folder, settings={**QUICK, **settings})
    return {record.spec["method"]: record.spec["neck"] for record in ran.records}


@pytest.mark.parametrize("methods", [("mil", "erm"), ("erm", "mil"), ("memory+coral", "erm", "mil")])
def test_the_neck_of_one_method_is_not_that_of_the_others(methods, tmp_path):
    found = necks(tmp_path, *methods, **SMALL)
    assert found == {"erm": "none", "mil": "memory"} | ({"coral": "memory"} if "memory+coral" in methods else {})


def test_a_neck_that_was_set_goes_to_all_that_can_take_it(tmp_path):
    settings = {"neck": "product-memory", "neck.slots": 16, "neck.top": 2, "neck.key_width": 4}
    assert necks(tmp_path, "mil", "erm", **settings) == {"mil": "product-memory", "erm": "product-memory"}


def test_a_neck_that_a_method_cannot_take_is_told_and_not_replaced(tmp_path):
    with pytest.raises(BadInput, match=r"mil needs a neck such as memory or .*, not projection: .* as in memory\+mil"):
        necks(tmp_path, "mil", neck="projection")
    assert necks(tmp_path, "erm", "memory+mil", neck="projection") == {"erm": "projection", "mil": "memory"}
    chosen, left = choose_methods(["all"], make_spec(DATA, settings={**QUICK, "neck": "projection"}), 2)
    assert "mil" not in chosen
    assert "mil left out: it needs a neck such as memory, not projection" in left


def test_a_task_has_its_own_defaults():
    data = talks(4)
    spec = make_spec(data, settings={"task": "respond"})
    assert (spec.encoder, spec.head, spec.metric, spec.tune) == ("dialogue-gru", "none", "nll", "full")
    assert make_spec(data, settings={"task": "respond"}, metric="bleu2").metric == "bleu2"
    plain = make_spec(DATA)
    assert (plain.task, plain.encoder, plain.head, plain.metric) == ("classify", "mlp", "linear", "accuracy")
    chosen, left = choose_methods(["all"], spec, 2)
    assert "erm" in chosen
    assert "coral left out: it is not for the task respond" in left
    with pytest.raises(BadInput, match="did you mean 'respond'"):
        make_spec(data, settings={"task": "respnd"})
    with pytest.raises(BadInput, match="encoder 'dialogue-gru' is for the task respond, not for classify"):
        make_spec(data, encoder="dialogue-gru")
    with pytest.raises(BadInput, match="method 'lwf' is for the task classify, not for respond"):
        choose_methods(["erm", "lwf"], spec, 2)


def test_what_data_must_have_depends_on_the_task():
    data = talks(4)
    assert training_data(data, task="respond") is data
    with pytest.raises(BadInput, match=r"has no labels: .* --task respond does not"):
        training_data(data)


def test_methods_for_other_examples_or_encoders_are_refused_and_left_out():
    dataset = world("vector", "none", domains=3, size=10)
    spec = make_spec(dataset)
    for name, said in (("g-mixup", "not for vectors"), ("swad(ciga-v1)", "not for vectors")):
        with pytest.raises(BadInput, match=said):
            choose_methods([name], spec, 2)
    chosen, left = choose_methods(["all"], spec, 2)
    assert "erm" in chosen
    assert not {"g-mixup", "ciga-v1", "ciga-v2", "dir"} & set(chosen)
    assert "g-mixup left out: it is not for vectors" in left
    assert (
        catalog.incompatibility("ciga-v1", "gin") == "it needs an encoder such as gin-subgraph (--encoder gin-subgraph)"
    )
    assert catalog.incompatibility("ciga-v1", "gcn-subgraph") == catalog.incompatibility("g-mixup", "gin") == ""


def test_methods_take_the_settings_that_they_have_and_one_must_have_each():
    spec = make_spec(DATA, encoder="mlp")
    args = {"method_args": {"weight": 2.0}, "neck_args": {"share": 0.3}}
    erm, coral, mil = with_methods(spec, ["erm", "coral", "memory+mil"], **args)
    assert (erm.method_args, coral.method_args, mil.method_args) == ({}, {"weight": 2.0}, {})
    assert (erm.neck_args, mil.neck_args) == ({}, {"share": 0.3})
    (inner,) = with_methods(spec, ["swad(coral)"], method_args={"weight": 2.0, "ratio": 1.2}, neck_args={})
    assert inner.method_args == {"weight": 2.0, "ratio": 1.2}
    with pytest.raises(BadInput, match="did you mean 'weight'"):
        with_methods(spec, ["erm", "coral"], method_args={"weigt": 2.0}, neck_args={})
    with pytest.raises(
        BadInput, match=r"method 'erm' has no settings, so 'weight' .*: use a method that takes it, .*coral"
    ):
        with_methods(spec, ["erm"], method_args={"weight": 2.0}, neck_args={})


def test_a_setting_of_a_neck_that_was_not_asked_for_names_the_necks_that_take_it(tmp_path):
    experts = r"neck 'none' has no settings, so 'count' .*: use a neck that takes it, experts \(--set neck=experts\)"
    with pytest.raises(BadInput, match=experts):
        necks(tmp_path, "erm", **{"neck.count": 4})
    with pytest.raises(BadInput, match=experts):
        make_spec(DATA, settings={"neck.count": 4})
    with pytest.raises(BadInput, match=r"takes it, memory or memory-4.8m or product-memory \(--set neck=memory\)"):
        make_spec(DATA, settings={"neck.share": 0.2})
    with pytest.raises(BadInput, match=r"'cuont' cannot be set$"):
        make_spec(DATA, settings={"neck.cuont": 4})


def test_a_task_takes_settings_and_a_spec_without_any_is_as_before(tmp_path):
    data = training_data(write_questions(tmp_path / "asked.jsonl", 3), task="span")
    plain = make_spec(data, settings={"task": "span"})
    assert "task_args" not in plain.json()
    given = make_spec(data, settings={"task": "span", **parse_settings(["task.stride=5", "task.answer=7"])})
    assert given.json()["task_args"] == {"stride": 5, "answer": 7}
    assert spec_settings(given.json()).items() >= {"task": "span", "task.stride": 5, "task.answer": 7}.items()
    assert Spec(**given.json()) == given
    with pytest.raises(BadInput, match=r"unknown setting of task 'span' 'strid': did you mean 'stride'"):
        make_spec(data, settings={"task": "span", "task.strid": 5})
    with pytest.raises(BadInput, match="task 'span': stride is a whole number, not 'wide'"):
        make_spec(data, settings={"task": "span", "task.stride": "wide"})
    for task in ("classify", "tag", "respond", "masked"):
        with pytest.raises(BadInput, match=f"task '{task}' has no settings, so 'stride' cannot be set"):
            catalog.check_settings("tasks", task, {"stride": 5})


def test_examples_of_another_stride_are_prepared_anew(tmp_path):
    data = training_data(write_questions(tmp_path / "asked.jsonl", 4), task="span")
    workspace, asked = Workspace(data, cache=None), {"task": "span", "encoder.length": 24}
    encoder = f"hf:{tiny_bert(tmp_path / 'bert')}"
    sizes = []
    for stride in (None, 2, 10):
        more = {} if stride is None else {"task.stride": stride}
        spec = make_spec(data, encoder=encoder, plan="all", settings={**asked, **more})
        built = assemble(spec, workspace.episodes(spec)[0], workspace)
        assert built.task.stride == stride
        sizes.append(len(built.examples))
    assert sizes[1] < sizes[0] < sizes[2]
    assert len(workspace.structured) == 3


def test_analyses_of_one_feature_an_example_are_not_for_tasks_with_many():
    assert choose_analyses(["all"]) == list(catalog.ANALYSES)
    assert choose_analyses(["all"], ["respond"]) == list(catalog.ANALYSES)
    assert choose_analyses(["all"], ["tag", "classify"]) == choose_analyses(
        ["general-memory"], ["span", "tag", "masked"]
    )
    with pytest.raises(BadInput, match="'projection' looks at one feature an example, and span, tag has many"):
        choose_analyses(["general-memory", "projection"], ["tag", "classify", "span"])


def test_a_list_of_whole_numbers_needs_no_brackets():
    assert parse_settings(["neck.at=0,2"]) == parse_settings(["neck.at=[0,2]"]) == {"neck.at": [0, 2]}
    assert parse_settings(["encoder.mean=[.48, 0.45,.4]"]) == {"encoder.mean": [0.48, 0.45, 0.4]}
    assert parse_settings(["plan.targets=1.10,1.20"]) == {"plan.targets": ["1.10", "1.20"]}
    assert parse_settings(["neck.at=-1,10"]) == {"neck.at": [-1, 10]}
    assert parse_settings(["a=0,b", "b=01,2", "c={x},1"]) == {"a": ["0", "b"], "b": ["01", "2"], "c": "{x},1"}
    given = make_spec(DATA, settings=parse_settings(["plan.targets=0,1"]))
    assert given.plan_args == {"targets": ["0", "1"]}


def test_settings_inside_a_setting_have_a_second_dot():
    data = world("image", "none", domains=2, size=4, classes=2, seed=0)
    given = {"encoder.size": 32, "encoder.experts.count": 4, "encoder.experts.top": 1}
    spec = make_spec(data, encoder="vit-tiny", settings=given)
    assert spec.encoder_args == {"size": 32, "experts": {"count": 4, "top": 1}}
    with pytest.raises(BadInput, match=r"experts=4 and experts\.top cannot be set together"):
        make_spec(data, encoder="vit-tiny", settings={"encoder.experts": 4, "encoder.experts.top": 1})
    with pytest.raises(BadInput, match="setting of encoder 'vit-tiny'"):
        make_spec(data, encoder="vit-tiny", settings={"encoder.expert.top": 1})


def test_data_may_be_a_frame_and_methods_one_text(tmp_path):
    rows = DATA.raw.take(np.arange(len(DATA))).numpy()
    frame = pd.DataFrame(rows, columns=[f"f{i}" for i in range(rows.shape[1])])
    frame = frame.assign(label=np.asarray(DATA.classes)[DATA.y], domain=np.asarray(DATA.domains)[DATA.domain])
    given = {"seeds": 1, "steps": 2, "batch": 4, "settings": QUICK, "device": "cpu"}
    one = compare(frame, methods="erm", analyse="a-distance", out=tmp_path / "one", **given)
    assert [record.spec["method"] for record in one.records] == ["erm"]
    assert "a-distance" in one.records[0].analysis
    plain = compare(DATA, methods=["erm"], out=tmp_path / "plain", **given)
    assert one.records[0].stages == plain.records[0].stages
    two = compare(frame, methods="erm, coral,", out=tmp_path / "two", **given)
    assert {record.spec["method"] for record in two.records} == {"erm", "coral"}
    (trial,) = sweep(frame, methods="erm", trials=1, out=tmp_path / "swept", **given).chosen
    assert trial.method == "erm"


@pytest.mark.parametrize("data", [[["good film", "pos", "a"]], None, 3])
def test_data_of_another_kind_is_one_sentence(data, tmp_path):
    with pytest.raises(BadInput, match=r"data is a path, .* or a DataFrame .*, not a \w+: write it to a file"):
        compare(data, out=tmp_path)
