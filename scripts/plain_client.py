"""A client of the session service that knows the plain contract and nothing else.

It asks for no feature, takes the event types, content blocks and members of that contract as closed sets, and gives
up after 30 s without a byte: what it does not know is a failure. `Service` is the `broca serve` that it drives.
"""

import http.client
import json
import os
import pathlib
import queue
import re
import signal
import subprocess
import threading
import urllib.parse

EVENT_TYPES = set(
    """client.message.send server.message.send provider.request provider.response tool.call tool.result
    mcp.request mcp.response sandbox.request sandbox.response session.open session.join session.driver.register
    session.close session.error session.compaction session.sandbox.available session.sandbox.start
    session.sandbox.running session.sandbox.stop session.sandbox.stopped session.sandbox.error
    session.subagent.start session.subagent.running session.subagent.completed session.subagent.failed
    session.subagent.cancelled""".split()
)
VIEW = {"id", "session_id", "client_key_id", "event_type", "payload", "created_at"}
REQUEST = {"attempt", "kind", "provider", "base_url", "model", "max_tokens", "messages", "tools"}
ANSWERED = {"attempt", "kind", "provider", "ok", "status", "body", "usage"}
FAILED = {"attempt", "kind", "provider", "ok", "status", "error", "body"}
READ_TIMEOUT = 30


def same(got, expected, what=""):
    assert got == expected, f"{what}: {got!r} instead of {expected!r}"


class Service:
    """One `broca serve --dev` in a folder of its own."""

    def __init__(self, broca, folder, *models, timeout=120):
        self.command = [broca, "serve", "--dev", "--addr", "127.0.0.1:0", "--turn-timeout", str(timeout)]
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(exist_ok=True)
        for number, rules in enumerate(models):
            path = self.folder / f"model-{number}.json"
            path.write_text(json.dumps({"rules": rules}))
            self.command += ["--model", f"scripted:{path}"]
        self.start()
        keys = self.folder / "broca"
        self.key, self.other_key = ((keys / name).read_text().strip() for name in ("client-key", "watch-key"))

    def start(self):
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("BROCA_", "BAE_"))}
        environment["XDG_STATE_HOME"] = str(self.folder)
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, env=environment, text=True)
        url = re.search(r"http://\S+", self.process.stdout.readline()).group()
        self.host = urllib.parse.urlsplit(url).netloc

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        same(self.process.wait(READ_TIMEOUT), 0, "exit status")
        self.process.stdout.close()

    def send(self, method, path, key=None, body=None, headers=None):
        connection = http.client.HTTPConnection(self.host, timeout=READ_TIMEOUT)
        headers = {"Content-Type": "application/json"} if headers is None else headers
        if key:
            headers = {**headers, "Authorization": f"Bearer {key}"}
        if body is not None and not isinstance(body, (str, bytes)):
            body = json.dumps(body)
        connection.request(method, path, body, headers)
        return connection, connection.getresponse()

    def rest(self, method, path, key=None, body=None, headers=None):
        """Status and JSON; every refusal is a problem document."""
        connection, response = self.send(method, path, key, body, headers)
        content = json.loads(response.read())
        same(response.getheader("content-type"), "application/json", path)
        if response.status >= 400:
            same(set(content), {"type", "title", "status", "detail"}, path)
            same((content["status"], content["title"]), (response.status, response.reason), path)
        connection.close()
        return response.status, content

    def problem(self, *request, **more):
        status, content = self.rest(*request, **more)
        return status, content.get("type"), content.get("detail")

    def open(self, *tools, key=None, **body):
        body = {"client_version": "plain/1", "tools": list(tools), **body}
        status, opened = self.rest("POST", "/api/v1/sessions", key or self.key, body)
        same(status, 201)
        return Session(self, opened)

    def driver(self, *tools, **body):
        session = self.open(*tools, **body)
        same(session.result("session.registerDriver"), {"registered": True})
        return session


