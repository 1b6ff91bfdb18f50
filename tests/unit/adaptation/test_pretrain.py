"""Pretraining lowers the loss, writes a folder that transformers loads, resumes exactly, and is refused otherwise."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

from holdfast import pretrain
from holdfast.adaptation.pretrain import pretrain_for
from holdfast.core.errors import BadInput
from holdfast.data.synthetic import world
from holdfast.data.unlabelled import add_unlabelled
from holdfast.estimator import DomainClassifier
from holdfast.nn.backbones.text import TextEncoder
from holdfast.train.progress import ProgressListener
from tests.annotated import tagged_sentences, write_conll, write_corpus
from tests.tiny import tiny_bert, tiny_roberta

FEW = {"steps": 12, "batch": 4, "lr": 3e-3, "length": 24}


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path / "texts.txt", 60)


def test_loss_falls_and_transformers_loads_the_folder(tmp_path, corpus):
    start = tiny_roberta(tmp_path / "start")
    done = pretrain(corpus, encoder=str(start), out=tmp_path / "out", **{**FEW, "steps": 40})
    assert done.after["texts"] < done.before["texts"] - 0.5
    assert "nll" in done.report.read_text()
    assert len(done.record.stages[0]["history"]) == 10
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(done.folder), AutoTokenizer.from_pretrained(done.folder)
    with torch.no_grad():
        model.eval()(**tokenizer("the film was", return_tensors="pt", return_token_type_ids=False))
    plain, before = AutoModel.from_pretrained(done.folder), AutoModel.from_pretrained(start)
    assert any(not torch.equal(a, b) for a, b in zip(plain.parameters(), before.parameters(), strict=True))
    encoder = TextEncoder.build(list, name=str(done.folder))
    assert torch.equal(encoder.module.get_input_embeddings().weight, plain.get_input_embeddings().weight)

    again = pretrain(corpus, encoder=str(start), out=tmp_path / "out", **{**FEW, "steps": 40}, watch=Interrupting())
    assert again.after == done.after  # a finished training is not repeated


class Interrupting(ProgressListener):
    """Interrupts the training after some steps."""

    def __init__(self, at: int = 0) -> None:
        self.left = at

    def step(self, metrics) -> None:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1


def test_interrupted_training_ends_with_the_same_weights(tmp_path, corpus, monkeypatch):
    start = str(tiny_bert(tmp_path / "start"))
    first = load_file(
        pretrain(corpus, encoder=start, out=tmp_path / "uninterrupted", **FEW).folder / "model.safetensors"
    )
    monkeypatch.setenv("HOLDFAST_SAVE_SECONDS", "0")
    for at in (3, 8):
        out = tmp_path / f"interrupted{at}"
        with pytest.raises(KeyboardInterrupt):
            pretrain(corpus, encoder=start, out=out, **FEW, watch=Interrupting(at))
        assert not (out / "config.json").exists()
        pretrain(corpus, encoder=start, out=out, **FEW)
        second = load_file(out / "model.safetensors")
        assert first.keys() == second.keys()
        for name, value in first.items():
            assert torch.equal(value, second[name]), name


def test_incomplete_files_of_an_earlier_call_are_replaced(tmp_path, corpus, monkeypatch):
    start, out = str(tiny_bert(tmp_path / "start")), tmp_path / "encoder"

    def fail(backbone, head, folder):
        (folder / "config.json").write_text("{}")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("holdfast.adaptation.pretrain.write_checkpoint", fail)
        with pytest.raises(OSError, match="No space left"):
            pretrain(corpus, encoder=start, out=out, **FEW)
    pretrain(corpus, encoder=start, out=out, **FEW)
    assert (out / "model.safetensors").is_file()
    assert not (out / "checkpoints").exists()


@pytest.mark.slow
def test_general_memory_is_not_written(tmp_path, corpus):
    start = str(tiny_bert(tmp_path / "start"))
    settings = {"encoder.domain": start, "encoder.layers": [1, 3]}
    done = pretrain(corpus, encoder="gmap", out=tmp_path / "out", **FEW, settings=settings)
    assert "masked-word head" in done.notes[-1]
    plain, before = AutoModel.from_pretrained(done.folder), AutoModel.from_pretrained(start)
    assert list(plain.state_dict()) == list(before.state_dict())
    assert not torch.equal(plain.get_input_embeddings().weight, before.get_input_embeddings().weight)


@pytest.mark.slow
def test_splits_of_a_known_data_set_are_used(tmp_path):
    for split, size in (("train", 12), ("dev", 4), ("test", 3)):
        said = [
            (words, ["B-Disease" if tag != "O" else tag for tag in tags])
            for words, tags in tagged_sentences(split, size)
        ]
        write_conll(tmp_path / "data" / "ncbi-disease" / f"{split}.conll", said)
    start = str(tiny_bert(tmp_path / "start"))
    done = pretrain("ncbi-disease", encoder=start, out=tmp_path / "out", data_dir=tmp_path / "data", **FEW)
    sizes = done.record.stages[0]["sizes"]
    assert [sum(sizes[part].values()) for part in ("train", "valid", "test")] == [12, 4, 3]


def test_bad_input_raises(tmp_path, corpus):
    start = str(tiny_bert(tmp_path / "start"))
    cases = (
        ({"encoder": start, "out": tmp_path}, "holds other files"),
        ({"encoder": start, "out": corpus}, "is a file"),
        ({"encoder": str(tmp_path / "none"), "out": tmp_path / "o"}, "none"),
        ({"encoder": "bilstm", "out": tmp_path / "o"}, "bilstm.*masked"),
        ({"encoder": start, "out": tmp_path / "o", "settings": {"neck": "memory"}}, "neck=none"),
        ({"encoder": start, "out": tmp_path / "o", "settings": {"head": "linear"}}, "linear.*masked"),
    )
    for options, message in cases:
        with pytest.raises(BadInput, match=message):
            pretrain(corpus, **{**FEW, **options})


DATA = world("text", "vocabulary", domains=3, size=20, classes=2, seed=0)
SOURCES = replace(DATA.subset(np.flatnonzero(DATA.domain < 2)), domains=DATA.domains[:2])
TARGET = replace(DATA.subset(np.flatnonzero(DATA.domain == 2)), domains=DATA.domains, name="target")
BOTH = add_unlabelled(SOURCES, TARGET)
SHORT = {"batch": 4, "length": 24, "device": "cpu"}


def test_the_encoder_is_trained_on_the_texts_or_refused(tmp_path):
    start = f"hf:{tiny_roberta(tmp_path / 'start')}"
    encoder, notes = pretrain_for(BOTH, start, tmp_path / "out", steps=25, lr=3e-3, **SHORT)
    assert encoder == f"hf:{tmp_path / 'out'}"
    assert "for 25 steps: the loss per masked word of the unlabelled texts changed from" in notes[0]
    model = DomainClassifier("erm", encoder=encoder, steps=2, batch=4, device="cpu").fit_dataset(BOTH)
    assert model.record_.spec["encoder"] == encoder
    kept, notes = pretrain_for(BOTH, start, tmp_path / "refused", steps=2, lr=10.0, **SHORT)
    assert kept == start
    assert "was refused" in notes[0]


def test_unlabelled_texts_are_needed(tmp_path):
    vectors = world("vector", "none", domains=2, size=4)
    for data, encoder, message in (
        (SOURCES, "minilm", "needs unlabelled examples: add --unlabelled FILE"),
        (vectors, "auto", "needs texts"),
        (BOTH, "bilstm", "does not support the task masked"),
    ):
        with pytest.raises(BadInput, match=message):
            pretrain_for(data, encoder, tmp_path, steps=2)
