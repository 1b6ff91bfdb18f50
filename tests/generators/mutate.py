"""Mutate the bytes of valid files (bits, tokens, numbers, cuts, repetitions, splices) and the values of JSON."""

import copy
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

TOKENS = (
    b"", b"\x00", b"\xff", b"\xfe\xff", b"\xef\xbb\xbf", b"\xc3", b"\xed\xa0\x80", b"\r", b"\n", b"\r\n", b'"', b'""',
    b"'", b",", b"\t", b";", b" ", b"\\", b"\\ud800", b"\\u0000", b"{", b"}", b"[", b"]", b"[[", b"{}", b"[]", b":",
    b"null", b"true", b"NaN", b"Infinity", b"-Infinity", b"None", b"-1", b"0", b"1", b"-0", b"0.5", b"1e5", b"1e300",
    b"1e999", b"3e9", b"9e17", b"2147483648", b"4294967296", b"9223372036854775808", b"99999999999999999999999",
    b"1" * 400, b"a" * 5000, b"label", b"domain", b"text", b"split", b"train", b"example", b"examples", b"nodes",
    b"edges", b"tokens", b"smiles", b"C", b"c1ccccc1", b"[Na+]", b"[999U]", b"%", b"../", b"PK\x03\x04", b"\x89PNG",
    b"PAR1", b"\x93NUMPY", b"=1+1", b"\xf0\x9f\x99\x82", "İ".encode(), "\u2028".encode(), b"\x1b[31m",
)  # fmt: skip
BOUNDS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)  # of binary fields


def _flip(content: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    at = rng.randrange(len(content))
    content[at] ^= 1 << rng.randrange(8)


def _overwrite(content: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    token, at = rng.choice(TOKENS), rng.randrange(len(content))
    content[at : at + len(token)] = token


def _insert(content: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    at = rng.randrange(len(content))
    content[at:at] = rng.choice(TOKENS)


def _number(content: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    """Overwrite a binary field of one, two, four or eight bytes with a boundary value."""
    width, at = rng.choice((1, 2, 4, 8)), rng.randrange(len(content))
    value = rng.choice(BOUNDS) % (1 << 8 * width)
    content[at : at + width] = value.to_bytes(width, rng.choice(("little", "big")))


def _digits(content: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    """Replace a run of digits by another number."""
    at = rng.randrange(len(content))
    start = next((i for i in range(at, min(at + 200, len(content))) if 48 <= content[i] <= 57), None)
    if start is not None:
        end = start
        while end < len(content) and 48 <= content[end] <= 57:
            end += 1
        content[start:end] = rng.choice(TOKENS[30:49])


def _delete(content: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    at = rng.randrange(len(content))
    del content[at : at + rng.choice((1, 2, 4, 16, 64))]


def _repeat(content: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    at = rng.randrange(len(content))
    content[at:at] = content[at : at + rng.choice((1, 8, 64))] * rng.choice((1, 2, 30))


def _truncate(content: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    del content[rng.randrange(len(content)) :]


def _splice(content: bytearray, rng: random.Random, others: Sequence[bytes]) -> None:
    other = rng.choice(others)
    at, start = rng.randrange(len(content)), rng.randrange(len(other))
    content[at:] = other[start:]


OPERATIONS: tuple[Callable[[bytearray, random.Random, Sequence[bytes]], None], ...] = (
    _flip, _flip, _overwrite, _overwrite, _insert, _insert, _number, _digits, _digits, _delete, _repeat, _truncate,
    _splice,
)  # fmt: skip


def mutate(samples: Sequence[bytes], rng: random.Random) -> bytes:
    """Return one of the samples after one to four random changes."""
    content = bytearray(rng.choice(samples))
    for _ in range(rng.choice((1, 1, 2, 3, 4))):
        if content:
            rng.choice(OPERATIONS)(content, rng, samples)
    return bytes(content)


VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 0.5, -0.0, 1e39, 1e308, 10**30, 2**31, 2**63, float("nan"), float("inf"), "", " ",
    "a", "C", "CC", "a b", "\ud800", "1", "\x00", [], {}, [[]], [0], [[0]], [[0, 0]], [[0, 1]], ["a"], {"text": "a"},
    "a" * 400,
)  # fmt: skip


def mutate_json(documents: Sequence[Any], rng: random.Random) -> bytes:
    """Return one of the documents with one to three values replaced, removed, repeated or added."""
    document = copy.deepcopy(rng.choice(documents))
    for _ in range(rng.choice((1, 1, 2, 3))):
        here = document
        while isinstance(here, dict | list) and here:
            key = rng.choice(list(here)) if isinstance(here, dict) else rng.randrange(len(here))
            if isinstance(here[key], dict | list) and here[key] and rng.random() < 0.7:
                here = here[key]
                continue
            change = rng.randrange(4)
            if change == 0:
                del here[key]
            elif change == 1 and isinstance(here, list):
                here += [copy.deepcopy(here[key])] * rng.choice((1, 2, 5))
            elif change == 1:
                here[rng.choice(("text", "id", "x1", "nodes", "edges", "label", ""))] = rng.choice(VALUES)
            else:
                here[key] = copy.deepcopy(rng.choice(VALUES))
            break
    return json.dumps(document).encode()
