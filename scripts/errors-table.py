#!/usr/bin/env python3
"""Checks that the table in docs/errors.md is the one that every language has; with --write, writes it.

Runs with a Python that has the package broca installed: the rows are the engine's, and so are the classes.
"""

import inspect
import pathlib
import sys

from broca import _broca, errors

GUIDE = pathlib.Path(__file__).resolve().parent.parent / "docs/errors.md"
HEAD = "| number | kind | class | below | again? | what it means |\n|---:|---|---|---|---|---|\n"


def table():
    rows = _broca.error_table()
    names = {code: class_name for code, _, class_name, *_ in rows}
    lines = []
    for code, kind, class_name, parent, retry in rows:
        told = inspect.cleandoc(getattr(errors, class_name).__doc__)
        meaning = told.split("\n\n")[0].replace("\n", " ").replace("``", "`").replace("|", "\\|")
        below = f"`{names[parent]}`" if parent is not None else ""
        lines.append(f"| {code} | `{kind}` | `{class_name}` | {below} | {retry} | {meaning} |\n")
    return HEAD + "".join(lines)


def main():
    text = GUIDE.read_text(encoding="utf-8")
    before, _, rest = text.partition(HEAD)
    if not rest:
        sys.exit(f"{GUIDE.name} has no table with the head that is expected")
    body = "".join(line for line in rest.splitlines(keepends=True) if line.startswith("|"))
    after = rest[len(body):]
    wanted = before + table() + after
    if text == wanted:
        return
    if "--write" not in sys.argv[1:]:
        sys.exit("docs/errors.md differs from the table of errors: write it with scripts/errors-table.py --write")
    GUIDE.write_text(wanted, encoding="utf-8")


if __name__ == "__main__":
    main()
