"""Small scripts of studies: closed forms, feature worlds, public types, packages, rows of the default settings."""

import json
import math
from importlib.metadata import distribution, version

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import BadInput
from holdfast.data.synthetic import world
from holdfast.record import load
from studies import default, packages, public_types
from studies.alignment import NOISY, World, cases_error, network
from studies.alignment import SETS as SHIFTED
from studies.default import DATASETS, ROWS, DefaultRunner, Setting, comparison_of, row_jobs
from studies.table_sets import DEFAULT, OPPONENTS, SETS, difference_table, means, result_table, scores_of, worse_than
from studies.theory import Expansion, change, disturbance, exact


@pytest.mark.parametrize("shifted", SHIFTED)
def test_examples_of_the_feature_world_have_the_features_of_their_set(shifted):
    feature_world = World()
    vectors = feature_world.vectors()
    torch.testing.assert_close(vectors @ vectors.T, torch.eye(4))
    x, y = feature_world.draw(200, rng=torch.Generator().manual_seed(0), shifted=shifted)
    pixel, patch = (y + (shifted == f"{kind}-shift") for kind in ("pixel", "patch"))
    assert torch.equal(x[torch.arange(200), 0, pixel % 4], torch.ones(200))
    matches = torch.isclose(x[:, 1:], vectors[patch % 4][:, None], atol=1e-6).all(-1)
    assert torch.equal(matches.sum(1), torch.ones(200, dtype=torch.long))


def test_features_point_to_the_class_with_their_probability_and_only_the_convolution_ignores_the_order():
    x, y = World(pixel=0.7, patch=1.0).draw(4000, rng=torch.Generator().manual_seed(0))
    assert float((x[torch.arange(4000), 0, y] == 1).float().mean()) == pytest.approx(0.7, abs=0.03)
    assert [pair for pair in NOISY if pair[0] == 0.9] == [(0.9, 0.9), (0.9, 0.95), (0.9, 1.0)]
    torch.manual_seed(0)
    for kind, invariant in (("fcn", True), ("mlp", False)):
        net = network(kind)
        assert torch.allclose(net(x[:5]), net(x[:5].flip(1)), atol=1e-5) == invariant
    for invalid, message in ((lambda: World(pixel=1.2), r"1\.2"), (lambda: network("cnn"), "cnn")):
        with pytest.raises(BadInput, match=message):
            invalid()


@pytest.mark.slow
def test_several_experts_learn_cases_better_than_one():
    errors = {count: cases_error(count, cases=3, width=8, hidden=8, examples=600, steps=120) for count in (1, 3)}
    assert errors[3] < 0.9 * errors[1] < 0.9


CASES = {  # D = d = 50, sigma = 0.1: closed form of the disturbance with uniform attention
    (100, 50, None): 1 / 1200,
    (100, 100, None): 1 / 800,
    (1, 1, 1.0): 1 / 8,
    (1, 1, 100.0): 0.5 * (100 / 101) ** 2,
}


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new", "mass"), CASES)
def test_monte_carlo_matches_the_closed_form(old, new, mass):
    expansion, expected = Expansion(old=old, new=new, mass=mass), CASES[old, new, mass]
    assert expansion.bound == pytest.approx(0.25)
    assert exact(expansion) == pytest.approx(expected)
    estimate = disturbance(expansion, draws=2000)
    assert abs(estimate.hidden.value - 0.25) < 4 * estimate.hidden.error
    # random keys make the attention slightly uneven, which adds |h|^2 sigma^2, half a percent
    assert abs(estimate.memory.value - expected) < 4 * estimate.memory.error + 0.01 * expected
    assert all(0 < each.error < 0.02 * each.value for each in (estimate.memory, estimate.hidden))


