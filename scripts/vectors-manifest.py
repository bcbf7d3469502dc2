#!/usr/bin/env python3
"""Keeps core/vectors/manifest.json true.

    scripts/vectors-manifest.py --check    the files are those of the manifest, and no others
    scripts/vectors-manifest.py --write    count and hash again, after a change made on purpose
    scripts/vectors-manifest.py --plan     `FILE DUE OTHERS KIND…` for each set: what runners must play

A set counts one case for each non-empty line, whatever the number of ways in which a runner cuts
its bytes. `played` names the kinds that every runner must play today; the others are counted as
skipped until the contract they belong to is there.
"""

import collections
import hashlib
import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "core" / "vectors"
MANIFEST = FOLDER / "manifest.json"
ONE_CASE = (
    "One case is one non-empty line of a set's file. A runner counts it once, as passed only if "
    "every way of cutting its bytes (as given, in one chunk, byte by byte) gave the stated outcome."
)


def measure(path):
    """What the manifest says of a file: kinds with their counts, count, hash."""
    data = path.read_bytes()
    kinds, ids = collections.Counter(), set()
    for number, line in enumerate(data.decode("utf-8").split("\n"), 1):
        if not line.strip():
            continue
        case = json.loads(line)
        if case["id"] in ids:
            raise ValueError(f"{path.name}:{number}: id {case['id']} appears twice")
        ids.add(case["id"])
        kinds[case["kind"]] += 1
    return {
        "kinds": dict(sorted(kinds.items())),
        "count": sum(kinds.values()),
        "sha256": hashlib.sha256(data).hexdigest(),
    }


def faults_of(manifest):
    listed = {one["file"] for one in manifest["sets"]}
    for path in sorted(FOLDER.glob("*.json*")):
        if path != MANIFEST and path.name not in listed:
            yield f"{path.name} is in core/vectors but not in the manifest"
    for one in manifest["sets"]:
        path = FOLDER / one["file"]
        if not path.is_file():
            yield f"{one['file']} is in the manifest but not in core/vectors"
            continue
        found = measure(path)
        for key, value in found.items():
            if one.get(key) != value:
                yield f"{one['file']}: {key} is {value}, the manifest says {one.get(key)}"
        for kind in one["played"]:
            if kind not in found["kinds"]:
                yield f"{one['file']}: played kind {kind} has no case"


def write(manifest):
    manifest["one_case"] = ONE_CASE
    for one in manifest["sets"]:
        one.update(measure(FOLDER / one["file"]))
    MANIFEST.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def main(arguments):
    if len(arguments) != 1 or arguments[0] not in ("--check", "--write", "--plan"):
        sys.exit(__doc__)
    manifest = json.loads(MANIFEST.read_text(encoding="utf-8"))
    if arguments[0] == "--write":
        write(manifest)
        return 0
    if arguments[0] == "--plan":
        for one in manifest["sets"]:
            due = sum(one["kinds"][kind] for kind in one["played"])
            print(f"core/vectors/{one['file']}", due, one["count"] - due, *one["played"])
        return 0
    faults = list(faults_of(manifest))
    for fault in faults:
        print(f"vectors: {fault}", file=sys.stderr)
    if faults:
        print("vectors: meant? then run scripts/vectors-manifest.py --write", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
