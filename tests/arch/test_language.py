"""Check that code, messages and documents use plain technical English.

Run `python -m tests.arch.test_language [PATH ...]` to list every violation in the given files or folders.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.arch.sources import source

ROOT = Path(__file__).resolve().parents[2]

# names that say nothing about what they hold (variables, parameters, fields, functions)
VAGUE_NAMES = {
    "found", "told", "made", "given", "kept", "there", "back", "asked", "able", "how", "parts", "said", "heard",
}  # fmt: skip

UNITS = (
    "run|example|domain|class|row|token|method|seed|step|second|target|cell|layer|line|word|page|file|batch|expert|head|"
    "process|worker|call|record|table|query|stage|slot|configuration|image|feature|pass|trial|key|node|comparison|map|"
    "label|case|encoder|sentence|text|graph|entity|epoch|minute"
)
NOT_BEFORE_A = (
    "of|in|for|to|with|as|is|are|was|from|on|by|at|into|per|or|and|than|has|have|takes|that|not|like|over|after|before|"
    "under|without|between|makes|gives|if|inside|within|when|where|reads|once|which|because|but|until|about|only|use|"
    "uses|such|through|against|across|be|means|adds|needs"
)
PLURALS = (
    "examples|steps|rows|tokens|records|runs|seconds|requests|images|words|labels|lines|bytes|slots|predictions|seeds|"
    "texts|calls|points|features|experts|parameters|entries|files|columns|values|queries|batches"
)

PHRASES = {
    r"\banew\b": "again, re-run, recompute",
    r"\bmend(?:s|ed|ing)?\b": "fix",
    r"\b(?:told|tells)\b": "reported, prints, raises, returns",
    r"\bsays\b": "reported, prints, raises, returns",
    r"\bfrom nothing\b": "randomly initialised, from scratch",
    r"\b(?:as|so) many\b": "at most N, the number of",
    r"\bway back\b|\bthere and back\b": "backward pass",
    r"\bin one piece\b": "fused, complete",
    r"\bwhole numbers?\b": "integer",
    r"\b(?:there|written|read|is|are) whole\b|\bwhole or not at all\b": "complete, atomically",
    r"\blikeness(?:es)?\b": "similarity",
    r"\bjudges?\b(?!ment)": "domain critic, discriminator",
    r"\bpictures?\b": "plot, figure, image",
    r"\bstretch(?:es)?\b": "span",
    r"\bwaist\b|\bone door\b": "interface, entry point",
    r"\bbeside\b": "next to, compared with",
    r"\bbrought\b": "user-supplied data, local files",
    r"(?<!beyond )(?<!than )(?<!by )(?<!at )(?<!to )\bchance\b(?! level)": "random, randomness, RNG",
    r"(?<!decimal )\bplaces\b": "positions",
    r"\b(?:every|its|each|our|two|no) bars?\b(?! charts?| plots?)": "target, threshold",
    r"\ba rule\b|\b(?:training|learning) rules?\b": "method",
    r"\bforeignness\b": "foreign (defined as a percentile)",
    rf"\b(?:one|two|three|four|\d[\d,.]*)\s+(?:[\w`-]+\s+){{0,2}}(?!(?:{NOT_BEFORE_A})\b)[\w`-]+\s+"
    rf"an?\s+(?:{UNITS})\b": "per",
    rf"\b(?:{PLURALS})\s+an?\s+(?:{UNITS})\b": "per",
}
OPENINGS = r"^(?:The same|What)\b"

# (path prefix, pattern that the offending text must match, reason)
ALLOWED: tuple[tuple[str, str, str], ...] = (
    ("src/holdfast/nn/graft/holder.py", "^parts$", "a submodule name, part of the keys of saved state_dicts"),
    ("src/holdfast/folders/versions.py", r"^made$", "a key of the ledger file in model folders"),
    ("src/holdfast/auditing/facts.py", r"^kept$", "a key of the JSON output of `holdfast audit`"),
)


@dataclass(frozen=True)
class Violation:
    """One position where a text breaks the language rules."""

    path: str
    line: int
    text: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text!r} (write: {self.instead})"


ANY_PHRASE = re.compile("|".join(f"(?:{pattern})" for pattern in PHRASES), re.IGNORECASE)


def in_prose(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield (offset in lines, phrase, replacement) for each banned phrase."""
    plain = re.sub(r"`[^`\n]*`", lambda match: "`" + "x" * (len(match.group()) - 2) + "`", text)
    if not ANY_PHRASE.search(plain):
        return
    for pattern, instead in PHRASES.items():
        for match in re.finditer(pattern, plain, re.IGNORECASE):
            yield plain.count("\n", 0, match.start()), text[match.start() : match.end()], instead


