"""Memories are initialised from training examples, once, on every kind of network and without the RNG of training."""

from functools import cache, partial

import numpy as np
import pytest
import torch

from holdfast import catalog
from holdfast.core.seeds import generator, seeded
from holdfast.core.tape import tape
from holdfast.data.batches import Examples, prepare
from holdfast.data.splits import Part
from holdfast.data.synthetic import world
from holdfast.methods.averaging import MovingAverage
from holdfast.methods.erm import ERM
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.nn.heads import Linear
from holdfast.nn.memory.neck import MemoryBlend
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from holdfast.tasks.classify import Classify
from holdfast.train.initialise import batch_statistics, initialise_parts
from holdfast.train.resume import Saver
from holdfast.train.run import train
from holdfast.train.settings import make_spec
from holdfast.train.workspace import Workspace
from tests.interrupted import Killed, killer

SIZES = {"slots": 256, "heads": 2, "key_width": 16}
BODIES = [
    ("mlp", "memory", {}), ("mlp", "memory", {"keys": "kmeans", "slots": 64}),
    ("mlp", "memory", {"similarity": "cosine"}),
    ("mlp", "memory-4.8m", {}), ("mlp", "product-memory", {}), ("cnn", "memory", {}), ("tiny-bert", "memory", {}),
    ("tiny-bert", "memory", {"place": "tokens"}), ("tiny-bert", "memory", {"place": "layers"}),
    ("tiny-bert", "memory", {"place": "layers", "fusion": "interpolate"}), ("tiny-vit-experts", "memory", {}),
]  # fmt: skip


def erm(model: Model) -> ERM:
    return ERM(model, task=Classify(), optimizer=partial(Optimizer, OptimizerSettings(lr=3e-3)))


def initialise(method, bench, index: int = 0) -> None:
    domains = [Part(d, bench.dataset.rows_of(d)) for d in bench.dataset.domains[:3]]
    initialise_parts(method, bench.examples, domains, 16, generator=generator(0, "initialise", index))


def reads(model: Model, x: object) -> list[float]:
    """Return the effective slots per read, with the batch statistics that a training step would use."""
    with torch.no_grad(), batch_statistics(model), tape() as side:
        model.features(x)
    return [float(value) for value in side["stat/memory/effective_slots"]]


@pytest.mark.parametrize(("body", "neck", "options"), BODIES, ids=str)
def test_reads_use_8_to_32_slots_after_the_initialisation(body, neck, options, benches):
    bench, few = benches[body], {"top": 24} if neck == "product-memory" else {}
    sizes = {**SIZES, "slots": 1024} if neck == "product-memory" else SIZES
    method = erm(bench.model(neck, **{**sizes, **few, **options})).train()
    rng, plain = torch.get_rng_state(), bench.model("none")
    initialise(method, bench)
    assert method.training
    assert torch.equal(torch.get_rng_state(), rng)
    before = {name: value.clone() for name, value in method.model.state_dict().items()}
    x = bench.batch(40).x
    slots = reads(method.model, x)
    assert slots
    assert all(8 <= value <= 32 for value in slots), slots
    initialise(method, bench, 1)  # only once
    assert all(torch.equal(value, before[name]) for name, value in method.model.state_dict().items())
    if options.get("fusion") != "interpolate":
        assert torch.equal(method.model.eval().features(x), plain.eval().features(x))  # the gate is zero


@pytest.mark.parametrize("width", [4, 32, 128])
def test_content_has_the_scale_of_the_features(width):
    with seeded(0, "features"):
        mixing = torch.randn(width, width) / width**0.5
        z = 0.1 * torch.randn(600, width) @ mixing + torch.randn(width)
        fused = catalog.build_neck("memory", width, 2, options=SIZES).fused
    fused.initialise(z[:300], generator=generator(0))
    with torch.no_grad():
        read, queries = fused.memory.read(z[300:]), fused.memory.query(z[:300])
    torch.testing.assert_close(queries.mean(0), torch.zeros(32), atol=1e-3, rtol=0)
    torch.testing.assert_close(queries.std(0), torch.ones(32), atol=1e-2, rtol=0)
    torch.testing.assert_close(read.content.mean(0), z.mean(0), atol=0.06, rtol=0.1)
    assert 0.7 < float(read.content.std(0).mean() / z.std(0).mean()) < 1.4


