"""Small sizes of parts for the contract tests, without slow imports."""

from holdfast import catalog

NECK = {"slots": 9, "heads": 2, "key_width": 4, "real": 10, "label_width": 4, "support": 6}
FEWER = {"product-memory": {"top": 3}}
# the published weight of the bottleneck is for a fine-tuned ResNet; here it would make all features equal
LIGHT = {"ib-erm": {"weight": 0.1}, "ib-irm": {"weight": 1.0, "bottleneck": 0.1}}


def small(neck: str) -> dict:
    """Return the small sizes that a neck has settings for."""
    names = catalog.lookup("necks", neck).setting_names()
    return {key: value for key, value in {**NECK, **FEWER.get(neck, {})}.items() if key in names}
