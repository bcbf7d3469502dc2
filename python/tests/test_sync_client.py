"""The synchronous client, beside a service of the test's own that says what the test wants."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import trustme
from async_service import Answer, Asked, Service, calling, endless

import broca
from broca import errors
from broca.testing import Server


def client_of(service: Service, **options: Any) -> broca.Client:
    return broca.Client(service.url, "key", environment={}, **options)


@pytest.fixture(scope="module")
def tls() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A context that serves as localhost and as service.test, and one that trusts it."""
    authority = trustme.CA()
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", "service.test").configure_cert(serving)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    return serving, trusting


@broca.tool
def read_file(path: str) -> str:
    """Return the text of a file."""
    return f"text of {path}"


def kinds(steps: Iterator[Any]) -> list[str]:
    return [type(step).__name__ for step in steps]


class TestTurns:
    def test_a_turn_shows_its_steps_and_runs_its_tools(self, server: Server) -> None:
        with broca.Client(server.url, server.key) as client, client.open(tools=[read_file]) as session:
            assert session.id.startswith("ses_") and "cancel" in session.features
            with session.send("What does read_file say about main.py?") as turn:
                steps = list(turn)
            seen = kinds(iter(steps))
            for kind in ("Event", "TextDelta", "ToolCall", "ToolSettled", "Done"):
                assert kind in seen
            call = next(step for step in steps if isinstance(step, broca.ToolCall))
            assert call.runs_itself and call.input == {"path": "main.py"}
            assert steps[-1].reply.rounds == 2 and "text of main.py" in steps[-1].reply.text
            reply = session.ask("And what is 2 and 2?")
            assert reply.rounds == 1 and reply.events
            session.close()

    def test_several_calls_run_beside_each_other(self) -> None:
        together = threading.Barrier(3)

        @broca.tool
        def meet(n: int) -> int:
            together.wait(20)
            return n

        script = calling(*((f"tu_{n}", "meet", {"n": n}) for n in range(3)))
        with Service(script) as service, client_of(service) as client:
            assert client.open(tools=[meet]).ask("go").text == "0 1 2"

    def test_tools_see_the_context_of_the_send_that_called_them(self) -> None:
        who = contextvars.ContextVar("who", default="nobody")

        @broca.tool
        def ask_who(context: broca.ToolContext) -> str:
            return f"{who.get()} {context.tool_use_id} {threading.current_thread() is not threading.main_thread()}"

        with Service(calling(("tu_1", "ask_who", {}))) as service, client_of(service) as client:
            session = client.open(tools=[ask_who])
            who.set("somebody")
            turn = session.send("go")
            who.set("somebody else")
            assert turn.reply().text == "somebody tu_1 True"

    def test_manual_tools_and_approvals_are_answered_by_the_application(self) -> None:
        asked = broca.tool(approval=True, narrow={"/n": "at_most"})(_double)
        manual = broca.Tool.manual("by_hand", "", {"type": "object"})
        script = calling(("tu_1", "double", {"n": 8}), ("tu_2", "by_hand", {"x": 1}))
        with Service(script) as service, client_of(service) as client:
            session = client.open(tools=[asked, manual])
            with session.send("go") as turn:
                for step in turn:
                    if isinstance(step, broca.Approval):
                        assert step.allow_narrowed({"n": 4})
                    elif isinstance(step, broca.ToolCall) and not step.runs_itself:
                        assert step.complete({"x": step.input["x"]})
                    elif isinstance(step, broca.Done):
                        assert step.reply.text == '8 {"x":1}'

    def test_ask_denies_what_nobody_can_allow_and_fails_what_nobody_can_run(self) -> None:
        asked = broca.tool(approval=True)(_double)
        manual = broca.Tool.manual("by_hand", "", {"type": "object"})
        script = calling(("tu_1", "double", {"n": 8}), ("tu_2", "by_hand", {}))
        with Service(script) as service, client_of(service) as client:
            text = client.open(tools=[asked, manual]).ask("go").text
        assert "nobody to ask for consent" in text and "Nobody is there to run this tool" in text

    @pytest.mark.parametrize(
        ("decision", "text"),
        [
            (True, "16"),
            ({"n": 1}, "2"),
            ("not today", "not today"),
            (None, "did not decide"),
            (ValueError, "ValueError"),
        ],
    )
    def test_an_approval_handler_decides_in_ask(self, decision: Any, text: str) -> None:
        asked = broca.tool(approval=True, narrow={"/n": "at_most"})(_double)

        def decide(approval: broca.Approval) -> Any:
            assert approval.name == "double" and threading.current_thread() is not threading.main_thread()
            if decision is ValueError:
                raise ValueError("odd")
            return decision

        with Service(calling(("tu_1", "double", {"n": 8}))) as service, client_of(service) as client:
            assert text in client.open(tools=[asked], on_approval=decide).ask("go").text

    def test_handlers_see_and_change_what_leaves_and_see_what_comes(self) -> None:
        rounds: list[Any] = []

        def sending(message: broca.Sending) -> Any:
            rounds.append(("out", message.round))
            return {"role": "user", "content": "changed"} if message.round == 0 else None

        def received(message: broca.Received) -> None:
            rounds.append(("in", message.round))

        with Service(calling(("tu_1", "double", {"n": 1}))) as service, client_of(service) as client:
            session = client.open(tools=[broca.tool(_double)], on_sending=sending, on_received=received)
            turn = session.send("original")
            shown = kinds(turn)
            assert "Sending" not in shown and "Received" not in shown
            assert service.calls("session.sendMessage")[0].text == "changed"
        assert rounds == [("out", 0), ("in", 0), ("out", 1), ("in", 1)]

    def test_a_sending_handler_that_raises_ends_the_turn(self) -> None:
        def refuse(_: broca.Sending) -> None:
            raise PermissionError("not this one")

        with Service() as service, client_of(service) as client:
            session = client.open(on_sending=refuse)
            with pytest.raises(errors.HookError, match="not this one"):
                session.ask("hello")
            assert not service.calls("session.sendMessage")

    def test_hooks_that_were_asked_for_are_steps(self) -> None:
        with Service() as service, client_of(service, hooks=True) as client:
            session = client.open()
            with session.send("hello") as turn:
                seen = []
                for step in turn:
                    seen.append(type(step).__name__)
                    if isinstance(step, broca.Sending):
                        assert step.send()
            assert "Sending" in seen and "Received" in seen

    def test_errors_are_raised_as_the_class_of_their_row(self) -> None:
        def script(asked: Asked, answer: Answer) -> None:
            if asked.method == "session.sendMessage":
                answer.terminal(error={"code": -32602, "message": "wrong"})

        with Service(script) as service, client_of(service) as client:
            session = client.open()
            with pytest.raises(errors.InvalidParamsError) as caught:
                session.ask("hello")
            assert caught.value.code == -323 and caught.value.rpc_code == -32602
            with session.send("again") as turn, pytest.raises(errors.RpcError):
                list(turn)

    def test_what_is_wrong_with_a_call_is_said_at_the_call(self) -> None:
        async def later() -> None: ...

        with Service() as service, client_of(service) as client:
            with pytest.raises(errors.UsageError, match="AsyncClient"):
                client.open(tools=[later])
            session = client.open()
            with pytest.raises(errors.InvalidArgumentError):
                session.send(object())
            with pytest.raises(errors.InvalidArgumentError, match="tiemout"):
                broca.Client(service.url, "key", tiemout=1)  # type: ignore[call-arg]
            with pytest.raises(errors.InvalidArgumentError):
                broca.Client("ftp://x", "key")

    def test_a_thread_with_an_event_loop_is_told_of_the_async_client(self) -> None:
        with Service() as service, client_of(service) as client:
            session = client.open()
            turn = session.send("hello")

            async def inside() -> None:
                for call, name in [
                    (client.open, "AsyncClient.open"),
                    (client.meta, "AsyncClient.meta"),
                    (lambda: session.ask("x"), "AsyncSession.send"),
                    (session.history, "AsyncSession.history"),
                    (lambda: next(turn), "AsyncTurn.__anext__"),
                ]:
                    with pytest.raises(errors.UsageError, match=name):
                        call()
                assert (await asyncio.to_thread(session.ask, "hello")).text == "hello"

            turn.cancel()
            turn = session.send("hello")
            asyncio.run(inside())
            assert turn.reply().text == "hello"


