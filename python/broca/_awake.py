"""Staying awake for an answer that will be there at once."""

from __future__ import annotations

DEFAULT_US = 300


class Awake:
    """Says for how long it pays to look for an answer without sleeping.

    To fall asleep and to be woken takes longer than a service on the same machine takes to answer. So after a request a
    shell looks again and again, for as long as the limit, if the answer before came within it; after a slower one it
    sleeps at once. Times are seconds of any clock that never goes back.
    """

    __slots__ = ("_asked", "_limit", "_quick")

    def __init__(self, limit_us: int) -> None:
        self._limit = limit_us / 1_000_000
        self._asked = 0.0
        self._quick = False

    def asked(self, now: float) -> float:
        """A request has left. Until when to look without sleeping; a time that has passed: not at all."""
        self._asked = now
        return now + self._limit if self._quick else 0.0

    def heard(self, now: float) -> None:
        """Bytes have come."""
        if self._asked:
            self._quick = now - self._asked < self._limit
            self._asked = 0.0
