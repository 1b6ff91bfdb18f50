"""Small sizes of parts for the contract suites, apart from what takes long to import."""

from __future__ import annotations

from holdfast import catalog

NECK = {"slots": 9, "heads": 2, "key_width": 4, "real": 10, "label_width": 4, "support": 6}
FEWER = {"product-memory": {"top": 3}}
# the published weight of the bottleneck is for the small features of a tuned ResNet; here it would flatten them
LIGHT = {"ib-erm": {"weight": 0.1}, "ib-irm": {"weight": 1.0, "bottleneck": 0.1}}


def small(neck: str) -> dict:
    """The suite's small sizes, those that this neck has."""
    free = catalog.lookup("necks", neck).setting_names()
    return {key: value for key, value in {**NECK, **FEWER.get(neck, {})}.items() if key in free}
