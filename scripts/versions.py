#!/usr/bin/env python3
"""Checks that every version is written once, in the workspace's manifest.

A member's manifest takes its own version, and those of its dependencies, from the workspace, and
inherits its lints.
"""

import pathlib
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLES = ("dependencies", "dev-dependencies", "build-dependencies")


def manifest(path):
    with open(path, "rb") as file:
        return tomllib.load(file)


def dependency_tables(member):
    """(name, table) of every dependency table, those for one platform included."""
    for name in TABLES:
        yield name, member.get(name, {})
    for platform, tables in member.get("target", {}).items():
        for name in TABLES:
            yield f"target.{platform}.{name}", tables.get(name, {})


def faults_of(member):
    package = member.get("package", {})
    for key in ("version", "edition", "rust-version", "license"):
        if package.get(key) != {"workspace": True}:
            yield f"package.{key} must be `{key}.workspace = true`"
    if member.get("lints") != {"workspace": True}:
        yield "the lints of the workspace must be inherited: `[lints]` with `workspace = true`"
    for table, dependencies in dependency_tables(member):
        for name, wanted in dependencies.items():
            if not (isinstance(wanted, dict) and wanted.get("workspace") is True):
                yield f"{table}.{name} must take its version from [workspace.dependencies]"


def main():
    faults = []
    for folder in manifest(ROOT / "Cargo.toml")["workspace"]["members"]:
        path = ROOT / folder / "Cargo.toml"
        faults += [f"{path.relative_to(ROOT)}: {fault}" for fault in faults_of(manifest(path))]
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
