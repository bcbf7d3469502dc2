#!/usr/bin/env python3
"""Checks that the sans-I/O crates are sans I/O, that every library reads JSON alike, and that what ships forbids unsafe
code.

The list below is everything the protocol and the engine may stand on. A crate that is not on it
fails the gate: it may be a fine crate, but whether it opens files, reads clocks or draws random
numbers has to be looked at once, and written down here.
"""

import json
import pathlib
import re
import subprocess
import sys

ALLOWED = {
    "bytes": "shared buffers",
    "httparse": "heads of HTTP/1.1 messages, in place",
    "itoa": "integers as text (serde_json)",
    "memchr": "the search for the end of a line",
    "ryu": "floats as text (serde_json)",
    "serde": "typed JSON",
    "serde_core": "typed JSON (serde)",
    "serde_json": "JSON",
    "serde_path_to_error": "the member of a JSON object that could not be used",
    "subtle": "comparison of keys in constant time",
    "thiserror": "error enums",
    "zeroize": "secrets leave memory",
    "zmij": "floats as text (serde_json)",
}

SANS_IO = [
    ("broca-proto", ["--all-features"]),
    ("broca", ["--no-default-features"]),
    ("broca-bridge", []),
]

# Every library that a language loads, and whoever reads JSON beside them.
SAME_JSON = ["broca-capi", "broca-python", "broca-node", "broca-server"]

NO_UNSAFE = ["broca-proto", "broca", "broca-server", "broca-cli", "broca-chaos"]


def cargo(*arguments):
    """Runs cargo and returns what it printed; its own message is the error."""
    done = subprocess.run(["cargo", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"cargo {arguments[0]} failed:\n{done.stderr}")
    return done.stdout


def impure(crate, features):
    """The crates below `crate` that are not on the list."""
    tree = cargo(
        "tree", "--quiet", "--package", crate, *features, "--edges", "normal,no-proc-macro",
        "--target", "all", "--prefix", "none", "--format", "{p}",
    )
    names = {line.split()[0] for line in tree.splitlines() if line.strip()}
    own = {name for name, _ in SANS_IO}
    return sorted(names - ALLOWED.keys() - own)


def json_features(crate):
    """What is switched on in serde_json below `crate`, by whatever else stands on it."""
    tree = cargo(
        "tree", "--quiet", "--package", crate, "--edges", "normal,features", "--invert", "serde_json",
        "--target", "all", "--prefix", "none",
    )
    return set(re.findall(r'^serde_json feature "(\w+)"', tree, re.MULTILINE))


def crate_roots():
    """(crate, root file) of every library and program that must forbid unsafe code."""
    found = json.loads(cargo("metadata", "--no-deps", "--format-version", "1"))
    for package in found["packages"]:
        if package["name"] not in NO_UNSAFE:
            continue
        for target in package["targets"]:
            if {"lib", "bin"} & set(target["kind"]):
                yield package["name"], pathlib.Path(target["src_path"])


def main():
    faults = []
    for crate, features in SANS_IO:
        for name in impure(crate, features):
            faults.append(
                f"{crate} ({' '.join(features)}) stands on {name}, which is not on the list of"
                " scripts/purity.py: keep it out, or list it there with the reason"
            )
    # A feature that some other crate needs would have one language read numbers as no other does.
    wanted = json_features("broca-proto")
    for crate in SAME_JSON:
        for feature in sorted(json_features(crate) ^ wanted):
            faults.append(f"serde_json has the feature {feature} in {crate} or in broca-proto, but not in both")
    for crate, path in crate_roots():
        lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
        if "#![forbid(unsafe_code)]" not in lines:
            faults.append(f"{path}: {crate} must say #![forbid(unsafe_code)] in its crate root")
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
