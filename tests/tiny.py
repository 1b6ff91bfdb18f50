"""Tiny transformers, written to a folder for the loading code; they accept any plain text."""

import json
import string
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

_TEXT = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 66,
    "pad_token_id": 1,
    "initializer_range": 0.2,
}
_IMAGE = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 16,
    "patch_size": 4,
    "initializer_range": 0.2,
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


def _write(folder: Path, cls: type[PreTrainedModel], config: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        cls(config).save_pretrained(folder)  # pyright: ignore[reportCallIssue, reportArgumentType]
    return folder


def tiny_bert(folder: Path) -> Path:
    """Write BERT, 32 wide, 3 layers, at most 66 tokens, with its tokenizer."""
    return tiny_tokenizer(_write(folder, BertModel, BertConfig(**_TEXT)))


def tiny_roberta(folder: Path) -> Path:
    """Write RoBERTa, whose positions start after the padding id: at most 64 tokens."""
    return tiny_tokenizer(_write(folder, RobertaModel, RobertaConfig(**_TEXT, type_vocab_size=1)))


def tiny_mpnet(folder: Path) -> Path:
    """Write MPNet, with relative positions in its attention."""
    return tiny_tokenizer(_write(folder, MPNetModel, MPNetConfig(**_TEXT)))


def _distilbert() -> DistilBertConfig:
    return DistilBertConfig(
        vocab_size=len(VOCABULARY),
        dim=32,
        n_layers=3,
        n_heads=2,
        hidden_dim=64,
        max_position_embeddings=66,
        pad_token_id=1,
        initializer_range=0.2,
    )


def tiny_distilbert(folder: Path) -> Path:
    """Write DistilBERT, which has no token types."""
    return tiny_tokenizer(_write(folder, DistilBertModel, _distilbert()))


def tiny_electra(folder: Path) -> Path:
    """Write ELECTRA, with narrower word vectors and a projection."""
    return tiny_tokenizer(_write(folder, ElectraModel, ElectraConfig(**_TEXT, embedding_size=16)))


def tiny_masked(folder: Path, family: str = "bert") -> Path:
    """Write a network of one of five families with its masked-LM head, without zero weights."""
    classes = {
        "bert": (BertForMaskedLM, BertConfig(**_TEXT)),
        "roberta": (RobertaForMaskedLM, RobertaConfig(**_TEXT, type_vocab_size=1)),
        "mpnet": (MPNetForMaskedLM, MPNetConfig(**_TEXT)),
        "distilbert": (DistilBertForMaskedLM, _distilbert()),
        "electra": (ElectraForMaskedLM, ElectraConfig(**_TEXT, embedding_size=16, hidden_act="relu")),
    }
    return tiny_tokenizer(_write_stirred(folder, *classes[family]))


def _write_stirred(folder: Path, cls: type[PreTrainedModel], config: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with quiet(), torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        made = cls(config)  # pyright: ignore[reportCallIssue, reportArgumentType]
        for p in made.parameters():
            p += 0.1 * torch.randn_like(p)
        made.save_pretrained(folder)
    return folder


def tiny_bytes(folder: Path) -> Path:
    """Write RoBERTa with a masked-LM head and a byte-level tokenizer: ` good` and ` bad` are one token, `good` two."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "b"), ("a", "d"), ("Ġb", "ad"), ("Ġ", "g"), ("o", "o"), ("oo", "d"), ("Ġg", "ood"), ("Ġ", "n"),
              ("Ġn", "o"), ("Ġ", "w"), ("a", "s"), ("Ġw", "as")]  # fmt: skip
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    words = [*specials, *letters, *(a + b for a, b in merges), "<mask>"]
    config = RobertaConfig(**{**_TEXT, "vocab_size": len(words)}, type_vocab_size=1)
    _write_stirred(folder, RobertaForMaskedLM, config)
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
    _write(folder, ViTModel, ViTConfig(**_IMAGE))
    (folder / "preprocessor_config.json").write_text(json.dumps(columns), encoding="utf-8")
    return folder


def tiny_deit(folder: Path) -> Path:
    """Write DeiT, with a distillation token next to the class token."""
    return _write(folder, DeiTModel, DeiTConfig(**_IMAGE))


def tiny_dinov2(folder: Path) -> Path:
    """Write DINOv2, with an unused mask token."""
    image = {name: value for name, value in _IMAGE.items() if name != "intermediate_size"}
    return _write(folder, Dinov2Model, Dinov2Config(**image, mlp_ratio=2))
