"""Speed measurements of `holdfast bench`."""

from __future__ import annotations

from holdfast.catalog.entry import BenchEntry

BENCHES = {
    "methods": BenchEntry("holdfast.bench.methods:run", "training step of methods with a target, compared with ERM"),
    "costs": BenchEntry("holdfast.bench.methods:run_costs", "training step of all other methods, compared with ERM"),
    "loop": BenchEntry("holdfast.bench.loop:run", "training loop, compared with a hand-written loop"),
    "cache": BenchEntry(
        "holdfast.bench.loop:run_cache", "cached features of a frozen encoder, compared with computing them"
    ),
    "read": BenchEntry("holdfast.bench.read:run", "memory reads, compared with a feed-forward layer"),
    "mil": BenchEntry("holdfast.bench.mil:run", "meta step of MIL and prediction with its memory, compared with ERM"),
    "hma": BenchEntry("holdfast.bench.hma:run", "queue read and training step of HMA, compared with the plain network"),
    "experts": BenchEntry(
        "holdfast.bench.experts:run", "expert layer, compared with a dense layer of equal work; training step of GMoE"
    ),
    "gmap": BenchEntry(
        "holdfast.bench.gmap:run", "layer and training step with a general memory, compared with the plain network"
    ),
    "engines": BenchEntry("holdfast.bench.engines:run", "200 tiny runs with Ray, compared with local processes"),
    "cluster": BenchEntry(
        "holdfast.bench.engines:run_cluster",
        "200 tiny runs on two Ray nodes, compared with the extrapolation from fewer runs",
    ),
    "serve": BenchEntry("holdfast.bench.serve:run", "server with 32 clients, compared with offline prediction"),
    "recurrent": BenchEntry(
        "holdfast.bench.read:run_recurrent", "LSTM with a memory bank, compared with torch.nn.LSTM"
    ),
}
