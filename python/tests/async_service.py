"""A session service that answers what a test says, on a loop in a thread of its own: just enough HTTP for a client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
from collections.abc import Awaitable
from typing import Any, Callable, Optional

BODY_LIMIT = 1024 * 1024


class Asked:
    """A request that came."""

    def __init__(self, line: str, head: str, body: bytes, whole: bool) -> None:
        self.line = line
        self.head = head
        self.whole = whole
        call = json.loads(body) if whole and line.split(" ")[1].endswith("/rpc") else {}
        self.method: str = call.get("method", "")
        self.id = call.get("id")
        self.params: dict[str, Any] = call.get("params", {})

    @property
    def text(self) -> str:
        """The text of the message that was sent, or "" for results of tools."""
        content = self.params.get("message", {}).get("content", "")
        return content if isinstance(content, str) else ""

    @property
    def results(self) -> list[dict[str, Any]]:
        """The results of tools that were sent."""
        content = self.params.get("message", {}).get("content", "")
        return [] if isinstance(content, str) else [b for b in content if b.get("type") == "tool_result"]

    def header(self, name: str) -> str | None:
        for line in self.head.splitlines():
            if line.lower().startswith(name + ":"):
                return line.partition(":")[2].strip()
        return None


class Answer:
    """What a script answers with."""

    def __init__(self, service: Service, writer: asyncio.StreamWriter, asked: Asked) -> None:
        self._service = service
        self._asked = asked
        self._streaming = False
        self.writer = writer
        self.answered = False
        self.cut = False

    def raw(self, data: bytes) -> None:
        self.answered = True
        self.writer.write(data)

    def respond(self, status: str, body: Any, content_type: str = "application/json") -> None:
        text = body if isinstance(body, str) else json.dumps(body)
        head = f"HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {len(text.encode())}\r\n\r\n"
        self.raw(head.encode() + text.encode())

    def lines(self, *lines: str) -> None:
        """Lines of the stream, in one chunk."""
        if not self._streaming:
            self._streaming = True
            self.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n")
        data = "".join(line + "\n" for line in lines).encode()
        self.raw(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def event(self, event_type: str, payload: Any, event_id: str | None = None) -> None:
        self.lines(self._service.event_line(event_type, payload, event_id))

    def terminal(self, **member: Any) -> None:
        self.lines(json.dumps({"jsonrpc": "2.0", "id": self._asked.id, **member}))

    def says(self, text: str) -> None:
        """The end of a turn with this text."""
        self._message([{"type": "text", "text": text}])

    def calls(self, *calls: tuple[str, str, Any]) -> None:
        """A pause for these calls: id, tool, input."""
        block = {"type": "tool_use", "dispatch": "client"}
        self._message([{**block, "id": id, "name": name, "input": input} for id, name, input in calls])

    def _message(self, content: list[dict[str, Any]]) -> None:
        message = {"role": "assistant", "content": content}
        self.event("server.message.send", message)
        self.terminal(result={"events": [], "message": message})

    async def sent(self) -> None:
        await self.writer.drain()

    def end(self) -> None:
        if self._streaming and not self.cut:
            self.raw(b"0\r\n\r\n")


Script = Callable[[Asked, Answer], Optional[Awaitable[None]]]


class Service:
    """The service; use it with ``with``. ``script`` sees each request first; what it leaves gets the usual answer."""

    def __init__(
        self,
        script: Script | None = None,
        *,
        features: tuple[str, ...] = (),
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.asked: list[Asked] = []
        self.connections = 0
        self._script = script
        self._features = list(features)
        self._context = context
        self._events = 0
        self._started = threading.Event()
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> Service:
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None and self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    @property
    def url(self) -> str:
        scheme, host = ("http", "127.0.0.1") if self._context is None else ("https", "localhost")
        return f"{scheme}://{host}:{self.port}"

    def calls(self, method: str) -> list[Asked]:
        return [asked for asked in self.asked if asked.method == method]

    def event_line(self, event_type: str, payload: Any, event_id: str | None = None) -> str:
        self._events += 1
        params = {
            "id": event_id or f"evt_{self._events}",
            "session_id": "ses_1",
            "client_key_id": None,
            "event_type": event_type,
            "payload": payload,
            "created_at": "2030-01-01T00:00:00.000Z",
        }
        return json.dumps({"jsonrpc": "2.0", "method": "session.event", "params": params})

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        tasks: set[asyncio.Task[None]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            task = asyncio.ensure_future(self._converse(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        host = "localhost" if self._context is not None else "127.0.0.1"
        server = await asyncio.start_server(accept, host, 0, ssl=self._context, family=2, backlog=1024)
        self.port: int = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stop.wait()
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                line = head.splitlines()[0].rpartition(" ")[0]
                length = next(
                    (int(r.partition(":")[2]) for r in head.splitlines() if r.lower().startswith("content-length:")), 0
                )
                whole = length <= BODY_LIMIT
                body = await reader.readexactly(length) if whole else b""
                asked = Asked(line, head, body, whole)
                self.asked.append(asked)
                answer = Answer(self, writer, asked)
                if self._script is not None:
                    waiting = self._script(asked, answer)
                    if waiting is not None:
                        await waiting
                if not answer.answered and not answer.cut:
                    self._usual(asked, answer)
                answer.end()
                await writer.drain()
                if answer.cut:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            # The client has gone.
            return
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    def _usual(self, asked: Asked, answer: Answer) -> None:
        if not asked.whole:
            answer.respond("413 Payload Too Large", "the body is too large", "text/plain")
            answer.cut = True
        elif asked.method == "session.registerDriver":
            answer.terminal(result={"registered": True})
        elif asked.method == "session.updateClientTools":
            answer.terminal(result={"updated": True})
        elif asked.method == "session.cancel":
            answer.terminal(result={"cancelled": True, "was": "running"})
        elif asked.method:
            answer.says("hello")
        elif asked.line == "GET /api/v1/meta":
            answer.respond("200 OK", {"version": "0.1.0", "api_versions": ["v1"], "features": self._features})
        elif asked.line.startswith("POST /api/v1/sessions"):
            profile = {"id": "pro_1", "name": "main"}
            answer.respond("201 Created", {"session_id": "ses_1", "session_key": "bae_ses_1", "profile": profile})
        elif asked.line.startswith("DELETE "):
            answer.respond("200 OK", {"session_id": "ses_1", "state": "closed"})
        elif asked.line.endswith("/participants"):
            answer.respond("200 OK", {"drivers": ["key_1"]})
        else:
            answer.respond("404 Not Found", "", "text/plain")


def calling(*calls: tuple[str, str, Any]) -> Script:
    """A script that calls these tools, and then says what came of them."""

    def script(asked: Asked, answer: Answer) -> None:
        if asked.method == "session.sendMessage":
            if asked.results:
                answer.says(" ".join(str(block["content"]) for block in asked.results))
            else:
                answer.calls(*calls)

    return script


def endless(cancelled: threading.Event) -> Script:
    """A script whose turns stay open until they are cancelled."""

    async def script(asked: Asked, answer: Answer) -> None:
        if asked.method == "session.cancel":
            cancelled.set()
        if asked.method == "session.sendMessage" and "endless" in asked.text:
            answer.event("provider.request", {})
            await answer.sent()
            while not cancelled.is_set():
                if answer.writer.is_closing():
                    return
                answer.lines("")
                await answer.sent()
                await asyncio.sleep(0.01)
            answer.terminal(error={"code": -32000, "message": "turn cancelled"})

    return script
