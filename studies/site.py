"""Build the documentation site: python -m studies.site checks all links and writes it to build/docs.

The site consists of docs/ and of generated pages: commands, public names, one card per method, and the executed
examples of the gallery. Both are copied to build/site first, so that docs/ has no generated pages.
"""

from __future__ import annotations

import importlib
import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import typer.main

from holdfast.catalog import METHODS
from holdfast.cli import add_commands, app
from studies import gallery, links, modules
from studies.methods import cost, defaults, descriptions, needs, setting_helps

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MODULES = ("holdfast", "holdfast.nn")  # modules with public names
LINK = re.compile(r"\]\((?!\w+://|#)([^)#\s]+)(#[^)\s]*)?\)")


def commands() -> dict[str, Any]:
    """Return the commands by name."""
    add_commands()
    return dict(typer.main.get_command(app).commands)  # pyright: ignore[reportAttributeAccessIssue]


def cli_page() -> str:
    """Return the reference of all commands: description, examples, arguments and options with defaults."""
    lines = ["# Commands", "", "`holdfast --help` and `holdfast COMMAND --help` print the same texts.", ""]
    for name, command in commands().items():
        text = (command.help or "").replace("\f", "").strip()
        lines += [f"## {name}", "", text, "", "| option | meaning |", "|---|---|"]
        for parameter in command.params:
            is_argument = parameter.param_type_name == "argument"
            flags = parameter.name.upper() if is_argument else ", ".join([*parameter.opts, *parameter.secondary_opts])
            default = "" if is_argument else _default(parameter)
            about = (getattr(parameter, "help", "") or "").replace("|", "\\|").replace("\n", " ")
            lines.append(f"| `{flags}` | {about}{default} |")
        lines.append("")
    return "\n".join(lines)


def _default(parameter: Any) -> str:
    """Return the default of an option as a sentence, empty without one."""
    value = parameter.default
    shown = value is not None and not isinstance(value, bool) and not callable(value) and value != ()
    return f" Default: `{value}`." if shown else ""


def public_names() -> dict[str, list[str]]:
    """Return the public names per module, without the version."""
    return {
        name: [each for each in importlib.import_module(name).__all__ if not each.startswith("__")] for name in MODULES
    }


def undocumented() -> list[str]:
    """Return public names, and public methods and properties of public classes, without a docstring."""
    missing = []
    for module, names in public_names().items():
        for name in names:
            value = getattr(importlib.import_module(module), name)
            members = vars(value).items() if isinstance(value, type) else ()
            shown = {key: member for key, member in members if not key.startswith("_") and _is_documented_kind(member)}
            for path, each in {name: value, **{f"{name}.{key}": member for key, member in shown.items()}}.items():
                if not (inspect.getdoc(each) or "").strip():
                    missing.append(f"{module}.{path}")
    return missing


def _is_documented_kind(member: Any) -> bool:
    """Whether a member of a class is a method or a property, which the reference lists; fields have comments."""
    return inspect.isfunction(member) or isinstance(member, property | classmethod | staticmethod)


def api_page() -> str:
    """Return the reference of all public names, which Sphinx fills from their docstrings."""
    lines = ["# Python interface", ""]
    for module, names in public_names().items():
        lines += [f"## {module}", "", f"```{{eval-rst}}\n.. currentmodule:: {module}\n```", ""]
        for name in names:
            kind = "autoclass" if isinstance(getattr(importlib.import_module(module), name), type) else "autofunction"
            lines += [f"### {name}", "", "```{eval-rst}", f".. {kind}:: {module}.{name}", "```", ""]
    return "\n".join(lines)


def method_card(name: str) -> list[str]:
    """Return the card of one method: paper, objective, when to use it, requirements, cost, and settings."""
    entry = METHODS[name]
    lines = [f"## `{name}`", "", f"{entry.about[:1].upper()}{entry.about[1:]}.", ""]
    described = descriptions().get(name) or _objective(entry)
    lines += [LINK.sub(r"](../\1\2)", described), ""]
    lines += [f"- **Needs**: {needs(entry) or 'nothing beyond labelled examples from several domains'}"]
    measured = {place: cost(name, device) for place, device in (("GPU", "cuda"), ("CPU", "cpu"))}
    shown = " and ".join(f"{ratio} on a {place}" for place, ratio in measured.items() if ratio)
    unmeasured = "solved at once, without training steps" if entry.family == "simple baselines" else "not measured"
    lines += [f"- **Step time relative to ERM**: {shown or unmeasured}", ""]
    helps = setting_helps(entry)
    rows = [f"| `method.{key}` | `{value}` | {helps[key]} |" for key, value in defaults(entry).items()]
    lines += ["| setting | default | meaning |", "|---|---|---|", *rows] if rows else ["It has no settings."]
    lines += ["", "```bash", f"holdfast compare YOUR.csv --methods 'erm,{name}'", "```", ""]
    return lines


def _objective(entry: Any) -> str:
    """Return the first paragraph of the docstring of a method, which states its equation."""
    text = (entry.load().__doc__ or "").strip()
    return " ".join(text.split("\n\n")[0].split())


def methods_page() -> str:
    """Return the cards of all methods by family."""
    lines = ["# Method cards", "", "[Methods](../methods.md) explains the objectives and when each method helps.", ""]
    for name in METHODS:
        lines += method_card(name)
    return "\n".join(lines)


PAGES = {"cli.md": cli_page, "api.md": api_page, "methods.md": methods_page, "modules.md": modules.page}


def stage(folder: Path) -> None:
    """Copy the pages of docs/ and write the generated ones next to them."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(DOCS, folder)
    (folder / "reference").mkdir()
    gallery.write(folder / "gallery")
    for name, page in PAGES.items():
        (folder / "reference" / name).write_text(page() + "\n", encoding="utf-8")


def skip_member(app: Any, what: str, name: str, value: Any, skip: bool, options: Any) -> bool:
    """Leave out the methods that scikit-learn adds for the routing of metadata."""
    return skip or bool(re.fullmatch(r"set_\w+_request", name))


def main() -> int:
    """Check the links of all documents and build the site; warnings are errors."""
    if links.main():
        return 1
    source, out = ROOT / "build" / "site", ROOT / "build" / "docs"
    stage(source)
    words = [sys.executable, "-m", "sphinx", "-b", "html", "-q", "-W", "--keep-going", str(source), str(out)]
    code = subprocess.run(words, cwd=ROOT, check=False).returncode
    sys.stdout.write(f"{out / 'index.html'}\n" if code == 0 else "the site has warnings, see above\n")
    return code


def rewrite_links(app: Any, page: str, source: list[str]) -> None:
    """Replace links to files outside docs, which the site does not contain, by their names."""
    folder = (DOCS / page).parent

    def replace(match: re.Match[str]) -> str:
        target = (folder / match[1]).resolve()
        inside = target.is_relative_to(DOCS) and target.suffix in (".md", ".svg", ".png", ".csv")
        return match[0] if inside or not target.exists() else "]{.outside}"

    text = LINK.sub(replace, source[0])
    source[0] = re.sub(r"\[([^\]]*)\]\{\.outside\}", r"\1", text)


if __name__ == "__main__":
    sys.exit(main())
