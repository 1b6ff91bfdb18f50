"""Learning rates per part: the catalog names the parts that networks have, and defaults reach the record."""

import pytest
import torch

from holdfast import catalog
from holdfast.catalog.rates import changed_rates, default_rates, rate_parts
from holdfast.core.errors import BadInput
from holdfast.core.seeds import seeded
from holdfast.data.synthetic import world
from holdfast.defaults import NEW_PARTS
from holdfast.methods.base import StageInfo
from holdfast.nn.model import ENCODER, part_names, undecayed
from holdfast.search.space import space_of
from holdfast.spec import RATE_PARTS, Spec
from holdfast.train.assemble import assemble
from holdfast.train.resolve import Request, resolve
from holdfast.train.settings import make_spec, spec_settings
from holdfast.train.workspace import Workspace
from tests.contract.sizes import LIGHT
from tests.tiny import tiny_bert

TEXTS = world("text", "none", domains=3, size=12, classes=2, seed=0)
VECTORS = world("vector", "rotation", domains=3, size=40, classes=2, seed=0)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return f"hf:{tiny_bert(tmp_path_factory.mktemp('bert'))}"


@pytest.mark.parametrize("name", catalog.NECKS)
def test_necks_declare_their_parts(name, benches):
    inside = name in ("layer", "wide") or "experts" in catalog.NECKS[name].target
    model = benches["tiny-bert" if inside else "mlp"].model(name)
    names = {part for p, part in part_names(model).items() if p.requires_grad}
    assert names - {ENCODER, "head"} == set(catalog.NECKS[name].learned), f"set `learned` of the neck '{name}'"


@pytest.mark.parametrize(
    "name", [n for n in catalog.buildable_names("methods", "classify") if not catalog.incompatibility(n, "mlp")]
)
def test_methods_declare_their_critics(name, benches, monkeypatch):
    monkeypatch.setitem(LIGHT, "mil", {"critic": "adversarial"})  # the default has no parameters
    with seeded(0):
        method = benches["mlp"].method(name, rates={"critic": 5.0})
        method.begin_stage(StageInfo(0, ("d0", "d1", "d2")))
    has_critic = any(5.0 in optimizer.rates for optimizer in method.optimizers())
    declared = {part for _, entry in catalog.unwrap("methods", name) for part in entry.learned}
    assert has_critic == ("critic" in declared)


def test_new_parts_learn_faster_than_a_tuned_pretrained_encoder(bert):
    spec = make_spec(TEXTS, encoder=bert, tune="full", method="dann", settings={"neck": "memory"})
    assert spec.json()["lr_args"] == {"head": 10.0, "critic": 10.0, "memory": 10.0}
    assert "lr_args" not in make_spec(TEXTS, encoder=bert, tune="frozen", settings={"neck": "memory"}).json()
    assert "lr_args" not in make_spec(VECTORS, method="dann").json()
    experts = make_spec(TEXTS, encoder=bert, tune="full", settings={"neck": "experts"})
    assert experts.lr_args == {"head": 10.0, "router": 10.0, "experts": 10.0}
    assert "lr_args" not in make_spec(TEXTS, encoder=bert, settings={"task": "masked"}).json()  # a pretrained head
    assert set(NEW_PARTS) <= set(RATE_PARTS)


def test_factors_of_one_leave_the_id_and_survive_a_round_trip(bert):
    one = {"lr.head": 1, "lr.memory": 1, "decay": "all"}
    spec = make_spec(TEXTS, encoder=bert, tune="full", settings={"neck": "memory", **one})
    assert not {"lr_args", "decay"} & spec.json().keys()
    settings = spec_settings(spec.json())
    again = make_spec(TEXTS, encoder=bert, tune="full", lr=spec.lr, settings=settings)
    assert again.json() == spec.json()
    assert Spec(**spec.json()).json() == spec.json()
    assert changed_rates(spec.json()) == {"lr.head": 1.0, "lr.memory": 1.0}


def test_factors_of_parts_that_are_not_installed():
    recorded = {**make_spec(VECTORS).json(), "encoder": "of-a-plug-in"}
    assert changed_rates({**recorded, "lr_args": {"head": 10.0, "neck": 1.0}}) == {"lr.head": 10.0}


def test_factors_go_to_the_methods_that_have_the_part():
    request = Request(methods=("erm", "dann"), settings={"lr.critic": 3, "lr.head": 2})
    jobs = resolve(request, Workspace(VECTORS))
    factors = {job.spec.method: job.spec.json()["lr_args"] for job in jobs}
    assert factors == {"erm": {"head": 2.0}, "dann": {"head": 2.0, "critic": 3.0}}


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"lr.critic": 3}, "critic.*no effect"), ({"lr.haed": 3}, "haed"), ({"lr.head": 0}, "lr.head.*above 0")],
)
def test_bad_factors(settings, message):
    with pytest.raises(BadInput, match=message):
        make_spec(VECTORS, settings=settings)
    with pytest.raises(BadInput, match=message):
        resolve(Request(settings=settings), Workspace(VECTORS))


def test_search_spaces_have_the_parts_that_exist(bert):
    for spec in (make_spec(VECTORS, method="dann"), make_spec(TEXTS, encoder=bert, tune="full", neck="experts")):
        assert {key for key in space_of(spec) if key.startswith("lr.")} == {f"lr.{part}" for part in rate_parts(spec)}
    frozen = make_spec(TEXTS, encoder=bert, tune="frozen")
    assert not [key for key in space_of(frozen) if key.startswith("lr.")]
    assert default_rates(frozen) == {"head": 1.0}


def test_a_run_has_the_groups_of_its_spec(bert):
    spec = make_spec(TEXTS, encoder=bert, tune="full", settings={"neck": "memory", "encoder.length": 12})
    workspace = Workspace(TEXTS, cache=None)
    method = assemble(spec, workspace.episodes(spec)[0], workspace).make()
    (optimizer,), model = method.optimizers(), method.model
    groups = optimizer.optimizer.param_groups
    rates = {p: group["lr"] / spec.lr for group in groups for p in group["params"]}
    decays = {p: group["weight_decay"] > 0 for group in groups for p in group["params"]}
    names, skipped = part_names(model), undecayed(model)
    for name, p in model.named_parameters():
        assert rates[p] == pytest.approx(spec.lr_args.get(names[p], 1.0)), name
        assert decays[p] == (p.dim() > 1 and id(p) not in skipped), name
    undecayed_names = [name for name, p in model.named_parameters() if not decays[p]]
    assert any("position" in name for name in undecayed_names)
    assert any("LayerNorm" in name for name in undecayed_names)
    assert any(torch.is_tensor(p) and p.dim() == 2 and not decays[p] for p in model.parameters())
