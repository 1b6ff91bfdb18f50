"""The order of work of a comparison: one pure function from what has finished to what comes next.

Work is done in units: one method with one seed, one learning rate and one number of rows, on all targets. Units are
worked off in order of value until the time is up, so that whatever has finished is a valid comparison:

1. the constant, one simple baseline that needs no encoding, and plain training (the baseline) at its default rate
2. the other simple baselines; on large data, simple baselines and plain training on more rows
3. the first seed of every other method, in the order of the slate
4. other learning rates of plain training, then of the leading methods
5. further seeds: plain training and leaders first, then the others
6. on large data, the same on more rows

Other methods begin when plain training has finished, and so do more rows, if plain training waits for a large
encoder. The first units of large data read a stratified sample of its rows. A candidate goes on to the largest sample
on which its unit takes at most the share `GROWTH` of the limit, by the time of its finished units; if its rows are
encoded first, which counts, it doubles the sample as long as that holds. Methods run on the sample that plain
training reached. Leaders are the methods with the best scores on source validation rows: no score of a target changes
the order.

When the time is up, `train.board` asks for no further unit; runs that have begun save their state, and their units stay
unfinished until the same command continues. A unit of which a run fails has finished without scores: its other rates
and seeds do not begin, and all other units go on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

LEADERS = 2  # methods whose rates and seeds come before those of the others
FACTORS = (3.0, 1 / 3)  # of the default rate, in this order
EDGE = 3.0  # if the largest or the smallest factor is best, the next one by this ratio is tried
CHOSEN = 0.0  # factor of units that use the best factor of the first seed, per target
GROWTH = 0.2  # share of the limit that a unit on more rows may take before other methods run
CONSTANT, SIMPLE, BASELINE, METHOD = "constant", "simple", "baseline", "method"  # roles


@dataclass(frozen=True)
class Candidate:
    """A method of the comparison: its role, whether a large encoder computes its features first, and what it needs."""

    name: str
    role: str = METHOD
    encodes: bool = False
    seeds: tuple[int, ...] = (0,)
    searched: bool = False  # whether other learning rates are tried


@dataclass(frozen=True)
class Unit:
    """One method, one seed, one rate and a number of rows, on all targets."""

    name: str
    seed: int = 0
    factor: float = 1.0  # of the default rate, or CHOSEN
    rows: int = 0


@dataclass(frozen=True)
class Finished:
    """Outcome of a unit: validation scores of the sources per target, higher is better, and its time.

    A unit without scores failed on at least one target. `encoding` is the time that a large encoder took for the rows
    that the next smaller sample lacks.
    """

    scores: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    encoding: float = 0.0

    @property
    def score(self) -> float | None:
        """The mean over targets; None if the unit failed."""
        return math.fsum(self.scores.values()) / len(self.scores) if self.scores else None


@dataclass(frozen=True)
class Slate:
    """Candidates in the order of their promise, the numbers of rows in ascending order, and the limit in seconds."""

    candidates: tuple[Candidate, ...]
    sizes: tuple[int, ...]
    limit: float = math.inf

    def having(self, *roles: str) -> list[Candidate]:
        """Return the candidates with one of these roles."""
        return [each for each in self.candidates if each.role in roles]


def next_units(finished: Mapping[Unit, Finished], slate: Slate) -> list[Unit]:
    """Return the units that are worth running and are not finished, the most valuable first; empty when all is done.

    Any of them may begin while others run. What depends on the outcome of unfinished units is not among them yet.
    """
    # a unit may be yielded at several points of the order: the first one counts
    units = dict.fromkeys(_Order(finished, slate).units())
    return [unit for unit in units if unit not in finished]


def best_factors(finished: Mapping[Unit, Finished], unit: Unit) -> dict[str, float]:
    """Map every target to the factor with the best validation scores of its sources; empty before the search is over.

    The default factor wins ties.
    """
    tried = {each.factor: outcome for each, outcome in finished.items() if each == replace(unit, factor=each.factor)}
    if not {1.0, *FACTORS} <= tried.keys():
        return {}
    # a factor outside the range of FACTORS counts if it has finished, but is not waited for: the time may be up before;
    # max returns the first of equal scores, so the default factor leads the list
    factors = [1.0, *(factor for factor in tried if factor not in (1.0, CHOSEN))]
    best: dict[str, float] = {}
    for target in dict.fromkeys(target for outcome in tried.values() for target in outcome.scores):
        # a factor that failed has no scores and cannot be chosen
        scores = {factor: tried[factor].scores[target] for factor in factors if target in tried[factor].scores}
        best[target] = max(scores, key=lambda factor: scores[factor])
    return best


@dataclass(frozen=True)
class _Order:
    finished: Mapping[Unit, Finished]
    slate: Slate

    def units(self) -> Iterator[Unit]:
        """Yield all units in order, finished ones included, as far as the outcomes known so far determine it."""
        slate, (first, *_) = self.slate, self.slate.sizes
        constant, simple, baseline = (slate.having(role) for role in (CONSTANT, SIMPLE, BASELINE))
        # sorting is stable: the first simple baseline without a large encoder, for a first answer within seconds
        quick = sorted(simple, key=lambda each: each.encodes)[:1]
        yield from _firsts(constant, first)  # which every method must beat
        yield from _firsts(quick, first)
        yield from _firsts(baseline, first)  # plain training at its default rate
        yield from _firsts(simple, first)
        if any(each.encodes and _first(each, first) not in self.finished for each in baseline):
            return  # encoding for its first result takes all cores
        # larger samples before other methods; samples have test rows of their own, so that scores on two of them are
        # compared by their distance from the constant on the same rows
        for candidate in (*simple, *baseline):
            for rows in self.path(candidate):
                yield from _firsts(constant, rows)
                yield _first(candidate, rows)
        if any(_first(each, list(self.path(each))[-1]) not in self.finished for each in baseline):
            return  # nothing competes with plain training, and the rows of the methods are not known yet
        # all methods run on the sample that plain training reached, and then, while time is left, on each larger one
        reached = self.reached()
        for rows in slate.sizes[slate.sizes.index(reached) :]:
            yield from _firsts([*constant, *simple, *baseline], rows)
            yield from self.at(rows)

    def at(self, rows: int) -> Iterator[Unit]:
        """Yield first seeds, rates and further seeds on a number of rows."""
        simple, baseline, methods = (self.slate.having(role) for role in (SIMPLE, BASELINE, METHOD))
        yield from _firsts(methods, rows)
        for candidate in baseline:
            yield from self.rates(candidate, rows)
        if any(unit not in self.finished for unit in _firsts(methods, rows)):
            return  # the leaders are not known yet
        leaders = self.leaders(rows)
        for candidate in leaders:
            yield from self.rates(candidate, rows)
        # a further seed uses the chosen rate, so a candidate takes part only when its search is over
        ahead = [each for each in (*baseline, *leaders) if self.has_rate(each, rows)]
        yield from self.seeds(ahead, rows)
        yield from self.seeds([*simple, *(each for each in methods if each not in leaders)], rows)

    def path(self, candidate: Candidate) -> Iterator[int]:
        """Yield the numbers of rows on which a candidate runs before other methods, by the time of finished units."""
        sizes, rows = self.slate.sizes, self.slate.sizes[0]
        while True:
            yield rows
            outcome = self.finished.get(_first(candidate, rows))
            if outcome is None or outcome.score is None:
                return
            # predicted time on more rows: all of them are trained on, in proportion to their number, but only those
            # that the present sample lacks are encoded
            new = rows - max((size for size in sizes if size < rows), default=0)
            per_row = outcome.seconds / rows
            encoding = outcome.encoding / new if candidate.encodes else 0.0
            most = GROWTH * self.slate.limit
            larger = [size for size in sizes if size > rows and size * per_row + (size - rows) * encoding <= most]
            if not larger:
                return
            # encoding is measured step by step, on the next larger sample; otherwise the largest that fits is next
            rows = larger[0] if candidate.encodes and math.isfinite(self.slate.limit) else larger[-1]

    def reached(self) -> int:
        """Return the number of rows on which the methods run, as far as it is known."""
        candidates = self.slate.having(BASELINE) or self.slate.having(SIMPLE)
        return min((list(self.path(each))[-1] for each in candidates), default=self.slate.sizes[-1])

    def leaders(self, rows: int) -> list[Candidate]:
        """Return the methods with the best validation scores of their first seeds; of equal ones the first."""
        outcomes = {each: self.finished[_first(each, rows)].score for each in self.slate.having(METHOD)}
        scores = {each: score for each, score in outcomes.items() if score is not None}
        return sorted(scores, key=lambda each: -scores[each])[:LEADERS]

    def rates(self, candidate: Candidate, rows: int) -> Iterator[Unit]:
        """Yield the other rates of a candidate, and the next one if the largest or smallest has the best mean score."""
        unit = _first(candidate, rows)
        if not candidate.searched or self.has_failed(unit):
            return
        # the best rate may lie outside the range if its end is best; until all factors have finished, `overall` returns
        # the default one, so that nothing is yielded beyond them
        yield from (replace(unit, factor=factor) for factor in FACTORS)
        chosen = self.overall(unit)
        if chosen == max(FACTORS):
            yield replace(unit, factor=chosen * EDGE)
        elif chosen == min(FACTORS):
            yield replace(unit, factor=chosen / EDGE)

    def has_rate(self, candidate: Candidate, rows: int) -> bool:
        """Whether all rates of a candidate have finished, so that its further seeds can use the best one."""
        return all(unit in self.finished for unit in self.rates(candidate, rows))

    def overall(self, unit: Unit) -> float:
        """Return the factor with the best mean score over targets among the default one and `FACTORS`."""
        outcomes = {factor: self.finished.get(replace(unit, factor=factor)) for factor in (1.0, *FACTORS)}
        if any(outcome is None for outcome in outcomes.values()):
            return 1.0
        scores = {factor: each.score for factor, each in outcomes.items() if each and each.score is not None}
        return max(scores, key=lambda factor: scores[factor], default=1.0)

    def seeds(self, candidates: Sequence[Candidate], rows: int) -> Iterator[Unit]:
        """Yield the further seeds of candidates whose first seed did not fail, one seed of each in turn."""
        usable = [each for each in candidates if not self.has_failed(_first(each, rows))]
        for number in range(1, max((len(each.seeds) for each in usable), default=1)):
            for candidate in usable:
                if number < len(candidate.seeds):
                    factor = CHOSEN if best_factors(self.finished, _first(candidate, rows)) else 1.0
                    yield Unit(candidate.name, candidate.seeds[number], factor, rows)

    def has_failed(self, unit: Unit) -> bool:
        """Whether a unit has finished without scores."""
        return unit in self.finished and self.finished[unit].score is None


def _first(candidate: Candidate, rows: int) -> Unit:
    return Unit(candidate.name, candidate.seeds[0], 1.0, rows)


def _firsts(candidates: Sequence[Candidate], rows: int) -> Iterator[Unit]:
    """Yield the first seeds of candidates at their default rate."""
    yield from (_first(each, rows) for each in candidates)
