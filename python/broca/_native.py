"""Looks whether the native module can be loaded, before anything needs it.

What the interpreter says by itself ("No module named …") helps nobody who has a wheel of another platform.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import platform
import sysconfig

__all__: list[str] = []


def _check() -> None:
    try:
        importlib.import_module("broca._broca")
    except ImportError as fault:
        if fault.path is None and fault.name is None:
            # The module is there and refuses by itself: in a sub-interpreter, say.
            raise
        raise ImportError(_why(fault), name=fault.name, path=fault.path) from fault


def _why(fault: ImportError) -> str:
    folder = os.path.dirname(os.path.abspath(__file__))
    wanted = ", ".join("_broca" + suffix for suffix in importlib.machinery.EXTENSION_SUFFIXES)
    there = sorted(name for name in os.listdir(folder) if name.startswith("_broca.") and not name.endswith(".pyi"))
    python = f"{platform.python_implementation()} {platform.python_version()} on {sysconfig.get_platform()}"
    return (
        f"the native module of broca cannot be loaded by {python}: {fault}. Looked in {folder} for {wanted}; "
        f"found {', '.join(there) or 'none'}. Install broca-sdk with this interpreter on this machine"
    )


_check()
