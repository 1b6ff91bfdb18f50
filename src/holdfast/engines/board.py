"""Board: where runs on a cluster pin how far they are, for the driver to read; it needs nothing but Python."""

from __future__ import annotations

import importlib
from contextlib import suppress
from dataclasses import dataclass
from typing import Any


class Board:
    """An actor of Ray beside the driver; runs that last long tell it their steps now and then."""

    def __init__(self) -> None:
        self.steps: dict[str, int] = {}

    def tell(self, id: str, steps: int) -> None:
        self.steps[id] = steps

    def take(self) -> dict[str, int]:
        """What was told since the last time."""
        told, self.steps = self.steps, {}
        return told


@dataclass(frozen=True)
class Place:
    """Where a board hangs once the driver has put it up: short runs need none."""

    key: str  # what tells the runs of one driver from those of another

    def put_up(self) -> Any:
        """The board, beside whoever calls this and gone with it."""
        ray = importlib.import_module("ray")
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        here = strategies.NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        return ray.remote(Board).options(name=self._name, num_cpus=0, scheduling_strategy=here).remote()

    def tell(self, id: str, steps: int) -> None:
        """Pin the steps of a run, if there is a board yet."""
        with suppress(ValueError):
            importlib.import_module("ray").get_actor(self._name).tell.remote(id, steps)

    @property
    def _name(self) -> str:
        return f"holdfast-board-{self.key}"
