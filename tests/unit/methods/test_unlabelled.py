"""Unlabelled examples of the target: the rows of every episode, methods that use them, and the null control."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput
from holdfast.data.readers.in_memory import as_dataset
from holdfast.data.unlabelled import add_unlabelled, unlabelled_parts
from holdfast.stats.decision import decide
from holdfast.train.resolve import choose_methods
from holdfast.train.run import train
from holdfast.train.settings import make_spec
from holdfast.train.training_data import training_data
from holdfast.train.workspace import Workspace

SETTINGS = {"encoder.hidden": [8], "neck": "none"}


def vectors(count, shift, seed):
    """Two classes along the first axis; the other axes are shifted."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % 2
    x = rng.normal(size=(count, 4)) + np.outer(2 * y - 1, [1.0, 0, 0, 0])
    return (x + np.asarray([0, shift, 0, 0])).astype(np.float32), y


def labelled():
    parts = [vectors(40, 0.0, 0), vectors(40, 0.5, 1), vectors(40, 3.0, 2)]
    x, y = (np.concatenate(values) for values in zip(*parts, strict=True))
    return as_dataset(x, y, np.repeat(["a", "b", "c"], 40))


DATA = labelled()
EXTRA = as_dataset(*vectors(30, 3.0, 3), ["c"] * 30)
BOTH = add_unlabelled(DATA, EXTRA)


def run(dataset, method, target="c", **settings):
    workspace = Workspace(dataset)
    spec = make_spec(dataset, method=method, steps=40, every=20, batch=16, settings={**SETTINGS, **settings})
    (episode,) = [each for each in workspace.episodes(spec) if each.name == f"to-{target}"]
    record, assembly = train(spec, episode, workspace)
    return record, assembly, episode


def test_an_episode_adapts_to_its_own_target_only():
    _, _, to_c = run(BOTH, "erm")
    _, _, to_a = run(BOTH, "erm", target="a")
    assert [(part.domain, len(part)) for part in to_c.stages[0].unlabelled] == [("c", 30)]
    assert not np.isin(to_c.stages[0].unlabelled[0].rows, to_c.stages[0].test[0].rows).any()
    assert [part.domain for part in to_a.stages[0].unlabelled] == ["c"]  # no rows outside its training domains
    assert {len(part) for part in to_a.stages[0].train} == {32}
    other = add_unlabelled(DATA, replace(EXTRA, domains=("all",), name="new"))
    assert [part.domain for part in unlabelled_parts(other, ("a", "b", "c"))] == ["new"]
    assert Workspace(other).episodes(make_spec(other))[-1].name == "to-c"  # `new` is no target


def test_methods_without_use_for_them_give_the_same_numbers():
    plain, _, _ = run(DATA, "erm")
    extended, _, _ = run(BOTH, "erm")
    assert extended.stages[0]["test"] == plain.stages[0]["test"]
    assert "unlabelled" not in extended.stages[0]["sizes"]
    assert extended.id != plain.id


@pytest.mark.parametrize("method", ["coral", "mmd", "dann", "moving-average(coral)"])
def test_aligning_methods_train_on_them(method):
    used, assembly, _ = run(BOTH, method, **{"method.weight": 1.0})
    unused, other, _ = run(BOTH, method, **{"method.unlabelled": "none", "method.weight": 1.0})
    control, _, _ = run(BOTH, method, **{"method.unlabelled": "source", "method.weight": 1.0})
    assert used.stages[0]["sizes"]["unlabelled"] == {"c": 30}
    assert sum(used.stages[0]["adapted"]["mix"]["unlabelled"]) == pytest.approx(1)
    assert "adapted" not in unused.stages[0]
    assert "unlabelled" not in unused.stages[0]["sizes"]
    weights = [record.stages[0]["history"][-1]["loss"] for record in (used, unused, control)]
    assert len({str(losses) for losses in weights}) == 3
    if method == "coral":
        assert gap(assembly) < gap(other)


def test_a_collapsed_adaptation_is_not_recommended():
    erm, (coral, _, _) = run(BOTH, "erm")[0], run(BOTH, "coral")
    only = "no other configuration has complete runs on its rows"
    coral.stages[0]["adapted"]["collapsed"] = False
    assert decide([erm, coral], "accuracy").why != only
    coral.stages[0]["adapted"]["collapsed"] = True
    assert decide([erm, coral], "accuracy").why == only


def test_the_default_methods_include_those_that_adapt():
    spec = make_spec(BOTH, settings=SETTINGS)
    assert {"coral", "dann"} <= set(choose_methods(["auto"], spec, Workspace(BOTH)))
    assert "dann" not in choose_methods(["auto"], make_spec(DATA, settings=SETTINGS), Workspace(DATA))
    frozen = choose_methods(["auto"], replace(spec, tune="frozen"), Workspace(BOTH))
    assert {"projection+coral", "projection+dann"} <= set(frozen)
    assert "coral" not in frozen


def gap(assembly):
    """Distance of the mean features of the target and of the sources, in standard deviations of the sources."""
    method, examples = assembly.method.eval(), assembly.examples
    with torch.no_grad():
        z = method.deployed.features(examples.inputs(torch.arange(len(BOTH))))
    sources, target = z[:80], z[120:]
    return float(((sources.mean(0) - target.mean(0)) / (sources.std(0) + 1e-3)).norm())


def test_the_null_control_draws_from_the_labelled_inputs():
    x = torch.arange(10.0)[:, None]
    y = torch.tensor([0, 1, 0, 1, 0, 1, -1, -1, -1, -1])
    batch = DomainBatch(x, y, (0, 1, 2), (3, 3, 4))
    assert batch.labelled_count(1) == 6
    changed = batch.with_control(1, "source")
    assert torch.equal(changed.x[:6], x[:6])
    assert (changed.x[6:] < 6).all()
    assert batch.with_control(1, "target") is batch


def test_rows_with_an_empty_label_and_files(tmp_path):
    table = tmp_path / "data.csv"
    rows = [f"{i}.0,{i % 3}.5,{'' if i > 30 else 'xy'[i % 2]},{'ab'[i % 4 // 2]}" for i in range(40)]
    table.write_text("f1,f2,label,domain\n" + "\n".join(rows), encoding="utf-8")
    with pytest.raises(BadInput, match="has no label"):
        training_data(table)
    dataset = training_data(table, empty_labels="unlabelled")
    assert dataset.unlabelled
    assert (dataset.y < 0).sum() == 9
    assert dataset.notes[-1] == "9 rows without a label are unlabelled examples"
    new = tmp_path / "new.csv"
    new.write_text("f2,f1\n" + "1.0,2.0\n" * 5, encoding="utf-8")
    joined = training_data(table, empty_labels="unlabelled", unlabelled=new)
    assert joined.domains == ("a", "b", "new")
    assert joined.raw.take(np.asarray([40])).tolist() == [[2.0, 1.0]]  # columns by name
    assert not DATA.with_unlabelled_rows().unlabelled
    with pytest.raises(BadInput, match="does not use unlabelled examples"):
        training_data(table, task="masked", unlabelled=new)


def test_other_kinds_are_refused():
    with pytest.raises(BadInput, match="has a text per example but"):
        add_unlabelled(DATA, as_dataset(["a", "b"], [0, 1], ["x", "x"]))
