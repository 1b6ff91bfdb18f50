"""Published sets of graphs and digits that the user brings; their homes are told where a file is missing."""

from __future__ import annotations

from holdfast.catalog.entry import Entry

_SETS = "holdfast.data.graph_sets"
MORE_DATASETS = {
    "imdb-binary": Entry(f"{_SETS}:IMDB_BINARY.read", "who acts with whom, 2 genres (chrsmrrs.github.io/datasets)"),
    "imdb-multi": Entry(f"{_SETS}:IMDB_MULTI.read", "who acts with whom, 3 genres (chrsmrrs.github.io/datasets)"),
    "reddit-binary": Entry(
        f"{_SETS}:REDDIT_BINARY.read", "who answers whom, 2 kinds of threads (chrsmrrs.github.io/datasets)"
    ),
    "reddit-multi-5k": Entry(
        f"{_SETS}:REDDIT_MULTI_5K.read", "who answers whom, 5 places (chrsmrrs.github.io/datasets)"
    ),
    "reddit-multi-12k": Entry(
        f"{_SETS}:REDDIT_MULTI_12K.read", "who answers whom, 11 places (chrsmrrs.github.io/datasets)"
    ),
    "nci1": Entry(f"{_SETS}:NCI1.read", "compounds against lung cancer (chrsmrrs.github.io/datasets)"),
    "nci109": Entry(f"{_SETS}:NCI109.read", "compounds against ovarian cancer (chrsmrrs.github.io/datasets)"),
    "proteins": Entry(f"{_SETS}:PROTEINS.read", "proteins, enzymes or not (chrsmrrs.github.io/datasets)"),
    "dd": Entry(f"{_SETS}:DD.read", "proteins by their amino acids, enzymes or not (chrsmrrs.github.io/datasets)"),
    "bace": Entry(f"{_SETS}:BACE.read", "molecules that bind BACE-1, scaffold split (ogb.stanford.edu)"),
    "bbbp": Entry(f"{_SETS}:BBBP.read", "molecules that enter the brain, scaffold split (ogb.stanford.edu)"),
    "hiv": Entry(f"{_SETS}:HIV.read", "molecules that hold HIV up, scaffold split (ogb.stanford.edu)"),
    "colored-mnist": Entry(
        "holdfast.data.digits:colored_mnist", "digits below five or not, whose colour misleads (Arjovsky et al., 2019)"
    ),
}
