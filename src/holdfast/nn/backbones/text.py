"""Text encoders that transformers can load, with their fast tokenizers.

Shapes: b batch, t tokens, k positions, d width.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from holdfast.accel.short_attention import register_short_attention, use_short_attention
from holdfast.core.errors import BadInput
from holdfast.core.inputs import Tokens
from holdfast.core.packages import PACKAGED, minilm_folder
from holdfast.core.settings import checked_settings, retired_settings, setting, without_retired
from holdfast.core.store import TokenStore
from holdfast.core.tape import exporting
from holdfast.nn.backbones import pretrained
from holdfast.nn.backbones.base import Backbone, fingerprint
from holdfast.nn.backbones.companion import Companion
from holdfast.nn.backbones.length import DEFAULT_LENGTH, WHAT
from holdfast.nn.backbones.packing import AFTER_PADDING, FROM_ZERO, is_unchanged, pack, packable, unpack, worth_packing
from holdfast.nn.backbones.positions import states_at, tokenize
from holdfast.nn.backbones.template import Template, resolve
from holdfast.nn.experts.layer import exclude_padding

SHORT_ATTENTION = (*FROM_ZERO, *AFTER_PADDING, "distilbert")  # types of networks; see `use_short_attention`


class TextEncoder(Backbone):
    """Transformer over a text or a pair; its features are the mean, the first or the mask token's state.

    With a `template` the text is set into a sentence with a mask, and the mask's state is the feature. If the inputs
    contain positions, the features are the states at these positions (b, k, d).
    """

    takes = "text"
    checkpoint: str = ""  # source of the pretrained weights, for heads that load theirs from it

    @checked_settings
    class Settings:
        """Settings of a pretrained text encoder."""

        pooling: str | None = setting(None, choices=("mean", "cls", "mask"))  # default: mask with a template, else mean
        length: int | None = None  # `make_spec` chooses it from the texts; without it 128, or the network's maximum
        template: str | None = None
        dropout: float | None = setting(None, least=0, below=1)  # default: as configured in the checkpoint

        retired = retired_settings(experts=None)

    def __init__(
        self,
        module: Any,
        tokenizer: Any,
        *,
        name: str,
        pooling: str,
        length: int,
        template: str | None = None,
    ) -> None:
        super().__init__()
        if tokenizer.pad_token_id is None:
            raise BadInput(f"the tokenizer of '{name}' has neither a padding token nor an end of text: set one of them")
        if (template or pooling == "mask") and tokenizer.mask_token_id is None:
            raise BadInput(f"the tokenizer of '{name}' has no mask token: use pooling mean or cls and no template")
        self.width = int(module.config.hidden_size)
        self.settings = {"name": name, "pooling": pooling, "length": length, "template": template}
        self.pooling, self.length = pooling, length
        self.module = module.train()
        self.packing, self.packing_verified = packable(module), False
        use_short_attention(module, SHORT_ATTENTION)
        self.companion: Companion | None = None
        self.tokenizer = tokenizer
        segments = int(module.config.to_dict().get("type_vocab_size", 0))
        inputs = inspect.signature(module.forward).parameters
        self.typed = segments > 1 and "token_type_ids" in inputs and "token_type_ids" in tokenizer.model_input_names
        words: nn.Embedding = module.get_input_embeddings()
        self.template = None if template is None else Template(template, tokenizer, vocabulary=words.num_embeddings)
        self.soft = None  # vectors of the template's trained tokens, initialised with those of its words
        if self.template is not None and self.template.soft:
            self.soft = nn.Embedding.from_pretrained(words.weight.detach()[self.template.soft].clone(), freeze=False)

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        super().__setstate__(state)
        register_short_attention()  # in the process that unpickles it

    @classmethod
    def build(cls, training: Callable[[], Any], *, name: str, **settings: Any) -> Self:
        """Load weights and tokenizer of a folder or a hub name."""
        return cls._pretrained(name, name, cls.Settings(**settings))

    @classmethod
    def minilm(cls, training: Callable[[], Any], **settings: Any) -> Self:
        """Load all-MiniLM-L6-v2, 384 wide, from the installed package, without a connection to the hub."""
        return cls._pretrained(str(minilm_folder()), "all-MiniLM-L6-v2", cls.Settings(**settings))

    @classmethod
    def named(cls, training: Callable[[], Any], base: str, **settings: Any) -> Self:
        """Load `minilm` or `mpnet` from their packages, or the weights of a folder or a hub name."""
        packaged = {"minilm": cls.minilm, "mpnet": cls.mpnet}
        return packaged[base](training, **settings) if base in packaged else cls.build(training, name=base, **settings)

    @classmethod
    def mpnet(cls, training: Callable[[], Any], *, weights: str | None = None, **settings: Any) -> Self:
        """Load all-mpnet-base-v2, 768 wide, from the installed packages or the folder `weights`."""
        folder = PACKAGED["mpnet"].locate(weights).parent
        return cls._pretrained(str(folder), "all-mpnet-base-v2", cls.Settings(**settings))

    @classmethod
    def _pretrained(cls, checkpoint: str, name: str, settings: Settings) -> Self:
        template = None if settings.template is None else resolve(settings.template)
        module = pretrained.load_module(checkpoint, what=WHAT)
        if not isinstance(module.get_input_embeddings(), nn.Embedding):
            raise BadInput(f"'{name}' is not a text encoder: {type(module).__name__} takes no token ids")
        module = module if settings.dropout is None else pretrained.with_dropout(module, settings.dropout)
        tokenizer = pretrained.load_tokenizer(checkpoint, what=WHAT)
        longest = pretrained.max_positions(module, tokenizer)
        length, pooling = settings.length or min(DEFAULT_LENGTH, longest), settings.pooling
        pooling = pooling or ("mask" if template else "mean")
        encoder = cls(module, tokenizer, name=name, pooling=pooling, length=length, template=template)
        encoder.checkpoint = checkpoint
        pretrained.check_text_encoder(encoder, encoder.states, longest)
        return encoder

    def prepare(self, examples: Any) -> TokenStore:
        pad = self.tokenizer.pad_token_id
        examples = list(examples)
        if not examples:
            return TokenStore.build([], pad=pad)
        if self.template is not None:
            return TokenStore.build(self.template.rows(examples, self.length), pad=pad)
        pairs = not isinstance(examples[0], str)
        typed = pairs and self.typed
        texts = [list(column) for column in zip(*examples, strict=True)] if pairs else [examples]
        encoded = tokenize(self, *texts, truncation="longest_first", return_token_type_ids=typed)
        rows = encoded["input_ids"]
        if self.pooling == "mask":
            for i, row in enumerate(rows):
                if self.tokenizer.mask_token_id not in row:
                    raise BadInput(self._no_mask(f"example {i + 1}"))
        return TokenStore.build(rows, pad=pad, types=encoded["token_type_ids"] if typed else None)

    def _no_mask(self, which: str) -> str:
        token = f"{self.tokenizer.mask_token} in its first {self.length} tokens"
        return f"{which} has no {token}: add one with encoder.template, or use pooling mean or cls"

    def forward(self, x: Tokens) -> Tensor:
        if x.at is not None:
            return states_at(self.states(x), x.at).float()  # (b, k, d)
        states = self.states(x).float()  # (b, t, d)
        if self.pooling == "cls":
            return states[:, 0]
        if self.pooling == "mean":
            real = x.mask[..., None]
            return (states * real).sum(1) / real.sum(1)
        masks = (x.ids == self.tokenizer.mask_token_id) & x.mask  # (b, t)
        if not exporting() and not bool(masks.any(1).all()):
            raise BadInput(self._no_mask("an example"))
        at = masks.int().argmax(1)  # (b,) the first mask
        return states[torch.arange(at.shape[0], device=at.device), at]

    def states(self, x: Tokens) -> Tensor:
        """(b, t, d) states of all tokens."""
        # some encoders compute positions from the padding id, so padding must have it
        ids = x.ids.masked_fill(~x.mask, self.tokenizer.pad_token_id)
        types = {"token_type_ids": x.types} if x.types is not None and self.typed else {}
        inputs = {"input_ids": ids} if self.soft is None else {"inputs_embeds": self._vectors(ids, self.soft)}

        def run() -> Tensor:
            with exclude_padding(x.mask):
                return self.module(**inputs, attention_mask=x.mask.long(), **types).last_hidden_state

        if self._packs(x):
            return self._packed_states(Tokens(ids, x.mask, x.types if types else None), run)
        return run() if self.companion is None else self.companion(run, Tokens(self.word_ids(ids), x.mask, x.types))

    def _packs(self, x: Tokens) -> bool:
        """Whether a batch is evaluated with several texts per row."""
        if not self.packing or self.soft is not None or self.companion is not None or exporting():
            return False
        evaluated = not self.training and not torch.is_grad_enabled() and not torch.compiler.is_compiling()
        return evaluated and worth_packing(x) and is_unchanged(self.module)

    def _packed_states(self, x: Tokens, padded: Callable[[], Tensor]) -> Tensor:
        """(b, t, d) states by packing; the first batch is compared with a padded one, in case of other versions."""
        packed = pack(x, self.module)
        inputs = {"input_ids": packed.ids, "position_ids": packed.positions, "attention_mask": packed.mask}
        inputs |= {} if packed.types is None else {"token_type_ids": packed.types}
        if self.packing_verified:
            return unpack(self.module(**inputs).last_hidden_state, packed, x.mask)
        expected = states = padded()
        try:
            states = unpack(self.module(**inputs).last_hidden_state, packed, x.mask)
            self.packing = torch.allclose(states, expected * x.mask[..., None], rtol=1e-3, atol=1e-4)
        except (TypeError, ValueError, RuntimeError):  # an older transformers without masks of four dimensions
            self.packing = False
        self.packing_verified = True
        return states if self.packing else expected  # as later batches, also in the last digit

    def attach_companion(self, companion: Companion) -> None:
        """Let a companion see the same tokens and decide their states."""
        self.companion, self.width = companion, companion.width
        self.settings["companion"] = companion.settings

    def word_ids(self, ids: Tensor) -> Tensor:
        """(b, t) ids with trained tokens replaced by the words they were initialised with."""
        if self.template is None or not self.template.soft:
            return ids
        at = ids - self.module.get_input_embeddings().num_embeddings
        return torch.where(at >= 0, ids.new_tensor(self.template.soft)[at.clamp(min=0)], ids)

    def _vectors(self, ids: Tensor, soft: nn.Embedding) -> Tensor:
        """(b, t, d) input vectors; ids after the vocabulary are trained tokens."""
        words: nn.Embedding = self.module.get_input_embeddings()
        at = ids - words.num_embeddings
        learned = (at >= 0)[..., None]
        return torch.where(learned, soft(at.clamp(min=0)), words(ids.clamp(max=words.num_embeddings - 1)))

    def stack(self) -> nn.ModuleList:
        return pretrained.layer_stack(self.module)

    def blocks(self) -> list[nn.Module]:
        first, *rest = pretrained.split_blocks(self.module)
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
        module = pretrained.module_from_config(pretrained.load_config(str(folder), what=WHAT))
        tokenizer = pretrained.load_tokenizer(str(folder), what=WHAT)
        encoder = cls(module, tokenizer, **without_retired(cls, settings))
        pretrained.check_tokenizer(encoder, pretrained.max_positions(module, encoder.tokenizer))
        return encoder

    def preparation_key(self) -> str:
        tokenizer = json.loads(self.tokenizer.backend_tokenizer.to_str())
        # `prepare` sets these two in every call, and the tokenizer stores the last values
        for field in ("truncation", "padding"):
            tokenizer.pop(field, None)
        return fingerprint(tokenizer, self.tokenizer.pad_token_id, self.typed, self.length, self.settings["template"])
