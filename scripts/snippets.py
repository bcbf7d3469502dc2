#!/usr/bin/env python3
"""Puts programs that are tested into the pages that show them, so that a page never differs from what runs.

    scripts/snippets.py            says which pages differ
    scripts/snippets.py --write    brings them up to date

Wherever a Markdown file says `<!-- from PATH -->`, the block of code that follows holds the file of that path, from the root
of the checkout: its lines between `guide: begin` and `guide: end`, each in a comment of its own, or all of it. Several
such parts follow each other with an empty line between.

Every page of docs/guide shows the program of each language and what they print, and is in the table of its index.
"""

import pathlib
import re
import subprocess
import sys
import textwrap

import guides

ROOT = pathlib.Path(__file__).resolve().parent.parent
GUIDE = ROOT / "docs/guide"
BLOCK = re.compile(
    r"(?P<head>^<!-- from (?P<path>\S+) -->\n+```(?P<language>\w+)\n)(?P<code>.*?)(?P<tail>^```$)", re.MULTILINE | re.DOTALL
)
MARK = re.compile(r"^<!-- from ", re.MULTILINE)
PART = re.compile(r"^[^\n]*\bguide: begin\b[^\n]*\n(.*?)^[^\n]*\bguide: end\b", re.MULTILINE | re.DOTALL)


def shown(path):
    """What a page shows of a file."""
    text = (ROOT / path).read_text(encoding="utf-8")
    parts = PART.findall(text)
    assert text.count("guide: begin") == text.count("guide: end") == len(parts), f"{path}: parts that have no end, or no begin"
    return "\n".join(textwrap.dedent(part) for part in parts) if parts else text


def updated(text):
    """The page with what it shows brought up to date."""
    return BLOCK.sub(lambda block: block["head"] + shown(block["path"]) + block["tail"], text)


def faults_of_guide():
    """Pages without examples, examples without pages, pages that the index does not name."""
    names = {path.stem for path in GUIDE.glob("*.md")} - {"index"}
    index = (GUIDE / "index.md").read_text(encoding="utf-8")
    for page in sorted(names | set(guides.pages())):
        path = GUIDE / f"{page}.md"
        if not path.exists():
            yield f"examples/guide/{page} has no page docs/guide/{page}.md"
            continue
        if f"({page}.md)" not in index:
            yield f"docs/guide/index.md does not name {page}.md"
        sources = {block["path"] for block in BLOCK.finditer(path.read_text(encoding="utf-8"))}
        for file in [*guides.FILES.values(), "expected.txt"]:
            if f"examples/guide/{page}/{file}" not in sources:
                yield f"docs/guide/{page}.md does not show examples/guide/{page}/{file}"


def main():
    write = sys.argv[1:] == ["--write"]
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True,
    ).stdout
    faults = list(faults_of_guide())
    blocks = 0
    for name in sorted(set(filter(None, listed.split("\0")))):
        path = ROOT / name
        if not path.exists():
            continue
        text = path.read_text(encoding="utf-8")
        found = len(BLOCK.findall(text))
        blocks += found
        if found != len(MARK.findall(text)):
            faults.append(f"{name}: a `<!-- from … -->` has no block of code behind it")
        new = updated(text)
        if new != text and write:
            path.write_text(new, encoding="utf-8")
        elif new != text:
            faults.append(f"{name} differs from the programs that it shows: scripts/snippets.py --write")
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"snippets: {blocks} checked, {len(faults)} faults", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
