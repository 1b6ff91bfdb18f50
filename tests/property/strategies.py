"""Strategies for unusual texts, tables, JSON values and mutated JSON documents."""

import copy
import json

from hypothesis import strategies as st

ODD = (
    "", " ", "\ufeff", "\x00", "\x1a", "\r", "\n", "\r\n", '"', '""', "'", ",", "\t", ";", "\\", "NULL", "nan", "NaN",
    "inf", "-inf", "1e999", "-0", "0x10", "1_000", "true", "None", "=1+1", "@x", "🙂", "👩\u200d👩", "مرحبا", "שלום",
    "\u202eabc", "e\u0301", "日本", "İ", "\u2028", "\U0010ffff", "a" * 5000, "2024-02-30", "1" * 400, "../../x", "%s",
    "{}", "<b>", "\ud800", "\x1b[31mred", "con", "a/b", "[bold]x[/bold]", "[/]",
)  # fmt: skip
PLAIN = ("good", "bad", "a", "b", "train", "1", "2")
NAMES = ("text", "label", "domain", "split", "id", "time", "x1", "x2", "", "Text", "LABEL", "smiles", "text")
TEXT = st.one_of(st.sampled_from(ODD), st.text(max_size=20), st.sampled_from(PLAIN))
HEADS = st.sampled_from(NAMES)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXT, inner, max_size=4)),
    max_leaves=8,
)
CODES = st.sampled_from(["utf-8", "utf-8", "utf-8", "utf-8-sig", "latin-1", "utf-16", "utf-32", "cp1252", "shift_jis"])


@st.composite
def tables(draw) -> tuple[str, bytes]:
    """Draw a suffix and the bytes of a file that resembles a table."""
    suffix = draw(st.sampled_from([".csv", ".tsv", ".jsonl", ".csv", ".parquet", ".npz", ".zip"]))
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return suffix, draw(st.binary(max_size=200))
    names = draw(st.one_of(st.just(["text", "label", "domain"]), st.lists(HEADS, min_size=1, max_size=5)))
    rows = draw(st.lists(st.lists(TEXT, min_size=len(names), max_size=len(names)), max_size=8))
    if suffix == ".jsonl":
        objects = [dict(zip(names, row, strict=True)) for row in rows]
        for one in objects:
            if draw(st.integers(0, 4)) == 0:
                one[draw(st.sampled_from(names))] = draw(JSON)
        lines = [json.dumps(one, ensure_ascii=draw(st.booleans())) for one in objects]
    else:
        sign = "\t" if suffix == ".tsv" else ","
        quote = draw(st.booleans())
        cells = [names, *rows]
        lines = [
            sign.join(f'"{c.replace(chr(34), chr(34) * 2)}"' if quote else c for c in row[: draw(st.integers(1, 9))])
            for row in cells
        ]
    text = draw(st.sampled_from(["\n", "\r\n", "\r"])).join(lines) + draw(st.sampled_from(["", "\n", '"', "\x00"]))
    content = text.encode(draw(CODES), errors="replace")
    if draw(st.integers(0, 5)) == 0:
        content = content[: draw(st.integers(0, len(content)))]
    return suffix, content


@st.composite
def changed(draw, document):
    """Draw a JSON document with one to three values removed or replaced."""
    made = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        here = made
        while True:
            keys = list(here) if isinstance(here, dict) else list(range(len(here)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            inner = here[key]
            if isinstance(inner, dict | list) and inner and draw(st.integers(0, 3)):
                here = inner
                continue
            if draw(st.integers(0, 3)) == 0:
                del here[key]
            else:
                here[key] = draw(st.one_of(JSON, st.integers(-(10**18), 10**18), st.just(0), st.just(-1)))
            break
    return made
