"""Number of tokens that a text encoder reads, chosen from the texts."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from holdfast.core.packages import checkpoint_of, minilm_folder

WHAT = "text encoder"  # in messages
DEFAULT_LENGTH = 128
MINILM = "minilm"  # name of the encoder
SHARE = 0.9  # share of the texts that should be read completely
STEP = 64  # the length is a multiple of it
LONGEST = 256  # tokens; the cost of a text grows faster than its length
CHARACTERS = 4096  # of a text that are counted


def choose_length(examples: Sequence[Any], options: Mapping[str, Any]) -> int | None:
    """Return the smallest multiple of 64 tokens that covers nine in ten texts, within the limits; None if 128 does.

    `options` are the settings of the encoder. Batches are padded to their longest text only, so that a larger length
    costs short texts nothing.
    """
    names = (options.get(key) for key in ("name", "base", "domain", "weights", "package"))
    name = next((str(name) for name in names if name), MINILM)
    if name == MINILM and options.get("template") is None:
        counts, limit = _minilm_counts(examples), LONGEST
    else:
        counts, limit = _counts(checkpoint_of(name), options, examples)
    needed = math.ceil(np.quantile(counts, SHARE))
    length = min(limit, STEP * math.ceil(needed / STEP))
    return length if length > DEFAULT_LENGTH else None


def _minilm_counts(examples: Sequence[Any]) -> np.ndarray:
    """(n,) tokens of each text for the packaged MiniLM, without the import of transformers, which takes seconds."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(minilm_folder() / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    cut: list[Any] = [_cut(example) for example in examples]
    return np.asarray([len(encoding.ids) for encoding in tokenizer.encode_batch(cut)])


def _counts(checkpoint: str, options: Mapping[str, Any], examples: Sequence[Any]) -> tuple[np.ndarray, int]:
    """(n,) tokens of each text with those of a template, and the largest number that the network reads."""
    from holdfast.nn.backbones import pretrained
    from holdfast.nn.backbones.template import resolve

    tokenizer, template = pretrained.load_tokenizer(checkpoint, what=WHAT), options.get("template")
    around = 0 if template is None else len(tokenizer.tokenize(resolve(str(template))))
    limit = min(pretrained.longest_input(checkpoint, what=WHAT), LONGEST)
    return token_counts(tokenizer, examples) + around, limit


def _cut(example: Any) -> Any:
    """Return a text or a pair of texts without the characters that are not counted."""
    return example[:CHARACTERS] if isinstance(example, str) else tuple(text[:CHARACTERS] for text in example)


def token_counts(tokenizer: Any, examples: Sequence[Any]) -> np.ndarray:
    """(n,) tokens of each text or pair of texts, with the special tokens."""
    pairs = not isinstance(examples[0], str)
    columns = zip(*examples, strict=True) if pairs else [examples]
    texts = [[text[:CHARACTERS] for text in column] for column in columns]
    # verbose=False: no warning about texts that are longer than the network allows
    encoded = tokenizer(*texts, return_attention_mask=False, return_token_type_ids=False, verbose=False)
    return np.asarray([len(row) for row in encoded["input_ids"]])