@pytest.mark.parametrize("body", ["mlp", "cnn", "tiny-bert"])
@pytest.mark.parametrize("name", ["heterogeneous", "rma"])
def test_examples_read_similar_rows_of_a_queue_after_the_initialisation(body, name, benches):
    bench = benches[body]
    method = erm(bench.model(name, real=64, support=16, label_width=8, heads=2))
    initialise(method, bench)
    neck, batch = method.model.neck, bench.batch(40)
    assert neck.examples_needed == 0
    with torch.no_grad(), batch_statistics(method.model):
        z = method.model.encode(batch.x)
        neck.write(z, batch.y)
        with tape() as side:
            neck(z)
        weights = side["heterogeneous/real"][0].mean(1)[:, 1:]  # (b, m)
        assert 6 <= float(side["stat/queue/effective_rows"][0]) <= 32
        seen = neck.queue.seen
        others = torch.nn.functional.layer_norm(neck.queue.features[seen], z.shape[1:])
        distances = torch.cdist(torch.nn.functional.layer_norm(z, z.shape[1:]), others)
        ranks = [x.flatten().argsort().argsort().float() for x in (weights[:, seen], -distances)]
        assert float(torch.corrcoef(torch.stack(ranks))[0, 1]) > 0.5
        mixed = neck.read_queue(z) - neck._query(z)
        ratio = float(mixed.std(0).mean() / neck._query(z)[:, : neck.inputs].std(0).mean())
        assert 0.3 < ratio < 3
    before = {key: value.clone() for key, value in method.model.state_dict().items()}
    initialise(method, bench, 1)  # only once
    assert all(torch.equal(value, before[key]) for key, value in method.model.state_dict().items())


def test_copies_inside_a_method_are_initialised_too(benches):
    bench = benches["mlp"]
    method = MovingAverage(erm(bench.model("memory", **SIZES)))
    initialise(method, bench)
    for name, value in method.mean.state_dict().items():
        assert torch.equal(value, method.model.state_dict()[name]), name
    assert all(part.examples_needed == 0 for part in method.modules() if isinstance(part, MemoryBlend))


def test_weights_need_no_initialisation(benches):
    bench = benches["mlp"]
    first, second = (erm(bench.model("memory", **SIZES)) for _ in range(2))
    second.model.load_state_dict(first.model.state_dict())
    initialise(second, bench)
    for name, value in second.model.state_dict().items():
        assert torch.equal(value, first.model.state_dict()[name]), name


@pytest.mark.parametrize("cell", ["memory-lstm", "memory-gru"])
def test_banks_of_a_recurrent_network_and_their_new_segments(cell):
    data = world("text", "vocabulary", domains=2, size=60, classes=2, seed=0)
    options = {"embedding": 12, "hidden": 16, "slots": 100, "slot_width": 10}
    with seeded(0, "init"):
        encoder = catalog.build("encoders", cell, partial(data.raw.take, np.arange(len(data))), options=options)
        method = erm(Model(encoder, NoNeck(encoder.width), Linear(encoder.width, 2)))
    examples = Examples(prepare(data.raw, encoder.prepare), torch.from_numpy(data.y), data.domains)
    parts = [Part(name, data.rows_of(name)) for name in data.domains]
    initialise_parts(method, examples, parts[:1], 16, generator=generator(0))
    x = examples.inputs(torch.arange(60))
    assert all(8 <= value <= 32 for value in reads(method.model, x))
    bank = encoder.rnn.bank
    words = encoder.table(x.ids[x.mask]).detach()
    assert float(bank.values[0].detach().std()) == pytest.approx(0.03 * float(words.std()), rel=0.1)
    old = [tensor.clone() for tensor in (bank.keys[0], bank.values[0])]
    encoder.grow(80, domain=1)
    initialise_parts(method, examples, parts[1:], 16, generator=generator(1))
    assert torch.equal(bank.keys[0], old[0])
    assert torch.equal(bank.values[0], old[1])
    assert float(bank.values[1].detach().std()) == pytest.approx(float(bank.values[0].detach().std()), rel=0.1)
    with torch.no_grad(), tape() as side:
        method.model.eval().features(examples.inputs(torch.arange(60, 120)))
    assert float(side["stat/memory/newest_mass"][0]) == pytest.approx(80 / 180, abs=0.1)


CASES = {
    "neck": ("vector", "erm", {"neck": "memory", "neck.slots": 32, "encoder.hidden": [8]}),
    "queue": ("vector", "hma", {"neck.real": 16, "neck.support": 8, "encoder.hidden": [8]}),
    "stream": ("text", "progressive(erm)", {
        "encoder": "memory-lstm", "encoder.embedding": 8, "encoder.hidden": 8, "encoder.slots": 20,
        "encoder.slot_width": 8, "method.slots": 12, "plan": "stream",
    }),
}  # fmt: skip


