"""A service that is newer than its clients: hands everything on, and says more in the first stream than they can know."""

import contextlib
import json
import re
import socket
import threading

# The head of an answer. Its bytes are found nowhere else: JSON text has no line ends of this kind.
HEAD = re.compile(rb"HTTP/1\.1 200 [^\r\n]*\r\n(?:[^\r\n]+\r\n)+\r\n")
STREAM = (b"content-type: application/x-ndjson\r\n", b"transfer-encoding: chunked\r\n")
SESSION = re.compile(rb"/sessions/([^/ ]+)/rpc")
LONGEST_HEAD = 8192


@contextlib.contextmanager
def before(url, additions):
    """Where clients connect so that the service at `url` says the `additions`, too: notifications, `{"method", "params"}`, and
    events, `{"event_type", "payload"}`, which get the session and an id. Without any it is the service itself."""
    if not additions:
        yield url
        return
    front = Newer(url, additions)
    try:
        yield front.url
    finally:
        front.close()
    assert front.said, "what is newer was not said: there was no stream"


class Newer:
    """Stands before the service."""

    def __init__(self, url, additions):
        host, port = url.removeprefix("http://").rsplit(":", 1)
        self._target = (host, int(port))
        self._additions = additions
        self._lock = threading.Lock()
        self._open = []
        self._session = ""
        self.said = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        """Ends every connection, and takes no more."""
        with self._lock:
            for end in [self._listener, *self._open]:
                with contextlib.suppress(OSError):  # the other side was faster
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
                service = socket.create_connection(self._target)
            except OSError:  # closed
                return
            with self._lock:
                self._open += [client, service]
            threading.Thread(target=self._hand_on, args=(client, service, self._asked), daemon=True).start()
            threading.Thread(target=self._hand_on, args=(service, client, self._answered), daemon=True).start()

    @staticmethod
    def _hand_on(source, sink, look):
        before = b""
        with contextlib.suppress(OSError):  # one side is gone, and then the other
            while data := source.recv(65536):
                sink.sendall(look(before, data))
                before = (before + data)[-LONGEST_HEAD:]
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def _asked(self, before, data):
        for session in SESSION.finditer(before + data):
            self._session = session[1].decode()
        return data

    def _answered(self, before, data):
        """The data, with the additions behind the head of a stream that ends in it."""
        for head in HEAD.finditer(before + data):
            at = head.end() - len(before)
            with self._lock:
                if at <= 0 or self.said or not all(line in head[0].lower() for line in STREAM):
                    continue
                self.said = True
            lines = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in self._lines()).encode()
            return data[:at] + f"{len(lines):x}\r\n".encode() + lines + b"\r\n" + data[at:]
        return data

    def _lines(self):
        for number, addition in enumerate(self._additions):
            if "event_type" in addition:
                made = {"id": f"evt_newer_{number}", "session_id": self._session, "client_key_id": None,
                        "created_at": "2030-01-01T00:00:00.000Z", **addition}
                addition = {"method": "session.event", "params": made}
            yield {"jsonrpc": "2.0", **addition}
