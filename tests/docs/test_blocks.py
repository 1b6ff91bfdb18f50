"""Documents are executed: Python blocks and commands run; options, links, variables and table rows are checked."""

import json
import re
import shlex
import shutil
import sys
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import typer.main
from PIL import Image

from holdfast.catalog.protocols import PLANS, SELECTIONS
from holdfast.cli import ClickException, add_commands, app, main
from holdfast.data.readers.columns import PAIRS, SYNONYMS
from studies import guide
from tests.annotated import tagged_sentences, write_conll, write_corpus, write_names, write_questions
from tests.e2e.conftest import write_reviews
from tests.graphs import geometric, rings_and_stars, write_zip
from tests.published import write_published
from tests.talks import write_talks
from tests.tiny import tiny_bert, tiny_vit

ROOT = Path(__file__).resolve().parents[2]
DOCS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
DOCS += sorted((ROOT / "docs").rglob("*.md"))
NAMES = [str(path.relative_to(ROOT)) for path in DOCS]
add_commands()
COMMANDS = typer.main.get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]

# commands whose options are parsed and checked without running them, with the reason
PARSED_ONLY = {
    "demo": "downloads an archive from a package index and trains for minutes",
    "serve": "runs until it is stopped; tested in tests/e2e",
    "export": "exporting MiniLM takes long; tests/unit/prediction exports small models",
    "bench": "measures speed and exits with code 1 if a busy machine misses a target",
}
# commands that another document runs, and whose files no later command of the same document reads
ELSEWHERE = {
    "docs/usage.md": ("holdfast audit reviews.csv", "holdfast compare reviews.csv"),
    "docs/getting-started.md": ("holdfast audit reviews.csv",),
}
# options added to commands without them (all methods with 3 seeds and 300 steps take minutes); sweeps have two trials
SHORTER = {
    "compare": {"--methods": "erm,coral", "--steps": "4", "--seeds": "1", "--batch": "4"},
    "sweep": {"--steps": "4", "--seeds": "1"},
    "fit": {"--steps": "6", "--batch": "4"},
    "adapt": {"--steps": "4", "--batch": "4", "--max-forgetting": "100"},
    "pretrain": {"--steps": "2", "--batch": "4"},
    "reproduce": {"--steps": "2", "--seeds": "1", "--tune": "frozen"},
}
# documents whose commands need MiniLM or torch-geometric
MARKED = dict.fromkeys(
    ("README.md", "docs/getting-started.md", "docs/prompting.md", "docs/python.md", "docs/serving.md", "docs/usage.md"),
    pytest.mark.minilm,
)
MARKED["docs/tutorials/graphs.md"] = pytest.mark.graph
MARKED["docs/guide.md"] = pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")
LONG = ("theory.md", "scaling.md", "dialogue.md", "tutorials/images.md", "tutorials/features.md", "tutorials/tables.md")
MARKED |= dict.fromkeys((f"docs/{name}" for name in LONG), pytest.mark.slow)


