#!/usr/bin/env python3
"""Reads the first programs of README.md: what a newcomer types and pastes in each language.

Run alone, it checks that each program is the quickstart of examples/ in its language, which the tests run.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
QUICKSTARTS = {
    "Python": "examples/python/quickstart.py",
    "Node": "examples/node/quickstart.mjs",
    "Rust": "examples/rust/quickstart.rs",
    "C": "examples/c/quickstart.c",
}
SECTION = re.compile(r"^### (\w+)\n(.*?)(?=^##)", re.MULTILINE | re.DOTALL)
PART = re.compile(r"^```\w+\n(?P<program>.*?)^```$|(?P<commands>(?:^ {4}[^\n]*\n)+)", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"\A(?:#|//) (\S+)\n")
# What the lints of the checkout want at the head of an example in Rust.
RUST_HEAD = re.compile(r"\A(?://!.*\n|#!\[.*\]\n|\n)+")


def parts(language):
    """What the section of a language says, in order: commands, and programs with the name of their file."""
    sections = dict(SECTION.findall(README.read_text(encoding="utf-8")))
    for part in PART.finditer(sections[language]):
        if part["commands"]:
            yield None, re.sub(r"^ {4}", "", part["commands"], flags=re.MULTILINE)
        else:
            named = FILE_NAME.match(part["program"])
            assert named, f"README.md: the program in {language} does not begin with the name of its file"
            yield named[1], part["program"][named.end():]


def script(language):
    """All of it as a script for a shell: the newcomer's way."""
    lines = ["set -euo pipefail"]
    for file, text in parts(language):
        if file is None:
            lines.append(text)
        else:
            lines.append(f"cat >{file} <<'END_OF_FILE'\n{text}END_OF_FILE")
    return "\n".join(lines)


def main():
    faults = 0
    for language, path in QUICKSTARTS.items():
        example = (ROOT / path).read_text(encoding="utf-8")
        if language == "Rust":
            example = RUST_HEAD.sub("", example)
        programs = [text for file, text in parts(language) if file is not None]
        if programs != [example]:
            faults += 1
            print(f"README.md: the program in {language} is not that of {path}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
