"""Published tables and figures that `holdfast reproduce` runs."""

from __future__ import annotations

from holdfast.catalog.entry import RecipeEntry

RECIPES = {
    "mil/table1": RecipeEntry("holdfast.recipes.mil:table1", "MIL: sentiment with RoBERTa-base (Jia & Zhang, 2023)"),
    "mil/table2": RecipeEntry("holdfast.recipes.mil:table2", "MIL: inference with RoBERTa-base (Jia & Zhang, 2023)"),
    "mil/table3": RecipeEntry(
        "holdfast.recipes.mil:table3", "MIL beside as many parameters without it (Jia & Zhang, 2023)"
    ),
    "mil/table5": RecipeEntry("holdfast.recipes.mil:table5", "MIL: sentiment with BERT-base (Jia & Zhang, 2023)"),
    "mil/table6": RecipeEntry("holdfast.recipes.mil:table6", "MIL: inference with BERT-base (Jia & Zhang, 2023)"),
    "mil/figure5": RecipeEntry("holdfast.recipes.mil:figure5", "MIL by the size of its memory (Jia & Zhang, 2023)"),
    "mil/figure7": RecipeEntry(
        "holdfast.recipes.mil:figure7", "MIL by the learning rate of its memory (Jia & Zhang, 2023)"
    ),
    "pmb/table1": RecipeEntry("holdfast.recipes.pmb:table1", "PMB: five genres, each by itself (Asghar et al., 2020)"),
    "pmb/table2": RecipeEntry("holdfast.recipes.pmb:table2", "PMB: from one genre to another (Asghar et al., 2020)"),
    "pmb/table3": RecipeEntry(
        "holdfast.recipes.pmb:table3", "PMB: five genres in turn, after each (Asghar et al., 2020)"
    ),
    "pmb/table4": RecipeEntry(
        "holdfast.recipes.pmb:table4", "PMB: five genres in turn, at the end (Asghar et al., 2020)"
    ),
    "pmb/table5": RecipeEntry(
        "holdfast.recipes.pmb:table5", "PMB: dialogue of films, then Ubuntu (Asghar et al., 2020)"
    ),
    "pmb/figure4": RecipeEntry(
        "holdfast.recipes.pmb:figure4", "PMB by the number of added slots (Asghar et al., 2020)"
    ),
    "hma/table1": RecipeEntry(
        "holdfast.recipes.hma:table1", "HMA: all of a pretrained ViT is tuned (Qiu et al., 2023)"
    ),
    "hma/table2": RecipeEntry("holdfast.recipes.hma:table2", "HMA on top of prompts of a ViT (Qiu et al., 2023)"),
    "hma/table3": RecipeEntry(
        "holdfast.recipes.hma_graphs:table3", "HMA: molecules by their scaffold (Qiu et al., 2023)"
    ),
    "hma/table4": RecipeEntry(
        "holdfast.recipes.hma_graphs:table4", "HMA beside augmentations of graphs (Qiu et al., 2023)"
    ),
    "hma/table5": RecipeEntry(
        "holdfast.recipes.hma_graphs:table5", "HMA: graphs whose degree shifts (Qiu et al., 2023)"
    ),
    "hma/table6": RecipeEntry("holdfast.recipes.hma_graphs:table6", "HMA: graphs whose size shifts (Qiu et al., 2023)"),
    "hma/table7": RecipeEntry("holdfast.recipes.hma:table7", "HMA: CIFAR-10 with ResNet-18 (Qiu et al., 2023)"),
    "hma/table8": RecipeEntry("holdfast.recipes.hma:table8", "HMA: class token and head of a ViT (Qiu et al., 2023)"),
    "hma/figure2": RecipeEntry("holdfast.recipes.hma:figure2", "HMA: digits whose colour misleads (Qiu et al., 2023)"),
    "hma/figure5": RecipeEntry(
        "holdfast.recipes.hma_graphs:figure5", "HMA by the sizes of its memories (Qiu et al., 2023)"
    ),
    "gmoe/table1": RecipeEntry("holdfast.recipes.gmoe:table1", "GMoE: eight sets of images (Li et al., 2023)"),
    "gmoe/table2": RecipeEntry("holdfast.recipes.gmoe:table2", "GMoE: other rules on top of it (Li et al., 2023)"),
    "gmoe/table3": RecipeEntry(
        "holdfast.recipes.gmoe_single:table3", "GMoE trained on paintings alone (Li et al., 2023)"
    ),
    "gmoe/table9": RecipeEntry(
        "holdfast.recipes.gmoe:table9", "GMoE: DomainNet by steps and selection (Li et al., 2023)"
    ),
    "gmoe/table10": RecipeEntry(
        "holdfast.recipes.gmoe:table10", "GMoE chosen by leaving domains out (Li et al., 2023)"
    ),
    "gmoe/table11": RecipeEntry(
        "holdfast.recipes.gmoe:table11", "GMoE: three rules on three networks (Li et al., 2023)"
    ),
    "gmoe/table12": RecipeEntry(
        "holdfast.recipes.gmoe_single:table12", "GMoE trained on one domain alone (Li et al., 2023)"
    ),
    "gmoe/table13": RecipeEntry(
        "holdfast.recipes.gmoe:table13", "GMoE: places, routers, a larger ViT (Li et al., 2023)"
    ),
    "gmoe/table15": RecipeEntry("holdfast.recipes.gmoe:table15", "GMoE beside a stronger ResNet-50 (Li et al., 2023)"),
    "gmoe/table16": RecipeEntry("holdfast.recipes.gmoe_single:table16", "GMoE: what a step costs (Li et al., 2023)"),
    "gmoe/table17": RecipeEntry("holdfast.recipes.gmoe:table17", "GMoE: birds in four styles (Li et al., 2023)"),
    "gmoe/experts": RecipeEntry("holdfast.recipes.gmoe_single:experts", "GMoE by the number of its experts"),
    "gmap/table1": RecipeEntry(
        "holdfast.recipes.gmap:table1", "G-MAP: texts of four fields, strategies (Wan et al., 2022)"
    ),
    "gmap/table2": RecipeEntry(
        "holdfast.recipes.gmap:table2", "G-MAP after pretraining on the task (Wan et al., 2022)"
    ),
    "gmap/table3": RecipeEntry("holdfast.recipes.gmap:table3", "G-MAP: questions and tags (Wan et al., 2022)"),
    "gmap/table4": RecipeEntry("holdfast.recipes.gmap:table4", "G-MAP: a memory that learns too (Wan et al., 2022)"),
    "gmap/table5": RecipeEntry("holdfast.recipes.gmap:table5", "G-MAP: other ways to attend (Wan et al., 2022)"),
    "gmap/figure1": RecipeEntry(
        "holdfast.recipes.gmap_figures:figure1", "hidden words before and after DAPT (Wan et al., 2022)"
    ),
    "gmap/figure4": RecipeEntry("holdfast.recipes.gmap_figures:figure4", "G-MAP by pairs of layers (Wan et al., 2022)"),
    "gmap/figure5": RecipeEntry("holdfast.recipes.gmap_figures:figure5", "G-MAP in pretraining (Wan et al., 2022)"),
    "gmap/figure6": RecipeEntry(
        "holdfast.recipes.gmap_figures:figure6", "G-MAP by the layer that reads (Wan et al., 2022)"
    ),
}
