"""Staying awake for quick answers, and threads that are woken late."""

from __future__ import annotations

import threading
from typing import Any, Callable

import pytest

import broca
from broca._awake import Awake
from broca._pool import Pool

CLIENTS: list[Callable[..., Any]] = [broca.Client, broca.AsyncClient]


def test_it_pays_to_stay_awake_after_a_quick_answer_only() -> None:
    awake = Awake(300)
    assert awake.asked(10.0) == 0.0  # nobody knows yet how quick the service is
    awake.heard(10.0001)
    assert awake.asked(20.0) == pytest.approx(20.0003)
    awake.heard(20.5)
    assert awake.asked(30.0) == 0.0
    awake.heard(30.0002)
    awake.heard(39.0)  # more of the same answer says nothing
    assert awake.asked(40.0) > 40.0


def test_with_no_time_to_stay_awake_it_never_does() -> None:
    awake = Awake(0)
    awake.asked(1.0)
    awake.heard(1.0)
    assert awake.asked(2.0) <= 2.0


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("wrong", [-1, 1_000_001])
def test_a_time_that_cannot_be_is_refused(client: Callable[..., Any], wrong: int) -> None:
    with pytest.raises(broca.InvalidArgumentError, match="awake_us must be from 0"):
        client("http://127.0.0.1:1", "k", awake_us=wrong)


def test_a_thread_is_woken_when_the_caller_says_so() -> None:
    pool = Pool(1)
    first, second = threading.Event(), threading.Event()
    pool.submit(first.set)
    assert first.wait(20)
    wakes: list[Callable[[], None]] = []
    while not wakes:
        # The thread rests soon; a job that it takes before that needs no waking.
        second.clear()
        pool.submit(second.set, wakes)
        if not wakes:
            assert second.wait(20)
    assert not second.is_set()
    wakes.pop()()
    assert second.wait(20)
    pool.close()