def assigned_names(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield every name that code binds: variables, parameters, attributes, fields and functions."""
    for node in nodes:
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name


def strings(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str, bool]]:
    """Yield (line, text, is docstring) for docstrings and for literals that read as prose."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = set()
    for node in nodes:
        if isinstance(node, documented) and ast.get_docstring(node) and isinstance(node.body[0], ast.Expr):
            docstrings.add(id(node.body[0].value))
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_docstring = id(node) in docstrings
            if is_docstring or " " in node.value.strip():
                yield node.lineno, node.value, is_docstring


def check_python(path: Path, *, is_test: bool) -> list[Violation]:
    """Check names, docstrings, comments and (outside tests) messages of one Python file."""
    parsed, name = source(path), str(path.relative_to(ROOT))
    text, nodes, violations = parsed.text, parsed.nodes, []
    for line, bound in assigned_names(nodes):
        if not is_test and bound.strip("_") in VAGUE_NAMES:
            violations.append(Violation(name, line, bound, "a name for what it holds"))
        if is_test and bound.startswith("test_"):
            violations += [Violation(name, line, bound, instead) for _, _, instead in in_prose(bound.replace("_", " "))]
    for line, content, is_docstring in strings(nodes):
        if is_test and not is_docstring:
            continue
        if is_docstring and re.match(OPENINGS, content.strip()):
            violations.append(Violation(name, line, content.strip()[:40], "a noun phrase or an imperative"))
        violations += [Violation(name, line + at, phrase, instead) for at, phrase, instead in in_prose(content)]
    ends = [line[line.index("#") :] for line in text.splitlines() if "#" in line]
    if any(True for end in ends for _ in in_prose(end)):  # few files have one, and tokenizing is slow
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                violations += [
                    Violation(name, token.start[0], phrase, instead) for _, phrase, instead in in_prose(token.string)
                ]
    return violations


def check_markdown(path: Path) -> list[Violation]:
    """Check the prose of one document; fenced code blocks are skipped."""
    text = re.sub(
        r"^```.*?^```", lambda match: "\n" * match.group().count("\n"), path.read_text(encoding="utf-8"),
        flags=re.MULTILINE | re.DOTALL,
    )  # fmt: skip
    name = str(path.relative_to(ROOT))
    return [Violation(name, 1 + at, phrase, instead) for at, phrase, instead in in_prose(text)]


def check(path: Path) -> list[Violation]:
    """Check one file; violations on the allow-list are left out."""
    name = str(path.relative_to(ROOT))
    is_test = name.startswith("tests")
    violations = check_python(path, is_test=is_test) if path.suffix == ".py" else check_markdown(path)
    return [
        v for v in violations
        if not any(name.startswith(prefix) and re.search(pattern, v.text) for prefix, pattern, _ in ALLOWED)
    ]  # fmt: skip


def sources() -> list[Path]:
    """List every file the language rules apply to."""
    code = [p for folder in ("src", "lab", "studies", "tests") for p in sorted((ROOT / folder).rglob("*.py"))]
    code += sorted((ROOT / "docs").rglob("*.py"))
    documents = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    return [p for p in code if p != Path(__file__).resolve()] + documents


@pytest.mark.parametrize(
    "folder", ["src", "lab", "studies", "tests", "docs", "README.md", "CHANGELOG.md", "CONTRIBUTING.md"]
)
def test_language_is_plain(folder):
    violations = [v for p in sources() if str(p.relative_to(ROOT)).startswith(folder) for v in check(p)]
    assert not violations, f"{len(violations)} violations, first 30:\n" + "\n".join(map(str, violations[:30]))


BANNED = (
    "Runs everything anew. One record a run. 32 examples a domain. This is how to mend it. The file is written whole. "
    "The seed of every chance. A ResNet from nothing. The way back needs these tensors. as many as there are domains."
)
PLAIN = "One record per run. Fix the schedule. no better than chance. one layer of a token. in place."


def test_banned_phrases_are_detected_and_plain_ones_pass():
    assert all(list(in_prose(sentence)) for sentence in BANNED.rstrip(".").split(". "))
    assert not any(list(in_prose(sentence)) for sentence in PLAIN.rstrip(".").split(". "))


def test_vague_names_and_openings_are_detected(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    path = tmp_path / "src" / "module.py"
    path.parent.mkdir()
    path.write_text('"""What it does."""\nfound = "#"\n\n\ndef count(kept):\n    self.told = kept  # mend it\n')
    assert sorted(v.text for v in check(path)) == ["What it does.", "found", "kept", "mend", "told"]


if __name__ == "__main__":
    chosen = [Path(argument).resolve() for argument in sys.argv[1:]]
    listed = [p for p in sources() if not chosen or any(p == c or c in p.parents for c in chosen)]
    every = [v for p in listed for v in check(p)]
    sys.stdout.write("".join(f"{v}\n" for v in every) + f"{len(every)} violations in {len(listed)} files\n")
    sys.exit(bool(every))