class Session:
    """One session key in use."""

    def __init__(self, service, opened):
        same(set(opened), {"session_id", "session_key", "profile"})
        same(set(opened["profile"]), {"id", "name", "allowed_tools", "mcp_servers", "provider"})
        same(set(opened["profile"]["provider"]), {"provider", "model"})
        assert re.fullmatch("ses_[0-9a-f]{32}", opened["session_id"]), opened["session_id"]
        assert re.fullmatch("bae_ses_[0-9a-f]{48}", opened["session_key"]), "the form of a session key"
        self.service, self.id, self.key = service, opened["session_id"], opened["session_key"]
        self.path = f"/api/v1/sessions/{self.id}"

    def stream(self, method, params=None, request_id=1):
        request = {"jsonrpc": "2.0", "method": method, "params": {} if params is None else params}
        return Stream(self, request if request_id is None else {**request, "id": request_id}, request_id)

    def result(self, method, params=None):
        return self.stream(method, params).terminal()["result"]

    def error(self, method, params=None):
        stream = self.stream(method, params)
        error = stream.terminal()["error"]
        same((set(error), stream.events), ({"code", "message"}, []))
        return error["code"], error["message"]

    def message(self, content, **more):
        return self.stream("session.sendMessage", {"message": {"role": "user", "content": content}}, **more)

    def refusal(self, content):
        return self.error("session.sendMessage", {"message": {"content": content}})

    def reply(self, content):
        """A whole call: its message and events, checked as a plain client takes them."""
        stream = self.message(content)
        result = stream.terminal()["result"]
        same(set(result), {"message", "events"})
        message, events = result["message"], [check_event(self, event) for event in result["events"]]
        same((set(message), message["role"]), ({"role", "content"}, "assistant"))
        for block in message["content"]:
            check_block(block)
        # The caller's own message and results are in the result and not on its stream.
        own = len(events) - len(stream.events)
        same(stream.events, events[own:])
        same({event["event_type"] for event in events[:own]} - {"client.message.send", "tool.result"}, set())
        # They stand together in the log, wherever other drivers' turns have gone on since.
        log = self.events()
        start = next(i for i, event in enumerate(log) if event["id"] == events[0]["id"])
        same(log[start : start + len(events)], events, "the log")
        return message["content"], events

    def events(self):
        found, cursor = [], ""
        while cursor is not None:
            status, page = self.service.rest("GET", f"{self.path}/events?limit=200&cursor={cursor}", self.key)
            same((status, set(page)), (200, {"items", "next_cursor"}))
            found += [check_event(self, event) for event in page["items"]]
            cursor = page["next_cursor"]
        return found

    def join(self, *tools, key=None):
        body = {"client_version": None, "tools": list(tools)}
        status, joined = self.service.rest("POST", f"{self.path}/join", key or self.service.other_key, body)
        same((status, joined["session_id"]), (201, self.id))
        return Session(self.service, joined)

    def close(self):
        return self.service.rest("DELETE", self.path, self.key)


class Stream:
    """The lines of one `/rpc` answer, read as they come."""

    def __init__(self, session, request, request_id):
        self.session, self.id, self.events = session, request_id, []
        self.connection, response = session.service.send("POST", f"{session.path}/rpc", session.key, request)
        same((response.status, response.getheader("content-type")), (200, "application/x-ndjson"))
        self.lines = queue.Queue()
        threading.Thread(target=self.read, args=(response,), daemon=True).start()

    def read(self, response):
        try:
            while line := response.readline():
                self.lines.put(line)
            self.lines.put(None)
        except Exception as error:
            self.lines.put(error)

    def next(self, timeout=READ_TIMEOUT):
        """The next event or terminal line; nothing at the end."""
        line = self.lines.get(timeout=timeout)
        if line is None:
            return None
        if isinstance(line, Exception):
            raise line
        assert line.endswith(b"\n"), line
        line = json.loads(line)
        same(line.pop("jsonrpc"), "2.0")
        if "id" in line:
            same((line["id"], len(line)), (self.id, 2), "terminal line")
            return line
        if "error" in line:
            return line
        same((set(line), line["method"]), ({"method", "params"}, "session.event"))
        self.events.append(check_event(self.session, line["params"]))
        return self.events[-1]

    def until(self, event_type):
        while (event := self.next()) and event.get("event_type") != event_type:
            pass
        assert event, f"the stream ended before {event_type}"
        return event

    def silent(self, seconds):
        try:
            line = self.lines.get(timeout=seconds)
        except queue.Empty:
            return
        raise AssertionError(f"a byte too early: {line!r}")

    def rest(self):
        found = []
        while (line := self.next()) is not None:
            found.append(line)
        self.connection.close()
        return found

    def terminal(self):
        *events, last = self.rest()
        same(["event_type" in line for line in [*events, last]], [True] * len(events) + [False], "lines")
        assert "id" in last, last
        return last


def check_event(session, event):
    same(set(event), VIEW)
    same(event["session_id"], session.id)
    assert event["event_type"] in EVENT_TYPES, event["event_type"]
    assert re.fullmatch("evt_[0-9a-f]{32}", event["id"]), event["id"]
    assert re.fullmatch("key_[0-9a-f]{32}", event["client_key_id"]), event["client_key_id"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", event["created_at"]), event["created_at"]
    kind, payload = event["event_type"], event["payload"]
    assert isinstance(payload, dict), event
    if kind == "provider.request":
        same(set(payload), REQUEST)
        assert "dispatch" not in json.dumps(payload["messages"]), payload["messages"]
    elif kind == "provider.response":
        same(set(payload), ANSWERED if payload["ok"] else FAILED)
    elif kind == "tool.call":
        same(set(payload) - {"server_name"}, {"id", "name", "input", "dispatch"})
        same("server_name" in payload, payload["dispatch"] == "mcp")
    elif kind == "tool.result":
        more = {"client": set(), "mcp": {"is_error", "server_name"}}.get(payload["dispatch"], {"is_error"})
        same(set(payload), {"tool_use_id", "dispatch", "content"} | more)
    return event


def check_block(block):
    members = {"text": {"type", "text"}, "tool_use": {"type", "id", "name", "input", "dispatch"}}
    same(set(block), members[block["type"]])


def types(events):
    return [event["event_type"] for event in events]


def texts(content):
    return [block.get("text") for block in content]


def result_of(call, content="r"):
    return {"type": "tool_result", "tool_use_id": call, "content": content}


def reasons(events):
    return [event["payload"]["reason"] for event in events if event["event_type"] == "session.error"]
