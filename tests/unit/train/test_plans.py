"""Plans: which rows train, select and are scored; balanced groups of domains, and domains with very few rows."""

from dataclasses import replace

import numpy as np
import pytest

from holdfast.core.errors import BadInput
from holdfast.data.splits import DomainRows, Part, rows_by_domain
from holdfast.data.synthetic import world
from holdfast.train.plan import (
    Episode,
    Stage,
    pool_small,
    pool_tests,
    rows_of,
    score_known_classes,
    short_title,
    small_domain_note,
)
from holdfast.train.plans import (
    AllDomains,
    CrossDataset,
    GivenSplit,
    Joint,
    KFold,
    LeaveGroupsOut,
    LeaveOneOut,
    SingleSource,
    Stream,
    balanced_groups,
    strata_counts,
)

DATA = world("vector", "rotation", domains=4, size=40, classes=2, seed=0)
THREE = {name: DomainRows(name, np.arange(10 * i, 10 * i + 10), {}) for i, name in enumerate("abc")}


def marked(name: str, **rows: list[int] | range) -> DomainRows:
    """Rows of one domain that the data assigns to splits."""
    splits = {split: np.asarray(rows.get(split, []), dtype=np.int64) for split in ("train", "valid", "test")}
    return DomainRows(name, np.sort(np.concatenate(list(splits.values()))), splits)


def stage_of(plan, *domains: DomainRows, seed=0, oracle=False):
    (episode,) = plan.episodes({rows.domain: rows for rows in domains}, seed, oracle=oracle)
    (stage,) = episode.stages
    return stage


def rows(groups) -> dict[str, list[int]]:
    return {part.domain: part.rows.tolist() for part in groups}


# all domains


def test_a_domain_with_only_validation_rows_selects_and_does_not_train():
    stage = stage_of(AllDomains(), marked("a", train=[0, 1, 2], valid=[3], test=[4]), marked("b", valid=[5, 6]))
    assert rows(stage.train) == {"a": [0, 1, 2]}
    assert rows(stage.valid) == {"a": [3], "b": [5, 6]}
    assert stage.test == ()


def test_all_domains_without_marks_are_split():
    stage = stage_of(AllDomains(), THREE["a"], THREE["b"])
    assert [len(part) for part in (*stage.train, *stage.valid)] == [8, 8, 2, 2]


@pytest.mark.parametrize(
    ("size", "settings", "held"),
    [
        (2000, {}, 400),
        (5000, {}, 500),
        (40_000, {}, 2000),
        (5000, {"valid": 0.2}, 1000),
        (9000, {"inside": True}, 1800),
    ],
)
def test_large_data_validates_with_about_a_thousand_rows(size, settings, held):
    big = {name: DomainRows(name, np.arange(size * i, size * (i + 1)), {}) for i, name in enumerate("abc")}
    plans = [LeaveOneOut(**settings)]
    if "inside" not in settings:
        plans += [LeaveGroupsOut(folds=3, **settings)]
    for plan in plans:
        stage = next(iter(plan.episodes(big, 0))).stages[0]
        assert [len(part) for part in stage.valid] == [held, held]  # of two sources
        assert [len(part) for part in stage.train] == [size - held] * 2


def test_the_model_for_deployment_trains_on_what_does_not_validate():
    big = [DomainRows("a", np.arange(8000), {}), DomainRows("b", np.arange(8000, 10_000), {})]
    assert [len(part) for part in stage_of(AllDomains(), *big).valid] == [800, 200]
    assert [len(part) for part in stage_of(AllDomains(test=0.5), *big).valid] == [800, 200]  # of the other half


# given splits


def test_marked_rows_are_used_as_they_are():
    domains = marked("a", train=range(4)), marked("b", train=range(4, 7), valid=[7, 8]), marked("c", test=range(9, 14))
    stage = stage_of(GivenSplit(), *domains)
    assert rows(stage.train) == {"a": [0, 1, 2, 3], "b": [4, 5, 6]}
    assert rows(stage.valid) == {"b": [7, 8]}
    assert rows(stage.test) == {"c": [9, 10, 11, 12, 13]}


def test_without_valid_rows_a_tenth_is_drawn_by_the_seed():
    domains = marked("a", train=range(40)), marked("b", train=range(40, 60)), marked("c", test=range(60, 70))
    first, second = stage_of(GivenSplit(), *domains), stage_of(GivenSplit(), *domains, seed=1)
    assert [len(part) for part in first.train] == [36, 18]
    assert [len(part) for part in first.valid] == [4, 2]
    assert rows(first.test) == rows(second.test) == {"c": list(range(60, 70))}
    assert rows(first.valid) != rows(second.valid)


