"""Tools of MCP servers on the program's side, brought like any other tool::

    session = await client.open(tools=[read_file, broca.mcp("uvx mcp-server-git"), broca.mcp("https://host/mcp")])

The package ``mcp`` speaks to the servers: ``pip install "broca-sdk[mcp]"``. It is asked for only here.
"""

from __future__ import annotations

import importlib.util
import math
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Callable, Union
from urllib.parse import urlsplit

from .errors import InvalidArgumentError, UsageError

if TYPE_CHECKING:
    from typing_extensions import Literal

__all__ = ["McpServer", "McpTool", "mcp"]

MISSING = (
    'tools of MCP servers need the package "mcp", version 2, and Python 3.10 or later: pip install "broca-sdk[mcp]"'
)


@dataclass(frozen=True)
class McpTool:
    """What an MCP server says of one of its tools. All of it is the server's word, and so are the hints."""

    server: str
    """The server, by the name that it has here."""
    name: str
    """The tool's name at the server, without a prefix."""
    description: str
    input_schema: Mapping[str, Any]
    read_only: bool | None = None
    """It changes nothing."""
    destructive: bool | None = None
    """It may destroy what was there."""
    idempotent: bool | None = None
    """Calling it again changes nothing more."""
    open_world: bool | None = None
    """It reaches things outside the server."""


ApprovalRule = Union[bool, Callable[[McpTool], bool]]
"""Whether somebody is asked before each call: of all tools alike, or by what the server says of one."""


class McpServer:
    """An MCP server whose tools a session brings. Made by `mcp`.

    It is a description: each session that is opened with it makes a connection of its own, and ends it when it is left.
    """

    __slots__ = (
        "allow",
        "approval",
        "args",
        "command",
        "connect_timeout",
        "cwd",
        "deny",
        "env",
        "headers",
        "name",
        "prefix",
        "required",
        "restarts",
        "sequential",
        "stderr",
        "timeout",
        "transport",
        "url",
    )

    def __init__(
        self,
        server: str | Sequence[str],
        *,
        name: str | None = None,
        prefix: str = "",
        allow: Iterable[str] | None = None,
        deny: Iterable[str] = (),
        required: bool = True,
        approval: ApprovalRule = False,
        sequential: bool = False,
        timeout: float | None = None,
        connect_timeout: float = 30.0,
        restarts: int = 5,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stderr: int | IO[Any] | None = None,
        headers: Mapping[str, str] | None = None,
        transport: Literal["http", "sse"] = "http",
    ) -> None:
        """See `mcp`."""
        self.url: str | None = None
        self.command = ""
        self.args: list[str] = []
        if isinstance(server, str) and server.lower().startswith(("http://", "https://")):
            self.url = server
        else:
            words = _words(server)
            self.command, self.args = words[0], words[1:]
        for what, names in (("allow", allow), ("deny", deny)):
            if isinstance(names, (str, bytes)):
                raise InvalidArgumentError(f"{what}= of an MCP server takes a list of names of tools")
        if transport not in ("http", "sse"):
            raise InvalidArgumentError('transport= of an MCP server is "http" or "sse"')
        if self.url is None and headers:
            raise InvalidArgumentError("headers= is for MCP servers with an address; a program gets env=")
        if self.url is not None and (env or cwd or stderr):
            raise InvalidArgumentError("env=, cwd= and stderr= are for MCP servers that are programs")
        if not (0 < connect_timeout < math.inf) or restarts < 0:
            raise InvalidArgumentError("connect_timeout= is a number of seconds above 0, restarts= is 0 or more")
        self.name = name or self._own_name()
        self.prefix = prefix
        self.allow = None if allow is None else frozenset(allow)
        self.deny = frozenset(deny)
        self.required = required
        self.approval = approval
        self.sequential = sequential
        self.timeout = timeout
        self.connect_timeout = connect_timeout
        self.restarts = restarts
        self.env = dict(env or {})
        self.cwd = cwd
        self.stderr = stderr
        self.headers = dict(headers or {})
        self.transport = transport

    def __repr__(self) -> str:
        # Arguments, addresses, headers and the environment may hold keys.
        return f"McpServer({self.name})"

    def _own_name(self) -> str:
        if self.url is not None:
            return urlsplit(self.url).hostname or "an address"
        return os.path.basename(self.command)

    def admits(self, name: str) -> bool:
        """Whether a tool of this name at the server is brought."""
        return name not in self.deny and (self.allow is None or name in self.allow)

    def asks_for(self, tool: McpTool) -> bool:
        """Whether somebody is asked before each call of the tool."""
        return bool(self.approval(tool)) if callable(self.approval) else self.approval


def mcp(
    server: str | Sequence[str],
    *,
    name: str | None = None,
    prefix: str = "",
    allow: Iterable[str] | None = None,
    deny: Iterable[str] = (),
    required: bool = True,
    approval: ApprovalRule = False,
    sequential: bool = False,
    timeout: float | None = None,
    connect_timeout: float = 30.0,
    restarts: int = 5,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    stderr: int | IO[Any] | None = None,
    headers: Mapping[str, str] | None = None,
    transport: Literal["http", "sse"] = "http",
) -> McpServer:
    """The tools of an MCP server, for ``tools=``: a command line, a list of words, or an address.

    A program is started when a session is opened with it, speaks over its standard streams, and is ended with the
    session. Its environment holds what programs need (``PATH``, ``HOME`` …) and ``env``, nothing else of this
    program's. An address is spoken to by Streamable HTTP, or by the older SSE.

    name: Its name in errors, logs and for ``approval``. Default: the program's, or the host's.
    prefix: Put before the names of its tools.
    allow: Names of tools, as the server has them, that alone are brought.
    deny: Names of tools that are not brought.
    required: Whether opening a session fails when the server cannot be reached. Otherwise a warning is logged.
    approval: Ask before each call: ``True``, or a function of a `McpTool`: ``lambda tool: not tool.read_only``.
    sequential: Never run its tools beside another sequential tool.
    timeout: Seconds that one call may take; over it the server is told to stop.
    connect_timeout: Seconds to start, connect and list its tools.
    restarts: How often in a row it is started again after it has ended, at the next use and with growing pauses.
    env, cwd, stderr: The program's variables beside the usual ones, its folder, and where its errors go.
    headers: Headers of every request to an address, such as ``Authorization``.

    Raises `UsageError` without the package ``mcp``, and `InvalidArgumentError` for what is no server.
    """
    if importlib.util.find_spec("mcp") is None:
        raise UsageError(MISSING)
    return McpServer(
        server, name=name, prefix=prefix, allow=allow, deny=deny, required=required, approval=approval,
        sequential=sequential, timeout=timeout, connect_timeout=connect_timeout, restarts=restarts, env=env, cwd=cwd,
        stderr=stderr, headers=headers, transport=transport,
    )  # fmt: skip


def _words(server: str | Sequence[str]) -> list[str]:
    if isinstance(server, str):
        try:
            # Backslashes part the folders of Windows.
            words = shlex.split(server, posix=os.name != "nt")
        except ValueError as fault:
            raise InvalidArgumentError(f"the command of an MCP server cannot be read: {fault}") from None
    else:
        words = [os.fspath(word) for word in server]
    if not words or not all(isinstance(word, str) for word in words) or not words[0]:
        raise InvalidArgumentError("an MCP server is a command, a list of words, or an address that begins with http")
    return words
