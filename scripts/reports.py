#!/usr/bin/env python3
"""Checks docs/reports.md: a row for every class, and every test that a row names is there and is run.

A row names tests as `file::name`, or says `not built yet` or `does not apply`.
"""

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs/reports.md"
CLASSES = [f"C{number:02}" for number in range(1, 119)]
ROW = re.compile(r"^\| (C\d+) \| ([^|]+) \| (.*) \|$", re.MULTILINE)
TEST = re.compile(r"`([^`]+?)::([^`]+)`")
EXCUSE = re.compile(r"not built yet|does not apply", re.IGNORECASE)
# Providers whose reader is not built: every runner skips their vectors, whatever the kind.
UNREAD = {"anthropic", "openai_responses"}

# How a test of this name is written, by the end of its file's name. Where a function alone does not make a test, what does.
WRITTEN = {
    ".rs": r"#\[(?:\w+::)?test(?:\([^\]]*\))?\]\s+(?:#\[[^\]]*\]\s+)*(?:async )?fn {}\(",
    ".py": r"^ *(?:async )?def {}\(",
    ".ts": r"\b(?:test|it)\(\s*[\"'`]{}[\"'`]",
    ".c": r"\bTEST\({}\)",
}


def played(path):
    """The ids of the vectors in a set that every language plays."""
    manifest = json.loads((path.parent / "manifest.json").read_text(encoding="utf-8"))
    kinds = next((one["played"] for one in manifest["sets"] if one["file"] == path.name), [])
    cases = (json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip())
    return {case["id"] for case in cases if case["kind"] in kinds and case["feed"].get("provider") not in UNREAD}


def fault_of(file, name):
    """What is wrong with a named test, if anything."""
    path = ROOT / file
    if not path.is_file():
        return f"there is no file {file}"
    if path.suffix == ".jsonl":
        return None if name in played(path) else f"{file} has no case {name} that is played"
    written = WRITTEN.get(path.suffix)
    if written is None:
        return f"{file} is no file of tests"
    found = re.search(written.replace("{}", re.escape(name)), path.read_text(encoding="utf-8"), re.MULTILINE)
    return None if found else f"{file} has no test {name}"


def faults(text):
    rows = ROW.findall(text)
    numbers = [number for number, _, _ in rows]
    for number in CLASSES:
        if numbers.count(number) != 1:
            yield f"{number} has {numbers.count(number)} rows"
    if numbers != sorted(numbers, key=lambda number: int(number[1:])) or set(numbers) - set(CLASSES):
        yield f"the rows are not {CLASSES[0]} to {CLASSES[-1]} in order"
    for number, _, guards in rows:
        tests = TEST.findall(guards)
        if not tests and not EXCUSE.search(guards):
            yield f"{number} names no test and does not say why"
        for file, name in tests:
            if fault := fault_of(file, name):
                yield f"{number}: {fault}"


def main():
    found = list(faults(TABLE.read_text(encoding="utf-8")))
    for fault in found:
        print(f"docs/reports.md: {fault}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