@pytest.fixture(scope="module")
def straight():
    """Return a function that prepares a case and trains it without interruption, once."""

    @cache
    def run(case):
        kind, method, settings = CASES[case]
        data = world(kind, "none", domains=3, size=24, classes=2, seed=0)
        spec, workspace = make_spec(data, method=method, steps=6, every=3, batch=4, settings=settings), Workspace(data)
        episode = workspace.episodes(spec)[0]
        return (spec, episode, workspace), train(spec, episode, workspace)

    return run


@pytest.mark.parametrize(
    ("case", "at"), [("neck", 1), ("neck", 4), ("queue", 1), ("queue", 4), ("stream", 1), ("stream", 9)]
)
def test_a_resumed_run_is_identical(case, at, straight, tmp_path):
    run, (record, whole) = straight(case)
    with pytest.raises(Killed):
        train(*run, saver=Saver(tmp_path / "c.safetensors", seconds=0.0), tick=killer(at + 1))
    resumed, parts = train(*run, saver=Saver(tmp_path / "c.safetensors", seconds=0.0))
    assert resumed.stages == record.stages
    for name, value in whole.method.deployed.state_dict().items():
        assert torch.equal(value, parts.method.deployed.state_dict()[name]), name


PUBLISHED = {  # risks of the implementation before there were other initialisations
    "memory": ({"slots": 16}, [0.643823, 0.636405]),
    "memory-4.8m": ({"slots": 16}, [0.695045, 0.692709]),
    "product-memory": ({"slots": 64, "top": 4}, [0.589822, 0.592595]),
}


@pytest.mark.parametrize("neck", PUBLISHED)
def test_published_settings_give_the_published_numbers(neck):
    options, risks = PUBLISHED[neck]
    settings = {"encoder.hidden": [8], "neck": neck, "decay": "all", "lr": 1e-3}
    settings |= {"schedule": "constant", "warmup": 0, "average": "none"}
    settings |= {f"neck.{k}": v for k, v in {**options, "init": "published", "fusion": "interpolate"}.items()}
    data = world("vector", "rotation", domains=3, size=60, classes=2, seed=0)
    spec, workspace = make_spec(data, method="erm", steps=20, every=10, batch=8, settings=settings), Workspace(data)
    record, _ = train(spec, workspace.episodes(spec)[0], workspace)
    assert [check["risk"] for check in record.stages[0]["history"]] == pytest.approx(risks, abs=2e-5)


VECTORS = world("vector", "rotation", domains=4, size=200, classes=4, seed=0, noise=1.5)
WORDS = world("text", "vocabulary", domains=3, size=120, classes=4, seed=0)
BANK = {"encoder.embedding": 16, "encoder.hidden": 16, "encoder.slots": 40, "encoder.slot_width": 16}
BANK |= {"encoder": "memory-lstm", "plan": "stream", "method.slots": 40}
ENGAGED = {  # data, steps, method, settings
    "neck": (VECTORS, 100, "erm", {"encoder.hidden": [16], "neck": "memory", "neck.slots": 128}),
    "mil": (VECTORS, 100, "mil", {"encoder.hidden": [16], "neck.slots": 128}),
    "bank": (WORDS, 40, "progressive(erm)", BANK),
}


@pytest.mark.parametrize("case", ENGAGED)
def test_a_memory_engages_with_default_settings(case):
    data, steps, method, settings = ENGAGED[case]
    spec = make_spec(data, method=method, steps=steps, every=steps // 2, batch=32, settings={"lr": 5e-3, **settings})
    workspace = Workspace(data)
    record, parts = train(spec, workspace.episodes(spec)[0], workspace)
    measured = record.engagement["memory"]
    assert measured["share"] >= 0.05
    if case == "bank":
        assert measured["statistics"]["newest_mass"] >= 0.1
        return
    assert 1 < measured["statistics"]["effective_slots"] < 64
    model, rows = parts.method.deployed, torch.arange(200)
    with torch.no_grad():  # without differences between its slots, the memory equals its null
        values = model.neck.fused.memory.values[0]
        values.copy_(values.mean(0).expand_as(values))
        before = model(parts.examples.inputs(rows)).argmax(1)
        with model.neck.fused.memory.null():
            after = model(parts.examples.inputs(rows)).argmax(1)
    assert float((before != after).float().mean()) < 0.01
