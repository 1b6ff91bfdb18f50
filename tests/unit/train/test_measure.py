"""Measurements of runs: multiply-adds equal hand counts, and counting changes nothing; engagement of trained networks.

Memories that are not read are errors.
"""

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertModel

from holdfast.core.store import TensorStore
from holdfast.core.tape import record
from holdfast.data.batches import Examples
from holdfast.data.dataset import Dataset
from holdfast.data.raw import Texts
from holdfast.data.splits import Part
from holdfast.data.synthetic import world
from holdfast.methods.erm import ERM
from holdfast.nn.backbones.pretrained import quiet
from holdfast.nn.backbones.small import MLP, Features
from holdfast.nn.backbones.text import TextEncoder
from holdfast.nn.engagement import overwritten
from holdfast.nn.heads import Linear
from holdfast.nn.macs import count_macs, try_count_macs
from holdfast.nn.memory.heterogeneous import HeterogeneousMemory
from holdfast.nn.memory.neck import key_value
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from holdfast.tasks.classify import Classify
from holdfast.tasks.masked import Masked
from holdfast.tasks.tag import Tag
from holdfast.train import measure
from holdfast.train.evaluate import Unused, check_memory
from holdfast.train.fit import Diverged
from holdfast.train.measure import measure_engagement
from holdfast.train.run import train
from holdfast.train.settings import make_spec
from holdfast.train.workspace import Workspace
from tests.tiny import VOCABULARY, tiny_bert, tiny_vit
from tests.unit.methods.streams import EXAMPLES, build

VECTORS = world("vector", "rotation", domains=3, size=20, classes=2, seed=0)
WIDTH = VECTORS.raw.take(np.arange(1)).shape[1]


def run(dataset, *, cache=None, **options):
    spec = make_spec(dataset, steps=2, every=1, batch=2, **options)
    workspace = Workspace(dataset, cache=cache)
    return train(spec, workspace.episodes(spec)[0], workspace)


def test_macs_of_a_perceptron():
    record, assembly = run(VECTORS, settings={"encoder.hidden": [8]})
    assert record.cost["macs"] == WIDTH * 8 + 8 * 2
    assert list(record.cost)[-1] == "macs"
    assert assembly.method is not None


def test_macs_are_counted_once_per_network(monkeypatch):
    counted_inputs = []
    monkeypatch.setattr(measure, "try_count_macs", lambda model, x: counted_inputs.append(x) or len(counted_inputs))
    workspace = Workspace(VECTORS, cache=None)
    for seed, hidden in ((0, 8), (1, 8), (1, 4)):
        spec = make_spec(VECTORS, steps=2, every=1, batch=2, seed=seed, settings={"encoder.hidden": [hidden]})
        for episode in workspace.episodes(spec):
            train(spec, episode, workspace)
    assert len(counted_inputs) == 2
    assert torch.equal(counted_inputs[0], counted_inputs[1])


def test_cached_features_include_their_encoder(tmp_path):
    texts = world("text", "vocabulary", domains=3, size=20, classes=2, seed=0)
    bert = f"hf:{tiny_bert(tmp_path / 'bert')}"
    live, _ = run(texts, encoder=bert, tune="frozen")
    cached, _ = run(texts, encoder=bert, tune="frozen", cache=tmp_path)
    again, assembly = run(texts, encoder=bert, tune="frozen", cache=tmp_path)
    assert live.cost["macs"] == cached.cost["macs"] == again.cost["macs"] > 10_000
    assert assembly.deploy().backbone is assembly.encoder


def test_only_selected_experts_count(tmp_path):
    images = world("image", "rotation", domains=3, size=8, classes=2, seed=0)
    vit = f"vit:{tiny_vit(tmp_path)}"
    costs = [
        run(images, encoder=vit, tune="full", settings={"neck": "experts", "neck.count": 4, "neck.top": k})[0].cost
        for k in (1, 2, 3)
    ]
    work = [each["macs"] for each in costs]
    assert work[2] - work[1] == work[1] - work[0] > 0
    assert len({each["parameters"] for each in costs}) == 1


