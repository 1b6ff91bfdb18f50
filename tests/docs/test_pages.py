"""Pages of the documentation: the guide with its figures, links, generated pages, and the tables of the theory."""

import importlib.util
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from holdfast.catalog import METHODS
from studies import guide, links, site
from studies.alignment import COUNTS, NETWORKS, NOISY, World, learned


def test_every_section_has_a_question_code_and_a_figure():
    sections = guide.sections()
    assert len(sections) >= 6
    for title, text in sections.items():
        assert title.endswith("?")
        (block,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        ((alternative, name),) = re.findall(r"^!\[(.+)\]\(images/guide/(.+)\)$", text, re.MULTILINE)
        assert f'savefig("{name}")' in block
        assert len(alternative) > 30
    assert len(guide.blocks()) == len(sections) + 1


@pytest.mark.parametrize("name", guide.figures())
def test_figure_is_small_and_has_its_title(name):
    path = guide.IMAGES / name
    assert path.stat().st_size <= guide.LARGEST
    text = " ".join(ElementTree.parse(path).getroot().itertext())
    (block,) = [block for block in guide.blocks() if f'savefig("{name}")' in block]
    (title,) = re.findall(r'title="([^"]+)"', block)
    assert title in text


def test_no_other_figures_are_stored():
    assert sorted(path.name for path in guide.IMAGES.iterdir()) == sorted(guide.figures())


def test_links_of_all_documents_lead_somewhere():
    paths = links.documents()
    assert sum(1 for path in paths for _ in links.links(path)) > 200
    assert links.faults(paths) == []


@pytest.mark.parametrize(
    ("target", "wrong"),
    [
        ("other.md", ""),
        ("other.md#two-words-and-code", ""),
        ("other.md#twice-1", ""),
        ("#a-page", ""),
        ("https://example.org/a?b=c#d", ""),
        ("mailto:a@example.org", ""),
        ("gone.md", "the file does not exist"),
        ("other.md#gone", "other.md has no heading with this anchor"),
        ("other.md#in-a-block", "other.md has no heading with this anchor"),
        ("#gone", "page.md has no heading with this anchor"),
        ("data.csv#row", "only documents have anchors"),
        ("", "the link is empty"),
        ("http://example.org", "the address starts with http:, use https:"),
        ("https://localhost/x", "the address has no valid host name"),
        ("mailto:nobody", "the mail address is incomplete"),
    ],
)
def test_faults_are_named_with_their_place(tmp_path, target, wrong):
    (tmp_path / "other.md").write_text(
        "# Other\n\n## Two words, and `code`\n\n## Twice\n\n## [Twice](x.md)\n\n```text\n# in a block\n```\n"
    )
    (tmp_path / "data.csv").write_text("a\n")
    page = tmp_path / "page.md"
    page.write_text(f"# A page\n\nSee [this]({target}) and `[code](gone.md)`.\n\n```text\n[block](gone.md)\n```\n")
    assert links.faults([page]) == ([f"{page}:3: link {target!r}: {wrong}"] if wrong else [])


def test_images_are_links_and_the_site_is_not_built_with_a_broken_one(tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.md"
    page.write_text('# A page\n\n<img alt="x" src="gone.png#gh-dark-mode-only">\n![x](gone.svg)\n[this](gone.md)\n')
    assert [line for line, _ in links.links(page)] == [3, 4, 5]
    assert len(links.faults([page])) == 3
    monkeypatch.setattr(links, "documents", lambda: [page])
    monkeypatch.setattr(site, "stage", lambda folder: pytest.fail("the site was built"))
    assert site.main() == 1
    assert "link 'gone.md': the file does not exist" in capsys.readouterr().out


REFERENCE = {"gallery/index"} | {f"reference/{name.removesuffix('.md')}" for name in site.PAGES}


def test_every_public_name_is_documented():
    names = [name for names in site.public_names().values() for name in names]
    assert len(names) > 30
    assert site.undocumented() == []
    page = site.api_page()
    assert all(f"### {name}\n" in page for name in names)


def test_commands_page_has_every_option_with_its_help():
    page, count = site.cli_page(), 0
    for name, command in site.commands().items():
        section = page.split(f"## {name}\n")[1].split("\n## ")[0]
        for parameter in command.params:
            if parameter.param_type_name == "option":
                row = next(line for line in section.splitlines() if line.startswith(f"| `{parameter.opts[0]}"))
                assert len(row.split("|")[2].strip()) > 3, (name, row)
                count += 1
    assert count > 100


def test_every_method_has_a_card():
    page = site.methods_page()
    for name in METHODS:
        card = page.split(f"## `{name}`\n")[1].split("\n## ")[0]
        assert all(title in card for title in ("**Needs**", "relative to ERM", f"--methods 'erm,{name}'"))
        assert re.search(r"\bUse it\b|\buse it\b", card), (name, "when it helps")
        entry = METHODS[name]
        assert all(f"| `method.{setting}` |" in card for setting in entry.setting_names())
        assert "(" in entry.about or entry.family == "simple baselines", (name, "the paper")
    assert not re.search(r"^\| `method\.\w+` \| .* \|  \|$", page, re.MULTILINE), "a setting without a help text"


def test_every_page_is_in_the_table_of_contents():
    text = (site.DOCS / "index.md").read_text()
    listed = [line for block in re.findall(r"```\{toctree\}\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    listed = [line for line in listed if line and not line.startswith(":")]
    pages = {path.relative_to(site.DOCS).with_suffix("").as_posix() for path in site.DOCS.rglob("*.md")} - {"index"}
    assert len(listed) == len(set(listed))
    assert set(listed) == pages | REFERENCE


def test_links_out_of_the_site_become_text():
    source = ["See [audit](audit.md#limits), [a page](https://x.org), [the log](../CHANGELOG.md) and [none](gone.md)."]
    site.rewrite_links(None, "tutorial", source)
    assert source == ["See [audit](audit.md#limits), [a page](https://x.org), the log and [none](gone.md)."]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("furo") is None, reason="the extra docs is not installed")
def test_site_builds_without_warnings(capfd):
    assert site.main() == 0, capfd.readouterr().err


ROOT = Path(__file__).resolve().parents[2]
RESULTS = json.loads((ROOT / "results" / "gmoe" / "alignment.json").read_text())["found"]
SETS = ("valid", "pixel-shift", "patch-shift")


def percent(value: float) -> str:
    return f"{100 * value:.0f}"


def table_lines() -> list[str]:
    names = dict(zip(NETWORKS, ("MLP", "convolution"), strict=True))
    rows = [[names[kind], *(percent(row[name]) for name in SETS)] for kind, row in RESULTS["noiseless"].items()]
    for kind, noisy in RESULTS["noisy"].items():
        for probabilities, row in noisy.items():
            accuracies = (", ".join(percent(each[name]) for each in row.values()) for name in SETS)
            rows.append([names[kind], *probabilities.split(", "), *accuracies])
    for count, row in RESULTS["cases"].items():
        rows.append([count, *(", ".join(f"{v:.3f}" for v in values) for values in row.values())])
    return [f"| {' | '.join(cells)} |" for cells in rows]


def test_tables_match_the_stored_results():
    text = (ROOT / "docs" / "theory.md").read_text()
    lines = table_lines()
    assert len(lines) == len(NETWORKS) * (1 + len(NOISY)) + len(COUNTS) == 26
    for line in lines:
        assert line in text, line


@pytest.mark.slow
def test_study_reproduces_its_results():
    for kind in NETWORKS:
        for name, value in learned(kind, World())[50].items():
            assert value == pytest.approx(RESULTS["noiseless"][kind][name], abs=0.03)
