#!/usr/bin/env python3
"""Checks the links of every Markdown file in the checkout: files that exist, headings that exist.

Links to other sites are not followed: the check uses no network.
"""

import functools
import pathlib
import re
import subprocess
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINK = re.compile(r"!?\[(?:[^\]\\]|\\.)*\]\(\s*<?([^)>\s]+)>?(?:\s+\"[^\"]*\")?\s*\)")
REFERENCE = re.compile(r"^ {0,3}\[[^\]]+\]:\s*<?([^>\s]+)>?", re.MULTILINE)
HEADING = re.compile(r"^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$", re.MULTILINE)
ANCHOR = re.compile(r"<a\s+(?:id|name)=\"([^\"]+)\"")
FENCE = re.compile(r"^ {0,3}(```|~~~).*?^ {0,3}\1[`~]*\s*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)[^`].*?\1", re.DOTALL)
SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def prose(path):
    """The text of a file without its code, where brackets mean something else."""
    return FENCE.sub("", path.read_text(encoding="utf-8"))


@functools.cache
def anchors(path):
    """The anchors that a reader of the rendered file can jump to."""
    text = prose(path)
    found = set(ANCHOR.findall(text))
    seen = {}
    for _, title in HEADING.findall(text):
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        slug = re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")
        number = seen.get(slug, 0)
        seen[slug] = number + 1
        found.add(f"{slug}-{number}" if number else slug)
    return found


def fault_of(path, link):
    """Why a link leads nowhere, or None."""
    if SCHEME.match(link) or link.startswith("//"):
        return None
    name, _, anchor = link.partition("#")
    target = path
    if name:
        base = ROOT if name.startswith("/") else path.parent
        target = (base / urllib.parse.unquote(name.lstrip("/"))).resolve()
        if not target.is_relative_to(ROOT):
            return "leads out of the checkout"
        if not target.exists():
            return "no such file"
    if anchor and target.suffix == ".md" and urllib.parse.unquote(anchor) not in anchors(target):
        return "no such heading"
    return None


def main():
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True,
    ).stdout
    links = faults = 0
    for name in sorted(filter(None, listed.split("\0"))):
        path = ROOT / name
        if not path.exists():
            continue
        text = CODE.sub("", prose(path))
        for link in LINK.findall(text) + REFERENCE.findall(text):
            links += 1
            fault = fault_of(path, link)
            if fault:
                faults += 1
                print(f"{name}: {link}: {fault}", file=sys.stderr)
    print(f"links: {links} checked, {faults} lead nowhere", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
