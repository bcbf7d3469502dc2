"""The ``broca`` command as a package: where its program lies."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator

__all__ = ["binary_path"]


def binary_path() -> str:
    """Return the absolute path of the ``broca`` program that was installed with this package.

    :raises FileNotFoundError: when the installation is damaged; the message names the folders that were searched
    """
    name = "broca" + (sysconfig.get_config_var("EXE") or "")
    folders = list(dict.fromkeys(_folders()))
    for folder in folders:
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            return os.path.abspath(path)
    searched = ", ".join(folders)
    raise FileNotFoundError(f"broca-server is installed without its program {name}; searched: {searched}")


def _folders() -> Iterator[str]:
    """Name the folders into which an installer may have put the program, the likeliest first."""
    package = os.path.dirname(os.path.abspath(__file__))
    # The environment that this package lies in, which need not be the one that runs: .../lib/pythonX.Y/site-packages,
    # with Windows .../Lib/site-packages.
    parents = 4 if os.name != "nt" else 3
    root = package
    for _ in range(parents):
        root = os.path.dirname(root)
    scripts = "Scripts" if os.name == "nt" else "bin"
    yield os.path.join(root, scripts)
    # pip install --target=FOLDER
    yield os.path.join(os.path.dirname(package), "bin")
    yield sysconfig.get_path("scripts")
    # pip install --user
    yield sysconfig.get_path("scripts", f"{os.name}_user")
    if sys.platform == "darwin" and "osx_framework_user" in sysconfig.get_scheme_names():
        yield sysconfig.get_path("scripts", "osx_framework_user")