class TestEndingEarly:
    def test_a_turn_left_early_is_cancelled_and_waited_for(self) -> None:
        stopped = threading.Event()
        cancelled = threading.Event()

        def wait(context: broca.ToolContext) -> str:
            assert context.cancelled.wait(30)
            stopped.set()
            return "stopped"

        def script(asked: Asked, answer: Answer) -> Any:
            return calling(("tu_1", "wait", {}))(asked, answer)

        with Service(script, features=("cancel",)) as service, client_of(service) as client:
            session = client.open(tools=[broca.tool(wait)])
            with session.send("go") as turn:
                for step in turn:
                    if isinstance(step, broca.ToolCall):
                        break
            assert stopped.wait(10) and not cancelled.is_set()
            assert list(turn) == []

    def test_cancel_ends_a_stream_and_the_next_turn_starts_at_once(self) -> None:
        cancelled = threading.Event()
        with Service(endless(cancelled), features=("cancel",)) as service, client_of(service) as client:
            session = client.open()
            turn = session.send("endless")
            assert next(turn) is not None
            turn.cancel()
            assert cancelled.is_set()
            turn.cancel()
            assert session.ask("hello").text == "hello"

    def test_another_thread_may_cancel(self) -> None:
        cancelled = threading.Event()
        with Service(endless(cancelled), features=("cancel",)) as service, client_of(service) as client:
            session = client.open()
            with session.send("endless") as turn:
                timer = threading.Timer(0.05, turn.request_cancel)
                timer.start()
                with pytest.raises(errors.CancelledError):
                    list(turn)
                timer.join()
            cancelled.clear()
            with session.send("endless") as turn:
                timer = threading.Timer(0.05, session.cancel)
                timer.start()
                with pytest.raises(errors.CancelledError):
                    list(turn)
                timer.join()

    def test_a_session_cancels_turns_that_nobody_looks_at(self) -> None:
        cancelled = threading.Event()
        with Service(endless(cancelled), features=("cancel",)) as service, client_of(service) as client:
            session = client.open()
            turn = session.send("endless")
            next(turn)
            session.cancel()
            assert cancelled.is_set()
            with pytest.raises(errors.CancelledError):
                list(turn)

    def test_a_dropped_turn_is_cancelled_with_a_warning(self) -> None:
        cancelled = threading.Event()
        with Service(endless(cancelled), features=("cancel",)) as service, client_of(service) as client:
            session = client.open()
            turn = session.send("endless")
            next(turn)
            with pytest.warns(ResourceWarning, match="with session.send"):
                del turn
                gc.collect()
            assert session.ask("hello").text == "hello"
            assert cancelled.is_set()

    def test_next_waits_no_longer_than_it_is_told(self) -> None:
        cancelled = threading.Event()

        def quiet(asked: Asked, answer: Answer) -> Any:
            async def wait() -> None:
                answer.event("provider.request", {})
                await answer.sent()
                await asyncio.to_thread(cancelled.wait, 20)
                answer.says("late")

            return wait() if asked.method == "session.sendMessage" else None

        with Service(quiet) as service, client_of(service) as client, client.open().send("hello") as turn:
            seen = []
            with pytest.raises(errors.TimeoutError):
                while True:
                    seen.append(turn.next(0.3))
            cancelled.set()
            while (step := turn.next(20)) is not None:
                seen.append(step)
            assert isinstance(seen[-1], broca.Done) and seen[-1].reply.text == "late"
            assert turn.next(1) is None

    def test_an_ended_session_refuses_what_comes_later(self) -> None:
        with Service() as service:
            client = client_of(service)
            session = client.open()
            other = client.open()
            session.close()
            with pytest.raises(errors.BrocaError):
                session.ask("hello")
            client.close()
            client.close()
            for call in (lambda: other.ask("x"), client.open, client.meta):
                with pytest.raises(errors.ClosedError):
                    call()


