"""Default methods, methods that are identical here, and the warning about repeated rows."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from holdfast import catalog, compare
from holdfast.auditing.repeated import count_repeated, repeated_note
from holdfast.catalog.methods import DEFAULT_SLATE
from holdfast.core.errors import BadInput
from holdfast.data.load import load_data
from holdfast.data.synthetic import world
from holdfast.train.resolve import choose_methods, identical_to, merge_identical
from holdfast.train.run import train
from holdfast.train.settings import make_spec, with_method
from holdfast.train.workspace import Workspace

DATA = world("vector", "rotation", domains=3, size=40, classes=2, seed=0)
TEXTS = world("text", "none", domains=3, size=12, classes=2, seed=0)
QUICK = {"steps": 12, "batch": 4}


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
    base = make_spec(DATA, **QUICK, settings={"every": 6, "encoder.hidden": [4]})
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
        DATA, methods=["irm", "ib-irm"], tune="frozen", seeds=1, baselines=False, out=tmp_path, device="cpu", **QUICK
    )
    assert {record.spec["method"] for record in done.records if record.spec["method"] in catalog.METHODS} == {"irm"}
    assert done.identical == {"ib-irm": "irm"}
    assert "ib-irm is not run, because it is identical to irm here" in done.report.read_text()


def test_repeated_rows_are_counted_and_the_command_is_named(tmp_path):
    rows = [("same", "a", "x"), ("same", "a", "x"), ("same", "b", "y"), ("other", "a", "x"), ("third", "b", "y")]
    path = tmp_path / "my texts.csv"
    pd.DataFrame(rows, columns=["text", "label", "domain"]).to_csv(path, index=False)
    data = load_data(path)
    repeated = count_repeated(data)
    assert (repeated.total, repeated.within, repeated.between) == (2, 1, 1)
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
