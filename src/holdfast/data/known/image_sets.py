"""Published sets of images of several domains that have to be fetched by hand: home, folders, sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from holdfast.core.errors import Absent, BadInput
from holdfast.data.dataset import Dataset
from holdfast.data.readers.images import read_images

DOMAINBED = "https://github.com/facebookresearch/DomainBed (domainbed/scripts/download.py)"


@dataclass(frozen=True, kw_only=True)
class ImageSet:
    """One set: under which names its folder DOMAIN/CLASS/FILE is looked for, and what it must hold."""

    name: str
    home: str
    folders: tuple[str, ...]  # how its folder is called, the usual one first
    domains: Mapping[str, tuple[str, ...]]  # a domain -> other names of its folder
    classes: int
    size: int

    def read(self, *, data_dir: Path | None = None) -> Dataset:
        """The set in a folder, or the folder itself, with its domains called and ordered as they are published."""
        found = read_images(self._find(data_dir))
        order = list(self.domains)
        spelt = {word.lower(): name for name, others in self.domains.items() for word in (name, *others)}
        codes = []
        for domain in found.domains:
            if domain.lower() not in spelt:
                raise BadInput(f"'{domain}' is no domain of {self.name}: it has {', '.join(order)}; take it out")
            codes.append(order.index(spelt[domain.lower()]))
        domain = np.asarray(codes, dtype=np.int64)[found.domain]
        made = replace(found, name=self.name, domain=domain, domains=tuple(order)).checked()
        return replace(made, notes=(*made.notes, *differences(made, self.size, self.classes)))

    def _find(self, data_dir: Path | None) -> Path:
        if data_dir is not None:
            folder = Path(data_dir).expanduser()
            for path in (*(folder / name for name in self.folders), folder):
                if path.is_dir() and self._holds(path):
                    return path
        raise absent(self.name, self.home, f"{self.folders[0]}/DOMAIN/CLASS/FILE", data_dir)

    def _holds(self, folder: Path) -> bool:
        """Whether each domain has a folder there."""
        there = {path.name.lower() for path in folder.iterdir() if path.is_dir()}
        return all({name.lower(), *others} & there for name, others in self.domains.items())


def differences(found: Dataset, size: int, classes: int) -> list[str]:
    """One sentence where the files are not as many, or not of as many classes, as published."""
    told = [
        f"{here:,} {what} instead of {wanted:,}"
        for what, here, wanted in (("images", len(found), size), ("classes", len(found.classes), classes))
        if here != wanted
    ]
    return [f"{found.name} is not as published: {', '.join(told)}"] if told else []


def absent(name: str, home: str, layout: str, folder: Path | None) -> Absent:
    """What to tell where a set is not there."""
    place = "a folder that you name with --data-dir" if folder is None else str(folder)
    return Absent(f"the data set {name} is not downloaded by itself: get it from {home} and put {layout} into {place}")


PACS = ImageSet(
    name="pacs",
    home=DOMAINBED,
    folders=("PACS", "pacs", "kfold"),
    domains={"art": ("art_painting",), "cartoon": (), "photo": (), "sketch": ()},
    classes=7,
    size=9991,
)
VLCS = ImageSet(
    name="vlcs",
    home=DOMAINBED,
    folders=("VLCS", "vlcs"),
    domains={"Caltech101": ("caltech",), "LabelMe": (), "SUN09": ("sun",), "VOC2007": ("voc", "pascal")},
    classes=5,
    size=10_729,
)
OFFICE_HOME = ImageSet(
    name="office-home",
    home=DOMAINBED,
    folders=("office_home", "OfficeHomeDataset_10072016", "OfficeHome", "office-home"),
    domains={"art": (), "clipart": (), "product": (), "real": ("real world", "real_world", "realworld")},
    classes=65,
    size=15_588,
)
TERRA_INCOGNITA = ImageSet(
    name="terra-incognita",
    home=DOMAINBED,
    folders=("terra_incognita", "TerraIncognita", "terra-incognita"),
    domains={f"L{place}": (f"location_{place}",) for place in (100, 38, 43, 46)},
    classes=10,
    size=24_788,
)
DOMAIN_NET = ImageSet(
    name="domain-net",
    home="http://ai.bu.edu/M3SDA/",
    folders=("domain_net", "DomainNet", "domain-net"),
    domains={
        "clipart": ("clip",), "infograph": ("info",), "painting": ("paint",), "quickdraw": ("quick",),
        "real": (), "sketch": (),
    },
    classes=345,
    size=586_575,
)  # fmt: skip
SVIRO = ImageSet(
    name="sviro",
    home="https://sviro.kl.dfki.de",
    folders=("sviro", "SVIRO_DOMAINBED", "SVIRO"),
    domains=dict.fromkeys(("aclass", "escape", "hilux", "i3", "lexus", "tesla", "tiguan", "tucson", "x5", "zoe"), ()),
    classes=7,
    size=56_000,
)
CUB_DG = ImageSet(
    name="cub-dg",
    home="https://github.com/Luodian/Generalizable-Mixture-of-Experts",
    folders=("CUB-DG", "cub-dg", "cub_dg", "CUB_DG"),
    domains={"candy": (), "mosaic": (), "natural": ("original", "photo"), "udnie": ()},
    classes=200,
    size=47_152,
)