class TestReading:
    def test_a_subscription_goes_on_from_its_cursor(self, server: Server) -> None:
        with broca.Client(server.url, server.key) as client:
            session = client.open(tools=[read_file])
            session.ask("read_file a.txt")
            everything = list(session.events(page_size=3))
            assert len(everything) > 6 and [event.id for event in everything] == [
                event.id for event in session.events()
            ]
            page = session.history(limit=2)
            assert [e.id for e in page.events] == [e.id for e in everything[:2]] and page.next
            with session.subscribe(broca.Cursor.START) as subscription:
                assert subscription.cursor == broca.Cursor.START
                seen = []
                while len(seen) < 4:
                    step = subscription.next(20)
                    if isinstance(step, broca.Event):
                        seen.append(step.id)
                cursor = subscription.cursor
            assert cursor is not None and cursor.value == seen[-1]
            ids = []
            for step in (again := session.subscribe(cursor)):
                if isinstance(step, broca.Event):
                    ids.append(step.id)
                if len(ids) == len(everything) - 4:
                    break
            again.close()
            assert seen + ids == [event.id for event in everything]
            assert len(session.participants()) == 1 and client.meta()["version"]

    def test_an_observer_sees_a_session_to_its_end(self, server: Server) -> None:
        with broca.Client(server.url, server.key) as client, broca.Client(server.url, server.watch_key) as other:
            session = client.open()
            watcher = other.observe(session.save())
            seen: list[str] = []
            ready = threading.Event()

            def watch() -> None:
                for step in watcher.subscribe(broca.Cursor.START):
                    seen.append(type(step).__name__)
                    ready.set()

            thread = threading.Thread(target=watch)
            thread.start()
            assert ready.wait(20)
            session.ask("hello")
            session.close()
            thread.join(20)
            assert not thread.is_alive() and seen.count("Event") > 3

    def test_a_subscription_outlives_cuts(self, binary: str) -> None:
        with Server(binary=binary) as server, broca.Client(server.url, server.key) as client:
            session = client.open()
            session.ask("hello")
            whole = [event.id for event in session.events()]
            server.cut(after_lines=2, request="subscribe")
            seen: list[str] = []
            with session.subscribe(broca.Cursor.START) as subscription:
                while len(seen) < len(whole):
                    step = subscription.next(30)
                    if isinstance(step, broca.Event):
                        seen.append(step.id)
            assert seen == whole