def test_memory_disturbs_less_unless_the_assumption_is_violated():
    for mass, sign, assumed in ((1.0, 1, 1), (100.0, -1, 0)):
        found = disturbance(Expansion(old=1, new=1, mass=mass), draws=1000)
        gap = sign * (found.hidden.value - found.memory.value)
        assert gap > 4 * (found.hidden.error + found.memory.error)
        assert found.assumed == assumed
    # the assumption is sufficient, not necessary: with one slot each the bound is reached at 1 + sqrt 2
    edge = Expansion(old=1, new=1, mass=1 + math.sqrt(2))
    assert exact(edge) == pytest.approx(edge.bound)
    for wrong in ({"old": 0}, {"new": 0}, {"width": 0}, {"sigma": 0.0}, {"mass": 0.0}):
        with pytest.raises(BadInput):
            Expansion(**{"old": 1, "new": 1, **wrong})
    with pytest.raises(BadInput, match=r"draws.*got 1"):
        disturbance(Expansion(old=1, new=1), draws=1)


FEW = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=8)


@given(FEW, FEW)
def test_algebra_of_the_proof(before, added):
    attention, old = np.array(before + added), len(before)
    beta, alpha = change(attention, old), attention / attention.sum()
    values = np.random.default_rng(0).normal(size=(len(attention), 3))
    content = alpha @ values - attention[:old] @ values[:old] / sum(before)
    np.testing.assert_allclose(beta @ values, content, atol=1e-9)
    assert abs(beta.sum()) < 1e-9
    rho = sum(added) / sum(before)
    np.testing.assert_allclose(beta[:old], -rho * alpha[:old])
    np.testing.assert_array_equal(beta[old:], alpha[old:])
    if abs(rho - 1) > 1e-9:
        assert (np.abs(beta) <= alpha * (1 + 1e-12)).all() == (rho < 1)
    if rho <= 1:
        assert (beta**2).sum() <= (alpha**2).sum() * (1 + 1e-9)


@pytest.mark.parametrize(("name", "targets"), [("heart-disease", 4), ("cars", 3)])
def test_rows_of_tables_have_five_seeds_and_no_opponent_is_better_than_the_default(name, targets):
    scores = scores_of(name)
    for method in {DEFAULT, *OPPONENTS} & scores.keys():
        assert len(scores[method]) == targets
        assert all(sorted(each) == list(range(5)) for each in scores[method].values())
    assert len(means(scores[DEFAULT])) == 5
    assert len(result_table(name)) > 6
    assert worse_than(name) == []
    assert len(difference_table()) == len(SETS) + 8


@pytest.fixture
def small(monkeypatch):
    """A small data set with short runs in place of those of the study."""
    options = {"plan": "leave-one-out", "metric": "accuracy", "steps": 8, "every": 4, "encoder.hidden": [4]}
    data = world("vector", "rotation", domains=3, size=30, seed=0)
    setting = Setting(title="small", load=lambda _: data, settings=options)
    monkeypatch.setitem(DATASETS, "small", setting)
    return setting


def test_rows_that_change_nothing_are_left_out(tmp_path):
    jobs = row_jobs(["rated", "pacs", "digits"], ["default", "frozen", "128-tokens"], tmp_path)
    assert {(job.comparison, job.row) for job in jobs} == {
        ("rated", "default"), ("rated", "frozen"), ("rated", "128-tokens"), ("pacs", "default"), ("pacs", "frozen"),
        ("digits", "default"),
    }  # fmt: skip


def test_the_rate_is_chosen_on_source_validation(small, tmp_path, capsys):
    runner = DefaultRunner(tmp_path, tmp_path, {"small": comparison_of("small")})
    for job in default.search_jobs(["small"], runner)[:4]:
        runner.run(job)
    assert not any(record.stages[-1]["test"] for record in load(tmp_path / "search" / "small"))
    default.choose(["small"], tmp_path)
    assert "small: {'rate': " in capsys.readouterr().out
    jobs = default.row_jobs(["small"], list(ROWS), tmp_path)
    assert len(jobs) == default.SEEDS * (len(ROWS) - 2)  # neither frozen nor 128-tokens
    assert {job.rate in small.rates for job in jobs if job.row == "searched"} == {True}


