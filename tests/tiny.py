"""Tiny transformers, written to a folder for the loading code; they accept any plain text."""

import json
import string
from functools import partial
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
    DeiTConfig,
    DeiTModel,
    Dinov2Config,
    Dinov2Model,
    DistilBertConfig,
    DistilBertForMaskedLM,
    DistilBertModel,
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraModel,
    MPNetConfig,
    MPNetForMaskedLM,
    MPNetModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaModel,
    ViTConfig,
    ViTModel,
)

from holdfast.nn.backbones.pretrained import quiet

SPECIALS = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"]  # padding is 1, as in RoBERTa
WORDS = ["good", "bad", "film", "food", "the", "was", "a", "not", "very", "phone"]
CHARACTERS = [*string.ascii_lowercase, *string.digits, *string.punctuation]
VOCABULARY = list(dict.fromkeys([*SPECIALS, *WORDS, *CHARACTERS, *(f"##{c}" for c in CHARACTERS)]))

_LAYERS = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "initializer_range": 0.2}
_TEXT = {
    **_LAYERS, "vocab_size": len(VOCABULARY), "intermediate_size": 64, "max_position_embeddings": 66, "pad_token_id": 1,
}  # fmt: skip
_IMAGE = {**_LAYERS, "image_size": 16, "patch_size": 4}
_DISTILBERT = DistilBertConfig(
    vocab_size=len(VOCABULARY), dim=32, n_layers=3, n_heads=2, hidden_dim=64, max_position_embeddings=66,
    pad_token_id=1, initializer_range=0.2,
)  # fmt: skip
# family -> network, network with a masked-LM head, configuration
FAMILIES = {
    "bert": (BertModel, BertForMaskedLM, BertConfig(**_TEXT)),
    "roberta": (RobertaModel, RobertaForMaskedLM, RobertaConfig(**_TEXT, type_vocab_size=1)),  # at most 64 tokens
    "mpnet": (MPNetModel, MPNetForMaskedLM, MPNetConfig(**_TEXT)),
    "distilbert": (DistilBertModel, DistilBertForMaskedLM, _DISTILBERT),  # without token types
    "electra": (ElectraModel, ElectraForMaskedLM, ElectraConfig(**_TEXT, embedding_size=16)),  # with a projection
}


def tiny_tokenizer(folder: Path) -> Path:
    """Write a WordPiece tokenizer of letters and a few words, with [CLS] a [SEP] and [CLS] a [SEP] b [SEP]."""
    index = {word: i for i, word in enumerate(VOCABULARY)}
    made = Tokenizer(models.WordPiece(index, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", index["[CLS]"]), ("[SEP]", index["[SEP]"])],
    )
    PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    ).save_pretrained(folder)
    return folder


def _write(folder: Path, cls: type[PreTrainedModel], config: object, *, stirred: bool = False) -> Path:
    """Write a network with weights that depend on nothing; stirred ones are nowhere zero."""
    folder.mkdir(parents=True, exist_ok=True)
    with quiet(), torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = cls(config)  # pyright: ignore[reportCallIssue, reportArgumentType]
        for p in model.parameters() if stirred else ():
            p += 0.1 * torch.randn_like(p)
        model.save_pretrained(folder)
    return folder


def tiny_text(folder: Path, family: str) -> Path:
    """Write a network of a family, 32 wide, 3 layers, at most 66 tokens, with its tokenizer."""
    network, _, config = FAMILIES[family]
    return tiny_tokenizer(_write(folder, network, config))


tiny_bert, tiny_roberta, tiny_mpnet, tiny_distilbert, tiny_electra = (
    partial(tiny_text, family=family) for family in FAMILIES
)


def tiny_masked(folder: Path, family: str = "bert") -> Path:
    """Write a network with its masked-LM head, without zero weights."""
    _, network, config = FAMILIES[family]
    if family == "electra":
        config = ElectraConfig(**_TEXT, embedding_size=16, hidden_act="relu")
    return tiny_tokenizer(_write(folder, network, config, stirred=True))


def tiny_bytes(folder: Path) -> Path:
    """Write RoBERTa with a masked-LM head and a byte-level tokenizer: ` good` and ` bad` are one token, `good` two."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "b"), ("a", "d"), ("Ġb", "ad"), ("Ġ", "g"), ("o", "o"), ("oo", "d"), ("Ġg", "ood"), ("Ġ", "n"),
              ("Ġn", "o"), ("Ġ", "w"), ("a", "s"), ("Ġw", "as")]  # fmt: skip
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    words = [*specials, *letters, *(a + b for a, b in merges), "<mask>"]
    config = RobertaConfig(**{**_TEXT, "vocab_size": len(words)}, type_vocab_size=1)
    _write(folder, RobertaForMaskedLM, config, stirred=True)
    index = {word: i for i, word in enumerate(words)}
    made = Tokenizer(models.BPE(index, merges, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", unk_token="<unk>", cls_token="<s>", sep_token="</s>",
        mask_token=AddedToken("<mask>", lstrip=True, normalized=False, special=True),
        model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(folder)  # fmt: skip
    return folder


def tiny_vit(folder: Path) -> Path:
    """Write ViT, 32 wide, 3 layers, 16 pixels in patches of 4, with mean and std of the colours."""
    columns = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.25, 0.3], "do_normalize": True}
    _write(folder, ViTModel, ViTConfig(**_IMAGE, intermediate_size=64))
    (folder / "preprocessor_config.json").write_text(json.dumps(columns), encoding="utf-8")
    return folder


def tiny_deit(folder: Path) -> Path:
    """Write DeiT, with a distillation token next to the class token."""
    return _write(folder, DeiTModel, DeiTConfig(**_IMAGE, intermediate_size=64))


def tiny_dinov2(folder: Path) -> Path:
    """Write DINOv2, with an unused mask token."""
    return _write(folder, Dinov2Model, Dinov2Config(**_IMAGE, mlp_ratio=2))
