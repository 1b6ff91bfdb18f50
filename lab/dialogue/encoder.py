"""Dialogue encoder: a sequence-to-sequence network that answers messages.

Shapes: b batch, n tokens of one type, t words per response.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput, check_at_least
from holdfast.core.inputs import Inputs, Tokens
from holdfast.core.store import TokenStore
from holdfast.nn.backbones.base import fingerprint
from holdfast.nn.backbones.words import END, PAD, SEPARATOR, UNKNOWN, WordBackbone, WordTable, vocabulary
from holdfast.nn.growth import units_for_budget
from lab.dialogue.decoding import SpecialTokens, beam_search, greedy
from lab.dialogue.seq2seq import ENTRIES, Seq2Seq, Seq2SeqSettings
from lab.dialogue.similarity import TextSimilarity, load_similarity

_CLOSING = re.compile(r" ([.,!?;:%)\]}…])")
MESSAGE, RESPONSE, VECTOR_IDS = range(3)  # token types; the last are ids of word vectors, for scoring only


@dataclass(frozen=True, kw_only=True)
class DialogueSettings(Seq2SeqSettings):
    """Settings of the network and of decoding."""

    length: int = 30  # maximum number of words of messages and reference responses
    beam: int = 1
    longest: int = 30  # maximum number of words of generated responses
    length_power: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, length=self.length, beam=self.beam, longest=self.longest)


class Dialogue(WordBackbone):
    """Sequence-to-sequence network with attention and two memory banks (Asghar et al., 2020, App. C).

    The decoder starts from the encoder's last state, which also does the first read of its bank. Features are (b, 2):
    the summed negative log-likelihood of the response's words, END included, and the number of these words.
    """

    Settings = DialogueSettings

    def __init__(self, *, words: Sequence[str], columns: Sequence[int] = (), **settings: Any) -> None:
        super().__init__()
        options = self.Settings(**settings)
        hidden, joint, slot_width = options.hidden, options.joint, options.slot_width
        joint, slot_width = hidden if joint is None else joint, hidden if slot_width is None else slot_width
        self.settings = {**asdict(replace(options, joint=joint, slot_width=slot_width)), "columns": []}
        self.length, self.beam, self.longest = options.length, options.beam, options.longest
        self.length_power, self.width = options.length_power, 2
        self.text_similarity: TextSimilarity | None = None
        self.net = Seq2Seq(words, options)
        for units in columns:
            self.add_column(units)

    @classmethod
    def build(
        cls,
        training: Callable[[], Any],
        *,
        vectors: str | None = None,
        min_count: int = 1,
        max_words: int = 27_000,
        **settings: Any,
    ) -> Self:
        """Learn the vocabulary from (message, response) pairs; `vectors` is a file of word vectors for scoring."""
        examples = list(training())
        if not examples or isinstance(examples[0], str):
            raise BadInput("a dialogue encoder needs pairs of texts: name the columns message and response")
        words = vocabulary(examples, min_count=min_count, max_words=max_words)
        network = cls(words=[END, *words], **settings)
        network.text_similarity = None if vectors is None else load_similarity(vectors)
        return network

    @property
    def table(self) -> WordTable:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.net.table

    @property
    def slots(self) -> int:
        """Number of slots of each of the two banks."""
        return 0 if self.net.decoder.bank is None else self.net.decoder.bank.slots

    def grow(self, slots: int, *, domain: int) -> list[nn.Parameter]:
        """Add slots to the banks of encoder and decoder; return the new parameters."""
        return self.net.grow(slots, domain=domain)

    def grow_words(self, words: Sequence[str], *, vectors: str | None = None) -> list[nn.Parameter]:
        return self.net.grow_words(words, vectors=vectors)

    def units_for(self, parameters: int, *, column: bool = False) -> int:
        """Return the number of hidden units, in `widen` or as a column, nearest to a parameter budget."""
        return units_for_budget(parameters, partial(self.net.cost, column=column))

    def add_column(self, units: int) -> Tensor:
        """Freeze the network; add an encoder and a decoder that read it, and new attention and output layers."""
        if units < 1 or units % self.settings["directions"]:
            raise BadInput(f"a column needs at least one unit per direction of the encoder, got {units} in total")
        self.net.add_column(units)
        self.settings["columns"].append(units)
        return torch.arange(self.width)

    def widen(self, units: int) -> Tensor:
        """Add hidden units to encoder and decoder; the two features stay the same."""
        if self.net.encoder.directions > 1 or self.net.later:
            raise BadInput("hidden units can be added only with encoder.directions=1 and without columns")
        self.net.widen(units)
        self.settings["hidden"] += units
        return torch.arange(self.width)

    def prepare(self, examples: Any) -> TokenStore:
        """Concatenate message and response, marked by token types; messages alone can be answered."""
        rows, types = [], []
        for example in examples:
            message, response = (example, None) if isinstance(example, str) else example
            sections = [self.table.ids(self.split(message)) or [UNKNOWN]]
            if response is not None:
                words = self.split(response)
                sections.append(self.table.ids([*words, END]))
                sections.append([] if self.text_similarity is None else self.text_similarity.ids(words))
            rows.append([i for section in sections for i in section])
            types.append([kind for kind, section in enumerate(sections) for _ in section])
        return TokenStore.build(rows, pad=PAD, types=types)

    def forward(self, x: Inputs) -> Tensor:
        """(b, 2) summed negative log-likelihood and number of words per response; zeros for messages alone."""
        response, lengths = _tokens_of_type(x, RESPONSE)  # (b, t)
        if not response.shape[1]:
            return self.net.decoder.bias.new_zeros(len(response), self.width)
        losses = self.net(*_tokens_of_type(x, MESSAGE), response, lengths)
        return torch.stack([losses, lengths.to(losses.dtype)], 1)

    @torch.no_grad()
    def next_words(self, x: Inputs) -> Tensor:
        """(b, t) most probable word at every position of the responses, given the words before it; -1 for padding."""
        response, lengths = _tokens_of_type(x, RESPONSE)
        return self.net.next_words(*_tokens_of_type(x, MESSAGE), response, lengths) if response.shape[1] else response

    @torch.no_grad()
    def answer(self, x: Inputs) -> Tensor:
        """(b, longest) word ids of one response per message; dropout is active in training mode."""
        message, lengths = _tokens_of_type(x, MESSAGE)
        tokens = SpecialTokens(begin=SEPARATOR, end=self.table.index[END], pad=PAD, silent=(PAD, UNKNOWN, SEPARATOR))
        size = max(1, ENTRIES // (self.beam * len(self.table.words())))  # messages whose word scores fit in memory
        answers = []
        for rows, row_lengths in zip(message.split(size), lengths.split(size), strict=True):
            score, state = self.net.scorer(rows, row_lengths)
            if self.beam == 1:
                answers.append(greedy(score, state, tokens, longest=self.longest))
            else:
                options = {"beam": self.beam, "length_power": self.length_power}
                answers.append(beam_search(score, state, tokens, longest=self.longest, **options))
        return torch.cat(answers)

    def references(self, x: Inputs) -> Tensor:
        """(b, t) reference responses without END, padded; unknown words are -1, which no generated response has."""
        response, _ = _tokens_of_type(x, RESPONSE)
        return response.masked_fill(response == UNKNOWN, -1).masked_fill(response == self.table.index[END], PAD)

    def similarity(self, answers: Tensor, x: Inputs) -> Tensor | None:
        """(b,) cosine of the mean word vectors of generated and reference response; None without word vectors."""
        if self.text_similarity is None:
            return None
        ids, sizes = _tokens_of_type(x, VECTOR_IDS)
        references = [row[:size] for row, size in zip(ids.tolist(), sizes.tolist(), strict=True)]
        generated = [self.text_similarity.ids(words) for words in self._words(answers)]
        cosines = self.text_similarity.cosines(generated, references)
        return torch.from_numpy(cosines).to(answers.device, torch.float32)

    def texts(self, answers: Tensor) -> list[str]:
        return [join_words(words) for words in self._words(answers)]

    def _words(self, answers: Tensor) -> list[list[str]]:
        names = self.table.words()
        return [[names[i] for i in row if i != PAD] for row in answers.tolist()]

    def blocks(self) -> list[nn.Module]:
        return [self.net.table, self.net.encoder, self.net.decoder, self.net.later, self.net.attention, self.net.out]

    def preparation_key(self) -> str:
        vectors = None if self.text_similarity is None else self.text_similarity.name
        return fingerprint("dialogue", self.table.groups, self.length, vectors)


def join_words(words: Iterable[str]) -> str:
    """Join words to a text, without a space before closing punctuation."""
    return _CLOSING.sub(r"\1", " ".join(words))


def _tokens_of_type(x: Inputs, kind: int) -> tuple[Tensor, Tensor]:
    """(b, n) tokens of one type, padded, and their number per row (b,)."""
    assert isinstance(x, Tokens)
    assert x.types is not None
    lengths = (x.mask & (x.types == kind)).sum(1)
    start = (x.mask & (x.types < kind)).sum(1)
    offsets = torch.arange(int(lengths.max()), device=lengths.device)
    tokens = x.ids.gather(1, (start[:, None] + offsets).clamp(max=x.ids.shape[1] - 1))
    return tokens.masked_fill(offsets >= lengths[:, None], PAD), lengths
