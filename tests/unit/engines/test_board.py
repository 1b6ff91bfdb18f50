"""Steps of long runs on a cluster reach the driver; short runs need no board. Ray is played by a few lines."""

import sys
import time
from types import SimpleNamespace

import pytest

from holdfast.run import ray as engine
from holdfast.run.ray import Board, Place


@pytest.fixture
def actors(monkeypatch):
    """The named actors of a pretended Ray."""
    found = {}

    def get_actor(name):
        if name not in found:
            raise ValueError(name)
        return found[name]

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get_actor=get_actor))
    return found


def as_actor(board):
    tell, take = (SimpleNamespace(remote=method) for method in (board.tell, board.take))
    return SimpleNamespace(tell=tell, take=take)


def test_steps_are_pinned_once_there_is_a_board(actors):
    place, board = Place("k"), Board()
    place.tell("a", 3)
    actors["holdfast-board-k"] = as_actor(board)
    place.tell("a", 5)
    assert (board.take(), board.take()) == ({"a": 5}, {})


@pytest.mark.parametrize(("silent", "there"), [(engine.LONG + 1, True), (0.0, False)])
def test_the_driver_puts_a_board_up_when_runs_prove_long_and_passes_steps_on(monkeypatch, silent, there):
    board, passed = Board(), []
    board.tell("a", 7)
    monkeypatch.setattr(Place, "put_up", lambda self: as_actor(board))
    ray = SimpleNamespace(put=lambda kit: b"k", get=lambda thing: thing)
    driver = engine._Driver(ray, None, None, SimpleNamespace(worker_steps=lambda *told: passed.append(told)))
    driver.under_way = {"reference": SimpleNamespace(id="a", name="run a", steps=9)}
    driver.looked = time.monotonic() - engine.PROGRESS_INTERVAL - 1
    driver.heard = time.monotonic() - silent
    driver._look()
    assert passed == ([("a", "run a", 7, 9)] if there else [])
    assert (driver.board is not None) == there
