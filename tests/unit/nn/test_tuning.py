"""Tuning modes: frozen parameters and buffers are bit-identical after training."""

import pytest
import torch
from torch import nn

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Graphs
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.graph import GraphNetwork
from holdfast.nn.backbones.memory_rnn import MemoryRNN
from holdfast.nn.backbones.resnet import ResNet
from holdfast.nn.backbones.rnn import BiLSTM
from holdfast.nn.backbones.small import CNN, MLP
from holdfast.nn.backbones.text import TextEncoder
from holdfast.nn.backbones.vision import VisionTransformer
from holdfast.nn.model import Model
from holdfast.nn.tuning import tune
from tests import tiny

TEXTS = ["the good film", "bad bad food", "the food was good", "a film"]
IMAGES = torch.randint(0, 256, (4, 3, 16, 16), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
VECTORS = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
GRAPHS = [
    Graphs(
        torch.randn(v, 5, generator=torch.Generator().manual_seed(v)),
        torch.tensor([list(range(1, v)), [0] * (v - 1)]),
        torch.zeros(v).long(),
        1,
    )
    for v in (3, 4, 5, 6)
]
KINDS = ["mlp", "cnn", "resnet", "rnn", "bank", "text", pytest.param("graph", marks=pytest.mark.graph), "vit"]

NOT_LEARNED = {"rnn.bank.owner", "table.later", "mean", "std"}  # owners of slots, added words, scales of inputs


def make(kind: str, folder) -> tuple[Backbone, object]:
    torch.manual_seed(0)
    if kind == "mlp":
        return MLP.build(lambda: VECTORS, hidden=(8, 8, 8), dropout=0.3), VECTORS
    if kind == "rnn":
        return BiLSTM.build(lambda: TEXTS, embedding=6, hidden=4, dropout=0.3, min_count=1), TEXTS
    if kind == "bank":
        sizes = {"embedding": 6, "hidden": 4, "slots": 5, "slot_width": 3}
        return MemoryRNN.build(lambda: TEXTS, dropout=0.3, **sizes), TEXTS
    if kind == "graph":
        return GraphNetwork.build(lambda: GRAPHS, virtual=True, layers=2, hidden=8, dropout=0.3), GRAPHS
    if kind == "text":
        return TextEncoder.build(list, name=str(tiny.tiny_bert(folder)), length=16), TEXTS
    if kind == "cnn":
        return CNN(size=16), IMAGES
    if kind == "resnet":
        return ResNet(size=16), IMAGES
    return VisionTransformer.build(list, name=str(tiny.tiny_vit(folder))), IMAGES


def trained(backbone: Backbone, examples: object, mode: str) -> tuple[set[str], set[str]]:
    """Return the names of parameters and buffers that changed and that did not change in three steps."""
    tune(backbone, mode)
    model = Model(backbone, nn.Identity(), nn.Linear(backbone.width, 2))
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    optimizer = torch.optim.AdamW(model.trainable_parameters(), lr=0.01, weight_decay=0.1)
    x = backbone.prepare(examples).take(torch.arange(4))
    for _ in range(3):
        model.train()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), torch.tensor([0, 1, 0, 1])).backward()
        optimizer.step()
    same = {name for name, value in backbone.state_dict().items() if torch.equal(value, before[name])}
    return set(before) - same, same


def names_in(backbone: Backbone, modules: list[nn.Module]) -> set[str]:
    inside = {id(t) for m in modules for t in [*m.parameters(), *m.buffers()]}
    every = [*backbone.named_parameters(), *backbone.named_buffers()]
    return {name for name, value in every if id(value) in inside} & set(backbone.state_dict())


@pytest.mark.parametrize("mode", ["frozen", "last:1", "full"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_mode_trains_its_part_only(kind: str, mode: str, tmp_path) -> None:
    backbone, examples = make(kind, tmp_path)
    changed, same = trained(backbone, examples, mode)
    parts = {"frozen": [], "last:1": backbone.blocks()[-1:], "full": [backbone]}[mode]
    assert changed == names_in(backbone, parts) - NOT_LEARNED
    assert bool(changed) == (mode != "frozen")
    assert same or mode == "full"


@pytest.mark.parametrize("kind", KINDS)
def test_all_blocks_are_full(kind: str, tmp_path) -> None:
    backbone, _ = make(kind, tmp_path)
    tune(backbone, f"last:{len(backbone.blocks())}")
    assert all(p.requires_grad for p in backbone.parameters())
    with pytest.raises(BadInput, match="last:"):
        tune(backbone, f"last:{len(backbone.blocks()) + 1}")


def test_class_token_only(tmp_path) -> None:
    changed, same = trained(*make("vit", tmp_path), "head+cls")
    assert changed == {"module.embeddings.cls_token"}
    assert len(same) > 10


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_no_class_token(kind: str, tmp_path) -> None:
    with pytest.raises(BadInput, match="no class token"):
        tune(make(kind, tmp_path)[0], "head+cls")


@pytest.mark.parametrize("mode", ["", "half", "last", "last:", "last:0", "last:-1", "last:x", "first:2"])
def test_unknown_tuning(mode: str) -> None:
    with pytest.raises(BadInput, match="unknown tuning"):
        tune(CNN(), mode)


@pytest.mark.parametrize("kind", ["mlp", "rnn", "bank", "text", pytest.param("graph", marks=pytest.mark.graph)])
def test_frozen_modules_have_no_dropout(kind: str, tmp_path) -> None:
    backbone, examples = make(kind, tmp_path)
    tune(backbone, "frozen")
    model = Model(backbone, nn.Identity(), nn.Linear(backbone.width, 2)).train()
    x = backbone.prepare(examples).take(torch.arange(4))
    assert torch.equal(model(x), model(x))
    assert model.head.training


SLOW_IN_BF16 = ("cnn", "resnet")  # on a CPU without bf16 a convolution is a hundred times slower


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow if kind in SLOW_IN_BF16 else ()) for kind in KINDS]
)
def test_bf16_trains_every_backbone(kind: str, tmp_path) -> None:
    backbone, examples = make(kind, tmp_path)
    x = backbone.prepare(examples).take(torch.arange(4))
    exact = Model(backbone, nn.Identity(), nn.Linear(backbone.width, 2)).eval()
    half = Model(exact.backbone, exact.neck, exact.head, precision="bf16").eval()
    assert half.features(x).dtype == torch.float32
    assert float((half(x) - exact(x)).detach().abs().max()) < 0.1 * float(exact(x).detach().abs().max()) + 0.05
    half(x).sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in backbone.parameters())
