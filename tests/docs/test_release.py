"""Files of a release: images, citation, changelog, templates, and what the package contains."""

import json
import re
import tomllib

import pytest
import typer.main
import yaml

from holdfast.cli import app
from holdfast.core.environment import VERSION
from tests.dist import NEEDED, check_wheel
from tests.docs.test_blocks import ROOT

INSTRUCTIONS = {"FROM", "ENV", "WORKDIR", "COPY", "RUN", "USER", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PINS = (ROOT / "constraints.txt").read_text().splitlines()


def instructions(name: str) -> list[tuple[str, str]]:
    """Return (instruction, arguments) of a Dockerfile; continued lines are joined."""
    text = re.sub(r"^#.*\n", "", (ROOT / name).read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.train"])
def test_images_copy_existing_files_and_install_pinned_versions(name):
    steps = instructions(name)
    assert {step for step, _ in steps} <= INSTRUCTIONS
    assert steps[0][0] == "FROM"
    assert ("USER", "10001") in steps, "the process must not run as root"
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    sources = [path for step, words in steps if step == "COPY" for path in words.split()[:-1]]
    assert sources
    for path in sources:
        assert (ROOT / path).exists(), path
        assert f"!{path}" in ignored, f"{path} is not part of the build context"
    commands = " ".join(words for step, words in steps if step == "RUN")
    assert set(re.findall(r"\S+==\S+", commands)) <= set(PINS)
    (extras,) = re.findall(r"\.\[([\w,]+)\]", commands)
    assert set(extras.split(",")) <= set(PROJECT["project"]["optional-dependencies"])


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.train"])
def test_images_start_a_valid_command(name):
    steps = dict(instructions(name))
    words = [*json.loads(steps["ENTRYPOINT"]), *json.loads(steps["CMD"])]
    assert words[0] == "holdfast"
    command = typer.main.get_command(app).commands[words[1]]  # pyright: ignore[reportAttributeAccessIssue]
    parsed = command.make_context(words[1], list(words[2:])).params
    if words[1] == "serve":
        assert str(parsed["port"]) == steps["EXPOSE"]


def test_citation_names_the_version_and_the_licence():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert str(citation["version"]) == VERSION
    assert citation["license"] == PROJECT["project"]["license"]["text"]
    assert {"cff-version", "message", "title", "authors", "type"} <= set(citation)


def test_changelog_has_versions_and_known_categories():
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    versions = [line for line in lines if line.startswith("## ")]
    assert versions[0] == "## [Unreleased]"
    assert all(re.fullmatch(r"## \[\d+\.\d+\.\d+\] - \d{4}-\d{2}-\d{2}", line) for line in versions[1:])
    categories = {line.removeprefix("### ") for line in lines if line.startswith("### ")}
    assert categories <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_templates_are_valid():
    folder = ROOT / ".github"
    for path in folder.glob("ISSUE_TEMPLATE/*.md"):
        _, header, body = path.read_text().split("---\n", 2)
        assert {"name", "about"} <= set(yaml.safe_load(header))
        assert body.strip()
    assert len(list(folder.glob("ISSUE_TEMPLATE/*.md"))) == 2
    targets = set(re.findall(r"`make ([\w-]+)`", (folder / "PULL_REQUEST_TEMPLATE.md").read_text()))
    assert targets <= set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_wheels_contain_the_package_alone():
    complete = [f"holdfast/{name}" for name in NEEDED] + ["holdfast-0.1.0.dist-info/METADATA"]
    assert check_wheel(complete) == []
    assert check_wheel([*complete, "tests/test_x.py"]) == ["tests/test_x.py"]
    assert check_wheel([*complete, "holdfast/results/mil.jsonl.gz"]) == ["holdfast/results/mil.jsonl.gz"]
    assert check_wheel(complete[1:]) == [f"missing: {NEEDED[0]}"]
    data = PROJECT["tool"]["setuptools"]["package-data"]["holdfast"]
    files = {p for pattern in data for p in (ROOT / "src" / "holdfast").glob(pattern)}
    others = {p for p in (ROOT / "src" / "holdfast").rglob("*") if p.is_file() and p.suffix not in (".py", ".pyc")}
    assert others == files, "files that the wheel would not contain"


def test_every_extra_is_documented():
    text = (ROOT / "docs" / "install.md").read_text()
    rows = re.findall(r"^\| (`[a-z].*?`) \|", text, re.MULTILINE)
    names = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert names == set(PROJECT["project"]["optional-dependencies"])


def test_images_of_the_readme_exist_and_are_small():
    paths = re.findall(r'src="([^"#]+)', (ROOT / "README.md").read_text())
    assert len(paths) == 3
    assert all((ROOT / path).stat().st_size < 200_000 for path in paths)