def symbol(name: str, *messages: str, category: str = "function", known: bool = False, ambiguous: bool = False) -> dict:
    diagnostics = [{"message": message} for message in messages]
    flags = {"isTypeKnown": known, "isTypeAmbiguous": ambiguous}
    return {"name": name, "category": category, **flags, "diagnostics": diagnostics}


def test_incomplete_public_names_and_members_are_listed_with_the_reason():
    paths = public_types.public_paths()
    assert {"holdfast.compare", "holdfast.api.compare", "holdfast.nn.SparseMoE"} <= paths
    assert all(path.startswith("holdfast.") for path in paths)
    checked = [
        symbol("holdfast.f", "No docstring found", "Return type\n  is unknown"),
        symbol("holdfast.C", category="class"),
        symbol("holdfast.C.x", category="variable", known=True, ambiguous=True),
        symbol("holdfast.C.y", category="variable", known=True),
        symbol("holdfast.internal.g", "Return type is unknown"),
        symbol("holdfast.E", "Type of metaclass unknown", "Type of base class unknown", category="class"),
        symbol("holdfast.D", 'Type of base class "holdfast.x.Y" is partially unknown', category="class"),
    ]
    public = {"holdfast.f", "holdfast.C", "holdfast.D", "holdfast.E"}
    assert list(public_types.incomplete(checked, public)) == [
        "holdfast.f: Return type is unknown",
        "holdfast.C.x: part of its type is unknown",
        'holdfast.D: Type of base class "holdfast.x.Y" is partially unknown',
    ]


PROJECT = {
    "name": "sample",
    "version": "3",
    "dependencies": ["numpy>=1", "jinja2"],
    "optional-dependencies": {"more": ["filelock", "holdfast-no-such-package>=1"]},
}


def test_bill_of_materials_lists_dependencies_of_dependencies_and_installed_extras():
    listed = {package.name: package for package in packages.dependencies(PROJECT)}
    assert {"numpy", "jinja2", "markupsafe", "filelock"} <= set(listed)
    assert "holdfast-no-such-package" not in listed
    assert (listed["markupsafe"].is_required, listed["filelock"].is_required) == (True, False)
    assert "BSD" in listed["numpy"].licence
    assert listed["jinja2"].requires == ("markupsafe",)
    document = packages.bill_of_materials(PROJECT, list(listed.values()))
    assert (document["bomFormat"], document["specVersion"], document["version"]) == ("CycloneDX", "1.5", 1)
    references = [component["bom-ref"] for component in document["components"]]
    assert len(references) == len(set(references)) == len(listed)
    assert f"pkg:pypi/numpy@{version('numpy')}" in references
    own, *others = document["dependencies"]
    assert own["ref"] == "pkg:pypi/sample@3"
    assert [name.partition("@")[0] for name in own["dependsOn"]] == ["pkg:pypi/jinja2", "pkg:pypi/numpy"]
    assert {reference for edge in others for reference in edge["dependsOn"]} <= set(references)
    assert document == packages.bill_of_materials(PROJECT, packages.dependencies(PROJECT))


def test_files_of_dependencies_are_written_for_this_project(tmp_path, capsys):
    assert packages.main([str(tmp_path)]) == 0
    names = {component["name"] for component in json.loads((tmp_path / packages.SBOM).read_text())["components"]}
    assert {"torch", "numpy", "pyarrow", "safetensors", "transformers"} <= names
    table = (tmp_path / packages.TABLE).read_text()
    assert all(f"| {name} |" in table for name in names)
    assert f"{len(names)} dependencies" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("lines", "licence"),
    [
        (["License-Expression: MIT", "License: other"], "MIT"),
        (["Classifier: License :: OSI Approved :: BSD License", "License: long"], "BSD License"),
        (["License: Apache 2.0"], "Apache 2.0"),
        ([], packages.UNKNOWN),
    ],
)
def test_licence_comes_from_the_most_precise_field(tmp_path, lines, licence):
    folder = tmp_path / "x-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", "Name: x", "Version: 1", *lines]) + "\n")
    assert packages.licence_of(type(distribution("numpy")).at(folder)) == licence
