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
    "pmb/table1": Entry("holdfast.recipes.pmb:table1", "PMB: five genres, each by itself (Asghar et al., 2020)"),
    "pmb/table2": Entry("holdfast.recipes.pmb:table2", "PMB: from one genre to another (Asghar et al., 2020)"),
    "pmb/table3": Entry("holdfast.recipes.pmb:table3", "PMB: five genres in turn, after each (Asghar et al., 2020)"),
    "pmb/table4": Entry("holdfast.recipes.pmb:table4", "PMB: five genres in turn, at the end (Asghar et al., 2020)"),
    "pmb/table5": Entry("holdfast.recipes.pmb:table5", "PMB: dialogue of films, then Ubuntu (Asghar et al., 2020)"),
    "pmb/figure4": Entry("holdfast.recipes.pmb:figure4", "PMB by the number of added slots (Asghar et al., 2020)"),
}
