"""Small domains: with few rows a metric per domain is mostly noise, so that many of them are scored together."""

from collections.abc import Sequence
from dataclasses import replace

from holdfast.data.splits import Part
from holdfast.defaults import FEW_DOMAINS
from holdfast.train.plan import Episode, rows_of

MIN_ROWS = 10  # of a domain that has a metric of its own, where there are many domains


def small_domains(scored: Sequence[Part], domains: int) -> list[str]:
    """Return the domains that are scored together: at least two with fewer than `MIN_ROWS` rows.

    `domains` is the number of domains of the episode; with at most `FEW_DOMAINS` each one is scored on its own.
    """
    small = [part.domain for part in scored if len(part) < MIN_ROWS]
    return small if domains > FEW_DOMAINS and len(small) > 1 else []


def pool_small(scored: Sequence[Part], domains: int, *, label: str = "") -> tuple[Part, ...]:
    """Return the domains with all small domains joined to one, which comes last and is named after their number.

    A label, such as that of an episode, distinguishes the pools of several episodes.
    """
    small = set(small_domains(scored, domains))
    if not small:
        return tuple(scored)
    name = f"{len(small)} domains with fewer than {MIN_ROWS} rows" + (f", {label}" if label else "")
    pooled = Part(name, rows_of([part for part in scored if part.domain in small]))
    return (*(part for part in scored if part.domain not in small), pooled)


def pool_tests(episode: Episode) -> Episode:
    """Let the small test domains of an episode be scored together; every domain of a stream is scored on its own."""
    stage, *others = episode.stages
    if others:
        return episode
    domains = len({part.domain for part in (*stage.train, *stage.valid, *stage.test)})
    return replace(episode, stages=(replace(stage, test=pool_small(stage.test, domains, label=episode.label)),))


def small_domain_note(sizes: dict[str, int]) -> str:
    """Return a note on the domains with fewer than `MIN_ROWS` rows, or an empty string."""
    small = {name: count for name, count in sizes.items() if count < MIN_ROWS}
    if not small:
        return ""
    if len(sizes) > FEW_DOMAINS and len(small) > 1:
        return f"{len(small):,} of {len(sizes):,} domains have fewer than {MIN_ROWS} rows and are scored together"
    listed = ", ".join(f"'{name}' has {count} row{'s' * (count > 1)}" for name, count in small.items())
    return f"scores of small domains are uncertain: {listed}"