def test_without_marks_the_split_is_70_10_20():
    stage = stage_of(GivenSplit(), DomainRows("a", np.arange(1000), {}))
    assert [len(groups[0]) for groups in (stage.train, stage.valid, stage.test)] == [700, 100, 200]
    assert sorted(rows_of((*stage.train, *stage.valid, *stage.test))) == list(range(1000))


def test_the_oracle_gets_a_share_of_the_test_rows():
    domains = marked("a", train=range(10), valid=range(10, 15)), marked("b", test=range(15, 35))
    stage = stage_of(GivenSplit(), *domains, oracle=True)
    assert (len(stage.oracle[0]), len(stage.test[0])) == (2, 18)


# joint training


def union(groups):
    return {part.domain: part.rows.tolist() for group in groups for part in group}


@pytest.mark.parametrize("seed", [0, 1, 7])
@pytest.mark.parametrize("names", [(), ("domain-2", "domain-0")])
def test_joint_training_has_the_rows_of_a_stream(seed, names):
    (joint,) = Joint(valid=0.25, test=0.3, domains=names).episodes(rows_by_domain(DATA), seed)
    (stream,) = Stream(valid=0.25, test=0.3, order=names).episodes(rows_by_domain(DATA), seed)
    (stage,) = joint.stages
    for other in stream.stages:
        assert rows(stage.test) == rows(other.test)
    assert rows(stage.train) == union(s.train for s in stream.stages)
    assert rows(stage.valid) == union(s.valid for s in stream.stages)
    assert list(rows(stage.train)) == list(names or DATA.domains)


def test_joint_splits_depend_on_the_seed_and_the_oracle_gets_nothing_new():
    first, second = (next(Joint().episodes(rows_by_domain(DATA), seed)) for seed in (0, 1))
    assert rows(first.stages[0].test) != rows(second.stages[0].test)
    (joint,) = Joint().episodes(rows_by_domain(DATA), 0, oracle=True)
    assert rows(joint.stages[0].oracle) == rows(joint.stages[0].valid)


# single source


def test_single_source_scores_all_rows_of_the_other_domains():
    stages = {episode.name: episode.stages[0] for episode in SingleSource().episodes(THREE, 0)}
    assert list(stages) == ["from-a", "from-b", "from-c"]
    for name, stage in stages.items():
        assert [part.domain for part in (*stage.train, *stage.valid)] == [name[-1]] * 2
        assert {part.domain: len(part) for part in stage.test} == {d: 10 for d in "abc" if d != name[-1]}


def test_outside_scores_the_validation_rows_of_the_other_domains():
    stages = {e.name: e.stages[0] for e in SingleSource(outside=True).episodes(THREE, 3)}
    valid = {name[-1]: stage.valid[0].rows.tolist() for name, stage in stages.items()}
    assert {len(chosen) for chosen in valid.values()} == {2}
    for name, stage in stages.items():
        assert rows(stage.test) == {domain: chosen for domain, chosen in valid.items() if domain != name[-1]}


def test_outside_uses_marked_rows_and_leaves_the_rest_to_the_oracle():
    other = marked("b", train=range(10, 16), valid=[16, 17], test=[18, 19])
    domains = {"a": THREE["a"], "b": other}
    (episode,) = SingleSource(outside=True, sources=("a",)).episodes(domains, 0, oracle=True)
    (stage,) = episode.stages
    assert rows_of(stage.test).tolist() == [16, 17]
    assert rows_of(stage.oracle).tolist() == list(range(10, 16))
    (plain,) = SingleSource(sources=("a",)).episodes(domains, 0)
    assert rows_of(plain.stages[0].test).tolist() == [18, 19]


# folds


def test_folds_score_every_row_once_and_ignore_marks():
    domains = {"a": marked("a", train=range(12), test=range(12, 17)), "b": THREE["c"]}
    everything = sorted(row for group in domains.values() for row in group.rows.tolist())
    episodes = list(KFold(folds=3, valid=0.25).episodes(domains, 0))
    assert [episode.name for episode in episodes] == ["fold-1", "fold-2", "fold-3"]
    assert sorted(row for episode in episodes for row in rows_of(episode.stages[0].test)) == everything
    for episode in episodes:
        (stage,) = episode.stages  # which checks that its parts are disjoint
        assert sorted(rows_of([*stage.train, *stage.valid, *stage.test])) == everything
        assert {part.domain for part in stage.test} == {"a", "b"}
    other = [rows(episode.stages[0].test) for episode in KFold(folds=3).episodes(domains, 1)]
    assert other != [rows(episode.stages[0].test) for episode in episodes]