def blocks(name: str, language: str) -> list[tuple[int, str]]:
    """Return (line, text) of every block of this language."""
    text = (ROOT / name).read_text()
    matches = re.finditer(rf"^```{re.escape(language)}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, match.start(1)), match[1]) for match in matches]


def commands(name: str) -> list[str]:
    lines = [line for _, block in blocks(name, "bash") for line in block.splitlines()]
    return [line for line in lines if line.startswith("holdfast ")]


PYTHON = [name for name in NAMES if blocks(name, "python")]
LINES = [name for name in NAMES if commands(name)]


def inline(name: str) -> list[str]:
    """Return inline code outside blocks."""
    text = re.sub(r"^ *```.*?^ *```$", "", (ROOT / name).read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`\n]+)`", text)


def marked(names: list[str]) -> list:
    return [pytest.param(name, marks=MARKED.get(name, ())) for name in names]


def write_targets(folder: Path) -> None:
    """Tables of numbers with a number, a set of labels, or a level as the label."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(72, 2))
    labels = {
        "prices": [f"{20 + 5 * a - b:.3f}" for a, b in x],
        "colours": ["|".join(n for n, v in zip(("red", "blue"), row, strict=True) if v > 0) for row in x],
        "grades": [("low", "medium", "high")[int(np.clip(np.floor(a + 1.5), 0, 2))] for a, _ in x],
    }
    for name, values in labels.items():
        lines = [f"{a:.4f},{b:.4f},{v},{'xyz'[i % 3]}" for i, ((a, b), v) in enumerate(zip(x, values, strict=True))]
        (folder / f"{name}.csv").write_text("\n".join(["width,height,label,domain", *lines]) + "\n")
    moods = [f"{a:.4f},{b:.4f},{int(a > 0)},{int(b > 0)},{'xyz'[i % 3]}" for i, (a, b) in enumerate(x)]
    (folder / "moods.csv").write_text("\n".join(["width,height,happy,sad,domain", *moods]) + "\n")
    wards = [
        f"{['north', 'south', 'east'][i % 3]},{60 + 9 * a:.0f},{'male' if b > 0 else 'female'},"
        f"{'' if i % 5 == 0 else f'{120 + 10 * b:.0f}'},{'yes' if a > 0 else 'no'},{'ill' if a + b > 0 else 'well'}"
        for i, (a, b) in enumerate(x)
    ]
    (folder / "wards.csv").write_text("\n".join(["hospital,age,sex,pressure,smoker,label", *wards]) + "\n")


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    """A folder with the files that the documents use."""
    folder = tmp_path_factory.mktemp("template")
    for name in ("reviews.csv", "sentences.csv"):
        write_reviews(folder / name, size=16)
    write_published(folder / "data", "amazon")
    write_talks(folder / "talks.csv")
    write_names(folder / "names", 8)
    write_conll(folder / "new.conll", tagged_sentences("sea", 3))
    write_questions(folder / "questions.jsonl", 8)
    write_corpus(folder / "texts.txt", 40)
    tiny_bert(folder / "encoder")
    (folder / "messages.csv").write_text("id,message\na,do you have two tea?\nb,do you have one rope?\n")
    (folder / "hats.csv").write_text("text,label\n" + "fine great hat,pos\ndull poor hat,neg\n" * 10)
    (folder / "new.csv").write_text("id,text\nx1,great superb thing\nx2,dreadful broken dull\n")
    write_targets(folder)
    rows = [(topic, a, b) for topic in ("law", "art", "sea") for a in ("old", "new") for b in ("old", "new") * 4]
    columns = {
        "premise": [f"a {a} ship" for _, a, _ in rows],
        "hypothesis": [f"it is {b}" for _, _, b in rows],
        "label": [a == b for _, a, b in rows],
        "topic": [topic for topic, _, _ in rows],
    }
    pyarrow.parquet.write_table(pa.table(columns), folder / "nli.parquet")
    (folder / "shapes").mkdir()
    write_zip(folder / "shapes" / "near.zip", rings_and_stars(24))
    write_zip(folder / "shapes" / "middle.zip", rings_and_stars(24, first=6))
    write_zip(folder / "shapes" / "far.zip", rings_and_stars(24, first=9))
    write_zip(folder / "larger.zip", rings_and_stars(6, first=20))
    rng = np.random.default_rng(0)
    write_patients(folder / "patients.csv", rng)
    for domain in ("photo", "sketch", "paint"):
        for label, shade in (("dark", 60), ("light", 190)):
            images = folder / "images" / domain / label
            images.mkdir(parents=True)
            for i in range(6):
                pixels = (shade + rng.integers(-40, 40, (16, 16, 3))).astype(np.uint8)
                Image.fromarray(pixels).save(images / f"{i}.png")
    (table,) = [text for _, text in blocks("docs/tutorials/images.md", "text") if text.startswith("image,part")]
    (folder / "images" / "parts.csv").write_text(table)
    tiny_vit(folder / "deit")
    return folder


@pytest.fixture
def workdir(template, tmp_path, monkeypatch) -> Path:
    """A copy of these files as the working directory."""
    monkeypatch.chdir(shutil.copytree(template, tmp_path / "work"))
    return tmp_path / "work"


def write_patients(path: Path, rng: np.random.Generator) -> None:
    """Write measurements of 20 patients per hospital; hospitals differ by an offset."""
    lines = ["hospital,age,pressure,pulse,label"]
    for offset, hospital in enumerate(("north", "south", "west")):
        for i in range(20):
            age, pressure, pulse = (rng.normal() + offset, rng.normal() + 2 * (i % 2), rng.normal())
            lines.append(f"{hospital},{age:.2f},{pressure:.2f},{pulse:.2f},{('well', 'ill')[i % 2]}")
    path.write_text("\n".join(lines) + "\n")


def test_blocks_are_written_as_they_are_found():
    assert (len(PYTHON), len(LINES)) >= (10, 20)
    for name in NAMES:  # differently written fences would be missed
        fences = re.findall(r"^ *```(.+)$", (ROOT / name).read_text(), re.MULTILINE)
        assert set(fences) <= {"python", "bash", "diff", "text", "toml", "{toctree}"}, name
        assert fences.count("python") == len(blocks(name, "python")), name


@pytest.mark.usefixtures("clean_catalog")
@pytest.mark.parametrize("name", marked(PYTHON))
def test_python_blocks_run(name, workdir):
    namespace: dict[str, object] = {"__name__": "document"}
    if MARKED.get(name) == pytest.mark.graph:
        geometric()  # the first import warns
    for line, block in blocks(name, "python"):
        code = compile("\n" * line + block, name, "exec", dont_inherit=True)  # tracebacks show the line of the document
        exec(code, namespace)
    if name == "docs/guide.md":
        assert {path.name for path in workdir.glob("*.svg")} == set(guide.figures())
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.mark.parametrize("name", marked(LINES))
def test_command_lines_run(name, workdir, monkeypatch, capsys):
    for line in commands(name):
        words = shlex.split(line)[1:]
        if parsed_only(name, line):
            COMMANDS[words[0]].make_context(words[0], words[1:])
            continue
        added = {option: value for option, value in SHORTER.get(words[0], {}).items() if option not in words}
        words += [word for pair in added.items() for word in pair]
        words = ["2" if before == "--trials" else word for before, word in pairwise(["", *words])]
        if words[0] == "compare" and "--methods" not in added:  # comparisons without --methods have them
            words += [option for option in ("--no-combinations", "--no-baselines") if option not in words]
        monkeypatch.setattr(sys, "argv", ["holdfast", *words])
        with pytest.raises(SystemExit) as exit:
            main()
        assert exit.value.code == 0, f"{line}\n{capsys.readouterr().err}"
        for option in re.findall(r"--out (\S+)", line):
            assert (workdir / option).exists(), line
    if name == "docs/tutorials/images.md":
        check_image_analyses(workdir)


def parsed_only(name: str, line: str) -> bool:
    """Whether the options of a command are checked without running it."""
    return line.split()[1] in PARSED_ONLY or " vader " in line or line in ELSEWHERE.get(name, ())  # vader is downloaded


def test_commands_that_a_document_does_not_run_are_run_by_another():
    for name, lines in ELSEWHERE.items():
        others = [other for other in LINES if other != name and MARKED.get(other) in (None, MARKED[name])]
        for line in lines:
            assert line in commands(name)
            assert any(line in commands(other) and not parsed_only(other, line) for other in others), line


def check_image_analyses(workdir: Path) -> None:
    """Check that the records contain all four analyses, so that parts.csv was read."""
    records = [json.loads(path.read_text()) for path in (workdir / "runs" / "experts" / "records").rglob("*.json")]
    analyses = [
        record["analysis"] for record in records if record["spec"]["neck"] == "experts" and "analysis" in record
    ]
    assert len(analyses) == 3
    for analysis in analyses:
        assert all(analysis[name] for name in ("routing", "expert-agreement", "expert-parts", "attention-map"))
        assert analysis["expert-parts"]["parts"] == ["head", "tail", "background"]


def test_parsing_detects_invalid_options():
    COMMANDS["demo"].make_context("demo", ["--seeds", "5"])
    for words in (["--sedes", "5"], ["--examples", "many"]):
        with pytest.raises(ClickException):
            COMMANDS["demo"].make_context("demo", words)


def test_options_commands_and_make_targets_exist():
    parameters = [parameter for command in COMMANDS.values() for parameter in command.params]
    options = {option for parameter in parameters for option in (*parameter.opts, *parameter.secondary_opts)}
    options |= {"--help", "--version", "--install-completion", "--no-deps"}  # --no-deps is an option of pip
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    counts = {"option": 0, "command": 0, "target": 0}
    for name in NAMES:
        for text in [*inline(name), *(line for _, block in blocks(name, "bash") for line in block.splitlines())]:
            text = re.sub(r"^torchrun .* -m (?=holdfast )", "", text)  # torchrun has other options
            text = re.sub(r"^python -m tests\..*", "", text)  # so have tools of the repository
            for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", text):
                assert option in options, (name, option)
                counts["option"] += 1
            if match := re.match(r"holdfast ([a-z]+)", text):
                assert match[1] in COMMANDS, (name, text)
                counts["command"] += 1
            if match := re.match(r"make ([a-z-]+)", text):
                assert match[1] in targets, (name, text)
                counts["target"] += 1
    assert min(counts.values()) >= 10, counts
    shown = {line.split()[1] for line in (*commands("docs/usage.md"), *commands("docs/monitoring.md"))}
    assert shown == set(COMMANDS), "the guides to commands and to monitoring show every command"


def test_every_environment_variable_is_documented():
    used = {v for path in (ROOT / "src").rglob("*.py") for v in re.findall(r"HOLDFAST_[A-Z_]+", path.read_text())}
    documented = set(re.findall(r"HOLDFAST_[A-Z_]+", (ROOT / "docs" / "install.md").read_text()))
    assert len(used) >= 2
    assert documented == used


def test_every_plan_and_selection_has_a_row():
    rows = re.findall(r"^\| `([\w-]+)` \|", (ROOT / "docs/protocols.md").read_text(), re.MULTILINE)
    assert [row for row in rows if row in (*PLANS, *SELECTIONS)] == [*PLANS, *SELECTIONS]


def test_column_names_of_the_guide_are_recognised():
    count = 0
    for role, recognised in {**SYNONYMS, "pair": tuple(" + ".join(pair) for pair in PAIRS)}.items():
        (cell,) = re.findall(rf"^\| {role} \| (.+) \|$", (ROOT / "docs" / "data.md").read_text(), re.MULTILINE)
        names = [word.strip() for word in cell.split(";")[0].split(",")]
        assert set(names) - {"..."} <= set(recognised), role
        count += len(names)
    assert count >= 40


@pytest.mark.parametrize("name", NAMES)
def test_documents_have_a_title_and_no_advertising(name):
    text = (ROOT / name).read_text()
    assert text.startswith("# ")
    assert text.endswith("\n")
    assert not re.search(r"(?i)\b(blazing|cutting-edge|state-of-the-art|powerful|seamless|revolutionary)\b", text)
