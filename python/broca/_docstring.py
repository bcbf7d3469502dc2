"""What a docstring says to a model: the text, and a line for each parameter.

The three usual styles are read: Google (``Args:``), NumPy (``Parameters`` over dashes) and reST
(``:param name:``). Anything else is text. Nothing is ever refused: a docstring is prose.
"""

from __future__ import annotations

import inspect
import re

_PARAMETERS = {
    "args", "arguments", "params", "parameters", "keyword args", "keyword arguments", "other parameters",
}  # fmt: skip
# For readers of the code, not for the model.
_DROPPED = {
    "returns",
    "return",
    "raises",
    "raise",
    "yields",
    "yield",
    "receives",
    "warns",
    "attributes",
    "see also",
}
_KEPT = {"example", "examples", "note", "notes", "warning", "warnings", "references", "todo"}

_GOOGLE_HEAD = re.compile(r"^([A-Z][A-Za-z ]*):$")
_GOOGLE_ITEM = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^:]*\))?\s*:\s*(.*)$")
_NUMPY_ITEM = re.compile(r"^(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?$")
_REST_PARAM = re.compile(r"^:(?:param|parameter|arg|argument|key|keyword)\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:\s*(.*)$")
_REST_FIELD = re.compile(r"^:[a-z]+(?:\s[^:]*)?:")


def read(doc: str | None) -> tuple[str, dict[str, str]]:
    """The text without its sections about parameters, results and errors; what is said of each parameter."""
    if not doc:
        return "", {}
    lines = inspect.cleandoc(doc).splitlines()
    text: list[str] = []
    params: dict[str, list[str]] = {}
    at = 0
    while at < len(lines):
        line = lines[at]
        numpy = at + 1 < len(lines) and re.fullmatch(r"-{3,}", lines[at + 1].strip()) is not None
        google = _GOOGLE_HEAD.match(line)
        name = (line.strip() if numpy else google.group(1) if google else "").lower()
        if name in _PARAMETERS:
            at = _numpy_items(lines, at + 2, params) if numpy else _google_items(lines, at + 1, params)
        elif name in _DROPPED:
            at = _numpy_end(lines, at + 2) if numpy else _google_end(lines, at + 1)
        elif _REST_FIELD.match(line):
            at = _rest_field(lines, at, params)
        else:
            text.append(line)
            at += 1
    described = {name: " ".join(part for part in parts if part) for name, parts in params.items()}
    return "\n".join(text).strip(), {name: what for name, what in described.items() if what}


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _google_end(lines: list[str], at: int) -> int:
    """A section goes on as long as its lines are indented."""
    while at < len(lines) and (not lines[at].strip() or _indent(lines[at]) > 0):
        at += 1
    return at


def _google_items(lines: list[str], at: int, params: dict[str, list[str]]) -> int:
    end = _google_end(lines, at)
    base = next((_indent(line) for line in lines[at:end] if line.strip()), 0)
    current: list[str] = []
    for line in lines[at:end]:
        item = _GOOGLE_ITEM.match(line.strip()) if _indent(line) <= base else None
        if item:
            current = params.setdefault(item.group(1), [])
            current.append(item.group(2).strip())
        else:
            current.append(line.strip())
    return end


def _numpy_end(lines: list[str], at: int) -> int:
    """A section goes on to the next head."""
    while at < len(lines):
        under = lines[at + 1].strip() if at + 1 < len(lines) else ""
        if re.fullmatch(r"-{3,}", under) and lines[at].strip().lower() in _PARAMETERS | _DROPPED | _KEPT:
            break
        at += 1
    return at


def _numpy_items(lines: list[str], at: int, params: dict[str, list[str]]) -> int:
    end = _numpy_end(lines, at)
    current: list[list[str]] = []
    for line in lines[at:end]:
        item = _NUMPY_ITEM.match(line) if line.strip() and _indent(line) == 0 else None
        if item:
            names = (name.strip().lstrip("*") for name in item.group(1).split(","))
            current = [params.setdefault(name, []) for name in names]
        else:
            for parts in current:
                parts.append(line.strip())
    return end


def _rest_field(lines: list[str], at: int, params: dict[str, list[str]]) -> int:
    param = _REST_PARAM.match(lines[at])
    parts = params.setdefault(param.group(1), []) if param else []
    if param:
        parts.append(param.group(2).strip())
    at += 1
    while at < len(lines) and lines[at].strip() and _indent(lines[at]) > 0:
        parts.append(lines[at].strip())
        at += 1
    return at