def test_rotated_folds_are_those_of_one_partition():
    plain, other = (
        [rows(episode.stages[0].test) for episode in KFold(folds=3).episodes(THREE, seed)] for seed in (0, 1)
    )
    rotated = [stage_of(KFold(folds=3, rotate=True), *THREE.values(), seed=seed) for seed in range(6)]
    assert [rows(stage.test) for stage in rotated] == plain + other


# plan, its domains, and the error
REFUSED = [
    (AllDomains(), (marked("a", train=[0, 1, 2], valid=[3]), marked("b", test=[5, 6])), "'b' has 0 example"),
    (AllDomains(), (marked("a", valid=[0, 1, 2]), marked("b", valid=[5, 6])), "'a' has 0 example"),
    (GivenSplit(), (marked("a", train=range(5)),), "given.*marked test"),
    (GivenSplit(), (marked("a", test=range(5)),), "given.*marked train"),
    (Joint(domains=("elsewhere",)), THREE.values(), "no domain 'elsewhere' in the data"),
    (Joint(), [THREE["a"]], "at least 2 domains"),
    (SingleSource(sources=("x",)), THREE.values(), "no domain 'x' in the data"),
    *((KFold(folds=folds), THREE.values(), "from 2 to the 10 examples of domain 'a'") for folds in (1, 11)),
    *((LeaveGroupsOut(folds=folds), THREE.values(), r"plan\.folds") for folds in (1, 2.5, "3")),
    (LeaveGroupsOut(), [DomainRows(f"d{i}", np.asarray([i]), {}) for i in range(40)], "has 1 example"),
]


@pytest.mark.parametrize(("plan", "domains", "message"), REFUSED)
def test_unsuitable_settings_and_data_are_errors(plan, domains, message):
    with pytest.raises(BadInput, match=message):
        list(plan.episodes({rows.domain: rows for rows in domains}, 0))


# domains with a single row


def test_a_single_row_trains_if_another_domain_has_validation_rows():
    single = DomainRows("d", np.asarray([30]), {})
    *_, last = LeaveOneOut().episodes({**THREE, "d": single}, 0)
    assert rows(last.stages[0].test) == {"d": [30]}
    stage = next(iter(LeaveOneOut(targets=("a",)).episodes({**THREE, "d": single}, 0))).stages[0]
    assert rows(stage.train)["d"] == [30]
    assert set(rows(stage.valid)) == {"b", "c"}
    with pytest.raises(BadInput, match="domain 'd' has 1 example"):
        list(LeaveOneOut(targets=("a",)).episodes({"a": THREE["a"], "d": single}, 0))


# classes that some domains do not have


def test_test_rows_of_classes_without_training_rows_are_not_scored():
    stage = stage_of(AllDomains(), THREE["a"], THREE["b"])
    stage = replace(stage, test=(Part("c", THREE["c"].rows),))
    y = np.asarray([0, 1] * 10 + [0, 1, 2, 2, 3, 0, 1, 2, 0, 1])
    scored, omitted = score_known_classes(y, ("n", "p", "x", "y"), Episode("to-c", (stage,)))
    assert omitted == {"c": {"x": 3, "y": 1}}
    assert rows(scored.stages[0].test) == {"c": [20, 21, 25, 26, 28, 29]}
    assert rows(scored.stages[0].train) == rows(stage.train)
    same, nothing = score_known_classes(np.zeros(30, dtype=np.int64), ("n",), Episode("to-c", (stage,)))
    assert (same.stages[0], nothing) == (stage, {})


def test_a_domain_without_any_known_class_is_an_error():
    stage = replace(stage_of(AllDomains(), THREE["a"], THREE["b"]), test=(Part("c", THREE["c"].rows),))
    with pytest.raises(BadInput, match=r"no class of domain 'c' \(z\) occurs in its training domains"):
        score_known_classes(np.asarray([0, 1] * 10 + [2] * 10), ("n", "p", "z"), Episode("to-c", (stage,)))


def test_a_domain_without_training_rows_is_a_target_and_no_source():
    domains = [marked("a", train=range(6), test=range(6, 9)), marked("b", train=range(9, 15), test=range(15, 18))]
    domains.append(marked("c", valid=range(18, 20), test=range(20, 24)))
    episodes = {
        each.name: each.stages[0] for each in LeaveOneOut().episodes({each.domain: each for each in domains}, 0)
    }
    assert [part.domain for part in episodes["to-c"].train] == ["a", "b"]
    assert rows(episodes["to-c"].test) == {"c": [20, 21, 22, 23]}
    assert [part.domain for part in episodes["to-a"].train] == ["b"]
    only = {each.domain: each for each in (domains[0], domains[2])}
    with pytest.raises(BadInput, match="'c' has 0 example"):
        list(LeaveOneOut().episodes(only, 0))


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
