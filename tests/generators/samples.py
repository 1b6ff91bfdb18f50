"""Small valid files and request bodies, the starting points of mutations."""

import base64
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image
from pyarrow import csv, parquet

from tests.annotated import DOMAINS, question_rows, tagged_sentences, write_conll
from tests.generators.bodies import RAW_BODIES, VALID
from tests.graphs import rings_and_stars, text_form, write_layout

SMILES = ("CCO", "c1ccccc1O", "C[C@H](N)C(=O)O", "[Na+].[Cl-]", "O=C(O)c1ccccc1OC(C)=O", "F/C=C/F", "C1CC1", "[13CH4]")
IMAGE_FORMATS = ("png", "jpeg", "webp", "bmp", "gif", "tiff")


def _tables() -> list[pa.Table]:
    """Return a table of texts, one of numbers, one of pairs with splits, and one of molecules."""
    size = 8
    label, domain = [("good", "bad")[i % 2] for i in range(size)], [("a", "b")[i // 4] for i in range(size)]
    ends = {"label": label, "domain": domain}
    texts = {"id": [str(i) for i in range(size)], "text": [f"a {word}, thing" for word in label], **ends}
    numbers = {"x1": [i / 4 for i in range(size)], "x2": list(range(size)), **ends}
    pairs = {"premise": label, "hypothesis": domain, **ends, "split": ["train", "test"] * 4, "time": range(size)}
    return [pa.table(columns) for columns in (texts, numbers, pairs, {"smiles": list(SMILES), **ends})]


def _csv(table: pa.Table, delimiter: str) -> bytes:
    buffer = io.BytesIO()
    csv.write_csv(table, buffer, csv.WriteOptions(delimiter=delimiter))
    return buffer.getvalue()


def _lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _parquet(table: pa.Table, **options: Any) -> bytes:
    buffer = io.BytesIO()
    parquet.write_table(table, buffer, **options)
    return buffer.getvalue()


def _npz(*, compressed: bool) -> bytes:
    buffer = io.BytesIO()
    x, y = np.arange(16, dtype=np.float32).reshape(8, 2), np.arange(8) % 2
    (np.savez_compressed if compressed else np.savez)(buffer, x=x, y=y, domain=np.array(["a", "b"] * 4))
    return buffer.getvalue()


def _zip(text: str, *, method: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        file.writestr("shapes/shapes.txt", text)
    return buffer.getvalue()


def image_bytes(form: str) -> bytes:
    """Return a small image file with a gradient."""
    pixels = np.arange(8 * 6 * 3, dtype=np.uint8).reshape(6, 8, 3)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, form)
    return buffer.getvalue()


def table_samples() -> dict[str, list[bytes]]:
    """Return files per suffix of tables, arrays and graphs."""
    tables = _tables()
    shapes = text_form(rings_and_stars(6), tags=lambda g, node: node % 3)
    attributes = text_form(rings_and_stars(4), attributes=lambda g, node: (0.5, node))
    zips = [
        _zip(text, method=how) for text in (shapes, attributes) for how in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    ]
    return {
        ".csv": [_csv(table, ",") for table in tables[:3]],
        ".tsv": [_csv(table, "\t") for table in tables[:3]],
        ".jsonl": [_lines(table.to_pylist()) for table in tables[:3]],
        ".parquet": [
            _parquet(t, **o) for t in tables[:3] for o in ({}, {"compression": "gzip", "use_dictionary": False})
        ],
        ".npz": [_npz(compressed=True), _npz(compressed=False)],
        ".zip": zips,
        ".txt": [shapes.encode(), attributes.encode()],
    }


def smiles_samples() -> list[bytes]:
    """Return tables of molecules."""
    return [_csv(_tables()[3], ","), _csv(pa.table({"smiles": SMILES[:3], "label": ["a", "b", "a"]}), ",")]


def tag_samples(folder: Path) -> dict[str, list[bytes]]:
    """Return tagged sentences as CoNLL lines and as JSON lines."""
    conll = write_conll(folder / "sample.conll", tagged_sentences("home", 4)).read_bytes()
    rows = [{"tokens": words, "tags": tags, "domain": "a"} for words, tags in tagged_sentences("shop", 4)]
    return {".conll": [conll, conll[:80]], ".jsonl": [_lines(rows)]}


def question_samples() -> dict[str, list[bytes]]:
    """Return questions as JSON lines and in the nested format of SQuAD."""
    rows = [row for domain in DOMAINS[:2] for row in question_rows(domain, 2, 10)]
    answers = [{"text": "phone", "answer_start": 4}]
    paragraph = {"context": "the phone was good", "qas": [{"id": "1", "question": "what ?", "answers": answers}]}
    return {".jsonl": [_lines(rows)], ".json": [json.dumps({"data": [{"paragraphs": [paragraph]}]}).encode()]}


def layout_samples(folder: Path) -> dict[str, list[bytes]]:
    """Return the files of a TU data set by name."""
    write_layout(folder, "shapes", rings_and_stars(6), tags=lambda g, node: node % 3)
    return {path.name: [path.read_bytes()] for path in sorted(folder.iterdir())}


def body_samples(kind: str) -> tuple[list[bytes], list[Any]]:
    """Return bodies of /predict for a kind of examples, and those that are JSON documents."""
    values: list[Any] = [VALID[kind]]
    if kind == "graph":
        weighted = {"nodes": [[0], [1], [2]], "edges": [[0, 1], [1, 2]], "weights": [[1.0], [0.5]]}
        values += [{"nodes": 3, "edges": [[0, 1]]}, weighted, *SMILES]
    elif kind == "image":
        values += [base64.b64encode(image_bytes(form)).decode() for form in IMAGE_FORMATS]
    elif kind == "vector":
        values += [{"x1": 1.0, "x2": 2}]
    elif kind == "text":
        values += [{"id": "7", "text": "a good thing"}, "bad"]
    else:
        values += ["a good phone", {"tokens": ["a", "phone"]}]
    documents: list[Any] = [{"example": value} for value in (*values, *VALID.values())]
    documents += [
        {"examples": [values[0]] * 3},
        {"examples": list(VALID.values())},
        {"example": values[0], "examples": []},
    ]
    coded = [json.dumps(documents[0]).encode(code) for code in ("utf-16", "utf-32")]
    return [*(json.dumps(document).encode() for document in documents), *coded, *RAW_BODIES], documents
