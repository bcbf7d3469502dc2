"""Finds the ``broca`` command and checks that it is of this package's version."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
from typing import Union

from .._version import __version__
from .process import ServerError

StrPath = Union[str, "os.PathLike[str]"]

VARIABLE = "BROCA_BINARY"
"""The environment variable that names the command."""


class BinaryNotFoundError(ServerError):
    """There is no ``broca`` command where one was looked for."""


class VersionMismatchError(ServerError):
    """The ``broca`` command is of another version than this package."""


_checked: set[tuple[str, int, int]] = set()


def find(given: StrPath | None = None) -> str:
    """Return the path of the ``broca`` command of this package's version.

    It is looked for in this order, and the first place that names one decides: ``given``, the environment
    variable ``BROCA_BINARY``, the package ``broca-server``, ``PATH``.

    :raises BinaryNotFoundError: when there is none, or no program at the place that was named
    :raises VersionMismatchError: when it is of another version
    :raises ServerError: when it does not run
    """
    path, place = _place(given)
    if not (os.path.isfile(path) and os.access(path, os.X_OK)):
        raise BinaryNotFoundError(f"{path} ({place}) is no program that can be run")
    path = os.path.abspath(path)
    about = os.stat(path)
    fact = (path, about.st_mtime_ns, about.st_size)
    if fact not in _checked:
        _check(path, place)
        _checked.add(fact)
    return path


def _place(given: StrPath | None) -> tuple[str, str]:
    """Return the path and what named it."""
    if given is not None:
        return os.fspath(given), "binary="
    named = os.environ.get(VARIABLE)
    if named:
        return named, VARIABLE
    try:
        package = importlib.import_module("broca_server")
    except ImportError:
        pass
    else:
        try:
            return str(package.binary_path()), "the package broca-server"
        except FileNotFoundError as error:
            raise BinaryNotFoundError(str(error)) from error
    found = shutil.which("broca")
    if found:
        return found, "PATH"
    raise BinaryNotFoundError(
        f"there is no broca command: pip install broca-server=={__version__}, "
        f"set {VARIABLE} to its path, or put it on PATH"
    )


def _check(path: str, place: str) -> None:
    try:
        done = subprocess.run([path, "version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerError(f"{path} ({place}) cannot be run: {error}") from error
    words = done.stdout.decode("utf-8", "replace").split()
    if done.returncode != 0 or len(words) != 2 or words[0] != "broca":
        raise ServerError(f"{path} ({place}) is not the broca command: `version` told no version")
    if words[1] != __version__:
        raise VersionMismatchError(
            f"{path} ({place}) is broca {words[1]}, and this package is {__version__}: "
            f"they must be equal; pip install broca-server=={__version__}, or name another with {VARIABLE}"
        )
