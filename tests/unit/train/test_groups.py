"""Groups of domains: balance, one score per domain, and domains with very few rows, which are pooled."""

from dataclasses import replace

import numpy as np
import pytest

from holdfast.data.splits import DomainRows, Part, rows_by_domain
from holdfast.data.synthetic import world
from holdfast.train.plan import Episode, Stage, pool_small, pool_tests, rows_of, short_title, small_domain_note
from holdfast.train.plans import CrossDataset, LeaveGroupsOut, LeaveOneOut, balanced_groups, strata_counts


def domains_of(sizes, classes=3, seed=0):
    """Domains with the given numbers of rows, whose class frequencies differ."""
    rng, domains, start = np.random.default_rng(seed), {}, 0
    for i, size in enumerate(sizes):
        strata = rng.choice(classes, size, p=rng.dirichlet(np.ones(classes)))
        domains[f"d{i}"] = DomainRows(f"d{i}", np.arange(start, start + size), {}, strata=strata)
        start += size
    return domains


def test_groups_are_balanced_in_rows_and_classes():
    sizes = np.random.default_rng(1).integers(20, 400, 51)
    counts = strata_counts(list(domains_of(sizes).values()))
    groups = balanced_groups(counts, 5)
    assert sorted(name for group in groups for name in group) == sorted(counts)
    table = np.asarray([sum(counts[name] for name in group) for group in groups])  # (folds, classes)
    shares = table.sum(axis=1) / table.sum()
    assert np.abs(shares - 0.2).max() < 0.02
    assert np.abs(table / table.sum(axis=0) - 0.2).max() < 0.04


def test_one_large_domain_does_not_attract_others():
    groups = balanced_groups(strata_counts(list(domains_of([1000, *[10] * 20]).values())), 5)
    assert sorted(map(len, groups)) == [1, 4, 5, 5, 6]


def test_numeric_targets_are_balanced_in_bins():
    data = world("vector", "rotation", domains=12, size=50, classes=2, seed=0)
    targets = np.random.default_rng(0).normal(size=len(data)) + data.domain
    domains = rows_by_domain(replace(data, y=np.zeros(len(data), dtype=np.int64), targets=targets, classes=()))
    counts = strata_counts(list(domains.values()))
    assert all(len(count) == 5 for count in counts.values())
    table = np.asarray([sum(counts[name] for name in group) for group in balanced_groups(counts, 4)])
    assert table.sum(axis=1).tolist() == [150] * 4
    assert np.abs(table / table.sum(axis=0) - 0.25).max() < 0.25


@pytest.mark.parametrize("oracle", [False, True])
def test_every_domain_is_scored_once_by_a_model_that_has_not_seen_it(oracle):
    domains = domains_of([30] * 13)
    episodes = list(LeaveGroupsOut().episodes(domains, 3, oracle=oracle))
    assert [episode.name for episode in episodes] == [f"fold-{i}-of-5" for i in range(1, 6)]
    assert episodes[0].title == "fold 1 of 5"
    tested = [part.domain for episode in episodes for part in episode.stages[0].test]
    assert sorted(tested) == sorted(domains)
    for episode in episodes:
        (stage,) = episode.stages
        seen = {part.domain for part in (*stage.train, *stage.valid)}
        assert seen == set(domains) - {part.domain for part in stage.test}
        assert bool(stage.oracle) == oracle


def test_seeds_share_the_groups():
    domains = domains_of(range(5, 40))
    first, second = ([[p.domain for p in e.stages[0].test] for e in LeaveGroupsOut(folds=3).episodes(domains, seed)]
                     for seed in (0, 7))  # fmt: skip
    assert first == second


def test_domains_outside_the_targets_always_train():
    domains = domains_of([20] * 10)
    episodes = list(LeaveGroupsOut(folds=5, targets=("d1", "d4", "d9")).episodes(domains, 0))
    assert len(episodes) == 3
    assert sorted(p.domain for e in episodes for p in e.stages[0].test) == ["d1", "d4", "d9"]
    for episode in episodes:
        assert len(episode.stages[0].train) == 9


