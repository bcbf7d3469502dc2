"""The MCP servers of one session: connected together, their tools beside the program's own, ended with the session.

On a loop they live there. A session without one gives them a loop on a thread of its own (`OnThread`), which ends with
the session, and at the latest with the interpreter.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import threading
import weakref
from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Callable, ClassVar, TypeVar

from ._core import logger
from ._mcp import McpServer, McpTool
from ._mcp_life import Connection
from .errors import BrocaError, InvalidArgumentError, TransportError
from .tools import Tool, ToolContext, ToolSet, Written, as_tool

if TYPE_CHECKING:
    from .tools import ToolLike

T = TypeVar("T")
Handler = Callable[[Connection, str], Callable[[Any, ToolContext], Any]]
"""Makes what runs the calls of one tool."""

_END_S = 10.0
"""Seconds for the thread of a session without a loop to end."""


class Servers:
    """What a session brings, as long as MCP servers are among it."""

    def __init__(self, brought: Iterable[ToolLike | McpServer], handler: Handler) -> None:
        """Raises `InvalidArgumentError` for tools that cannot be used. Nothing is connected yet."""
        self._brought = [tool if isinstance(tool, McpServer) else as_tool(tool) for tool in brought]
        self._handler = handler
        self._connections: list[tuple[McpServer, Connection]] = []
        self.changed = False
        """A server has told of other tools since `tools` was called."""

    async def connect(self) -> None:
        """Connects to every server at once and lists their tools. Raises `TransportError` for one that is required."""
        servers = [tool for tool in self._brought if isinstance(tool, McpServer)]
        names = [server.name for server in servers]
        for place, server in enumerate(servers):
            label = server.name if names.count(server.name) == 1 else f"{server.name} #{place + 1}"
            self._connections.append((server, Connection(server, label, self._note)))
        starts = [asyncio.ensure_future(connection.start()) for _, connection in self._connections]
        try:
            outcomes = await asyncio.gather(*starts, return_exceptions=True)
        except BaseException:
            self.close_soon()
            raise
        for (server, _), outcome in zip(self._connections, outcomes):
            if outcome is None:
                continue
            if isinstance(outcome, TransportError) and not server.required:
                logger.warning("%s; its tools are left out", outcome.message)
                continue
            await self.close()
            assert isinstance(outcome, BaseException)
            raise outcome
        self._connections = [pair for pair, outcome in zip(self._connections, outcomes) if outcome is None]

    def tools(self) -> list[Tool[..., Any]]:
        """All tools as they are now. Raises `InvalidArgumentError` for a name that two of them have."""
        self.changed = False
        owners: dict[str, str] = {}
        found: list[Tool[..., Any]] = []
        connections = dict(self._connections)
        for brought in self._brought:
            if isinstance(brought, Tool):
                _claim(owners, brought.name, "this program")
                found.append(brought)
                continue
            connection = connections.get(brought)
            for tool in () if connection is None else _admitted(brought, connection):
                _claim(owners, brought.prefix + tool.name, f'the MCP server "{tool.server}"')
                found.append(self._tool(brought, connections[brought], tool))
        return found

    def with_own(self, own: Iterable[ToolLike]) -> list[Tool[..., Any]]:
        """All tools, with these in the place of the program's own."""
        servers = [brought for brought in self._brought if isinstance(brought, McpServer)]
        self._brought = [*map(as_tool, own), *servers]
        return self.tools()

    def tools_again(self, before: ToolSet, *, asynchronous: bool) -> ToolSet | None:
        """The tools anew after a change; None when there is none, or when they cannot be used together."""
        if not self.changed:
            return None
        try:
            return ToolSet(self.tools(), asynchronous=asynchronous, before=before)
        except BrocaError as fault:
            logger.warning("the tools of an MCP server have changed, and the old ones stay: %s", fault.message)
            return None

    async def stop_calls(self) -> None:
        """Cancels the calls under way."""
        if self._connections:
            await asyncio.gather(*(connection.stop_calls() for _, connection in self._connections))

    def close_soon(self) -> None:
        """Ends every connection, without waiting."""
        for _, connection in self._connections:
            connection.close_soon()

    async def close(self) -> None:
        """Ends every connection and waits until they are gone, within bounds."""
        self.close_soon()
        if self._connections:
            await asyncio.gather(*(connection.close() for _, connection in self._connections))

    def _note(self) -> None:
        self.changed = True

    def _tool(self, server: McpServer, connection: Connection, tool: McpTool) -> Tool[..., Any]:
        return Tool.raw(
            server.prefix + tool.name, tool.description, tool.input_schema, self._handler(connection, tool.name),
            sequential=server.sequential, timeout=server.timeout, approval=server.asks_for(tool),
        )  # fmt: skip


