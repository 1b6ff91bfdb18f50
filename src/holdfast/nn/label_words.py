"""Label-word head: classifies by the words that a masked language model predicts at the mask.

Shapes: b batch, d width, c classes, w words.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Self

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput, check_known
from holdfast.core.settings import checked_settings
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.mlm_head import Transform, load_mlm_head
from holdfast.nn.backbones.text import TextEncoder


@checked_settings
class LabelWordSettings:
    """Settings of a label-word head."""

    words: Mapping[str, str | Sequence[str]] | None = None  # label words per class
    first_piece: bool = False  # use the first token of a word that has several
    tied: bool = False  # use the encoder's word embeddings, without a transform
    full: bool = False  # normalise over the complete vocabulary


class LabelWords(nn.Module):
    """Mean over a class's label words of log p(word at the mask), with p normalised over all label words.

    The word vectors are a trained copy; in the checkpoint they are tied to the word embeddings. With `vocabulary`
    rows the decoder contains every word, and p is normalised over all of them.
    """

    Settings = LabelWordSettings
    at: Tensor  # (w,) decoder row of each label word
    average: Tensor  # (w, c) from words to classes

    def __init__(
        self,
        *,
        words: Sequence[Sequence[int]],  # token ids of the label words per class
        width: int,
        inner: int = 0,  # width of the transform; 0: no transform
        activation: str = "",
        eps: float = 0.0,  # of the transform's layer norm
        vocabulary: int = 0,  # number of words of the decoder; 0: only the label words
    ) -> None:
        super().__init__()
        self.outputs = len(words)
        transform = {"inner": inner, "activation": activation, "eps": eps}
        self.settings = {"words": [list(ids) for ids in words], "width": width, **transform, "vocabulary": vocabulary}
        flat = list(chain.from_iterable(words))
        self.transform = Transform(width, **transform) if inner else nn.Identity()
        self.decoder = nn.Linear(inner or width, vocabulary or len(flat))
        owner = torch.tensor([c for c, ids in enumerate(words) for _ in ids])
        average = nn.functional.one_hot(owner, len(words)).float()
        at = torch.tensor(flat) if vocabulary else torch.arange(len(flat))
        self.register_buffer("at", at, persistent=False)
        self.register_buffer("average", average / average.sum(0), persistent=False)

    @classmethod
    def build(cls, width: int, classes: Sequence[str], encoder: Backbone, **settings: Any) -> Self:
        """Build the head from the masked-language-model head of the encoder's checkpoint."""
        options = LabelWordSettings(**settings)
        if not isinstance(encoder, TextEncoder):
            raise BadInput("head=words needs a masked language model: use a text encoder such as hf:roberta-base")
        if encoder.pooling != "mask":
            raise BadInput(
                "head=words needs a mask in the text: set one, such as --set 'encoder.template=It was {mask} . {text}'"
            )
        if width != encoder.width:
            raise BadInput(f"head=words needs {encoder.width} features, but the neck returns {width}: use another neck")
        ids = _token_ids(encoder.tokenizer, _by_class(options.words, classes), first_piece=options.first_piece)
        embedding = encoder.module.get_input_embeddings().weight.detach()
        rows = None if options.full else tuple(chain.from_iterable(ids))
        vocabulary = len(embedding) if options.full else 0
        if options.tied:
            if embedding.shape[1] != width:
                raise BadInput(f"head.tied needs word vectors of width {width}, these have {embedding.shape[1]}")
            head = cls(words=ids, width=width, vocabulary=vocabulary)
            weight = embedding if rows is None else embedding[list(rows)]
            head.decoder.load_state_dict({"weight": weight, "bias": torch.zeros(len(weight))})
            return head
        if not encoder.checkpoint:
            raise BadInput("head=words needs a checkpoint with a masked-word head: use hf:NAME, or head.tied=true")
        source = load_mlm_head(encoder.checkpoint, rows, name=encoder.settings["name"])
        dense, norm = source.transform.dense, source.transform.norm
        shape = {"inner": dense.out_features, "activation": source.activation, "eps": norm.eps}
        head = cls(words=ids, width=width, vocabulary=vocabulary, **shape)
        head.decoder.load_state_dict({"weight": source.weight, "bias": source.bias})
        head.transform.load_state_dict(source.transform.state_dict())
        return head

    def last_layer(self) -> nn.Linear:
        if self.settings["vocabulary"]:
            raise BadInput("with head.full=true the last layer has the complete vocabulary: too large for this method")
        return self.decoder

    def words(self, z: Tensor) -> Tensor:
        """Return log-probabilities (b, w) of the label words, or of the complete vocabulary."""
        return self.decoder(self.transform(z)).log_softmax(dim=-1)

    def forward(self, z: Tensor) -> Tensor:
        return self.words(z)[:, self.at] @ self.average  # (b, c)


def _by_class(words: Mapping[str, Any] | None, classes: Sequence[str]) -> list[list[str]]:
    """Return the label words per class, in the order of the classes."""
    form = "head.words={" + ", ".join(f'"{name}": ["..."]' for name in classes) + "}"
    if not isinstance(words, Mapping):
        raise BadInput(f"head=words needs label words for every class: --set '{form}'")
    for name in words:
        check_known("class in head.words", name, classes)
    by_class = []
    for name in classes:
        labels = words.get(name, [])
        labels = [labels] if isinstance(labels, str) else list(labels)
        if not labels or not all(isinstance(word, str) and word.strip() for word in labels):
            raise BadInput(f"head.words has no word for class '{name}': --set '{form}'")
        by_class.append(labels)
    return by_class


def _token_ids(tokenizer: Any, words: Sequence[Sequence[str]], *, first_piece: bool) -> list[list[int]]:
    """Return one token id per word, tokenized with a preceding space as inside a sentence."""
    ids, owner = [], {}
    for labels in words:
        ids.append([])
        for word in labels:
            pieces = tokenizer(f" {word.strip()}", add_special_tokens=False)["input_ids"]
            names = tokenizer.convert_ids_to_tokens(pieces)
            if not pieces or tokenizer.unk_token_id in pieces:
                raise BadInput(f"head.words: the tokenizer does not know '{word}': use another word")
            if len(pieces) > 1 and not first_piece:
                raise BadInput(
                    f"head.words: '{word}' has {len(pieces)} tokens ({', '.join(names)}): use a word with one token, "
                    "or --set head.first_piece=true to use the first"
                )
            if pieces[0] in owner:
                raise BadInput(f"head.words: '{owner[pieces[0]]}' and '{word}' have the same token '{names[0]}'")
            owner[pieces[0]] = word
            ids[-1].append(pieces[0])
    return ids
