"""Published data sets."""

from __future__ import annotations

from holdfast.catalog.entry import DatasetEntry

_SETS, _PICTURES = "holdfast.data.known.graph_sets", "holdfast.data.known.pictures"
_IMAGES = "holdfast.data.known.image_sets"
_TASKS, _PLACES = "holdfast.data.known.task_sets", "holdfast.data.known.place_sets"
DATASETS = {
    "vader": DatasetEntry(
        "holdfast.data.known.download:vader",
        "sentiment of tweets, film reviews, product reviews and news editorials (Hutto & Gilbert, 2014)",
    ),
    "amazon": DatasetEntry(
        "holdfast.data.known.published:AMAZON.read",
        "sentiment of reviews of four kinds of products (Blitzer et al., 2007)",
    ),
    "imdb": DatasetEntry("holdfast.data.known.published:IMDB.read", "sentiment of film reviews (Maas et al., 2011)"),
    "sst2": DatasetEntry(
        "holdfast.data.known.published:SST2.read", "sentiment of sentences on films (Socher et al., 2013)"
    ),
    "mnli": DatasetEntry(
        "holdfast.data.known.published:MNLI.read",
        "inference in five genres, the small cut of PADA (Ben-David et al., 2022)",
    ),
    "multinli": DatasetEntry(
        "holdfast.data.known.published:MULTINLI.read",
        "inference in five genres, all that train (Williams et al., 2018)",
    ),
    "snli": DatasetEntry(
        "holdfast.data.known.published:SNLI.read", "inference on captions of pictures (Bowman et al., 2015)"
    ),
    "dialogue": DatasetEntry(
        "holdfast.data.known.dialogue:read_dialogue",
        "answers in films (Danescu-Niculescu-Mizil & Lee, 2011), then Ubuntu (Lowe et al., 2015)",
    ),
    "sick": DatasetEntry(
        "holdfast.data.known.published:SICK.read", "inference on simple sentences (Marelli et al., 2014)"
    ),
    "imdb-binary": DatasetEntry(
        f"{_SETS}:IMDB_BINARY.read", "who acts with whom, 2 genres (chrsmrrs.github.io/datasets)"
    ),
    "imdb-multi": DatasetEntry(
        f"{_SETS}:IMDB_MULTI.read", "who acts with whom, 3 genres (chrsmrrs.github.io/datasets)"
    ),
    "reddit-binary": DatasetEntry(
        f"{_SETS}:REDDIT_BINARY.read", "who answers whom, 2 kinds of threads (chrsmrrs.github.io/datasets)"
    ),
    "reddit-multi-5k": DatasetEntry(
        f"{_SETS}:REDDIT_MULTI_5K.read", "who answers whom, 5 places (chrsmrrs.github.io/datasets)"
    ),
    "reddit-multi-12k": DatasetEntry(
        f"{_SETS}:REDDIT_MULTI_12K.read", "who answers whom, 11 places (chrsmrrs.github.io/datasets)"
    ),
    "graph-sst5": DatasetEntry(
        f"{_SETS}:GRAPH_SST5.read", "sentences on films as parsed, 5 grades (Yuan et al., 2020)"
    ),
    "graph-twitter": DatasetEntry(f"{_SETS}:GRAPH_TWITTER.read", "tweets as parsed, 3 grades (Yuan et al., 2020)"),
    "nci1": DatasetEntry(f"{_SETS}:NCI1.read", "compounds against lung cancer (chrsmrrs.github.io/datasets)"),
    "nci109": DatasetEntry(f"{_SETS}:NCI109.read", "compounds against ovarian cancer (chrsmrrs.github.io/datasets)"),
    "proteins": DatasetEntry(f"{_SETS}:PROTEINS.read", "proteins, enzymes or not (chrsmrrs.github.io/datasets)"),
    "dd": DatasetEntry(
        f"{_SETS}:DD.read", "proteins by their amino acids, enzymes or not (chrsmrrs.github.io/datasets)"
    ),
    "bace": DatasetEntry(f"{_SETS}:BACE.read", "molecules that bind BACE-1, scaffold split (ogb.stanford.edu)"),
    "bbbp": DatasetEntry(f"{_SETS}:BBBP.read", "molecules that enter the brain, scaffold split (ogb.stanford.edu)"),
    "hiv": DatasetEntry(f"{_SETS}:HIV.read", "molecules that hold HIV up, scaffold split (ogb.stanford.edu)"),
    "dtd": DatasetEntry(f"{_PICTURES}:DTD.read", "textures, 47 kinds (Cimpoi et al., 2014)"),
    "pets": DatasetEntry(f"{_PICTURES}:PETS.read", "cats and dogs, 37 breeds (Parkhi et al., 2012)"),
    "flowers": DatasetEntry(f"{_PICTURES}:FLOWERS.read", "flowers, 102 kinds (Nilsback & Zisserman, 2008)"),
    "cifar10": DatasetEntry(f"{_PICTURES}:CIFAR10.read", "small pictures, 10 kinds of things (Krizhevsky, 2009)"),
    "cifar100": DatasetEntry(f"{_PICTURES}:CIFAR100.read", "small pictures, 100 kinds of things (Krizhevsky, 2009)"),
    "pacs": DatasetEntry(f"{_IMAGES}:PACS.read", "photos, art, cartoons, sketches; 7 kinds (Li et al., 2017)"),
    "vlcs": DatasetEntry(f"{_IMAGES}:VLCS.read", "photos of four collections; 5 kinds (Fang et al., 2013)"),
    "office-home": DatasetEntry(
        f"{_IMAGES}:OFFICE_HOME.read", "things of office and home in four styles; 65 kinds (Venkateswara et al., 2017)"
    ),
    "terra-incognita": DatasetEntry(
        f"{_IMAGES}:TERRA_INCOGNITA.read", "animals before cameras at four places; 10 kinds (Beery et al., 2018)"
    ),
    "domain-net": DatasetEntry(f"{_IMAGES}:DOMAIN_NET.read", "things in six styles; 345 kinds (Peng et al., 2019)"),
    "sviro": DatasetEntry(f"{_IMAGES}:SVIRO.read", "rear seats of ten cars; 7 kinds (Cruz et al., 2020)"),
    "cub-dg": DatasetEntry(f"{_IMAGES}:CUB_DG.read", "birds in four styles; 200 kinds (Li et al., 2023)"),
    "camelyon": DatasetEntry(
        "holdfast.data.known.wilds:camelyon", "tumours in lymph nodes, five hospitals (Koh et al., 2021)"
    ),
    "fmow": DatasetEntry(
        "holdfast.data.known.wilds:fmow", "places from above, six regions; 62 kinds (Koh et al., 2021)"
    ),
    "colored-mnist": DatasetEntry(
        "holdfast.data.known.digits:colored_mnist",
        "digits below five or not, whose colour misleads (Arjovsky et al., 2019)",
    ),
    "chemprot": DatasetEntry(
        f"{_TASKS}:CHEMPROT.read", "what a chemical does to a protein; 13 kinds (Kringelum et al., 2016)"
    ),
    "rct": DatasetEntry(f"{_TASKS}:RCT.read", "roles of sentences in medical abstracts; 5 (Dernoncourt & Lee, 2017)"),
    "acl-arc": DatasetEntry(f"{_TASKS}:ACL_ARC.read", "why a paper cites another; 6 kinds (Jurgens et al., 2018)"),
    "scierc": DatasetEntry(f"{_TASKS}:SCIERC.read", "how two scientific terms relate; 7 kinds (Luan et al., 2018)"),
    "csabstruct": DatasetEntry(
        f"{_TASKS}:CSABSTRUCT.read", "roles of sentences in abstracts; 5 kinds (Cohan et al., 2019)"
    ),
    "hyperpartisan": DatasetEntry(f"{_TASKS}:HYPERPARTISAN.read", "news that take sides or not (Kiesel et al., 2019)"),
    "ag-news": DatasetEntry(f"{_TASKS}:AG_NEWS.read", "news by topic; 4 kinds (Zhang et al., 2015)"),
    "helpfulness": DatasetEntry(f"{_TASKS}:HELPFULNESS.read", "reviews that helped or not (McAuley et al., 2015)"),
    "ncbi-disease": DatasetEntry(f"{_PLACES}:NCBI_DISEASE.read", "diseases in abstracts, to tag (Dogan et al., 2014)"),
    "conll2003": DatasetEntry(f"{_PLACES}:CONLL2003.read", "names in news, to tag; 4 kinds (Sang & De Meulder, 2003)"),
    "newsqa": DatasetEntry(f"{_PLACES}:NEWSQA.read", "questions on news, to answer (Trischler et al., 2017)"),
    "medication": DatasetEntry(
        f"{_PLACES}:MEDICATION.read", "questions on medical records, to answer (Pampari et al., 2018)"
    ),
    "qa-extractive": DatasetEntry(
        f"{_PLACES}:QA_EXTRACTIVE.read", "questions in eight domains, to answer: SubjQA, COVID-QA, XQuAD"
    ),
    "biomedical-texts": DatasetEntry(
        f"{_PLACES}:BIOMEDICAL_TEXTS.read", "biomedical papers, plain texts (Lo et al., 2020)"
    ),
    "cs-texts": DatasetEntry(f"{_PLACES}:CS_TEXTS.read", "papers of computer science, plain texts (Lo et al., 2020)"),
    "books-texts": DatasetEntry(f"{_PLACES}:BOOKS_TEXTS.read", "books, plain texts (Zhu et al., 2015)"),
}