class Noisy(nn.Module):
    """Uses the RNG, and has a submodule in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.map = nn.BatchNorm1d(3), nn.Linear(3, 2)

    def forward(self, x):
        return self.map(self.norm(x + torch.rand_like(x)))


def test_counting_restores_modes_statistics_and_rng():
    net = Noisy().train()
    net.norm.eval()
    rng, mean = torch.get_rng_state(), net.norm.running_mean.clone()
    assert count_macs(net, torch.ones(2, 3)) == 6
    assert (net.training, net.norm.training, net.map.training) == (True, False, True)
    assert torch.equal(rng, torch.get_rng_state())
    assert torch.equal(mean, net.norm.running_mean)


def test_networks_that_cannot_be_counted_have_no_macs():
    class Broken(nn.Module):
        def forward(self, x):
            raise RuntimeError("no plain tensor")

    assert try_count_macs(Broken(), torch.zeros(1)) is None
    assert try_count_macs(nn.ReLU(), torch.zeros(1)) is None  # no multiplication


@pytest.mark.parametrize("layers", [1, 2])
def test_recurrent_layers_count_every_step(layers):
    net = nn.LSTM(8, 16, layers, bidirectional=layers == 1)
    steps = {1: 2 * 4 * 16 * (8 + 16), 2: 4 * 16 * (8 + 16) + 4 * 16 * (16 + 16)}[layers]
    assert count_macs(net, torch.randn(1, 5, 8)) == 5 * steps


DATA = world("vector", "none", domains=3, size=60, classes=3, seed=0)
ROWS = [Part("a", np.arange(0, 30)), Part("b", np.arange(30, 40))]


def trained(dataset=DATA, *, steps: int = 40, **settings):
    spec = make_spec(dataset, steps=steps, batch=16, plan=settings.pop("plan", "leave-one-out"), settings=settings)
    workspace = Workspace(dataset, cache=settings.pop("cache", None))
    episode = workspace.episodes(spec)[0]
    return train(spec, episode, workspace)[0], episode


def model(neck: nn.Module) -> Model:
    return Model(MLP(inputs=8, hidden=[6]), neck, Linear(6, 2)).eval()


def test_a_trained_memory_that_matters_has_a_large_share():
    memory = {"neck": "memory", "neck.slots": 16, "neck.key_width": 8, "neck.fusion": "interpolate", "lr": 0.01}
    outcome, episode = trained(**memory, **{"neck.share": 1.0})  # the head sees only what the memory returns
    measured = outcome.engagement["memory"]
    assert measured["share"] > 0.3
    assert measured["predictions"] == sum(len(part) for part in episode.stages[-1].valid)
    assert measured["null"] == "all values replaced by their mean over slots"
    assert 1 <= measured["statistics"]["effective_slots"] <= 16
    disabled, _ = trained(**memory, **{"neck.share": 0.0})
    assert disabled.engagement["memory"]["share"] == 0.0


def test_a_queue_of_nearest_neighbours_has_a_large_share():
    """Hand-set weights: keys are features, values are labels, and the head reads the label of the best keys."""
    width, classes = 8, 3
    neck = HeterogeneousMemory(width, classes, real=90, slots=0, across=False, label_width=classes, heads=1)
    inner = width + classes
    with torch.no_grad():
        for parameter in (*neck.first.feed.parameters(), *neck.first.query.parameters(), neck.first.key_value.bias):
            parameter.zero_()
        neck.labels.weight.copy_(torch.cat([torch.eye(classes), torch.zeros(1, classes)]))
        neck.first.query.weight[:width, :width] = 10 * torch.eye(width)
        neck.first.key_value.weight.zero_()
        neck.first.key_value.weight[:width, :width] = torch.eye(width)
        neck.first.key_value.weight[inner + width :, width:] = torch.eye(classes)
        head = Linear(inner, classes)
        head.last_layer().weight.copy_(torch.cat([torch.zeros(classes, width), torch.eye(classes)], 1))
        head.last_layer().bias.zero_()
    x, y = DATA.raw.take(np.arange(180)), torch.from_numpy(DATA.y)
    neck.write(x[:90], y[:90])
    network = Model(Features(inputs=width), neck, head).eval()
    examples = Examples(TensorStore(x), y, DATA.domains)
    accuracy = (network(x[90:]).argmax(-1) == y[90:]).float().mean()
    measured = measure_engagement(network, examples, [Part("c", np.arange(90, 180))], Classify())
    assert accuracy > 0.8
    assert measured["queue"]["share"] > 0.3


def test_the_queue_of_hma_is_engaged_by_default():
    data = world("vector", "none", domains=3, size=150, classes=2, seed=0, noise=2.0)
    default, _ = trained(data, method="hma", steps=30, **{"encoder.hidden": [16]})
    queue = default.engagement["queue"]
    assert queue["share"] >= 0.05
    assert queue["statistics"]["same_class"] > 1.1
    assert 8 <= queue["statistics"]["effective_rows"] <= 32
    published = {"neck.init": "published", "neck.include_self": True}
    random, _ = trained(data, method="hma", steps=30, **{"encoder.hidden": [16]}, **published)
    uniform = random.engagement["queue"]
    assert uniform["share"] < 0.05
    assert uniform["statistics"]["effective_rows"] > 100


def test_a_noise_queue_is_measured_and_inactive():
    queue = {"method": "hma", "neck": "rma", "neck.real": 32, "neck.label_width": 8}
    outcome, _ = trained(**queue, **{"neck.written": False})
    assert list(outcome.engagement) == ["queue"]
    assert outcome.engagement["queue"]["share"] < 0.05


def test_plain_networks_store_nothing():
    outcome, _ = trained(steps=2)
    assert outcome.engagement == {}
    assert measure_engagement(model(NoNeck(6)), EXAMPLES, ROWS, Classify()) == {}
    assert measure_engagement(model(key_value(6, slots=5)), EXAMPLES, [], Classify()) == {}


@pytest.mark.parametrize("plan", ["leave-one-out", "stream"])
def test_only_validation_rows_of_trained_domains_are_read(plan, monkeypatch):
    read, measuring = [], []
    plain = Examples.iter_batches

    def spied(self, rows, **options):
        read.extend(rows.tolist() if measuring else [])
        return plain(self, rows, **options)

    def measured(*args):
        measuring.append(True)
        return measure_engagement(*args)

    monkeypatch.setattr(Examples, "iter_batches", spied)
    monkeypatch.setattr("holdfast.train.measure.measure_engagement", measured)
    _, episode = trained(steps=2, plan=plan, neck="memory", **{"neck.slots": 4})
    last = episode.stages[-1]
    assert sorted(read) == sorted(2 * [row for part in last.valid for row in part.rows.tolist()])  # two passes
    assert not set(read) & {row for part in last.test for row in part.rows.tolist()}


def test_statistics_are_means_weighted_by_examples():
    class Counting(nn.Module):
        """A neck that records the size of its batch and a value that is not finite."""

        width, mechanism, null_name = 6, "counter", "doubled weights"

        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def null(self):
            return overwritten((self.scale, torch.tensor(2.0)))

        def forward(self, z):
            record("stat/counter/size", torch.tensor(float(len(z))))
            record("stat/other", torch.ones(3, 2))
            record("stat/counter/broken", torch.tensor(torch.nan))
            record("counter/state", z)
            return z * self.scale

    network = model(Counting()).train()
    rng = torch.get_rng_state()
    measured = measure_engagement(network, EXAMPLES, ROWS, Classify())["counter"]
    assert measured["statistics"] == {"size": 40.0, "other": 1.0, "broken": None}
    assert network.training
    assert torch.equal(torch.get_rng_state(), rng)


def test_mechanisms_of_a_frozen_encoder_are_measured(tmp_path):
    texts = world("text", "none", domains=2, size=20, classes=2, seed=0)
    options = {"encoder": "gmap", "encoder.domain": str(tiny_bert(tmp_path / "bert")), "encoder.length": 16}
    spec = make_spec(texts, steps=2, batch=4, tune="frozen", settings=options)
    workspace = Workspace(texts, cache=tmp_path / "cache")
    outcome, assembly = train(spec, workspace.episodes(spec)[0], workspace)
    assert type(assembly.method.deployed.backbone).__name__ == "Features"  # the run used cached features
    assert outcome.engagement["general"]["predictions"] == 4
    assert 0 < outcome.engagement["general"]["statistics"]["attention"] < 1


def test_a_general_memory_with_default_settings_is_engaged(tmp_path):
    """Words that determine the class have equal embeddings in the domain network and different ones in the general."""
    general, domain = tiny_bert(tmp_path / "general"), tiny_bert(tmp_path / "domain")
    with quiet():
        network = BertModel.from_pretrained(domain)
        with torch.no_grad():
            table = network.get_input_embeddings().weight
            table[VOCABULARY.index("good")] = table[VOCABULARY.index("bad")]
        network.save_pretrained(domain)
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=150)
    sentences = [[*rng.choice(list("abcdefghij"), 5), ("bad", "good")[label]] for label in y]
    raw = Texts.of([" ".join(rng.permutation(words)) for words in sentences])
    texts = Dataset("opinions", raw, y, ("0", "1"), np.repeat(np.arange(3), 50), ("a", "b", "c"))
    models = {"encoder": "gmap", "encoder.domain": str(domain), "encoder.general": str(general)}
    outcome, _ = trained(texts, steps=50, **models, **{"lr": 1e-3, "encoder.length": 16})
    (scores,) = outcome.stages[-1]["test"].values()
    assert scores["accuracy"] > 0.65
    assert outcome.engagement["general"]["share"] >= 0.05
    assert outcome.engagement["general"]["statistics"]["attention"] > 0.5  # more than without a preference


def test_tasks_with_several_outputs_count_real_positions(tmp_path):
    encoder = TextEncoder.build(list, name=str(tiny_bert(tmp_path)), length=16)
    network = Model(encoder, key_value(32, slots=4, place="tokens"), Linear(32, 3)).eval()
    words = [["good", "film"], ["bad", "food", "was"], ["very"] * 30]
    tags = Tag(("O", "B-A", "I-A"))
    inputs = encoder.prepare([" ".join(sentence) for sentence in words]).take(torch.arange(3))
    at = torch.tensor([[1, 2, -1], [1, 2, 3], [1, 2, -1]])
    x = type(inputs)(inputs.ids, inputs.mask, inputs.types, at)
    y = torch.tensor([[0, 1, -1], [2, 0, 1], [1, 3, -1]])  # 3: a word that was cut off
    predicted = tags.predictions(network, x, y)
    assert (predicted != -1).tolist() == [[True, True, False], [True, True, True], [True, False, False]]
    assert torch.equal(predicted[1], network(x)[1].argmax(-1))
    masked = Masked().predictions(network, x, y)
    assert (masked != -1).tolist() == (y != -1).tolist()


def test_overwritten_values_are_restored_after_an_error():
    tensor = nn.Parameter(torch.tensor([1.0, torch.nan, -0.0]))
    before = tensor.detach().clone()
    with overwritten((tensor, torch.zeros(1))):
        assert tensor.tolist() == [0, 0, 0]
    with pytest.raises(KeyError), overwritten((tensor, torch.zeros(1))):
        raise KeyError
    assert torch.equal(tensor.detach().view(torch.int32), before.view(torch.int32))


PART = Part("a", np.arange(20))


class Bypass(nn.Module):
    """A neck with a memory that it does not read."""

    def __init__(self, width, memory):
        super().__init__()
        self.width, self.memory = width, memory

    def forward(self, z):
        return z


def method(neck):
    return build(ERM, Model(MLP(inputs=8, hidden=[6]), neck, Linear(6, 2)))


def test_the_check_changes_nothing():
    checked = method(key_value(6, slots=4)).train()
    before = {name: value.clone() for name, value in checked.state_dict().items() if isinstance(value, torch.Tensor)}
    check_memory(checked, EXAMPLES, PART)
    assert checked.training
    for name, value in before.items():
        assert torch.equal(value, checked.state_dict()[name])


def test_an_unread_memory_is_an_error():
    with pytest.raises(Unused, match=r"memory/weights"):
        check_memory(method(Bypass(6, key_value(6, slots=4))), EXAMPLES, PART)


def test_a_nan_read_is_an_error():
    checked = method(key_value(6, slots=4))
    with torch.no_grad():
        checked.model.neck.fused.memory.keys[0].fill_(torch.nan)
    with pytest.raises(Diverged, match="NaN"):
        check_memory(checked, EXAMPLES, PART)


@pytest.mark.parametrize("neck", [NoNeck(6), key_value(6, slots=4, share=0.0)])
def test_no_memory_or_a_disabled_one_is_fine(neck):
    check_memory(method(neck), EXAMPLES, PART)