class TestConnections:
    def test_tls_is_verified_against_the_context(self, tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
        serving, trusting = tls
        with Service(calling(("tu_1", "double", {"n": 4})), context=serving) as service:
            with client_of(service, ssl_context=trusting) as client:
                assert client.open(tools=[broca.tool(_double)]).ask("x" * 300_000).text == "8"
            with client_of(service) as client, pytest.raises(errors.TlsError):
                client.open()
            other = broca.Client(
                service.url.replace("localhost", "127.0.0.1"), "k", ssl_context=trusting, environment={}
            )
            with other as client, pytest.raises(errors.TlsError):
                client.open()

    def test_tls_begins_inside_a_tunnel(self, tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
        serving, trusting = tls
        with Service(context=serving) as service, _Tunnel() as tunnel:
            environment = {"https_proxy": tunnel.url}
            url = f"https://service.test:{service.port}"
            with broca.Client(url, "k", ssl_context=trusting, environment=environment) as client:
                assert client.open().ask("hi").text == "hello"
            assert tunnel.asked and tunnel.asked[0].startswith(f"CONNECT service.test:{service.port} ")

    def test_plain_http_where_tls_is_meant_is_a_tls_error(self, server: Server) -> None:
        url = server.direct_url.replace("http:", "https:")
        with broca.Client(url, "k", environment={}) as client, pytest.raises(errors.TlsError):
            client.open()

    def test_nobody_listening_is_a_connect_error(self) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
            with broca.Client(f"http://127.0.0.1:{port}", "k", environment={}) as client:
                with pytest.raises(errors.ConnectError) as caught:
                    client.open()
                assert caught.value.retry == "safe"

    def test_a_name_that_nobody_knows_is_a_connect_error(self) -> None:
        client = broca.Client("http://nowhere.invalid:1", "k", environment={})
        with client, pytest.raises(errors.ConnectError, match=r"nowhere\.invalid"):
            client.open()

    def test_an_early_refusal_is_read_although_writing_fails(self) -> None:
        with Service() as service, client_of(service) as client:
            with pytest.raises(errors.ApiError) as caught:
                client.open().ask("x" * 8_000_000)
            assert caught.value.status == 413

    def test_large_messages_leave_in_pieces(self) -> None:
        """More than the engine writes ahead, over a way that is slow."""
        size: list[int] = []

        def script(asked: Asked, answer: Answer) -> None:
            if asked.method == "session.sendMessage":
                size.append(len(asked.text))

        with Service(script) as service, _Tunnel(slow=service.port) as way:
            client = broca.Client(way.url, "key", environment={})
            client.open().ask("x" * 900_000)
            client.close()
        assert size == [900_000]

    def test_many_events_come_in_order_whatever_their_size(self) -> None:
        count = 20_000

        def script(asked: Asked, answer: Answer) -> Any:
            async def flood() -> None:
                for n in range(count):
                    answer.event("provider.request", {"n": n, "x": "y" * (n % 700)})
                    if n % 100 == 0:
                        await answer.sent()
                answer.says("done")

            return flood() if asked.method == "session.sendMessage" else None

        with Service(script) as service, client_of(service) as client, client.open().send("go") as turn:
            seen = [step.payload["n"] for step in turn if isinstance(step, broca.Event) and "n" in step.payload]
        assert seen == list(range(count))

    def test_a_session_that_nobody_holds_lets_its_connections_go(self) -> None:
        with Service() as service, client_of(service) as client:
            session = client.open()
            driver = weakref.ref(session._driver)
            assert session.ask("hello").text == "hello"
            del session
            gc.collect()
            assert driver() is None


def _double(n: int) -> int:
    return 2 * n


_double.__name__ = "double"


class _Tunnel:
    """A proxy that only tunnels, and takes every host for this one; or a slow way to a port of this one."""

    def __init__(self, slow: int | None = None) -> None:
        self._slow = slow

    def __enter__(self) -> _Tunnel:
        self.asked: list[str] = []
        self._listener = socket.socket()
        if self._slow is not None:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = [self._listener]
        self._run(self._serve)
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._sockets:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            one.close()
        for thread in self._threads:
            thread.join(10)

    def _run(self, work: Any, *words: Any) -> None:
        thread = threading.Thread(target=work, args=words, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(client)
            port = self._slow if self._slow is not None else self._tunnel(client)
            other = socket.create_connection(("127.0.0.1", port))
            self._sockets.append(other)
            if self._slow is None:
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            self._run(self._pipe, client, other)
            self._run(self._pipe, other, client)

    def _tunnel(self, client: socket.socket) -> int:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += client.recv(1)
        self.asked.append(head.decode())
        return int(head.split()[1].decode().rpartition(":")[2])

    def _pipe(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
                if self._slow is not None:
                    time.sleep(0.001)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return
