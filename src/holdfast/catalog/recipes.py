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
    "hma/table1": Entry("holdfast.recipes.hma:table1", "HMA: all of a pretrained ViT is tuned (Qiu et al., 2023)"),
    "hma/table2": Entry("holdfast.recipes.hma:table2", "HMA on top of prompts of a ViT (Qiu et al., 2023)"),
    "hma/table3": Entry("holdfast.recipes.hma_graphs:table3", "HMA: molecules by their scaffold (Qiu et al., 2023)"),
    "hma/table4": Entry("holdfast.recipes.hma_graphs:table4", "HMA beside augmentations of graphs (Qiu et al., 2023)"),
    "hma/table5": Entry("holdfast.recipes.hma_graphs:table5", "HMA: graphs whose degree shifts (Qiu et al., 2023)"),
    "hma/table6": Entry("holdfast.recipes.hma_graphs:table6", "HMA: graphs whose size shifts (Qiu et al., 2023)"),
    "hma/table7": Entry("holdfast.recipes.hma:table7", "HMA: CIFAR-10 with ResNet-18 (Qiu et al., 2023)"),
    "hma/table8": Entry("holdfast.recipes.hma:table8", "HMA: class token and head of a ViT (Qiu et al., 2023)"),
    "hma/figure2": Entry("holdfast.recipes.hma:figure2", "HMA: digits whose colour misleads (Qiu et al., 2023)"),
    "hma/figure5": Entry("holdfast.recipes.hma_graphs:figure5", "HMA by the sizes of its memories (Qiu et al., 2023)"),
}
