"""Published tables and figures that `holdfast reproduce` runs; their numbers are in `lab/recipes/*.toml`."""

from dataclasses import dataclass
from typing import Any

from holdfast.catalog.entry import Entry

_CITATIONS = {
    "mil": "Jia & Zhang, 2023",
    "pmb": "Asghar et al., 2020",
    "hma": "Qiu et al., 2023",
    "gmoe": "Li et al., 2023",
    "gmap": "Wan et al., 2022",
}
_ABOUT = {
    "mil/table1": "MIL: sentiment with RoBERTa-base",
    "mil/table2": "MIL: inference with RoBERTa-base",
    "mil/table3": "MIL compared with the same number of parameters without memory",
    "mil/table5": "MIL: sentiment with BERT-base",
    "mil/table6": "MIL: inference with BERT-base",
    "mil/figure5": "MIL by memory size",
    "mil/figure7": "MIL by memory learning rate",
    "pmb/table1": "PMB: five genres, each in-domain",
    "pmb/table2": "PMB: from one genre to another",
    "pmb/table3": "PMB: five genres in sequence, scored after each",
    "pmb/table4": "PMB: five genres in sequence, final scores",
    "pmb/table5": "PMB: dialogue from films, then Ubuntu",
    "pmb/figure4": "PMB by the number of added slots",
    "hma/table1": "HMA: full tuning of a pretrained ViT",
    "hma/table2": "HMA on top of ViT prompts",
    "hma/table3": "HMA: molecules with a scaffold split",
    "hma/table4": "HMA and graph augmentations",
    "hma/table5": "HMA: graphs with a degree shift",
    "hma/table6": "HMA: graphs with a size shift",
    "hma/table7": "HMA: CIFAR-10 with ResNet-18",
    "hma/table8": "HMA: tuning class token and head of a ViT",
    "hma/figure2": "HMA: digits with a misleading colour",
    "hma/figure5": "HMA by memory sizes",
    "gmoe/table1": "GMoE: eight image data sets",
    "gmoe/table2": "GMoE combined with other methods",
    "gmoe/table3": "GMoE trained on paintings only",
    "gmoe/table9": "GMoE: DomainNet by steps and selection",
    "gmoe/table10": "GMoE selected by leave-one-domain-out",
    "gmoe/table11": "GMoE: three methods on three networks",
    "gmoe/table12": "GMoE trained on a single domain",
    "gmoe/table13": "GMoE: expert positions, routers and a larger ViT",
    "gmoe/table15": "GMoE compared with a stronger ResNet-50",
    "gmoe/table16": "GMoE: cost per step",
    "gmoe/table17": "GMoE: birds in four styles",
    "gmoe/experts": "GMoE by the number of experts",
    "gmap/table1": "G-MAP: texts from four fields, four strategies",
    "gmap/table2": "G-MAP after pretraining on the task",
    "gmap/table3": "G-MAP: questions and tags",
    "gmap/table4": "G-MAP with a trained memory model",
    "gmap/table5": "G-MAP: other attention variants",
    "gmap/figure1": "G-MAP: masked words before and after DAPT",
    "gmap/figure4": "G-MAP by pairs of layers",
    "gmap/figure5": "G-MAP in pretraining",
    "gmap/figure6": "G-MAP by the reading layer",
}


@dataclass(frozen=True)
class RecipeEntry(Entry):
    """A published table, of which `holdfast list` shows the numbers."""

    def details(self, name: str) -> dict[str, Any]:
        recipe = self.load()(name)
        return {"claim": recipe.claim, "notes": list(recipe.notes), "rows": recipe.json()}

    def shown(self, name: str) -> Any:
        from lab.recipes.command import published_table

        return published_table(self.load()(name))


RECIPES = {
    name: RecipeEntry("lab.recipes.recipe:load_recipe", f"{about} ({_CITATIONS[name.partition('/')[0]]})")
    for name, about in _ABOUT.items()
}
