"""Requests become jobs: methods and their necks, distribution of settings, one set of episodes, all checks first."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from holdfast import catalog
from holdfast.api import compare
from holdfast.auditing.repeated import repeated_note
from holdfast.catalog.methods import DEFAULT_SLATE
from holdfast.core.errors import BadInput
from holdfast.data.dataset import Dataset
from holdfast.data.load import load_data
from holdfast.data.raw import Vectors
from holdfast.data.splits import SPLITS
from holdfast.data.synthetic import world
from holdfast.search.sweep import sweep
from holdfast.train.plans import LeaveOneOut
from holdfast.train.resolve import Request, choose_methods, identical_to, merge_identical, resolve, with_methods
from holdfast.train.run import train
from holdfast.train.settings import make_spec, with_method
from holdfast.train.training_data import imbalance_note, only_tested_note
from holdfast.train.workspace import Workspace

DATA = world("vector", "rotation", domains=3, size=40, classes=2, seed=0)
QUICK = {"encoder.hidden": [8], "plan.targets": ["domain-0"]}
SMALL = {"neck.slots": 16, "neck.key_width": 4}


def jobs_of(data=DATA, **options):
    return resolve(Request(**options), Workspace(data, cache=None))


def necks(*methods, **settings):
    """method -> its neck."""
    jobs = jobs_of(methods=methods, settings={**QUICK, **settings}, tested=True)
    return {job.spec.method: job.spec.neck for job in jobs}


def test_one_job_per_method_seed_and_episode():
    jobs = jobs_of(methods=["erm", "coral"], seeds=[0, 3], settings={"encoder.hidden": [8]})
    assert len({job.id for job in jobs}) == len(jobs) == 2 * 2 * 3
    assert [job.spec.seed for job in jobs[:4]] == [0, 0, 0, 3]
    assert {job.episode for job in jobs} == {"to-domain-0", "to-domain-1", "to-domain-2"}


def test_episodes_are_generated_once_per_seed(monkeypatch):
    generate, calls = LeaveOneOut.episodes, []

    def counted(self, rows, seed, *, oracle=False):
        calls.append(seed)
        return generate(self, rows, seed, oracle=oracle)

    monkeypatch.setattr(LeaveOneOut, "episodes", counted)
    workspace = Workspace(DATA, cache=None)
    jobs = resolve(Request(methods=["erm", "coral"], seeds=[0, 1], tested=True), workspace)
    for job in jobs:
        job.episode_in(workspace)
    assert calls == [0, 1]


@pytest.mark.parametrize("methods", [("mil", "erm"), ("erm", "mil"), ("memory+coral", "erm", "mil")])
def test_neck_of_a_method_does_not_affect_the_others(methods):
    assert necks(*methods, **SMALL) == {"erm": "none", "mil": "memory"} | (
        {"coral": "memory"} if "memory+coral" in methods else {}
    )


def test_chosen_neck_goes_to_all_methods():
    settings = {"neck": "product-memory", "neck.slots": 16, "neck.top": 2, "neck.key_width": 4}
    assert necks("mil", "erm", **settings) == {"mil": "product-memory", "erm": "product-memory"}


def test_neck_that_a_method_cannot_use_raises():
    with pytest.raises(BadInput, match=r"mil needs a neck such as memory or .*projection.*memory\+mil"):
        necks("mil", neck="projection")
    assert necks("erm", "memory+mil", neck="projection") == {"erm": "projection", "mil": "memory"}
    workspace = Workspace(DATA)
    names = choose_methods(["all"], make_spec(DATA, settings={**QUICK, "neck": "projection"}), workspace)
    assert "mil" not in names
    assert any(note.startswith("mil left out") and "projection" in note for note in workspace.notes)


def test_unsuitable_methods_raise_and_are_left_out_of_all():
    for name in ("g-mixup", "swad(ciga-v1)"):
        with pytest.raises(BadInput, match="vector"):
            jobs_of(methods=[name])
    workspace = Workspace(DATA)
    names = choose_methods(["all"], make_spec(DATA), workspace)
    assert "erm" in names
    assert not {"g-mixup", "ciga-v1", "ciga-v2", "dir"} & set(names)
    assert any(note.startswith("g-mixup left out") and "vector" in note for note in workspace.notes)
    workspace = Workspace(DATA)
    names = choose_methods(["all"], make_spec(DATA, plan="stream"), workspace)
    assert "erm" in names
    assert "dann" not in names
    assert any(note.startswith("dann left out") and "2 training domains" in note for note in workspace.notes)
    assert "gin-subgraph" in catalog.incompatibility("ciga-v1", "gin")
    assert catalog.incompatibility("ciga-v1", "gcn-subgraph") == catalog.incompatibility("g-mixup", "gin") == ""


def test_settings_go_to_the_methods_and_necks_that_have_them():
    spec = make_spec(DATA, encoder="mlp")
    args = {"method_args": {"weight": 2.0}, "neck_args": {"share": 0.3}}
    erm, coral, mil = with_methods(spec, ["erm", "coral", "memory+mil"], **args)
    assert (erm.method_args, coral.method_args, mil.method_args) == ({}, {"weight": 2.0}, {})
    assert (erm.neck_args, mil.neck_args) == ({}, {"fusion": "interpolate", "query_norm": True, "share": 0.3})
    frozen, default = with_methods(replace(spec, tune="frozen"), ["mil", "erm"], method_args={}, neck_args={})
    assert (frozen.neck_args, default.neck_args) == ({"fusion": "interpolate", "share": 0.2}, {})
    (inner,) = with_methods(spec, ["swad(coral)"], method_args={"weight": 2.0, "ratio": 1.2}, neck_args={})
    assert inner.method_args == {"weight": 2.0, "ratio": 1.2}
    with pytest.raises(BadInput, match=r"weigt.*'weight'"):
        with_methods(spec, ["erm", "coral"], method_args={"weigt": 2.0}, neck_args={})
    with pytest.raises(BadInput, match=r"'erm'.*'weight'.*coral"):
        with_methods(spec, ["erm"], method_args={"weight": 2.0}, neck_args={})
    with pytest.raises(BadInput, match=r"'none'.*'count'.*--set neck=experts"):
        necks("erm", **{"neck.count": 4})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": ["mldg"], "plan": "single-source"}, r"mldg.*2 training domains"),
        ({"methods": ["mldg"], "select": "leave-one-domain-out"}, r"mldg.*2 training domains"),
        ({"plan": "single-source", "select": "leave-one-domain-out"}, r"1 training domains.*has 0"),
        ({"settings": {"precision": "bf16"}}, "bf16.*GPU"),
        ({"settings": {"augment": True}}, "augmentation.*vector"),
        ({"plan": "all", "tested": True}, "all.*--plan"),
        ({"seeds": []}, "seed"),
        ({"methods": []}, "method"),
    ],
)
def test_unsuitable_requests_raise_before_any_training(options, message):
    with pytest.raises(BadInput, match=message):
        jobs_of(**options)


def test_labels_that_are_tested_but_not_trained_are_not_scored():
    y = DATA.y.copy()
    y[DATA.rows_of("domain-0")[:5]] = 2
    data = replace(DATA, y=y, classes=(*DATA.classes, "rare"))
    workspace = Workspace(data, cache=None)
    jobs = resolve(Request(methods=["erm"], seeds=[0, 1]), workspace)
    tested = {job.episode: len(job.episode_in(workspace).stages[0].test[0]) for job in jobs}
    assert tested == {"to-domain-0": 35, "to-domain-1": 40, "to-domain-2": 40}
    assert sum("5 rows of 'rare'" in note for note in workspace.notes) == 1


def test_a_domain_that_alone_has_its_classes_is_not_scored():
    y = DATA.y.copy()
    y[DATA.rows_of("domain-0")] = 2
    workspace = Workspace(replace(DATA, y=y, classes=(*DATA.classes, "rare")), cache=None)
    jobs = resolve(Request(methods=["erm"], seeds=[0, 1]), workspace)
    assert {job.episode for job in jobs} == {"to-domain-1", "to-domain-2"}
    assert [note for note in workspace.notes if note.startswith("not scored: no class of domain 'domain-0' (rare)")]


def test_without_a_domain_of_known_classes_nothing_can_be_scored():
    with pytest.raises(BadInput, match="no class of domain 'domain-0'"):
        jobs_of(replace(DATA, y=DATA.domain.astype(DATA.y.dtype), classes=("a", "b", "c")))


def test_data_may_be_a_frame_and_methods_a_string(tmp_path):
    rows = DATA.raw.take(np.arange(len(DATA))).numpy()
    frame = pd.DataFrame(rows, columns=[f"f{i}" for i in range(rows.shape[1])])
    frame = frame.assign(label=np.asarray(DATA.classes)[DATA.y], domain=np.asarray(DATA.domains)[DATA.domain])
    options = {"seeds": 1, "steps": 2, "batch": 4, "settings": QUICK, "device": "cpu"}
    one = compare(frame, baselines=False, methods="erm", analyse="a-distance", out=tmp_path / "one", **options)
    assert [record.spec["method"] for record in one.records] == ["erm"]
    assert "a-distance" in one.records[0].analysis
    plain = compare(DATA, baselines=False, methods=["erm"], out=tmp_path / "plain", **options)
    assert one.records[0].stages == plain.records[0].stages
    two = compare(frame, baselines=False, methods="erm, coral,", out=tmp_path / "two", **options)
    assert {record.spec["method"] for record in two.records} == {"erm", "coral"}
    (trial,) = sweep(frame, methods="erm", trials=1, out=tmp_path / "sweep", **options).chosen
    assert trial.method == "erm"


@pytest.mark.parametrize("data", [[["good film", "pos", "a"]], None, 3])
def test_unsupported_data_raises(data, tmp_path):
    with pytest.raises(BadInput, match=rf"path.*DataFrame.*{type(data).__name__}"):
        compare(data, out=tmp_path)


def test_classes_that_are_missing_in_some_domains_are_compared_and_reported(tmp_path):
    data = world("vector", "rotation", domains=3, size=40, classes=3, seed=0)
    keep = np.flatnonzero((data.y < 2) | (data.domain == 0))
    data = data.subset(keep)
    only_here = int((data.y == 2).sum())
    result = compare(
        data, methods=["erm", "coral"], seeds=1, steps=5, batch=8, out=tmp_path, settings={"encoder.hidden": [8]},
        device="cpu", cache=False,
    )  # fmt: skip
    notes = [note for note in result.notes if "class" in note]
    first, *others = (f"'{name}' has no '2'" for name in data.domains[1:])
    assert f"classes are missing in some domains: {first}; {others[0]}" in notes
    unscored = f"not scored in 'domain-0': {only_here} rows of '2', because no training domain has this class"
    assert unscored in notes
    for record in result.records:
        (stage,) = record.stages
        for domain, size in stage["sizes"]["test"].items():
            assert size == len(data.rows_of(domain)) - only_here * (domain == "domain-0")
    assert {record.spec["method"] for record in result.records} >= {"erm", "coral", "logistic"}
    assert result.decision is not None
    assert unscored in (tmp_path / "report.html").read_text().replace("&#39;", "'")


@pytest.mark.parametrize(
    ("counts", "metric", "note"),
    [
        ((97, 3), "accuracy", "the class 'b' has only 3% of the rows, so that accuracy hardly shows whether it is"),
        ((4991, 5, 4), "accuracy", "the classes 'c', 'b' have only 0.2% of the rows, so that accuracy hardly shows"),
        ((97, 3), "macro_f1", ""), ((90, 10), "accuracy", ""), ((4,) * 25, "accuracy", ""),
    ],
)  # fmt: skip
def test_rare_classes_are_reported_with_accuracy(counts, metric, note):
    y = np.repeat(np.arange(len(counts)), counts)
    classes = tuple("abcdefghijklmnopqrstuvwxyz"[: len(counts)])
    data = Dataset("d", Vectors(np.zeros((len(y), 1), np.float32)), y, classes, np.zeros(len(y), np.int64), ("x",))
    text = imbalance_note(data, metric)
    assert text.startswith(note)
    assert bool(text) == bool(note)
    assert not text or text.endswith(": use --metric macro_f1 or balanced_accuracy")


def test_domains_without_training_rows_are_noted():
    data = world("vector", "rotation", domains=3, size=6, seed=0)
    marks = np.where(data.domain == 2, SPLITS.index("test"), SPLITS.index("train"))
    assert only_tested_note(data) == only_tested_note(replace(data, split=np.zeros(len(data), dtype=int))) == ""
    assert repr(data.domains[2]) in only_tested_note(replace(data, split=marks))


TEXTS = world("text", "none", domains=3, size=12, classes=2, seed=0)
SHORT = {"steps": 12, "batch": 4}


def default_methods(data=DATA, **options):
    return choose_methods(["auto"], make_spec(data, **options), Workspace(data, cache=None))


def test_default_methods_are_few_and_fit_the_setting():
    assert all(catalog.unwrap("methods", name.rpartition("+")[2]) for name in DEFAULT_SLATE)
    learning = default_methods()
    assert learning[0] == "erm"
    assert "moving-average(erm)" not in learning  # the weights of every method are averaged
    assert {"coral", "vrex", "memory+erm", "mil", "hma"} < set(learning)
    assert not {"experts+erm", "replay", "ciga-v2"} & set(learning)
    families = [catalog.lookup("methods", name).family for name in learning if name in catalog.METHODS]
    assert families.count("feature alignment") == families.count("invariant risk") == 1
    frozen = default_methods(TEXTS, encoder="minilm")
    assert frozen[:2] == ["erm", "moving-average(erm)"]
    assert not {"coral", "miro", "experts+erm", "gmap+erm"} & set(frozen)
    projected = default_methods(TEXTS, encoder="minilm", settings={"neck": "projection"})
    assert {"coral", "memory+mil", "heterogeneous+hma"} < set(projected)
    assert {"experts+erm", "gmap+erm"} < set(default_methods(TEXTS, encoder="minilm", tune="full"))
    assert "gmap+erm" not in default_methods(TEXTS, encoder="bilstm", tune="full")
    stream = default_methods(plan="stream")
    assert {"erm", "replay", "progressive(erm)"} < set(stream)
    assert choose_methods(["coral", "dir"], make_spec(DATA), Workspace(DATA)) == ["coral", "dir"]


def weights(spec, workspace):
    _, assembly = train(spec, workspace.episodes(spec)[0], workspace)
    return torch.cat([p.detach().flatten() for p in assembly.method.deployed.parameters()])


SETTINGS = {
    "frozen": {"tune": "frozen"},
    "weight 0": {"tune": "full", "method_args": {"weight": 0.0, "anneal": 0.0}},
    "learning": {"tune": "full"},
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_rules_agree_with_training(setting):
    """Methods have equal weights after training exactly if the catalog calls them identical."""
    workspace = Workspace(DATA, cache=None)
    base = make_spec(DATA, **SHORT, settings={"every": 6, "encoder.hidden": [4]})
    trained = {}
    for name in ("erm", "coral", "mmd", "irm", "vrex", "ib-irm", "ib-erm", "dann", "group-dro", "fishr", "replay"):
        known = catalog.lookup("methods", name).setting_names()
        fields = dict(SETTINGS[setting])
        fields["method_args"] = {key: v for key, v in fields.get("method_args", {}).items() if key in known}
        spec = with_method(replace(base, **fields), name)
        trained[name] = (identical_to(spec), weights(spec, workspace))
    for name, (rule, own) in trained.items():
        for other, (other_rule, others) in trained.items():
            if {name, other} == {"ib-erm", "erm"} or (setting == "frozen" and "ib-erm" in (name, other)):
                continue  # its moments restart, which has no effect in a run this short
            if setting == "weight 0" and {name, other} & {"ib-erm", "ib-irm", "group-dro", "fishr", "dann"}:
                continue  # weight 0 has another meaning
            assert (str(rule) == str(other_rule)) == torch.equal(own, others), (name, other)


def test_identical_methods_run_once_and_are_named(tmp_path):
    base = make_spec(DATA, tune="frozen")
    specs = [with_method(base, name) for name in ("ib-irm", "coral", "irm", "erm")]
    run, same = merge_identical(specs)
    assert [spec.method for spec in run] == ["irm", "erm"]
    assert same == {"ib-irm": "irm", "coral": "erm"}
    done = compare(
        DATA, methods=["irm", "ib-irm"], tune="frozen", seeds=1, baselines=False, out=tmp_path, device="cpu", **SHORT
    )
    assert {record.spec["method"] for record in done.records if record.spec["method"] in catalog.METHODS} == {"irm"}
    assert done.identical == {"ib-irm": "irm"}
    assert "ib-irm is not run, because it is identical to irm here" in done.report.read_text()


def test_repeated_rows_are_counted_and_the_command_is_named(tmp_path):
    rows = [("same", "a", "x"), ("same", "a", "x"), ("same", "b", "y"), ("other", "a", "x"), ("third", "b", "y")]
    path = tmp_path / "my texts.csv"
    pd.DataFrame(rows, columns=["text", "label", "domain"]).to_csv(path, index=False)
    data = load_data(path)
    note = repeated_note(data, [str(path)])
    assert "2 of 5 rows repeat earlier ones (1 in the same domain, 1 in another domain)" in note
    assert f"holdfast audit '{path}' --clean clean.csv" in note
    one = repeated_note(data.subset(np.asarray([0, 1, 3])), [])
    assert "1 of 3 rows repeats an earlier one (1 in the same domain)" in one
    assert one.endswith("`holdfast.audit(data, clean=FILE)` writes the data without repeated rows")
    distinct = data.subset(np.asarray([0, 3, 4]))
    assert repeated_note(distinct, []) == ""


def test_a_general_memory_contains_the_encoder_of_the_others(tmp_path):
    spec = make_spec(TEXTS, encoder="minilm", tune="full", settings={"encoder.length": 16})
    reader = with_method(spec, "gmap+coral")
    assert (reader.method, reader.encoder, reader.neck) == ("coral", "gmap", "none")
    assert reader.encoder_args == {"domain": "minilm", "length": 16}
    assert with_method(replace(spec, encoder="hf:folder/x", encoder_args={}), "gmap+erm").encoder_args == {
        "domain": "folder/x"
    }
    with pytest.raises(BadInput, match="gmap reads a text encoder, minilm or hf:NAME, and the encoder is bilstm"):
        with_method(make_spec(TEXTS, encoder="bilstm"), "gmap+erm")
    with pytest.raises(BadInput, match=r"gmap has no setting encoder\.experts"):
        with_method(replace(spec, encoder_args={"experts": True}), "gmap+erm")
