"""Sockets, TLS, tunnels and cuts under the asynchronous client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Coroutine, Iterator
from typing import Any, Callable

import pytest
import trustme
from async_service import Answer, Asked, Service

import broca
from broca import errors

Run = Callable[[Coroutine[Any, Any, None]], None]


class Certificates:
    """An authority of the test's own, and servers that it has signed."""

    def __init__(self) -> None:
        self._authority = trustme.CA()

    def server(self, host: str) -> ssl.SSLContext:
        """A context of a server of this name."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["http/1.1"])
        self._authority.issue_cert(host).configure_cert(context)
        return context

    def trusted(self) -> ssl.SSLContext:
        """A context that trusts this authority alone."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._authority.configure_trust(context)
        return context


@pytest.fixture(scope="module")
def certificates() -> Certificates:
    return Certificates()


class Tunnel:
    """An HTTP proxy for CONNECT, on threads."""

    def __enter__(self) -> Tunnel:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.asked: list[str] = []
        self._threads: list[threading.Thread] = []
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            self._carry(client)

    def _carry(self, client: socket.socket) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += client.recv(1)
        line = head.split(b"\r\n")[0].decode()
        self.asked.append(line)
        port = int(line.split(" ")[1].rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as upstream:
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            back = threading.Thread(target=self._copy, args=(upstream, client), daemon=True)
            back.start()
            self._copy(client, upstream)
            back.join()

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data)
        except OSError:
            # Cut; whoever reads on the other side finds the end.
            pass
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)


async def flow(client: broca.AsyncClient) -> None:
    session = await client.open()
    assert (await session.ask("hello")).text == "hello"
    big = "x" * 900_000
    assert (await session.ask(big)).text == "hello"
    steps = [step async for step in session.send("much")]
    assert sum(isinstance(step, broca.Event) for step in steps) == 4_001


def much(asked: Asked, answer: Answer) -> None:
    if asked.text == "much":
        for _ in range(40):
            answer.lines(*(service_line(n) for n in range(100)))
        answer.says("done")


def service_line(n: int, size: int = 300) -> str:
    params = {
        "id": f"evt_m{n}_{next(_counter)}",
        "session_id": "ses_1",
        "client_key_id": None,
        "event_type": "provider.request",
        "payload": {"text": "y" * size},
        "created_at": "2030-01-01T00:00:00.000Z",
    }
    return json.dumps({"jsonrpc": "2.0", "method": "session.event", "params": params})


def _count() -> Iterator[int]:
    n = 0
    while True:
        n += 1
        yield n


_counter = _count()


def test_plain_sockets_carry_much_in_both_directions(run: Run) -> None:
    async def main() -> None:
        async with broca.AsyncClient(service.url, "k") as client:
            await flow(client)

    with Service(much) as service:
        run(main())
        assert service.connections <= 3


def test_tls_with_a_context_of_the_program(run: Run, certificates: Certificates) -> None:
    async def main() -> None:
        async with broca.AsyncClient(service.url, "k", ssl_context=certificates.trusted()) as client:
            await flow(client)

    with Service(much, context=certificates.server("localhost")) as service:
        run(main())


def test_certificates_that_cannot_be_trusted_are_refused_by_what_is_wrong(run: Run, certificates: Certificates) -> None:
    async def refused(service: Service, context: ssl.SSLContext | None) -> str:
        options: dict[str, Any] = {} if context is None else {"ssl_context": context}
        async with broca.AsyncClient(service.url, "k", **options) as client:
            with pytest.raises(errors.TlsError) as caught:
                await client.open()
            return str(caught.value)

    async def main() -> None:
        assert "not trusted" in await refused(good, None)
        assert "another host" in await refused(other, certificates.trusted())

    with (
        Service(context=certificates.server("localhost")) as good,
        Service(context=certificates.server("other.example")) as other,
    ):
        run(main())


def test_tls_inside_a_tunnel(run: Run, certificates: Certificates) -> None:
    async def main() -> None:
        environment = {"https_proxy": f"http://127.0.0.1:{tunnel.port}"}
        url = service.url.replace("localhost", "far.example")
        async with broca.AsyncClient(url, "k", ssl_context=certificates.trusted(), environment=environment) as client:
            await flow(client)
        assert tunnel.asked[0].startswith("CONNECT far.example:")

    with Service(much, context=certificates.server("far.example")) as service, Tunnel() as tunnel:
        run(main())


def test_a_clean_end_and_a_cut_are_told_apart_inside_tls(run: Run, certificates: Certificates) -> None:
    """A body that ends with the connection counts only after TLS's goodbye."""

    async def script(asked: Asked, answer: Answer) -> None:
        if asked.method == "session.sendMessage":
            answer.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\nconnection: close\r\n\r\n")
            answer.raw(b'{"jsonrpc":"2.0","method":"session.event","params":{}}\n')
            await answer.sent()
            answer.cut = True
            if asked.text == "cut":
                transport = answer.writer.transport
                # Below TLS, so that it cannot say goodbye.
                raw = transport.get_extra_info("socket")
                await asyncio.sleep(0.05)
                with socket.socket(fileno=socket.dup(raw.fileno())) as below:
                    below.shutdown(socket.SHUT_WR)
                await asyncio.sleep(0.2)

    async def main() -> None:
        trusted = certificates.trusted()
        async with broca.AsyncClient(service.url, "k", ssl_context=trusted, recovery_timeout_ms=0) as client:
            session = await client.open()
            with pytest.raises(errors.StreamEndedEarlyError, match="the stream ended"):
                await session.ask("clean")
            with pytest.raises((errors.StreamEndedEarlyError, errors.IoError), match="broke"):
                await session.ask("cut")

    with Service(script, context=certificates.server("localhost")) as service:
        run(main())


