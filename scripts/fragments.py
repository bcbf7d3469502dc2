#!/usr/bin/env python3
"""Writes the code that stands in the guides as programs that the tools of its language can check.

Usage: fragments.py LANGUAGE FOLDER, with python, node, c or c++. One file for each block of code of the Markdown files, named by
its place (docs_python_11.py); what it takes for granted stands in scripts/fragments. A block that is a whole program stays
one. Blocks that come from programs that are run (snippets.py) are left out. Prints how many there are.
"""

import pathlib
import re
import subprocess
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
AROUND = ROOT / "scripts/fragments"
BLOCK = re.compile(r"(?P<from>^<!-- from \S+ -->\n+)?^```(?P<name>[\w+]+)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
NAMES = {"python": ("python",), "node": ("ts", "typescript"), "c": ("c",), "c++": ("cpp",)}


def blocks(*names):
    """(file, line, code) of the blocks of code with one of these names that stand in the Markdown files alone."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True,
    ).stdout
    for file in sorted(set(filter(None, listed.split("\0")))):
        text = (ROOT / file).read_text(encoding="utf-8")
        for block in BLOCK.finditer(text):
            if block["name"] in names and not block["from"]:
                yield file, text.count("\n", 0, block.start()) + 1, block["code"]


def python(code):
    """Inside of a coroutine: there `await` is allowed, and names may be given again."""
    left_out = re.sub(r"^( *)…$", r"\1raise NotImplementedError", code, flags=re.MULTILINE)
    body = textwrap.indent(left_out.replace("…", "ANY"), "    ")
    return f"from around import *\n\n\nasync def fragment() -> None:\n{body}"


def node(code):
    """As a module; what it takes for granted is global, so that it may import the same names."""
    return code.replace("…", "ANY") + "\nexport {};\n"


def inside(around, code):
    """In the place of FRAGMENT, what it includes at the head."""
    included = "".join(line + "\n" for line in code.splitlines() if line.startswith("#include"))
    rest = "\n".join(line for line in code.splitlines() if not line.startswith("#include"))
    return included + (AROUND / around).read_text(encoding="utf-8").replace("FRAGMENT", rest)


def c(code):
    """Inside of a function, unless it has its own."""
    return code if "int main(" in code else inside("around.c", code)


def cpp(code):
    """Inside of a function."""
    return inside("around.cpp", code)


WRITTEN = {"python": (python, ".py"), "node": (node, ".mts"), "c": (c, ".c"), "c++": (cpp, ".cpp")}


def main():
    language, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    write, suffix = WRITTEN[language]
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for file, line, code in blocks(*NAMES[language]):
        name = re.sub(r"\W", "_", file.removesuffix(".md"))
        (folder / f"{name}_{line}{suffix}").write_text(write(code), encoding="utf-8")
        count += 1
    print(count)
    return 0 if count else 1


if __name__ == "__main__":
    sys.exit(main())
