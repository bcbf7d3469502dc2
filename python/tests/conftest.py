"""Fixtures that the tests of both halves share."""

from __future__ import annotations

import asyncio
import os
import pathlib
import shutil
import signal
from collections.abc import Coroutine, Iterator
from typing import Any, Callable

import pytest

from broca.testing import Server

ROOT = pathlib.Path(__file__).resolve().parents[2]
Run = Callable[[Coroutine[Any, Any, None]], None]

# A shell that runs the tests in the background ignores interrupts, and programs inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _binary() -> str | None:
    """The ``broca`` command: the one that is named, or that a build of the workspace left."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    built = (str(target / profile / "broca") for profile in ("debug", "ci", "release"))
    named = os.environ.get("BROCA_BINARY")
    return named or next((path for path in built if os.access(path, os.X_OK)), shutil.which("broca"))


@pytest.fixture(scope="session")
def binary() -> str:
    """The path of the ``broca`` command."""
    found = _binary()
    if found is None:
        pytest.skip("there is no broca command: cargo build -p broca-cli")
    return found


@pytest.fixture(scope="module")
def server(binary: str) -> Iterator[Server]:
    """A service for the tests of one file. Sessions are theirs alone."""
    with Server(binary=binary) as started:
        yield started


def _loops() -> list[Any]:
    loops: list[Any] = [pytest.param(asyncio.run, id="asyncio")]
    try:
        import uvloop
    except ImportError:
        loops.append(pytest.param(None, id="uvloop", marks=pytest.mark.skip("uvloop is not installed")))
    else:
        loops.append(pytest.param(uvloop.run, id="uvloop"))
    return loops


@pytest.fixture(params=_loops())
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine on a new loop, of asyncio and of uvloop."""
    chosen: Run = request.param
    return chosen
