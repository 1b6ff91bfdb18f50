"""Image encoders of transformers by their pooled features, with tiny networks of every family."""

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
from holdfast.nn.backbones.vision import CLIP, VisionEncoder
from tests.tiny import tiny_bert, tiny_dinov2, tiny_vit

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
