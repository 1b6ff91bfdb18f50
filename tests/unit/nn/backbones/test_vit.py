"""VisionTransformer with tiny networks and presets, and image encoders by their pooled features."""

from pathlib import Path

import pytest
import torch
from transformers import (
    CLIPConfig,
    CLIPModel,
    CLIPVisionConfig,
    ConvNextConfig,
    ConvNextModel,
    SiglipVisionConfig,
    SiglipVisionModel,
)

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.nn.backbones.pretrained import quiet
from holdfast.nn.backbones.small import HALF, IMAGENET
from holdfast.nn.backbones.vision import CLIP, PRESETS, VisionEncoder, VisionTransformer
from tests import tiny
from tests.tiny import tiny_bert, tiny_dinov2, tiny_vit

FAMILIES = ["vit", "deit", "dinov2"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("tiny")
    makers = [tiny.tiny_vit, tiny.tiny_deit, tiny.tiny_dinov2, tiny.tiny_bert]
    return {name: make(base / name) for name, make in zip([*FAMILIES, "bert"], makers, strict=True)}


def nothing() -> None:
    raise AssertionError("a vision transformer learns nothing from the examples when it is built")


def images(n: int, size: int) -> torch.Tensor:
    return torch.randint(0, 256, (n, 3, size, size), generator=torch.Generator().manual_seed(1)).to(torch.uint8)


def test_colours(folders, tmp_path) -> None:
    def colours(folder: Path) -> tuple[list[float], list[float]]:
        settings = VisionTransformer.build(nothing, name=str(folder)).settings
        return settings["mean"], settings["std"]

    assert colours(folders["vit"]) == ([0.4, 0.5, 0.6], [0.2, 0.25, 0.3])
    assert colours(folders["dinov2"]) == tuple(map(list, IMAGENET))
    folder = tiny.tiny_vit(tmp_path)
    (folder / "preprocessor_config.json").unlink()
    assert colours(folder) == tuple(map(list, HALF))
    value = VisionTransformer.build(nothing, name=str(folder), mean=[0.48, 0.45, 0.4], std=[0.28, 0.27, 0.28])
    assert value.normalise.mean.flatten().tolist() == pytest.approx([0.48, 0.45, 0.4])
    assert (value.settings["mean"], value.settings["std"]) == ([0.48, 0.45, 0.4], [0.28, 0.27, 0.28])
    assert VisionTransformer.build(nothing, name=str(folder), std=[0.2, 0.2, 0.2]).settings["mean"] == list(HALF[0])
    (folder / "preprocessor_config.json").write_text("{")
    with pytest.raises(BadInput, match="valid JSON"):
        colours(folder)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "width"), [("vit-tiny", 192), ("vit-s/16", 384), ("vit-b/16", 768)])
def test_presets(name: str, width: int) -> None:
    net = VisionTransformer.build(nothing, name=name, size=32).eval()
    assert (net.width, net.patches, len(net.blocks())) == (width, 4, 13)
    with torch.no_grad():
        assert net(images(1, 32)).shape == (1, width)
    assert len(PRESETS) == 3


def test_preset_defaults_and_patches() -> None:
    assert VisionTransformer.build(nothing, name="vit-tiny").size == 224
    net = VisionTransformer.build(nothing, name="vit-tiny", size=16, patch=4)
    assert net.patches == 16
    for setting, wrong in (("size", 0), ("patch", 0), ("size", 100_000)):
        with pytest.raises(BadInput, match=rf"encoder\.{setting} .* got {wrong:,}"):
            VisionTransformer.build(list, name="vit-tiny", **{setting: wrong})
    with pytest.raises(BadInput, match="multiple of its patch size"):
        VisionTransformer.build(nothing, name="vit-tiny", size=20)


