"""Configuration of the documentation site, which `make docs` builds from a copy of this folder."""

from holdfast.core.environment import VERSION
from studies import site

project, author, release = "Holdfast", "The Holdfast contributors", VERSION
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_design"]
source_suffix = {".md": "markdown"}
root_doc = "index"
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # some pages start their sections at the third level
html_theme = "furo"
html_title = f"Holdfast {VERSION}"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}


def setup(app: object) -> None:
    """Connect the changes to pages and members that the site needs."""
    app.connect("source-read", site.rewrite_links)  # pyright: ignore[reportAttributeAccessIssue]
    app.connect("autodoc-skip-member", site.skip_member)  # pyright: ignore[reportAttributeAccessIssue]
