"""Speed measurements of `holdfast bench`."""

from holdfast.catalog.entry import Entry

_ABOUT = {  # function in lab.benchmarks, description
    "methods": ("methods:run", "training step of methods with a target, compared with ERM"),
    "costs": ("methods:run_costs", "training step of all other methods, compared with ERM"),
    "loop": ("loop:run", "training loop, compared with a hand-written loop"),
    "cache": ("loop:run_cache", "cached features of a frozen encoder, compared with computing them"),
    "read": ("read:run", "memory reads, compared with a feed-forward layer"),
    "mil": ("mil:run", "meta step of MIL and prediction with its memory, compared with ERM"),
    "hma": ("hma:run", "queue read and training step of HMA, compared with the plain network"),
    "experts": ("experts:run", "expert layer, compared with a dense layer of equal work; training step of GMoE"),
    "gmap": ("gmap:run", "layer and training step with a general memory, compared with the plain network"),
    "engines": ("engines:run", "200 tiny runs with Ray, compared with local processes"),
    "cluster": (
        "engines:run_cluster", "200 tiny runs on two Ray nodes, compared with the extrapolation from fewer runs"),
    "domainbed": (
        "domainbed:run", "`compare` end to end, compared with a loop like that of DomainBed on the same images"),
    "gpu": ("gpu:run", "training steps of ResNet-50 and ViT-S/16, and small runs at once, compared with one by one"),
    "kernels": ("kernels:run", "training steps of complete networks without one module of GPU kernels at a time"),
    "scaling": ("scaling:run", "growth of cost with steps, batch, domains, slots, experts and runs, as exponents"),
    "serve": ("serve:run", "server with 32 clients, compared with offline prediction"),
    "batched": ("batched:run", "nine small networks trained as one batched computation, compared with one by one"),
    "simple": ("simple:run", "simple baselines of a comparison, compared with scikit-learn on the same rows"),
    "tables": ("tables:run", "1 million rows of 50 mixed columns: read, audited and prepared, time and memory"),
    "recurrent": ("read:run_recurrent", "LSTM with a memory bank, compared with torch.nn.LSTM"),
}  # fmt: skip
BENCHES = {name: Entry(f"lab.benchmarks.{target}", about) for name, (target, about) in _ABOUT.items()}