def on_loop(connection: Connection, name: str) -> Callable[[Any, ToolContext], Any]:
    """What runs the calls of a tool on the loop of the session."""

    async def call(arguments: Any, _: ToolContext) -> Written:
        return await connection.call(name, arguments)

    return call


class OnThread:
    """The servers of a session without a loop: the package ``mcp`` needs one, so they get it on a thread."""

    _all: ClassVar[weakref.WeakSet[OnThread]] = weakref.WeakSet()

    def __init__(self, brought: Iterable[ToolLike | McpServer]) -> None:
        """Connects; see `Servers.connect`."""
        loop = asyncio.new_event_loop()
        servers = self.servers = Servers(brought, lambda connection, name: _on_thread(loop, connection, name))
        self._loop = loop
        self._thread = threading.Thread(target=_run, args=(loop,), name="broca-mcp", daemon=True)
        self._thread.start()
        self._end = weakref.finalize(self, _end_soon, loop, servers)
        self._end.atexit = False
        OnThread._all.add(self)
        try:
            _wait(loop, servers.connect())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the servers and the thread, within bounds. A second call does nothing."""
        if self._end.alive:
            self._end()
            self._thread.join(_END_S)

    @classmethod
    def close_all(cls) -> None:
        """At the end of the interpreter: what was not left before."""
        for one in list(cls._all):
            one.close()


atexit.register(OnThread.close_all)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        rest = asyncio.all_tasks(loop)
        for task in rest:
            task.cancel()
        if rest:
            loop.run_until_complete(asyncio.wait(rest, timeout=1.0))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _end_soon(loop: asyncio.AbstractEventLoop, servers: Servers) -> None:
    """From any thread and from a finaliser."""

    async def end() -> None:
        try:
            await servers.stop_calls()
            await servers.close()
        finally:
            loop.stop()

    asyncio.run_coroutine_threadsafe(end(), loop)


def _on_thread(loop: asyncio.AbstractEventLoop, connection: Connection, name: str) -> Callable[[Any, ToolContext], Any]:
    def call(arguments: Any, context: ToolContext) -> Written:
        return _wait(loop, connection.call(name, arguments), context)

    return call


def _wait(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], context: ToolContext | None = None) -> T:
    """Runs it on the loop and waits for it; interrupted or cancelled, it is cancelled there."""
    future = asyncio.run_coroutine_threadsafe(work, loop)
    stop = _Stop(future)
    if context is not None:
        context.cancelled._tell(stop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
    finally:
        if context is not None:
            context.cancelled._untell(stop)


class _Stop:
    """Stands among those who wait for a cancellation."""

    __slots__ = ("_future",)

    def __init__(self, future: concurrent.futures.Future[Any]) -> None:
        self._future = future

    def set(self) -> None:
        self._future.cancel()


def _admitted(server: McpServer, connection: Connection) -> list[McpTool]:
    """The tools of a server that are brought."""
    admitted = []
    for tool in connection.tools:
        if not server.admits(tool.name):
            continue
        if tool.input_schema.get("type") != "object":
            logger.warning(
                'the tool "%s" of the MCP server "%s" takes no object and is left out', tool.name, tool.server
            )
            continue
        admitted.append(tool)
    missing = sorted((server.allow or frozenset()) - {tool.name for tool in connection.tools})
    if missing:
        logger.warning('the MCP server "%s" has no tool %s', connection.label, ", ".join(missing))
    return admitted


def _claim(owners: dict[str, str], name: str, owner: str) -> None:
    other = owners.get(name)
    owners[name] = owner
    if other is not None:
        raise InvalidArgumentError(
            f'the tool "{name}" comes from {other} and from {owner}: give a prefix=, or leave one out with deny='
        )
