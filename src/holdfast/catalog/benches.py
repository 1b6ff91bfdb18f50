"""Speed measurements of `holdfast bench`."""

from __future__ import annotations

from holdfast.catalog.entry import BenchEntry

BENCHES = {
    "methods": BenchEntry("holdfast.bench.methods:run", "a training step of each rule against a step of ERM"),
    "costs": BenchEntry("holdfast.bench.costs:run", "the same of the rules that have no bar"),
    "loop": BenchEntry("holdfast.bench.loop:run", "the training loop against one written by hand"),
    "cache": BenchEntry("holdfast.bench.cache:run", "cached features of a frozen encoder against computing them"),
    "read": BenchEntry("holdfast.bench.read:run", "reads of memories against a feed-forward layer"),
    "mil": BenchEntry("holdfast.bench.mil:run", "a meta step of MIL and a prediction with its memory against ERM's"),
    "hma": BenchEntry("holdfast.bench.hma:run", "a read of HMA's real memory and a step of HMA against the plain ways"),
    "experts": BenchEntry(
        "holdfast.bench.experts:run", "experts against a plain layer of the same work; a step of GMoE"
    ),
    "gmap": BenchEntry("holdfast.bench.gmap:run", "a layer and a step with a general memory against the plain ones"),
    "engines": BenchEntry(
        "holdfast.bench.engines:run", "200 tiny runs by Ray against local processes, and their overhead"
    ),
    "cluster": BenchEntry(
        "holdfast.bench.cluster:run", "200 tiny runs on two Ray nodes against what fewer runs foretell"
    ),
    "serve": BenchEntry("holdfast.bench.serve:run", "a server with 32 clients against predictions offline"),
    "recurrent": BenchEntry("holdfast.bench.recurrent:run", "an LSTM that reads a bank of slots against torch's LSTM"),
}
