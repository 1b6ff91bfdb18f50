"""Published sets that the user brings beside plain tables: graphs, pictures, texts of four fields, tags, questions."""

from __future__ import annotations

from holdfast.catalog.entry import Entry

_SETS, _PICTURES = "holdfast.data.known.graph_sets", "holdfast.data.known.pictures"
_IMAGES = "holdfast.data.known.image_sets"
_TASKS, _PLACES = "holdfast.data.known.task_sets", "holdfast.data.known.place_sets"
MORE_DATASETS = {
    "imdb-binary": Entry(f"{_SETS}:IMDB_BINARY.read", "who acts with whom, 2 genres (chrsmrrs.github.io/datasets)"),
    "imdb-multi": Entry(f"{_SETS}:IMDB_MULTI.read", "who acts with whom, 3 genres (chrsmrrs.github.io/datasets)"),
    "reddit-binary": Entry(
        f"{_SETS}:REDDIT_BINARY.read", "who answers whom, 2 kinds of threads (chrsmrrs.github.io/datasets)"
    ),
    "reddit-multi-5k": Entry(
        f"{_SETS}:REDDIT_MULTI_5K.read", "who answers whom, 5 places (chrsmrrs.github.io/datasets)"
    ),
    "reddit-multi-12k": Entry(
        f"{_SETS}:REDDIT_MULTI_12K.read", "who answers whom, 11 places (chrsmrrs.github.io/datasets)"
    ),
    "graph-sst5": Entry(f"{_SETS}:GRAPH_SST5.read", "sentences on films as parsed, 5 grades (Yuan et al., 2020)"),
    "graph-twitter": Entry(f"{_SETS}:GRAPH_TWITTER.read", "tweets as parsed, 3 grades (Yuan et al., 2020)"),
    "nci1": Entry(f"{_SETS}:NCI1.read", "compounds against lung cancer (chrsmrrs.github.io/datasets)"),
    "nci109": Entry(f"{_SETS}:NCI109.read", "compounds against ovarian cancer (chrsmrrs.github.io/datasets)"),
    "proteins": Entry(f"{_SETS}:PROTEINS.read", "proteins, enzymes or not (chrsmrrs.github.io/datasets)"),
    "dd": Entry(f"{_SETS}:DD.read", "proteins by their amino acids, enzymes or not (chrsmrrs.github.io/datasets)"),
    "bace": Entry(f"{_SETS}:BACE.read", "molecules that bind BACE-1, scaffold split (ogb.stanford.edu)"),
    "bbbp": Entry(f"{_SETS}:BBBP.read", "molecules that enter the brain, scaffold split (ogb.stanford.edu)"),
    "hiv": Entry(f"{_SETS}:HIV.read", "molecules that hold HIV up, scaffold split (ogb.stanford.edu)"),
    "dtd": Entry(f"{_PICTURES}:DTD.read", "textures, 47 kinds (Cimpoi et al., 2014)"),
    "pets": Entry(f"{_PICTURES}:PETS.read", "cats and dogs, 37 breeds (Parkhi et al., 2012)"),
    "flowers": Entry(f"{_PICTURES}:FLOWERS.read", "flowers, 102 kinds (Nilsback & Zisserman, 2008)"),
    "cifar10": Entry(f"{_PICTURES}:CIFAR10.read", "small pictures, 10 kinds of things (Krizhevsky, 2009)"),
    "cifar100": Entry(f"{_PICTURES}:CIFAR100.read", "small pictures, 100 kinds of things (Krizhevsky, 2009)"),
    "pacs": Entry(f"{_IMAGES}:PACS.read", "photos, art, cartoons, sketches; 7 kinds (Li et al., 2017)"),
    "vlcs": Entry(f"{_IMAGES}:VLCS.read", "photos of four collections; 5 kinds (Fang et al., 2013)"),
    "office-home": Entry(
        f"{_IMAGES}:OFFICE_HOME.read", "things of office and home in four styles; 65 kinds (Venkateswara et al., 2017)"
    ),
    "terra-incognita": Entry(
        f"{_IMAGES}:TERRA_INCOGNITA.read", "animals before cameras at four places; 10 kinds (Beery et al., 2018)"
    ),
    "domain-net": Entry(f"{_IMAGES}:DOMAIN_NET.read", "things in six styles; 345 kinds (Peng et al., 2019)"),
    "sviro": Entry(f"{_IMAGES}:SVIRO.read", "rear seats of ten cars; 7 kinds (Cruz et al., 2020)"),
    "cub-dg": Entry(f"{_IMAGES}:CUB_DG.read", "birds in four styles; 200 kinds (Li et al., 2023)"),
    "camelyon": Entry(
        "holdfast.data.known.wilds:camelyon", "tumours in lymph nodes, five hospitals (Koh et al., 2021)"
    ),
    "fmow": Entry("holdfast.data.known.wilds:fmow", "places from above, six regions; 62 kinds (Koh et al., 2021)"),
    "colored-mnist": Entry(
        "holdfast.data.known.digits:colored_mnist",
        "digits below five or not, whose colour misleads (Arjovsky et al., 2019)",
    ),
    "chemprot": Entry(
        f"{_TASKS}:CHEMPROT.read", "what a chemical does to a protein; 13 kinds (Kringelum et al., 2016)"
    ),
    "rct": Entry(f"{_TASKS}:RCT.read", "roles of sentences in medical abstracts; 5 (Dernoncourt & Lee, 2017)"),
    "acl-arc": Entry(f"{_TASKS}:ACL_ARC.read", "why a paper cites another; 6 kinds (Jurgens et al., 2018)"),
    "scierc": Entry(f"{_TASKS}:SCIERC.read", "how two scientific terms relate; 7 kinds (Luan et al., 2018)"),
    "csabstruct": Entry(f"{_TASKS}:CSABSTRUCT.read", "roles of sentences in abstracts; 5 kinds (Cohan et al., 2019)"),
    "hyperpartisan": Entry(f"{_TASKS}:HYPERPARTISAN.read", "news that take sides or not (Kiesel et al., 2019)"),
    "ag-news": Entry(f"{_TASKS}:AG_NEWS.read", "news by topic; 4 kinds (Zhang et al., 2015)"),
    "helpfulness": Entry(f"{_TASKS}:HELPFULNESS.read", "reviews that helped or not (McAuley et al., 2015)"),
    "ncbi-disease": Entry(f"{_PLACES}:NCBI_DISEASE.read", "diseases in abstracts, to tag (Dogan et al., 2014)"),
    "conll2003": Entry(f"{_PLACES}:CONLL2003.read", "names in news, to tag; 4 kinds (Sang & De Meulder, 2003)"),
    "newsqa": Entry(f"{_PLACES}:NEWSQA.read", "questions on news, to answer (Trischler et al., 2017)"),
    "medication": Entry(f"{_PLACES}:MEDICATION.read", "questions on medical records, to answer (Pampari et al., 2018)"),
    "qa-extractive": Entry(
        f"{_PLACES}:QA_EXTRACTIVE.read", "questions in eight domains, to answer: SubjQA, COVID-QA, XQuAD"
    ),
    "biomedical-texts": Entry(f"{_PLACES}:BIOMEDICAL_TEXTS.read", "biomedical papers, plain texts (Lo et al., 2020)"),
    "cs-texts": Entry(f"{_PLACES}:CS_TEXTS.read", "papers of computer science, plain texts (Lo et al., 2020)"),
    "books-texts": Entry(f"{_PLACES}:BOOKS_TEXTS.read", "books, plain texts (Zhu et al., 2015)"),
}