def test_an_early_refusal_is_heard_although_writing_fails(run: Run) -> None:
    async def main() -> None:
        async with broca.AsyncClient(service.url, "k") as client:
            session = await client.open()
            with pytest.raises(errors.ApiError) as caught:
                await session.ask("x" * 8_000_000)
            assert caught.value.status == 413
            assert (await session.ask("hello")).text == "hello"

    with Service() as service:
        run(main())


def test_a_cut_stream_is_an_error_that_says_so_and_the_session_goes_on(run: Run) -> None:
    def script(asked: Asked, answer: Answer) -> None:
        if asked.text == "cut":
            answer.event("provider.request", {})
            answer.cut = True
        if asked.text == "reset":
            answer.event("provider.request", {})
            answer.cut = True
            answer.writer.transport.abort()

    async def main() -> None:
        async with broca.AsyncClient(service.url, "k", recovery_timeout_ms=0) as client:
            session = await client.open()
            for how in ("cut", "reset"):
                with pytest.raises(errors.BrocaError) as caught:
                    await session.ask(how)
                assert caught.value.retry == "unknown"
            assert (await session.ask("hello")).text == "hello"

    with Service(script) as service:
        run(main())


def test_names_are_looked_up_and_every_address_is_tried(run: Run) -> None:
    """The service listens on IPv4 alone; the name stands for both where IPv6 is there."""

    async def main() -> None:
        url = service.url.replace("127.0.0.1", "localhost")
        async with broca.AsyncClient(url, "k") as client:
            assert (await (await client.open()).ask("hello")).text == "hello"
        async with broca.AsyncClient("http://no.such.host.invalid:1", "k") as client:
            with pytest.raises(errors.ConnectError):
                await client.open()

    with Service() as service:
        run(main())


def test_a_slow_reader_loses_no_event_and_bounds_what_waits(run: Run) -> None:
    total = 20_000
    log: list[str] = []

    async def show(answer: Answer, lines: list[str]) -> None:
        for start in range(0, len(lines), 200):
            answer.lines(*lines[start : start + 200])
            await answer.sent()

    async def script(asked: Asked, answer: Answer) -> None:
        if asked.text == "flood":
            log.extend(service_line(n, 1_500) for n in range(total))
            message = {"role": "assistant", "content": [{"type": "text", "text": "done"}]}
            log.append(service.event_line("server.message.send", message))
            await show(answer, log)
            answer.terminal(result={"events": [], "message": message})
            await answer.sent()
            told.set()
        elif asked.method == "session.subscribe":
            since = [json.loads(line)["params"]["id"] for line in log].index(asked.params["since_event_id"])
            await show(answer, log[since + 1 :])

    told = threading.Event()

    async def main() -> None:
        async with broca.AsyncClient(service.url, "k", step_buffer_bytes=500_000) as client:
            session = await client.open()
            seen: list[str] = []
            async for step in session.send("flood"):
                if isinstance(step, broca.Event):
                    seen.append(step.id)
                    if len(seen) == 100:
                        # The loop goes on meanwhile: the turn is read to its end, and the service waits for nobody.
                        assert await asyncio.to_thread(told.wait, 30)
                assert not isinstance(step, broca.Gap)
            assert seen == [json.loads(line)["params"]["id"] for line in log]

    with Service(script) as service:
        run(main())


def test_timeouts_are_errors_of_their_class(run: Run) -> None:
    async def script(asked: Asked, answer: Answer) -> None:
        if asked.text == "late":
            await asyncio.sleep(0.4)

    async def main() -> None:
        async with broca.AsyncClient(service.url, "k", head_timeout_ms=100, recovery_timeout_ms=0) as client:
            session = await client.open()
            began = time.monotonic()
            with pytest.raises(errors.TimeoutError):
                await session.ask("late")
            assert time.monotonic() - began > 0.09

    with Service(script) as service:
        run(main())


def test_idle_connections_are_used_again_and_closed_in_time(run: Run) -> None:
    async def main() -> None:
        async with broca.AsyncClient(service.url, "k", idle_close_ms=150) as client:
            session = await client.open()
            for _ in range(10):
                await session.ask("hello")
            assert service.connections <= 2
            await asyncio.sleep(0.5)
            assert not session._attached.shell._links
            assert (await session.ask("hello")).text == "hello"

    with Service() as service:
        run(main())


def test_eager_tasks_change_nothing() -> None:
    eager = getattr(asyncio, "eager_task_factory", None)
    if eager is None:
        pytest.skip("eager tasks need Python 3.12")

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(eager)
        async with broca.AsyncClient(service.url, "k") as client:
            await flow(client)
        with pytest.raises(errors.ConnectError):
            await broca.AsyncClient("http://127.0.0.1:9", "k").open()

    with Service(much) as service:
        asyncio.run(main())