def test_a_thousand_tiny_domains():
    sizes = np.random.default_rng(0).integers(1, 21, 1000)
    domains = domains_of(sizes, classes=2)
    for oracle in (False, True):
        episodes = list(LeaveGroupsOut().episodes(domains, 0, oracle=oracle))
        tested = np.concatenate([rows_of([*e.stages[0].test, *e.stages[0].oracle]) for e in episodes])
        assert sorted(tested.tolist()) == list(range(sizes.sum()))
    (stage,) = episodes[0].stages
    assert {p.domain for p in stage.train} >= {p.domain for p in stage.valid}
    single = {name for name, rows in domains.items() if len(rows.rows) == 1} - {p.domain for p in stage.test}
    assert single
    assert not single & {p.domain for p in stage.valid}
    assert single <= {p.domain for p in stage.train}


def test_leave_one_out_accepts_single_rows_among_many_domains():
    domains = domains_of([1, *[10] * 9])
    episodes = list(LeaveOneOut().episodes(domains, 0, oracle=True))
    assert len(episodes[1].stages[0].valid) == 8


def test_titles_of_long_names_are_short():
    domains = domains_of([10] * 30)
    (episode,) = CrossDataset(targets=("d0", "d1")).episodes(domains, 0)
    assert episode.name.startswith("d2+d3+")
    assert episode.title == "28 domains to d0+d1"
    assert short_title("to-films") == "to-films"
    assert short_title(">".join(domains)) == "d0 to d29, 30 stages"
    assert len(short_title("to-" + "x" * 100)) <= 48
    assert Episode("fold-1-of-5", (), "fold 1 of 5").title == "fold 1 of 5"


def parts_of(*sizes, start=0):
    ends = start + np.cumsum([0, *sizes])
    return tuple(Part(f"d{start}-{i}", np.arange(ends[i], ends[i + 1])) for i in range(len(sizes)))


def test_small_domains_are_joined_and_come_last():
    parts = parts_of(20, 3, 30, 9, 1)
    pooled = pool_small(parts, 12)
    assert [part.domain for part in pooled] == ["d0-0", "d0-2", "3 domains with fewer than 10 rows"]
    assert pooled[-1].rows.tolist() == rows_of([parts[1], parts[3], parts[4]]).tolist()
    (*_, labelled) = pool_small(parts, 12, label="fold 1 of 5")
    assert labelled.domain == "3 domains with fewer than 10 rows, fold 1 of 5"


@pytest.mark.parametrize(("sizes", "domains"), [((20, 3, 30), 12), ((20, 3, 3), 8), ((20, 30), 12)])
def test_few_domains_and_single_small_ones_keep_their_metric(sizes, domains):
    parts = parts_of(*sizes)
    assert pool_small(parts, domains) == parts


def test_tests_of_an_episode_are_pooled_but_not_those_of_a_stream():
    train, valid = parts_of(*[10] * 8), parts_of(*[10] * 8, start=100)
    stage = Stage(train, valid, parts_of(5, 6, 30, start=300))
    pooled = pool_tests(Episode("fold-1-of-5", (stage,), "fold 1 of 5"))
    assert [len(part) for part in pooled.stages[0].test] == [30, 11]
    stream = Episode("a>b", (stage, stage))
    assert pool_tests(stream) is stream


def test_notes_on_small_domains():
    assert small_domain_note({"a": 10, "b": 300}) == ""
    assert "'a' has 5 rows" in small_domain_note({"a": 5, "b": 300})
    assert "'a' has 1 row" in small_domain_note({"a": 1, "b": 300})
    many = {f"d{i}": 5 if i % 2 else 50 for i in range(20)}
    assert small_domain_note(many) == "10 of 20 domains have fewer than 10 rows and are scored together"
