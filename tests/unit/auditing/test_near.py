"""Near-duplicate texts and images, and isomorphic graphs, are detected; others are not."""

import random

import numpy as np
import pytest
import torch
from PIL import Image

from holdfast.auditing.hashing import SMALL, candidates, graph_features, graph_hashes, row_hashes, text_hashes
from holdfast.auditing.near import WIDTH, near_images, near_texts, shingles, thumbnails
from holdfast.core.inputs import Graphs
from holdfast.data.raw import ImageFiles, Pixels


def sentences(count: int, length: int = 20) -> list[str]:
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnop", k=rng.randrange(3, 9))) for _ in range(400)]
    return [" ".join(rng.choices(words, k=length)) for _ in range(count)]


def character_spans(text: str) -> set[str]:
    plain = " ".join(text.lower().split()).ljust(WIDTH, "\0")
    return {plain[i : i + WIDTH] for i in range(len(plain) - WIDTH + 1)}


def jaccard(one: set[str], other: set[str]) -> float:
    return len(one & other) / len(one | other)


def test_shingles_do_not_cross_texts():
    values, starts = shingles(["abcdef", "ab", "ABCDE  f"])
    first, second, third = np.split(values, starts[1:])
    assert [len(part) for part in (first, second, third)] == [2, 1, 3]
    assert first[0] == third[0]  # case does not count
    assert len({*first.tolist(), *second.tolist(), *third.tolist()}) == 5


def test_similarity_equals_the_naive_one_and_every_planted_pair_is_detected():
    texts = sentences(120)
    planted = []
    for i in range(40):
        changed = texts[i].split()
        changed[7] = "otherwise"
        planted.append((i, len(texts)))
        texts.append(" ".join(changed).upper().replace(" ", "  "))
    sets = [character_spans(text) for text in texts]
    naive = {(i, j): s for i in range(len(sets)) for j in range(i) if (s := jaccard(sets[i], sets[j])) >= 0.75}
    pairs, similarity = near_texts(texts, near=0.75)
    found = {(b, a): s for (a, b), s in zip(pairs.tolist(), similarity, strict=True)}
    assert found == pytest.approx(naive)
    assert {(b, a) for a, b in planted} >= set(found)
    assert len(found) > 30


def test_both_texts_of_a_pair_must_be_similar():
    long, other = sentences(2, 60)
    questions = [
        "Who was it that came last?",
        "Where was that then?",
        "Who was it that came last",
        "Who was it that came last?",
    ]
    pairs, similarity = near_texts(questions, [long, long, long, other], near=0.7)
    assert pairs.tolist() == [[0, 2]]
    assert similarity[0] == pytest.approx(jaccard(character_spans(questions[0]), character_spans(questions[2])))


def test_texts_of_any_length_and_script():
    pairs, _ = near_texts(
        ["", "a", "ab", "自然言語処理は楽しいです", "自然言語処理は楽しいです。", "é" * 9, "e" * 9], near=0.8
    )
    assert pairs.tolist() == [[3, 4]]
    assert near_texts(["alone"], near=0.8)[0].shape == (0, 2)


def test_candidates_are_complete_in_small_buckets_and_connected_in_large_ones():
    rng = np.random.default_rng(0)
    bands = rng.integers(0, 40, (200, 3)).astype(np.uint64)
    bands[:, 1] = np.arange(200) + 100
    naive = {(i, j) for j in range(200) for i in range(j) if (bands[i] == bands[j]).any()}
    assert max(np.unique(bands[:, k], return_counts=True)[1].max() for k in range(3)) <= SMALL
    assert {tuple(pair) for pair in candidates(bands).tolist()} == naive
    crowd = np.zeros((500, 1), dtype=np.uint64)
    pairs = candidates(crowd)
    assert len(pairs) < 500 * 5
    assert set(pairs.ravel().tolist()) == set(range(500))
    assert candidates(np.empty((0, 2), dtype=np.uint64)).shape == (0, 2)


def random_images(count: int, side: int = 40) -> np.ndarray:
    rng = np.random.default_rng(0)
    coarse = torch.from_numpy(rng.uniform(0, 255, (count, 3, 6, 6)))
    return torch.nn.functional.interpolate(coarse, (side, side), mode="bicubic").clamp(0, 255).numpy().astype(np.uint8)


def test_scaled_dimmed_and_compressed_images_are_near_duplicates(tmp_path):
    images = [Image.fromarray(each.transpose(1, 2, 0)) for each in random_images(30)]
    paths = [tmp_path / f"{i}.png" for i in range(30)]
    for image, path in zip(images, paths, strict=True):
        image.save(path)
    changed = [images[0].resize((90, 70)), images[1].point(lambda v: int(0.8 * v)), images[2]]
    for i, image in enumerate(changed):
        paths.append(tmp_path / f"copy-{i}.jpg")
        image.save(paths[-1], quality=80)
    seen = thumbnails(ImageFiles(paths))
    pairs, alike = near_images(seen, np.arange(33))
    assert pairs.tolist() == [[0, 30], [1, 31], [2, 32]]
    assert (alike <= 1.001).all()
    assert seen.colours.shape == (33, 192)
    assert near_images(seen, np.arange(5, 33))[0].shape == (0, 2)


def test_images_of_one_colour_match_nothing():
    flat = np.stack([np.full((3, 16, 16), shade, dtype=np.uint8) for shade in (0, 90, 91)])
    assert near_images(thumbnails(Pixels(flat)), np.arange(3))[0].shape == (0, 2)


def graph(edges: list[tuple[int, int]], features: list[list[float]]) -> Graphs:
    both = torch.tensor([*edges, *((b, a) for a, b in edges)]).T.reshape(2, -1)
    return Graphs(torch.tensor(features), both, torch.zeros(len(features), dtype=torch.long), 1)


def test_graph_hash_ignores_the_node_order_and_detects_changes():
    rng = np.random.default_rng(0)
    edges = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (1, 4)]
    features = [[1.0], [0.0], [0.0], [2.0], [0.0]]
    plain = graph(edges, features)
    for _ in range(5):
        order = rng.permutation(5)
        place = np.argsort(order)
        turned = graph([(int(place[a]), int(place[b])) for a, b in edges], [features[i] for i in order])
        assert graph_hashes([turned]) == graph_hashes([plain])
    others = [
        graph(edges[:-1], features),
        graph([*edges[:-1], (0, 2)], features),
        graph(edges, [[1.0], [0.0], [0.0], [0.0], [2.0]]),
        graph(edges, [*features, [0.0]]),
    ]
    assert len(set(graph_hashes([plain, *others]).tolist())) == 5
    assert graph_features([plain, others[0]]).shape[0] == 2


def test_hashes_of_rows_and_texts_depend_on_content_only():
    rows = np.asarray([[0.0, 1.0], [-0.0, 1.0], [1.0, 0.0], [0.0, 1.0000001]])
    first, second, *others = row_hashes(rows).tolist()
    assert first == second
    assert len({first, *others}) == 3
    assert len(set(text_hashes(["a", "b", "a", "a "]).tolist())) == 3
