"""Number of tokens that a text encoder reads, chosen from the texts.

Whether the default suffices is decided without transformers, whose import takes seconds.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.core.packages import checkpoint_of

DEFAULT_LENGTH = 128
SHARE = 0.9  # share of the texts that should be read completely
STEP = 64  # the length is a multiple of it
LONGEST = 256  # tokens; the cost of a text grows faster than its length
CHARACTERS = 4096  # of a text that are counted
MARGIN = 16  # tokens by which a count without transformers may be too small
WHAT = "text encoder"


def choose_length(examples: Sequence[Any], options: Mapping[str, Any]) -> int | None:
    """Return the smallest multiple of 64 tokens that covers nine in ten texts, within the limits; None if 128 does.

    `options` are the settings of the encoder. Batches are padded to their longest text only, so that a larger length
    costs short texts nothing.
    """
    names = (options.get(key) for key in ("name", "base", "domain", "weights", "package"))
    checkpoint = checkpoint_of(next((str(name) for name in names if name), "minilm"))
    columns, template = _columns(examples), options.get("template")
    if template is None and _are_short(columns, checkpoint):
        return None
    from holdfast.nn.backbones import pretrained
    from holdfast.nn.backbones.template import resolve

    tokenizer = pretrained.load_tokenizer(checkpoint, what=WHAT)
    around = 0 if template is None else len(tokenizer.tokenize(resolve(str(template))))
    needed = math.ceil(np.quantile(token_counts(tokenizer, columns) + around, SHARE))
    limit = min(pretrained.longest_input(checkpoint, what=WHAT), LONGEST)
    length = min(limit, STEP * math.ceil(needed / STEP))
    return length if length > DEFAULT_LENGTH else None


def _columns(examples: Sequence[Any]) -> list[list[str]]:
    """Return the texts, or the first and the second texts of pairs, without what follows the counted characters."""
    pairs = not isinstance(examples[0], str)
    columns = zip(*examples, strict=True) if pairs else [examples]
    return [[text[:CHARACTERS] for text in column] for column in columns]


def _are_short(columns: list[list[str]], checkpoint: str) -> bool:
    """Whether the default clearly covers nine in ten texts, by the file of a local tokenizer; false if it cannot tell.

    Transformers may change what the file defines, such as lower case, which changes counts a little.
    """
    path = Path(checkpoint).expanduser() / "tokenizer.json"
    if not path.is_file():
        return False
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception:  # the library has no class of its own; building the encoder reports what is wrong with the file
        return False
    tokenizer.no_truncation()
    tokenizer.no_padding()
    rows = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
    counts = [len(row.ids) for row in tokenizer.encode_batch(rows)]
    return float(np.quantile(counts, SHARE)) <= DEFAULT_LENGTH - MARGIN


def token_counts(tokenizer: Any, columns: list[list[str]]) -> np.ndarray:
    """(n,) tokens of each text or pair of texts, with the special tokens."""
    # verbose=False: no warning about texts that are longer than the network allows
    encoded = tokenizer(*columns, return_attention_mask=False, return_token_type_ids=False, verbose=False)
    return np.asarray([len(row) for row in encoded["input_ids"]])
