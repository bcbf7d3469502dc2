"""Images and files in messages and in results of tools."""

from __future__ import annotations

import asyncio
import pathlib
from typing import Any

import pytest

import broca
from broca.testing import Server

PNG = b"\x89PNG\r\n\x1a\n"


def said(session: broca.Session, kind: str) -> list[Any]:
    return [event.payload for event in session.events() if event.type == kind]


def test_a_message_holds_texts_images_and_files(server: Server, tmp_path: pathlib.Path) -> None:
    (tmp_path / "cat.png").write_bytes(PNG)
    (tmp_path / "notes.md").write_text("# Notes")
    message = [
        "What is this?",
        broca.Image.open(tmp_path / "cat.png"),
        broca.Image.at("https://example.com/x.png"),
        broca.File.open(tmp_path / "notes.md"),
        broca.File("words", title="said"),
    ]
    with broca.Client(server.url, server.key) as client, client.open() as session:
        session.ask(message)
        session.ask(broca.Image(PNG))
        first, second = said(session, "client.message.send")
    content = first["content"]
    assert [block["type"] for block in content] == ["text", "image", "image", "document", "document"]
    assert content[1]["source"] == {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    assert content[3]["title"] == "notes.md" and content[3]["source"]["data"] == "# Notes"
    assert content[4]["title"] == "said"
    assert second["content"][0]["type"] == "image"


def test_a_tool_gives_an_image_or_a_list_with_one(server: Server) -> None:
    @broca.tool
    def draw() -> broca.Image:
        """Draws."""
        return broca.Image(PNG)

    @broca.tool
    async def show() -> list[Any]:
        """Shows."""
        return ["a cat", broca.Image(PNG), broca.File(b"%PDF-1", title="t")]

    async def main() -> None:
        async with broca.AsyncClient(server.url, server.key) as client, await client.open([draw, show]) as session:
            await session.ask("draw and show")
            results = {str(event.payload["content"]) async for event in session.events() if event.type == "tool.result"}
            [drawn] = [result for result in results if "a cat" not in result]
            [shown] = results - {drawn}
            assert "image/png" in drawn
            assert "image/png" in shown and "application/pdf" in shown

    asyncio.run(main())


def test_a_session_of_text_refuses_a_message_and_puts_words_in_a_result(server: Server) -> None:
    draw = broca.Tool.raw("draw", "Draws.", {"type": "object"}, lambda *_: broca.Image(PNG))
    with broca.Client(server.url, server.key, features=["display"]) as client, client.open([draw]) as session:
        with pytest.raises(broca.InvalidArgumentError, match="takes text only"):
            session.ask([broca.Image(PNG)])
        session.ask("draw")
        [result] = said(session, "tool.result")
        assert "left out" in str(result) and "base64" not in str(result)
        assert len(said(session, "client.message.send")) == 2


def test_a_message_above_the_limit_names_it_before_anything_leaves(server: Server) -> None:
    with broca.Client(server.url, server.key) as client, client.open() as session:
        with pytest.raises(broca.LimitError, match="max_request_bytes"):
            session.ask([broca.Image(PNG + bytes(13 * 1024 * 1024))])
        assert said(session, "client.message.send") == []


def test_what_nobody_can_tell_is_refused_with_the_cure(tmp_path: pathlib.Path) -> None:
    with pytest.raises(broca.InvalidArgumentError, match="give it"):
        broca.Image(b"words")
    with pytest.raises(broca.InvalidArgumentError, match="no bytes"):
        broca.File(b"")
    with pytest.raises(broca.InvalidArgumentError, match=r"open\(\)"):
        broca.Image("cat.png")  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        broca.Image.open(tmp_path / "none.png")
    assert broca.Image(b"?", "image/x-odd").block["source"]["media_type"] == "image/x-odd"
    assert "hunter2" not in repr(broca.File("hunter2"))
    assert broca.Image(PNG) == broca.Image(PNG) and hash(broca.Image(PNG)) == hash(broca.Image(PNG))
