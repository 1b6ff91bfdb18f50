"""Simple baselines that a comparison adds to its methods: a constant prediction, a linear regression and trees.

The regression is on features of the comparison's encoder if they are useful without training, and on the simple
features of the kind of example: TF-IDF of texts, columns of vectors, pixels, subtree counts of graphs.
Tables get gradient-boosted trees as well.
"""

from collections.abc import Sequence
from dataclasses import replace

from holdfast import catalog
from holdfast.catalog.encoders import SIMPLE_ENCODER
from holdfast.data.dataset import Dataset
from holdfast.spec import Spec
from holdfast.stats.labels import CONSTANT, SIMPLE
from holdfast.train.settings import with_method, with_rates

TABLES = ("table", "mixed")  # kinds that trees are usually good at
FEW_COLUMNS = 50  # of a table of numbers only, whose kind is `vector`
LIGHT = {"words": 1, "characters": 0, "min_df": 1, "features": 1000}  # of the text encoder of a constant prediction
INSERTED = ("experts", "template")  # settings of an encoder that add parts to train


def baseline_specs(base: Spec, dataset: Dataset, seeds: Sequence[int]) -> list[Spec]:
    """Return the specs of the baselines for the spec of a comparison; none for streams and other tasks."""
    kind = dataset.raw.kind
    fitting = [name for name in SIMPLE if not catalog.lookup("methods", name).unsupported(base.task)]
    constant = next((name for name in fitting if name in CONSTANT), None)
    trees = [name for name in fitting if catalog.lookup("methods", name).head]
    regressions = [name for name in fitting if name not in (*CONSTANT, *trees)]
    if constant is None or base.plan == "stream":
        return []
    plain = replace(base, neck="none", neck_args={}, head="linear", head_args={}, method_args={})
    plain = replace(plain, predict=Spec.predict, predict_args={})
    simple = replace(plain, encoder=SIMPLE_ENCODER[kind], encoder_args={})
    entry = catalog.lookup("encoders", base.encoder)
    useful = entry.pretrained or entry.tune == "frozen" or bool(base.encoder_args.get("weights"))
    frozen = [plain] if useful and not any(name in base.encoder_args for name in INSERTED) else []
    first, *others = [*frozen, simple]
    counts = LIGHT if kind == "text" else {}
    specs = [with_method(replace(simple, encoder_args=counts), constant)]  # nothing large is loaded or counted for it
    specs += [with_method(each, name) for name in regressions for each in (first, *others)]
    if trees and (kind in TABLES or (kind == "vector" and 0 < len(dataset.columns or ()) <= FEW_COLUMNS)):
        specs.append(with_method(simple, trees[0]))
    return [replace(spec, seed=seed) for spec in with_rates(specs, {}) for seed in seeds]
