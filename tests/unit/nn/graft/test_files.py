"""Saved grafts contain only the inserted parts and load into a new network."""

import json

import pytest
import torch
from safetensors.torch import load_file

import holdfast
from holdfast import BadInput
from tests.unit.nn.graft.networks import make, run
from tests.unit.nn.graft.test_graft import GRAFTS, grafted, train


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tiny")


@pytest.mark.parametrize("name", GRAFTS)
def test_loaded_graft_gives_equal_outputs(name, folder, tmp_path):
    kind, net = grafted(name, folder)
    train(kind, net)
    expected = run(kind, net)
    place = holdfast.save_graft(net, tmp_path / "graft")
    assert sorted(p.name for p in place.iterdir()) == ["graft.json", "graft.safetensors"]
    assert len(load_file(place / "graft.safetensors")) == len(net.state_dict()) - len(holdfast.plain_state(net))
    general = {"general": make(kind, folder)} if name == "general" else {}
    torch.manual_seed(9)
    fresh = holdfast.load_graft(make(kind, folder), place, **general)
    assert torch.equal(run(kind, fresh), expected)
    frozen = {name for name, p in fresh.named_parameters() if not p.requires_grad}
    assert frozen == {name for name, p in net.named_parameters() if not p.requires_grad}
    assert torch.equal(run(kind, holdfast.ungraft(fresh)), run(kind, make(kind, folder)))


def test_grown_memory_is_loaded(folder, tmp_path):
    kind, net = grafted("memory-features", folder)
    net.holdfast_graft.parts[0].memory.grow(3, domain=1)
    fresh = holdfast.load_graft(make(kind, folder), holdfast.save_graft(net, tmp_path))
    assert fresh.holdfast_graft.parts[0].memory.slots == 8
    assert torch.equal(run(kind, fresh), run(kind, net))


def test_other_weights_raise_unless_not_strict(folder, tmp_path):
    kind, net = grafted("experts-own", folder, freeze=False)
    train(kind, net, parameters=[p for p in net.parameters() if p.requires_grad])
    place = holdfast.save_graft(net, tmp_path / "graft")
    plain = make(kind, folder)
    with pytest.raises(BadInput, match="other weights than this Own"):
        holdfast.load_graft(plain, place)
    assert not torch.equal(run(kind, holdfast.load_graft(make(kind, folder), place, strict=False)), run(kind, net))
    plain.load_state_dict(holdfast.plain_state(net))
    assert torch.equal(run(kind, holdfast.load_graft(plain, place)), run(kind, net))


def test_invalid_folders_and_networks_raise(folder, tmp_path):
    kind, net = grafted("general", folder)
    place = holdfast.save_graft(net, tmp_path / "graft")
    with pytest.raises(BadInput, match="general=NETWORK"):
        holdfast.load_graft(make(kind, folder), place)
    other = make(kind, folder)
    with torch.no_grad():
        other.embeddings.word_embeddings.weight.add_(1.0)
    fresh = make(kind, folder)
    with pytest.raises(BadInput, match=r"general.*other weights"):
        holdfast.load_graft(fresh, place, general=other)
    assert torch.equal(run(kind, fresh), run(kind, make(kind, folder)))
    memory = holdfast.save_graft(grafted("memory-bert", folder)[1], tmp_path / "memory")
    with pytest.raises(BadInput, match=r"BertModel.* Own .*'encoder\.layer\.0'"):
        holdfast.load_graft(make("own", folder), memory)
    with pytest.raises(BadInput, match="is not grafted"):
        holdfast.save_graft(make("own", folder), tmp_path / "none")
    with pytest.raises(BadInput, match="absent has no complete graft"):
        holdfast.load_graft(make(kind, folder), tmp_path / "absent")
    message = json.loads((memory / "graft.json").read_text())
    message["parts"] = message["parts"][:1]
    (memory / "graft.json").write_text(json.dumps(message))
    with pytest.raises(BadInput, match="does not fit this BertModel"):
        holdfast.load_graft(fresh, memory)
    assert torch.equal(run(kind, fresh), run(kind, make(kind, folder)))
