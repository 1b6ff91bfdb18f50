"""The documents are executed: Python blocks, command lines, signatures, links, the tree; every search counts."""

from __future__ import annotations

import ast
import json
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import typer.main
from PIL import Image

from holdfast.catalog.protocols import PLANS, SELECTIONS
from holdfast.cli import ClickException, app, main
from holdfast.data.readers.columns import PAIRS, SYNONYMS
from holdfast.nn.backbones.graph import geometric
from tests.annotated import tagged_sentences, write_conll, write_corpus, write_names, write_questions
from tests.arch.test_layers import MAY, TOP
from tests.e2e.conftest import write_reviews
from tests.graphs import rings_and_stars, write_zip
from tests.published import write_published
from tests.talks import write_talks
from tests.tiny import tiny_bert, tiny_vit

ROOT = Path(__file__).resolve().parents[2]
DOCS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
DOCS += sorted((ROOT / "docs").rglob("*.md"))
NAMES = [str(path.relative_to(ROOT)) for path in DOCS]
VERBS = typer.main.get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]

# these lines are parsed, with every option and its type checked, but not run
PARSED_ONLY = {
    "demo": "it fetches an archive from a package index and trains for minutes",
    "serve": "it answers until it is stopped; tests/e2e stops it",
    "export": "recording MiniLM takes long; tests/unit/export records small models",
    "bench": "it measures speed, and on a busy machine a bar is missed, which is exit code 1",
}
# what is added to a line that does not say it itself: all methods with 3 seeds and 300 steps take minutes
SHORTER = {
    "compare": {"--methods": "erm,coral", "--steps": "4", "--seeds": "1", "--batch": "4"},
    "sweep": {"--steps": "4", "--seeds": "1"},
    "fit": {"--steps": "6", "--batch": "4"},
    "adapt": {"--steps": "4", "--batch": "4", "--max-forgetting": "100"},
    "pretrain": {"--steps": "2", "--batch": "4"},
    "reproduce": {"--steps": "2", "--seeds": "1", "--tune": "frozen"},
}
# these let MiniLM encode, as a user's first command does
MARKED = dict.fromkeys(("README.md", "docs/prompting.md", "docs/serving.md"), pytest.mark.minilm)
MARKED["docs/tutorials/graphs.md"] = pytest.mark.graph
PYTHON = {
    "README.md": 2,
    "docs/adding-a-memory.md": 2,
    "docs/adding-a-method.md": 1,
    "docs/adding-an-encoder.md": 2,
    "docs/prompting.md": 1,
    "docs/python.md": 3,
    "docs/theory.md": 2,
    "docs/tutorials/graphs.md": 1,
}
LINES = {
    "README.md": 21,
    "docs/audit.md": 4,
    "docs/adding-an-encoder.md": 2,
    "docs/prompting.md": 2,
    "docs/dialogue.md": 3,
    "docs/scaling.md": 1,
    "docs/serving.md": 5,
    "docs/tasks.md": 7,
    "docs/tutorial.md": 7,
    "docs/tutorials/features.md": 3,
    "docs/tutorials/graphs.md": 2,
    "docs/tutorials/images.md": 7,
    "docs/tutorials/streams.md": 2,
    "docs/tutorials/text.md": 2,
}


