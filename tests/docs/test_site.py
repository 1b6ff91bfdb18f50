"""Pages of the documentation site that are generated, and its table of contents."""

import importlib.util
import re

import pytest

from holdfast.catalog import METHODS
from studies import site

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
