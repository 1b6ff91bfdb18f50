"""The tables of docs/reproduction.md are what the records say."""

import json
from pathlib import Path

import pytest

from studies import gmap, gmoe, hma, mil, pmb_amazon, pmb_dialogue, pmb_genres
from studies.tables import RESULTS

PAGE = (Path(__file__).parents[2] / "docs" / "reproduction.md").read_text(encoding="utf-8").splitlines()
TABLES = {
    "amazon": lambda: mil.scores("amazon"),
    "mnli": lambda: mil.scores("mnli"),
    "amazon to others": lambda: mil.scores("amazon-cross"),
    "mnli to others": lambda: mil.scores("mnli-cross"),
    "distances": mil.distances,
    "search on amazon": lambda: mil.searched("search-amazon", 4),
    "search on mnli": lambda: mil.searched("search-mnli", 5),
    "amazon as a stream": pmb_amazon.amazon,
    "two genres": pmb_genres.two,
    "five genres": pmb_genres.five,
    "genre after genre": pmb_genres.in_turn,
    "dialogue": pmb_dialogue.table,
    "heterogeneous memory on amazon": lambda: hma.amazon().table(),
    "heterogeneous memory by the size of graphs": lambda: hma.size().table(),
    "search of sizes": hma.searched,
    "heterogeneous memory on networks of people": lambda: hma.people().table(),
    **{
        f"coloured digits, {encoder}, {pixels} pixels": lambda a=encoder, b=pixels: hma.digits(a, b).table()
        for encoder in ("pixel-mlp", "cnn")
        for pixels in (28, 14)
    },
    **{
        f"heterogeneous memory on molecules, {encoder}": lambda a=encoder: hma.molecules(a).table()
        for encoder in hma.GRAPHS
    },
    "heterogeneous memory everywhere": hma.summary,
    "domain models": gmap.pretrained,
    "search of rates": gmap.searched,
    "general memory on texts": gmap.texts,
    "general memory set by set": gmap.gains,
    "attentions to a general memory": gmap.kinds,
    "general memory on names": gmap.names,
    "general memory on answers": gmap.answers,
    **{f"experts, search from {start}": lambda a=start: gmoe.searched(a) for start in gmoe.STARTS},
    **{f"experts, rate of choice, {start}": lambda a=start: gmoe.chosen(a) for start in gmoe.STARTS},
    **{f"experts from {start}": lambda a=start: gmoe.pacs(a) for start in (*gmoe.STARTS, "random")},
    **{f"experts, one source, {start}": lambda a=start: gmoe.single(a) for start in gmoe.STARTS},
    "experts, more steps": lambda: gmoe.longer("dinov2-shape"),
    "experts on amazon": gmoe.amazon,
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_what_the_records_give(name):
    wanted = TABLES[name]()
    assert len(wanted) >= 4
    heads = [i for i, line in enumerate(PAGE) if line == wanted[0]]
    assert any(PAGE[i : i + len(wanted) + 1] == [*wanted, ""] for i in heads), wanted


def test_every_row_has_five_seeds_on_every_target():
    for folder, targets in (("amazon", 4), ("mnli", 5), ("amazon-cross", 2), ("mnli-cross", 2)):
        for row, records in mil.runs(folder).items():
            assert len(records) == 5 * targets, (folder, row)


def test_what_the_corpora_hold_is_what_was_counted():
    told = json.loads((RESULTS / "gmap" / "overlap.json").read_text(encoding="utf-8"))["sets"]
    held = {name: {k: v["in the corpus"] for k, v in each["splits"].items()} for name, each in told.items()}
    whole = [(name, kind) for name, each in told.items() for kind, n in each["splits"].items()
             if n["texts"] == n["in the corpus"]]  # fmt: skip
    assert whole == [("acl-arc", "train"), ("scierc", "dev"), ("scierc", "train"), ("ag-news", "train")]
    page = " ".join(PAGE)
    assert f"all {held['ag-news']['train']:,} of AG News" in page
    assert f"the {held['acl-arc']['test']} of ACL-ARC that also train, {held['imdb']['test']} of IMDB's" in page
    assert f"and {held['ncbi-disease']['test']} sentences of NCBI-disease" in page
    assert not any(held[name]["test"] for name in ("chemprot", "scierc", "ag-news", "conll2003"))
