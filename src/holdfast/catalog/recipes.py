"""Published tables and figures that `holdfast reproduce` runs."""

from __future__ import annotations

from holdfast.catalog.entry import Entry

RECIPES = {
    "mil/table1": Entry("holdfast.recipes.mil:table1", "MIL: sentiment with RoBERTa-base (Jia & Zhang, 2023)"),
    "mil/table2": Entry("holdfast.recipes.mil:table2", "MIL: inference with RoBERTa-base (Jia & Zhang, 2023)"),
    "mil/table3": Entry("holdfast.recipes.mil:table3", "MIL beside as many parameters without it (Jia & Zhang, 2023)"),
    "mil/table5": Entry("holdfast.recipes.mil:table5", "MIL: sentiment with BERT-base (Jia & Zhang, 2023)"),
    "mil/table6": Entry("holdfast.recipes.mil:table6", "MIL: inference with BERT-base (Jia & Zhang, 2023)"),
    "mil/figure5": Entry("holdfast.recipes.mil:figure5", "MIL by the size of its memory (Jia & Zhang, 2023)"),
    "mil/figure7": Entry("holdfast.recipes.mil:figure7", "MIL by the learning rate of its memory (Jia & Zhang, 2023)"),
}
