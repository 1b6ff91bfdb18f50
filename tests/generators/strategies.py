"""Strategies for unusual texts and JSON values."""

from hypothesis import strategies as st

ODD = (
    "", " ", "\ufeff", "\x00", "\x1a", "\r", "\n", "\r\n", '"', '""', "'", ",", "\t", ";", "\\", "NULL", "nan", "NaN",
    "inf", "-inf", "1e999", "-0", "0x10", "1_000", "true", "None", "=1+1", "@x", "🙂", "👩\u200d👩", "مرحبا", "שלום",
    "\u202eabc", "e\u0301", "日本", "İ", "\u2028", "\U0010ffff", "a" * 5000, "2024-02-30", "1" * 400, "../../x", "%s",
    "{}", "<b>", "\ud800", "\x1b[31mred", "con", "a/b", "[bold]x[/bold]", "[/]",
)  # fmt: skip
PLAIN = ("good", "bad", "a", "b", "train", "1", "2")
TEXT = st.one_of(st.sampled_from(ODD), st.text(max_size=20), st.sampled_from(PLAIN))
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXT, inner, max_size=4)),
    max_leaves=8,
)
CODES = st.sampled_from(["utf-8", "utf-8", "utf-8", "utf-8-sig", "latin-1", "utf-16", "utf-32", "cp1252", "shift_jis"])
