"""One MCP server of one session, on a loop: its connection, its tools, and a new life after it has ended.

The package ``mcp`` owns the wire. A `Life` is one connection, held by a task of its own, because its scopes have to be
left where they were entered. A `Connection` begins the next life when the last one ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any, Callable

from . import _broca
from ._core import logger
from ._mcp import MISSING, McpTool
from .errors import ToolError, TransportError, UsageError
from .tools import ToolInterrupted, Written

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import TracebackType

    from typing_extensions import Self

    from ._mcp import McpServer

_PAGES = 1000
"""Pages of a list of tools; one that is longer does not end."""
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0
_HANDS = 10
_LISTEN_S = 2.0
"""Seconds that a server of the newer protocol gets to say that it will tell of changes."""
_LIST_S = 5.0
"""Seconds that a result waits for the list of tools that changed during its call."""
_END_S = 8.0
"""Seconds for a server to end. The package closes its input, asks it to end, and ends it, two seconds apart."""


class Connection:
    """An MCP server as a session has it."""

    def __init__(self, server: McpServer, label: str, changed: Callable[[], None]) -> None:
        self.server = server
        self.label = label
        self.tools: list[McpTool] = []
        self._changed = changed
        self._life: Life | None = None
        self._beginning = asyncio.Lock()
        self._failures = 0
        self._not_before = 0.0
        self._closed = False
        self._calls: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """Connects and lists the tools. Raises `TransportError`, naming the server."""
        life = self._life = Life(self)
        await life.begin()

    async def call(self, name: str, arguments: Any) -> Written:
        """Calls a tool. Raises what becomes a failed result. Cancelled, it tells the server to stop."""
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            return await self._called(name, arguments)
        finally:
            self._calls.discard(task)

    async def stop_calls(self) -> None:
        """Cancels the calls under way, so that the server is told before it is left."""
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        if calls:
            await asyncio.wait(calls, timeout=_LISTEN_S)

    async def _called(self, name: str, arguments: Any) -> Written:
        again = False
        while True:
            life = await self._living()
            try:
                result = await life.call(name, arguments)
            except _ForgottenError:
                # It refused the call because it had lost its memory of this connection.
                if again:
                    raise ToolError(f'the MCP server "{self.label}" forgets this session again and again') from None
                again = True
                continue
            word, value = _broca.mcp_answer(result)
            if word == "fail":
                raise ToolError(value)
            return Written(value)

    def listed(self, tools: list[McpTool]) -> None:
        """The server says which tools it has."""
        if tools != self.tools:
            self.tools = tools
            self._changed()

    def ended(self, life: Life) -> None:
        """A life is over, and nobody had asked for that."""
        self._failures = 1 if life.served else self._failures + 1
        pause = 0.0 if life.served else min(_FIRST_PAUSE_S * 2 ** (self._failures - 1), _LONGEST_PAUSE_S)
        self._not_before = asyncio.get_running_loop().time() + pause

    def close_soon(self) -> None:
        """Ends it, without waiting."""
        self._closed = True
        if self._life is not None:
            self._life.stop()

    async def close(self) -> None:
        """Ends it and waits until it is gone, within bounds."""
        self.close_soon()
        if self._life is not None:
            await self._life.gone()

    async def _living(self) -> Life:
        """The life under way, or a new one."""
        async with self._beginning:
            if self._life is not None and not self._life.over:
                return self._life
            if self._closed:
                raise ToolError(f'the MCP server "{self.label}" was left with its session')
            if self._failures > self.server.restarts:
                raise ToolError(
                    f'the MCP server "{self.label}" has ended {self._failures} times in a row and is not started again'
                )
            pause = self._not_before - asyncio.get_running_loop().time()
            if pause > 0:
                await asyncio.sleep(pause)
            logger.info('the MCP server "%s" has ended and is started again', self.label)
            life = self._life = Life(self)
            try:
                await life.begin()
            except TransportError as fault:
                self.ended(life)
                raise ToolError(f"{fault.message}; the call did not run") from None
            return life


class _ForgottenError(Exception):
    """The server does not know the connection any more; the call did not run."""


class Life:
    """One connection, from its beginning to its end."""

    def __init__(self, connection: Connection) -> None:
        self.over = False
        self.served = False
        self._connection = connection
        self._server = connection.server
        self._client: Any = None
        self._stopped = asyncio.Event()
        self._scope: Any = None
        self._task: asyncio.Task[None] | None = None
        self._listing: asyncio.Task[None] | None = None
        self._listed = False
        self._ready = False

    async def begin(self) -> None:
        """Connects, and lists the tools. Raises `TransportError`."""
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        self._task = loop.create_task(self._live(ready))
        name = self._connection.label
        try:
            done, _ = await asyncio.wait({ready, self._task}, timeout=self._server.connect_timeout,
                                         return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
        except BaseException:
            self.stop(at_once=True)
            raise
        if not done:
            self.stop(at_once=True)
            await self.gone()
            raise TransportError(f'the MCP server "{name}" was not ready within {self._server.connect_timeout} s')
        if not ready.done() or ready.exception() is not None:
            fault = ready.exception() if ready.done() else None
            if isinstance(fault, UsageError):
                raise fault
            raise TransportError(f'the MCP server "{name}" cannot be used: {_why(fault)}')

    async def call(self, name: str, arguments: Any) -> str:
        """Calls a tool; its result as JSON."""
        from mcp import MCPError

        try:
            result = await self._client.call_tool(name, arguments)
        except MCPError as fault:
            raise self._lost_or_refused(fault) from None
        except ToolError:
            raise
        except Exception as fault:
            raise ToolError(f'the MCP server "{self._connection.label}" gave no result: {_why(fault)}') from None
        self.served = True
        # What the server said before its result goes through the hands of a few tasks.
        for _ in range(_HANDS):
            await asyncio.sleep(0)
        if self._listing is not None:
            await asyncio.wait({self._listing}, timeout=_LIST_S)
        text: str = result.model_dump_json(by_alias=True, exclude_none=True)
        return text

    def stop(self, *, at_once: bool = False) -> None:
        """Asks for the end."""
        self.over = True
        self._stopped.set()
        if at_once and self._scope is not None:
            self._scope.cancel()

    async def gone(self) -> None:
        """Waits for the end, within bounds."""
        if self._task is not None:
            _, late = await asyncio.wait({self._task}, timeout=_END_S)
            if late:
                logger.warning('the MCP server "%s" did not end within %.0f s', self._connection.label, _END_S)
                self._task.cancel()

    def died(self) -> None:
        """The other side has ended. Before it was ready, whoever began it is told in another way."""
        if not self.over and self._ready:
            self._connection.ended(self)
        self.stop()

    async def _live(self, ready: asyncio.Future[None]) -> None:
        try:
            import anyio
            from mcp import Client
        except ImportError:
            ready.set_exception(UsageError(MISSING))
            return
        with anyio.CancelScope() as self._scope:
            try:
                async with Client(self._transport(), cache=None, message_handler=self._heard) as client:
                    self._client = client
                    await self._list()
                    async with anyio.create_task_group() as group:
                        listening = anyio.Event()
                        group.start_soon(self._listen, listening.set)
                        with anyio.move_on_after(_LISTEN_S):
                            await listening.wait()
                        if not ready.done():
                            self._ready = True
                            ready.set_result(None)
                        await self._stopped.wait()
                        group.cancel_scope.cancel()
            except Exception as fault:
                if not ready.done():
                    self.stop()
                    ready.set_exception(fault)
                else:
                    logger.debug('the connection to the MCP server "%s" ended: %s', self._connection.label, _why(fault))
                    self.died()
            finally:
                self._client = _Ended(self._connection.label)

    @contextlib.asynccontextmanager
    async def _transport(self) -> AsyncIterator[Any]:
        """The streams of the connection, which tell when they end."""
        server = self._server
        async with contextlib.AsyncExitStack() as stack:
            if server.url is None:
                from mcp import StdioServerParameters, stdio_client

                parameters = StdioServerParameters(
                    command=server.command,
                    args=server.args,
                    env=server.env or None,
                    cwd=None if server.cwd is None else os.fspath(server.cwd),
                )
                errors: Any = sys.__stderr__ if server.stderr is None else server.stderr
                streams: Any = stdio_client(parameters, errlog=errors)
            elif server.transport == "sse":
                from mcp.client.sse import sse_client

                streams = sse_client(server.url, headers=server.headers or None)
            else:
                import httpx2
                from mcp.client.streamable_http import streamable_http_client

                # A tool takes the time that its call has, not that of a client of pages.
                timeout = httpx2.Timeout(server.connect_timeout, read=None)
                client = httpx2.AsyncClient(headers=server.headers, timeout=timeout)
                streams = streamable_http_client(server.url, http_client=await stack.enter_async_context(client))
            read, write = await stack.enter_async_context(streams)
            yield _Watched(read, self.died), write

    async def _list(self) -> None:
        """Lists the tools, page by page."""
        self._listed = True
        capabilities = self._client.server_capabilities
        tools: list[McpTool] = []
        cursor: str | None = None
        for _ in range(_PAGES if capabilities.tools is not None else 0):
            page = await self._client.list_tools(cursor=cursor)
            tools.extend(self._described(tool) for tool in page.tools)
            cursor = page.next_cursor
            if cursor is None:
                break
        else:
            if cursor is not None:
                raise ToolError(f"its list of tools does not end after {_PAGES} pages")
        self._connection.listed(tools)

    def _described(self, tool: Any) -> McpTool:
        hints = tool.annotations
        return McpTool(
            self._connection.label, tool.name, tool.description or "", tool.input_schema,
            *((None,) * 4 if hints is None else
              (hints.read_only_hint, hints.destructive_hint, hints.idempotent_hint, hints.open_world_hint)),
        )  # fmt: skip

    async def _heard(self, message: Any) -> None:
        """The server said something of its own account."""
        if getattr(message, "method", None) == "notifications/tools/list_changed":
            self._list_again()

    async def _listen(self, listening: Callable[[], None]) -> None:
        """Asks a server of the newer protocol to tell of changes; an older one does so by itself."""
        tools = self._client.server_capabilities.tools
        if tools is None or not tools.list_changed:
            listening()
            return
        from mcp.client.subscriptions import ListenNotSupportedError

        try:
            async with self._client.listen(tools_list_changed=True) as changes:
                listening()
                async for _ in changes:
                    self._list_again()
        except ListenNotSupportedError:
            listening()
        except Exception as fault:
            listening()
            logger.debug('the MCP server "%s" no longer tells of changes: %s', self._connection.label, _why(fault))

    def _list_again(self) -> None:
        if self._listing is not None and not self._listing.done() and not self._listed:
            # The list that is about to be asked for has the change in it.
            return
        before, self._listed = self._listing, False
        self._listing = asyncio.get_running_loop().create_task(self._relist(before))

    async def _relist(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait({before})
        try:
            await self._list()
        except Exception as fault:
            label = self._connection.label
            logger.warning('the MCP server "%s" did not list its tools again: %s', label, _why(fault))

    def _lost_or_refused(self, fault: Any) -> Exception:
        from mcp_types import CONNECTION_CLOSED

        label = self._connection.label
        if fault.code == CONNECTION_CLOSED:
            self.died()
            return ToolInterrupted(
                f'The MCP server "{label}" ended during the call. It may have run, in whole or in part.'
            )
        if self._server.url is not None and "session" in fault.message.lower() and fault.code in _FORGOTTEN:
            self.died()
            return _ForgottenError()
        return ToolError(f'the MCP server "{label}" refused the call: {fault.message}')


# How the package says that the server answered 404: it knows nothing of the session.
_FORGOTTEN = (32600, -32600, -32001)


class _Ended:
    """Stands where the client was."""

    def __init__(self, label: str) -> None:
        self._label = label

    async def call_tool(self, *_: Any) -> Any:
        raise ToolError(f'the MCP server "{self._label}" ended before the call; it did not run')


class _Watched:
    """A stream that tells when it ends."""

    def __init__(self, stream: Any, ended: Callable[[], None]) -> None:
        self._stream = stream
        self._ended = ended

    @property
    def last_context(self) -> Any:
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        return await self._stream.receive()

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except BaseException as end:
            if not isinstance(end, asyncio.CancelledError):
                self._ended()
            raise

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        return await self._stream.__aexit__(kind, error, trace)


def _why(fault: BaseException | None) -> str:
    """What a fault says that cannot hold a key: addresses and arguments may."""
    while isinstance(inner := getattr(fault, "exceptions", None), (tuple, list)) and inner:
        fault = inner[0]
    if fault is None:
        return "it ended at once"
    if isinstance(fault, OSError) and fault.strerror:
        return fault.strerror
    if isinstance(fault, ToolError):
        return fault.message
    message = getattr(fault, "message", None)
    return f"{type(fault).__name__}: {message}" if isinstance(message, str) and message else type(fault).__name__
