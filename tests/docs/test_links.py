"""Links of all documents lead somewhere, and the check finds those that do not."""

import pytest

from studies import links, site


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


def test_images_are_links(tmp_path):
    page = tmp_path / "page.md"
    page.write_text('# A page\n\n<img alt="x" src="gone.png#gh-dark-mode-only">\n![x](gone.svg)\n')
    assert [line for line, _ in links.links(page)] == [3, 4]
    assert len(links.faults([page])) == 2


def test_the_site_is_not_built_with_a_broken_link(tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n[this](gone.md)\n")
    monkeypatch.setattr(links, "documents", lambda: [page])
    monkeypatch.setattr(site, "stage", lambda folder: pytest.fail("the site was built"))
    assert site.main() == 1
    assert "link 'gone.md': the file does not exist" in capsys.readouterr().out