def test_presets_use_the_published_layer_norm(tmp_path) -> None:
    """ViT and DeiT have an epsilon of 1e-6 in their layer norms; a folder keeps its value."""
    net = VisionTransformer.build(nothing, name="vit-tiny", size=32)
    assert {part.eps for part in net.modules() if isinstance(part, torch.nn.LayerNorm)} == {1e-6}
    again = VisionTransformer.load(tmp_path, net.save(tmp_path))
    assert {part.eps for part in again.modules() if isinstance(part, torch.nn.LayerNorm)} == {1e-6}


def test_bad_input(folders, tmp_path) -> None:
    def build(name: object, **options) -> VisionTransformer:
        return VisionTransformer.build(nothing, name=str(name), **options)

    with pytest.raises(BadInput, match="not a vision transformer"):
        build(folders["bert"])
    with pytest.raises(BadInput, match=r"folder .* vit-tiny"):
        build(tmp_path / "none")
    with pytest.raises(BadInput, match=r"encoder\.patch"):
        build(folders["vit"], patch=8)
    with pytest.raises(BadInput, match="multiple of its patch size 4"):
        build(folders["vit"], size=18)
    for colours in ({"mean": [0.5, 0.5]}, {"std": [0.5, 0.0, 0.5]}, {"std": [0.5, float("nan"), 0.5]}, {"std": "abc"}):
        with pytest.raises(BadInput, match="3 numbers each, std above 0"):
            build(folders["vit"], **colours)
    with pytest.raises(BadInput, match=r"\(n, 3, 16, 16\)"):
        build(folders["vit"]).prepare(images(1, 24))


SHAPE = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}

IMAGE = {**SHAPE, "image_size": 16, "patch_size": 8}

TEXT = {**SHAPE, "vocab_size": 20, "bos_token_id": 1, "eos_token_id": 2}


def clip():
    return CLIPModel(CLIPConfig(text_config=TEXT, vision_config=CLIPVisionConfig(**IMAGE).to_dict()))


def siglip():
    return SiglipVisionModel(SiglipVisionConfig(**IMAGE))


def convnext():
    return ConvNextModel(ConvNextConfig(hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 2, 1], image_size=32))


@pytest.fixture(params=[(clip, 16), (siglip, 16), (convnext, 16), (tiny_vit, 32), (tiny_dinov2, 32)])
def case(request, tmp_path):
    make, width = request.param
    if make in (tiny_vit, tiny_dinov2):
        return str(make(tmp_path)), width
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        make().save_pretrained(tmp_path)
    return str(tmp_path), width


def test_features_are_pooled_and_saved_networks_agree(case, tmp_path_factory):
    name, width = case
    encoder = catalog.build("encoders", f"image:{name}", lambda: None, options={}).eval()
    x = torch.randint(0, 256, (3, 3, encoder.size, encoder.size), dtype=torch.uint8)
    with torch.no_grad():
        features = encoder(x)
    assert features.shape == (3, encoder.width) == (3, width)
    assert features.std() > 0
    folder = tmp_path_factory.mktemp("saved")
    again = VisionEncoder.load(folder, encoder.save(folder)).eval()
    again.load_state_dict(encoder.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(again(x), features, rtol=0, atol=0)
    assert len(encoder.blocks()) >= 2


def test_only_the_image_part_of_clip_is_loaded(tmp_path):
    model = clip()
    with quiet():
        model.save_pretrained(tmp_path)
    encoder = VisionEncoder.build(lambda: None, name=str(tmp_path))
    assert not any("text" in name for name in encoder.state_dict())
    assert encoder.settings["mean"] == list(CLIP[0])
    embedding = next(p for name, p in encoder.named_parameters() if "class_embedding" in name)
    torch.testing.assert_close(embedding, model.vision_model.embeddings.class_embedding)
    larger = VisionEncoder.build(lambda: None, name=str(tmp_path), size=32)
    assert larger(torch.zeros(1, 3, 32, 32, dtype=torch.uint8)).shape == (1, 16)


def test_a_text_encoder_is_refused(tmp_path):
    with pytest.raises(BadInput, match="is not an image encoder: BertModel takes no pixels"):
        VisionEncoder.build(lambda: None, name=str(tiny_bert(tmp_path)))
