"""The user guide: every section asks a question and has one block of code and the figure that the block draws."""

import re
from xml.etree import ElementTree

import pytest

from studies import guide


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
