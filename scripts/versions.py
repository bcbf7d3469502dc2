#!/usr/bin/env python3
"""Checks that every version is written once, in the workspace's manifest.

A member's manifest takes its own version, and those of its dependencies, from the workspace, and
inherits its lints. Files of other languages that must repeat the version repeat this one.
"""

import json
import pathlib
import re
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


def python_version(path):
    found = re.search(r'^__version__ = "([^"]+)"$', path.read_text(encoding="utf-8"), re.MULTILINE)
    return found and found[1]


def project_version(path):
    project = manifest(path)["project"]
    # maturin takes it from the crate.
    return None if "version" in project.get("dynamic", []) else project.get("version")


def package_version(path):
    return json.loads(path.read_text(encoding="utf-8")).get("version")


# Who must repeat the version, and how it is read there.
REPEATED = {
    "python/pyproject.toml": project_version,
    "python/broca/_version.py": python_version,
    "python/server/pyproject.toml": project_version,
    "node/package.json": package_version,
    "node/server/package.json": package_version,
}


def repeated_faults(version):
    for name, read in REPEATED.items():
        path = ROOT / name
        found = read(path)
        if found is not None and found != version:
            yield f"{name} says version {found}, the workspace {version}"
        if found is None and read is not project_version:
            yield f"{name} says no version; it must say {version}"


def main():
    faults = []
    workspace = manifest(ROOT / "Cargo.toml")["workspace"]
    faults += repeated_faults(workspace["package"]["version"])
    for folder in workspace["members"]:
        path = ROOT / folder / "Cargo.toml"
        faults += [f"{path.relative_to(ROOT)}: {fault}" for fault in faults_of(manifest(path))]
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
