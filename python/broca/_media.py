"""Images and files in messages and in results of tools::

    session.send(["What is this?", broca.Image.open("cat.png")])

A message is a text, or a list of texts, images, files and content blocks. They reach the model where the session takes
them (the feature ``blocks``); elsewhere the message is refused before anything leaves.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from . import _broca
from .errors import InvalidArgumentError

__all__ = ["File", "Image"]


class _Media:
    __slots__ = ("json",)

    json: str
    """Its content block, as JSON."""

    @property
    def block(self) -> dict[str, Any]:
        """Its content block."""
        return dict(_broca.decode_json(self.json))

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.json == getattr(other, "json", None)

    def __hash__(self) -> int:
        return hash(self.json)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.json)} bytes as JSON)"


class Image(_Media):
    """An image: bytes, with the media type that they show by themselves, or the one that is given."""

    __slots__ = ()

    def __init__(self, data: bytes, media_type: str | None = None) -> None:
        """Raises `InvalidArgumentError` when nobody can tell what the bytes are."""
        self.json = _broca.media_block(_bytes(data), False, media_type)

    @classmethod
    def open(cls, path: str | os.PathLike[str], media_type: str | None = None) -> Image:
        """The image in this file, which is read at once. Raises `OSError` when it cannot be."""
        made = cls.__new__(cls)
        made.json = _broca.media_block(_read(path), False, media_type, os.fspath(path))
        return made

    @classmethod
    def at(cls, url: str) -> Image:
        """An image that the model's provider fetches by itself."""
        made = cls.__new__(cls)
        made.json = _broca.image_at(url)
        return made


class File(_Media):
    """A file: text travels as text, everything else as bytes with a media type. ``title``: what the model calls it."""

    __slots__ = ()

    def __init__(self, data: bytes | str, media_type: str | None = None, *, title: str | None = None) -> None:
        """Raises `InvalidArgumentError` when nobody can tell what the bytes are."""
        if isinstance(data, str):
            data, media_type = data.encode(), media_type or "text/plain"
        self.json = _broca.media_block(_bytes(data), True, media_type, None, title)

    @classmethod
    def open(cls, path: str | os.PathLike[str], media_type: str | None = None, *, title: str | None = None) -> File:
        """This file, which is read at once. Its title is its name, if there is no other. Raises `OSError` when it
        cannot be read."""
        made = cls.__new__(cls)
        made.json = _broca.media_block(_read(path), True, media_type, os.fspath(path), title)
        return made


def plain(value: Any) -> Any:
    """A message or a result with blocks in the place of images, files, and texts beside them."""
    if isinstance(value, _Media):
        return [value.block]
    if isinstance(value, (list, tuple)) and any(isinstance(part, (_Media, str)) for part in value):
        return [_block(part) for part in value]
    if isinstance(value, Mapping) and isinstance(value.get("content"), (_Media, list, tuple)):
        return {**value, "content": plain(value["content"])}
    return value


def is_content(result: Any) -> bool:
    """Whether a tool's result is content: an image, a file, or a list that holds one."""
    if isinstance(result, (list, tuple)):
        return any(isinstance(part, _Media) for part in result)
    return isinstance(result, _Media)


def _block(part: Any) -> Any:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return part.block if isinstance(part, _Media) else part


def _bytes(data: bytes) -> bytes:
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise InvalidArgumentError(f"bytes are wanted, not {type(data).__name__}; a path is given to open()")
    return bytes(data)


def _read(path: str | os.PathLike[str]) -> bytes:
    with open(path, "rb") as file:
        return file.read()
