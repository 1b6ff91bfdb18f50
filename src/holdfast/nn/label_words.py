"""A head of words: which of its label words would a masked language model put at the mask.

b batch, d width, c classes, e width of word vectors, w words
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Self

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput, unknown
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.mlm_head import MaskedLMHead, Transform, load_mlm_head
from holdfast.nn.backbones.text import TextEncoder


class LabelWords(nn.Module):
    """Mean over a class's words of log p(word at the mask), p normalised over all label words.

    The words' vectors are a copy that learns by itself; in the checkpoint they are tied to the word embeddings.
    With `vocabulary` rows the decoder keeps every word, and p is normalised over all of them.
    """

    at: Tensor  # (w,) the decoder's row of each label word
    average: Tensor  # (w, c) from words to classes

    def __init__(
        self,
        *,
        words: Sequence[Sequence[int]],
        width: int,
        inner: int = 0,
        activation: str = "",
        eps: float = 0.0,
        vocabulary: int = 0,
    ) -> None:
        super().__init__()
        self.outputs = len(words)
        self.settings = {
            "words": [list(ids) for ids in words],
            "width": width,
            "inner": inner,  # 0: no transform
            "activation": activation,
            "eps": eps,
            "vocabulary": vocabulary,  # 0: the label words alone
        }
        flat = list(chain.from_iterable(words))
        self.transform = Transform(width, inner, activation=activation, eps=eps) if inner else nn.Identity()
        self.decoder = nn.Linear(inner or width, vocabulary or len(flat))
        owner = torch.tensor([c for c, ids in enumerate(words) for _ in ids])
        average = nn.functional.one_hot(owner, len(words)).float()
        at = torch.tensor(flat) if vocabulary else torch.arange(len(flat))
        self.register_buffer("at", at, persistent=False)
        self.register_buffer("average", average / average.sum(0), persistent=False)

    @classmethod
    def build(
        cls,
        width: int,
        classes: Sequence[str],
        encoder: Backbone,
        *,
        words: Mapping[str, str | Sequence[str]] | None = None,
        first_piece: bool = False,
        tied: bool = False,
        full: bool = False,
    ) -> Self:
        """Label words by the class's name; `tied` compares with the encoder's word vectors, without a transform."""
        if not isinstance(encoder, TextEncoder):
            raise BadInput("head 'words' needs a masked language model: use a text encoder such as hf:roberta-base")
        if encoder.pooling != "mask":
            raise BadInput(
                "head 'words' reads the mask: set one, such as --set 'encoder.template=It was {mask} . {text}'"
            )
        if width != encoder.width:
            raise BadInput(f"head 'words' reads {encoder.width} features, but the neck makes {width}: use another neck")
        ids = _ids(encoder.tokenizer, _by_class(words, classes), first_piece=first_piece)
        embedding = encoder.module.get_input_embeddings().weight.detach()
        rows = None if full else tuple(chain.from_iterable(ids))
        vocabulary = len(embedding) if full else 0
        if tied:
            if embedding.shape[1] != width:
                raise BadInput(f"head.tied needs word vectors of {width} numbers, these have {embedding.shape[1]}")
            made = cls(words=ids, width=width, vocabulary=vocabulary)
            made._set(embedding if rows is None else embedding[list(rows)])
            return made
        if not encoder.checkpoint:
            raise BadInput(
                "head 'words' needs the checkpoint's masked-word head: use an encoder hf:NAME, or head.tied=true"
            )
        found = load_mlm_head(encoder.checkpoint, rows, name=encoder.settings["name"])
        dense, norm = found.transform.dense, found.transform.norm
        shape = {"inner": dense.out_features, "activation": found.activation, "eps": norm.eps}
        made = cls(words=ids, width=width, vocabulary=vocabulary, **shape)
        made._set(found.weight, found)
        return made

    @torch.no_grad()
    def _set(self, weight: Tensor, found: MaskedLMHead | None = None) -> None:
        self.decoder.weight.copy_(weight)
        if found is None:
            nn.init.zeros_(self.decoder.bias)
        else:
            self.decoder.bias.copy_(found.bias)
            self.transform.load_state_dict(found.transform.state_dict())

    def last_layer(self) -> nn.Linear:
        if self.settings["vocabulary"]:
            raise BadInput("with head.full=true the last layer is the whole vocabulary, too large for this method")
        return self.decoder

    def words(self, z: Tensor) -> Tensor:
        """(b, w) log-probabilities of the label words, or of the whole vocabulary where it is kept."""
        return self.decoder(self.transform(z)).log_softmax(dim=-1)

    def forward(self, z: Tensor) -> Tensor:
        return self.words(z)[:, self.at] @ self.average  # (b, c)


def _by_class(words: Mapping[str, Any] | None, classes: Sequence[str]) -> list[list[str]]:
    """The words of each class, in the order of the classes."""
    form = "head.words={" + ", ".join(f'"{name}": ["..."]' for name in classes) + "}"
    if not isinstance(words, Mapping):
        raise BadInput(f"head 'words' needs label words for every class: --set '{form}'")
    for name in words:
        if name not in classes:
            raise unknown("class in head.words", name, classes)
    found = []
    for name in classes:
        given = words.get(name, [])
        given = [given] if isinstance(given, str) else list(given)
        if not given or not all(isinstance(word, str) and word.strip() for word in given):
            raise BadInput(f"head.words has no word for class '{name}': --set '{form}'")
        found.append(given)
    return found


def _ids(tokenizer: Any, words: Sequence[Sequence[str]], *, first_piece: bool) -> list[list[int]]:
    """One token a word, as the word stands in a sentence: with a space before it."""
    found, owner = [], {}
    for given in words:
        found.append([])
        for word in given:
            pieces = tokenizer(f" {word.strip()}", add_special_tokens=False)["input_ids"]
            told = tokenizer.convert_ids_to_tokens(pieces)
            if not pieces or tokenizer.unk_token_id in pieces:
                raise BadInput(f"the tokenizer does not know the label word '{word}': use another")
            if len(pieces) > 1 and not first_piece:
                raise BadInput(
                    f"the label word '{word}' is {len(pieces)} tokens ({', '.join(told)}): use a word that is one, "
                    "or --set head.first_piece=true to take the first"
                )
            if pieces[0] in owner:
                raise BadInput(
                    f"the label words '{owner[pieces[0]]}' and '{word}' are one token, '{told[0]}': use another"
                )
            owner[pieces[0]] = word
            found[-1].append(pieces[0])
    return found
