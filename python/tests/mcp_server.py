"""An MCP server for the tests, over its standard streams or over HTTP: ``mcp_server.py [http PORT | NOTES]``.

NOTES is a file to which it writes what happens to it, a line each.
"""

from __future__ import annotations

import asyncio
import base64
import os
import pathlib
import sys
from typing import Any

import mcp_types as types
from mcp.server import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged

NOTES = sys.argv[1] if len(sys.argv) > 1 and sys.argv[1] != "http" else None
OBJECT: dict[str, Any] = {"type": "object", "properties": {}}
TEXT: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
EXTRA: list[types.Tool] = []
changes = InMemorySubscriptionBus()


def note(words: str) -> None:
    if NOTES is not None:
        with open(NOTES, "a") as file:
            file.write(words + "\n")


def tool(name: str, about: str, schema: dict[str, Any] = OBJECT, **hints: bool) -> types.Tool:
    annotations = types.ToolAnnotations(**hints) if hints else None
    return types.Tool(name=name, description=about, input_schema=schema, annotations=annotations)


TOOLS = [
    tool("echo", "Says it again.", TEXT, read_only_hint=True),
    tool("fail", "Fails."),
    tool("draw", "Draws a picture."),
    tool("count", "Counts, as data only."),
    tool("sleep", "Sleeps until it is told to stop."),
    tool("die", "Ends the server."),
    tool("grow", "Gets one more tool.", destructive_hint=True),
    tool("environment", "Names its variables."),
]


async def list_tools(_: Any, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    cursor = params.cursor if params is not None else None
    if cursor is None:
        return types.ListToolsResult(tools=TOOLS[:5], next_cursor="more")
    return types.ListToolsResult(tools=TOOLS[5:] + EXTRA)


def text(words: str, **more: Any) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=words)], **more)


async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    name, arguments = params.name, params.arguments or {}
    note(f"call {name}")
    if name == "echo":
        return text(f"echo: {arguments['text']}")
    if name == "fail":
        return text("it did not work", is_error=True)
    if name == "draw":
        picture = types.ImageContent(type="image", data=PNG, mime_type="image/png")
        return types.CallToolResult(content=[types.TextContent(type="text", text="a cat"), picture])
    if name == "count":
        return types.CallToolResult(content=[], structured_content={"count": 3})
    if name == "sleep":
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            note("sleep was told to stop")
            raise
    if name == "die":
        os._exit(3)
    if name == "grow":
        EXTRA.append(tool(f"extra_{len(EXTRA)}", "One more."))
        # To clients of the newer protocol, and to those of the older one.
        await changes.publish(ToolsListChanged())
        await context.session.send_tool_list_changed()
        return text("grown")
    if name == "environment":
        return text(" ".join(sorted(os.environ)))
    if name.startswith("extra_"):
        return text(f"{name} ran")
    raise ValueError(f"there is no tool {name}")


server: Server[Any] = Server(
    "test", on_list_tools=list_tools, on_call_tool=call_tool, on_subscriptions_listen=ListenHandler(changes)
)


async def over_streams() -> None:
    from mcp.server.lowlevel.server import NotificationOptions
    from mcp.server.stdio import stdio_server

    note(f"began {os.getpid()}")
    async with stdio_server() as (read, write):
        options = server.create_initialization_options(NotificationOptions(tools_changed=True))
        await server.run(read, write, options)
    note("ended")


def over_http(port: int) -> None:
    import uvicorn

    uvicorn.run(server.streamable_http_app(), host="127.0.0.1", port=port, log_level="error")


if __name__ == "__main__":
    if sys.argv[1:2] == ["http"]:
        over_http(int(sys.argv[2]))
    else:
        if NOTES is not None:
            pathlib.Path(NOTES).touch()
        asyncio.run(over_streams())