def blocks(name: str, language: str) -> list[tuple[int, str]]:
    """(line, text) of every block whose fence says exactly this."""
    text = (ROOT / name).read_text()
    found = re.finditer(rf"^```{re.escape(language)}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, match.start(1)), match[1]) for match in found]


def commands(name: str) -> list[str]:
    lines = [line for _, block in blocks(name, "bash") for line in block.splitlines()]
    return [line for line in lines if line.startswith("holdfast ")]


def inline(name: str) -> list[str]:
    """What stands between single backticks, outside of blocks."""
    text = re.sub(r"^ *```.*?^ *```$", "", (ROOT / name).read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`\n]+)`", text)


def marked(counts: dict[str, int]) -> list:
    return [pytest.param(name, marks=MARKED.get(name, ())) for name in counts]


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A folder with the files that the documents name."""
    monkeypatch.chdir(tmp_path)
    write_reviews(tmp_path / "reviews.csv", size=16)
    write_published(tmp_path / "data", "amazon")
    write_talks(tmp_path / "talks.csv")
    write_names(tmp_path / "names", 8)
    write_conll(tmp_path / "new.conll", tagged_sentences("sea", 3))
    write_questions(tmp_path / "questions.jsonl", 8)
    write_corpus(tmp_path / "texts.txt", 40)
    tiny_bert(tmp_path / "encoder")
    (tmp_path / "asked.csv").write_text("id,message\na,do you have two tea?\nb,do you have one rope?\n")
    (tmp_path / "hats.csv").write_text("text,label\n" + "fine great hat,pos\ndull poor hat,neg\n" * 10)
    (tmp_path / "new.csv").write_text("id,text\nx1,great superb thing\nx2,dreadful broken dull\n")
    said = [(topic, a, b) for topic in ("law", "art", "sea") for a in ("old", "new") for b in ("old", "new") * 4]
    columns = {
        "premise": [f"a {a} ship" for _, a, _ in said],
        "hypothesis": [f"it is {b}" for _, _, b in said],
        "label": [a == b for _, a, b in said],
        "topic": [topic for topic, _, _ in said],
    }
    pyarrow.parquet.write_table(pa.table(columns), tmp_path / "nli.parquet")
    (tmp_path / "shapes").mkdir()
    write_zip(tmp_path / "shapes" / "near.zip", rings_and_stars(24))
    write_zip(tmp_path / "shapes" / "middle.zip", rings_and_stars(24, first=6))
    write_zip(tmp_path / "shapes" / "far.zip", rings_and_stars(24, first=9))
    write_zip(tmp_path / "larger.zip", rings_and_stars(6, first=20))
    chance = np.random.default_rng(0)
    write_patients(tmp_path / "patients.csv", chance)
    for domain in ("photo", "sketch", "paint"):
        for label, shade in (("dark", 60), ("light", 190)):
            folder = tmp_path / "pictures" / domain / label
            folder.mkdir(parents=True)
            for i in range(6):
                pixels = (shade + chance.integers(-40, 40, (16, 16, 3))).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    (table,) = [text for _, text in blocks("docs/tutorials/images.md", "text") if text.startswith("image,part")]
    (tmp_path / "pictures" / "parts.csv").write_text(table)
    tiny_vit(tmp_path / "deit")
    return tmp_path


def write_patients(path: Path, chance: np.random.Generator) -> None:
    """Numbers of 20 patients from each of three hospitals, which measure from different zeros."""
    lines = ["hospital,age,pressure,pulse,label"]
    for zero, hospital in enumerate(("north", "south", "west")):
        for i in range(20):
            age, pressure, pulse = (chance.normal() + zero, chance.normal() + 2 * (i % 2), chance.normal())
            lines.append(f"{hospital},{age:.2f},{pressure:.2f},{pulse:.2f},{('well', 'ill')[i % 2]}")
    path.write_text("\n".join(lines) + "\n")


def test_the_blocks_and_lines_are_found():
    assert len(DOCS) >= 8
    assert {name: len(found) for name in NAMES if (found := blocks(name, "python"))} == PYTHON
    assert {name: len(found) for name in NAMES if (found := commands(name))} == LINES
    for name in NAMES:  # a fence in another writing would be missed above
        fences = re.findall(r"^ *```(.+)$", (ROOT / name).read_text(), re.MULTILINE)
        assert set(fences) <= {"python", "python signatures", "bash", "diff", "text", "toml"}, name
        assert fences.count("python") == PYTHON.get(name, 0), name


@pytest.mark.usefixtures("clean_catalog")
@pytest.mark.parametrize("name", marked(PYTHON))
def test_python_blocks_run(name, place):
    shared: dict[str, object] = {"__name__": "document"}
    if MARKED.get(name) == pytest.mark.graph:
        geometric()  # its first import warns
    for line, block in blocks(name, "python"):
        code = compile("\n" * line + block, name, "exec", dont_inherit=True)  # a traceback names the document's line
        exec(code, shared)


@pytest.mark.parametrize("name", marked(LINES))
def test_command_lines_run(name, place, monkeypatch, capsys):
    ran = 0
    for line in commands(name):
        words = shlex.split(line)[1:]
        if words[0] in PARSED_ONLY:
            VERBS[words[0]].make_context(words[0], words[1:])
            continue
        less = {option: few for option, few in SHORTER.get(words[0], {}).items() if option not in words}
        monkeypatch.setattr(sys, "argv", ["holdfast", *words, *(word for pair in less.items() for word in pair)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0, f"{line}\n{capsys.readouterr().err}"
        for option in re.findall(r"--out (\S+)", line):
            assert (place / option).exists(), line
        ran += 1
    assert ran == sum(line.split()[1] not in PARSED_ONLY for line in commands(name))
    if name in AFTER:
        AFTER[name](place)


def pictured(place: Path) -> None:
    """The line with analyses left all four in the records, so parts.csv was read as it stands there."""
    found = [json.loads(path.read_text()) for path in (place / "runs" / "experts" / "records").rglob("*.json")]
    seen = [record["analysis"] for record in found if record["spec"]["neck"] == "experts" and "analysis" in record]
    assert len(seen) == 3
    for analysis in seen:
        assert all(analysis[name] for name in ("routing", "expert-agreement", "expert-parts", "attention-map"))
        assert analysis["expert-parts"]["parts"] == ["head", "tail", "background"]


AFTER = {"docs/tutorials/images.md": pictured}  # what the lines of a document must have left


def test_parsing_alone_finds_a_wrong_option():
    VERBS["demo"].make_context("demo", ["--seeds", "5"])
    for words in (["--sedes", "5"], ["--examples", "many"]):
        with pytest.raises(ClickException):
            VERBS["demo"].make_context("demo", words)


def test_options_verbs_and_targets_that_are_named_exist():
    options = {option for verb in VERBS.values() for param in verb.params for option in param.opts}
    options |= {"--help", "--no-deps"}  # the second is pip's
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    said = {"option": 0, "verb": 0, "target": 0}
    for name in NAMES:
        for text in [*inline(name), *(line for _, block in blocks(name, "bash") for line in block.splitlines())]:
            text = re.sub(r"^torchrun .* -m (?=holdfast )", "", text)  # whose options are its own
            for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", text):
                assert option in options, (name, option)
                said["option"] += 1
            if match := re.match(r"holdfast ([a-z]+)", text):
                assert match[1] in VERBS, (name, text)
                said["verb"] += 1
            if match := re.match(r"make ([a-z]+)", text):
                assert match[1] in targets, (name, text)
                said["target"] += 1
    assert min(said.values()) >= 10, said
    assert {line.split()[1] for line in commands("README.md")} == set(VERBS), "the README shows every verb"


def test_links_lead_to_files():
    found = 0
    for path in DOCS:
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text()):
            if "://" not in link:
                assert (path.parent / link).exists(), (path.name, link)
                found += 1
    assert found >= 50


def test_tests_that_are_named_exist():
    named = [text.split("::") for name in NAMES for text in inline(name) if re.match(r"tests/\S+\.py::", text)]
    for file, test in named:
        assert f"def {test}(" in (ROOT / file).read_text(), (file, test)
    assert len(named) >= 20


def tree() -> list[Path]:
    """The files and folders of the tree in docs/design.md."""
    (block,) = [text for _, text in blocks("docs/design.md", "text") if text.startswith("src/holdfast/\n")]
    found, inside = [], []
    for line in block.splitlines():
        depth, name = (len(line) - len(line.lstrip())) // 2, line.split()[0]
        inside = [*inside[:depth], name]
        found.append(ROOT.joinpath(*inside))
    return found


def test_the_tree_names_every_file():
    named = tree()
    assert len(named) == len(set(named)) > 80
    for path in named:
        assert path.exists(), path
    code = set((ROOT / "src" / "holdfast").rglob("*.py"))
    assert len(code) > 70
    assert code <= set(named), sorted(str(path.relative_to(ROOT)) for path in code - set(named))


def test_the_direction_is_the_one_that_is_enforced():
    rows = re.findall(r"^\| (`[^|]+) \| ([^|]+) \|$", (ROOT / "docs/design.md").read_text(), re.MULTILINE)
    told = {
        layer: set() if may == "nothing" else set(re.sub(r"\s*\(.*?\)", "", may).split(", "))
        for layers, may in rows
        if "tests/" not in may
        for layer in re.findall(r"`(\w+)`", layers)
    }
    assert {layer: may for layer, may in told.items() if may != {"anything"}} == MAY
    assert {layer for layer, may in told.items() if may == {"anything"}} == TOP - {"__init__"}


def stubs() -> list[tuple[str, ast.stmt]]:
    return [
        (re.match(r"# (holdfast\.\S+)\n", block)[1], node)  # pyright: ignore[reportOptionalSubscript]
        for _, block in blocks("docs/design.md", "python signatures")
        for node in ast.parse(block).body
    ]


def shape(node: ast.AST) -> str:
    """A signature or an attribute as text, without body and decorators."""
    if isinstance(node, ast.FunctionDef):
        return f"{node.name}({ast.unparse(node.args)}) -> {ast.unparse(node.returns) if node.returns else None}"
    if isinstance(node, ast.ClassDef):
        return f"class {node.name}({', '.join(map(ast.unparse, node.bases))})"
    return ast.unparse(node) if isinstance(node, ast.AnnAssign) else ""


@pytest.mark.parametrize(("module", "stub"), stubs(), ids=lambda value: getattr(value, "name", ""))
def test_signatures_are_the_real_ones(module, stub):
    source = ast.parse((ROOT / "src" / (module.replace(".", "/") + ".py")).read_text())
    real = {shape(node): node for node in source.body}
    assert shape(stub) in real
    if isinstance(stub, ast.ClassDef):
        members = {shape(node) for node in real[shape(stub)].body}
        assert {shape(node) for node in stub.body} - {""} <= members


def test_there_are_signatures():
    assert len(stubs()) >= 13


def test_environment_variables_are_all_in_the_readme_and_no_others():
    used = {v for path in (ROOT / "src").rglob("*.py") for v in re.findall(r"HOLDFAST_[A-Z_]+", path.read_text())}
    told = set(re.findall(r"HOLDFAST_[A-Z_]+", (ROOT / "README.md").read_text()))
    assert len(used) >= 2
    assert told == used


def test_every_protocol_and_selection_has_a_row_in_its_document():
    rows = re.findall(r"^\| `([\w-]+)` \|", (ROOT / "docs/protocols.md").read_text(), re.MULTILINE)
    assert rows == [*PLANS, *SELECTIONS]


def test_column_names_of_the_readme_are_found_by_themselves():
    found = 0
    for role, wanted in {**SYNONYMS, "pair": tuple(" + ".join(pair) for pair in PAIRS)}.items():
        (cell,) = re.findall(rf"^\| {role} \| (.+) \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
        told = [word.strip() for word in cell.split(";")[0].split(",")]
        assert set(told) - {"..."} <= set(wanted), role
        found += len(told)
    assert found >= 40


@pytest.mark.parametrize("name", NAMES)
def test_documents_are_plain(name):
    text = (ROOT / name).read_text()
    assert text.startswith("# ")
    assert text.endswith("\n")
    assert not re.search(r"(?i)\b(blazing|cutting-edge|state-of-the-art|powerful|seamless|revolutionary)\b", text)
    if name == "README.md":
        assert text.count("\n") < 220
