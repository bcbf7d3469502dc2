"""What tests of programs that use Broca need: a service of their own, and a network that breaks on demand.

    from broca.testing import Server

    def test_the_answer(…):
        with Server(script={"rules": [{"then": {"text": "42"}}]}) as server:
            client = broca.Client(server.url, key=server.key)

All of that is plain Python over the ``broca`` command; no key of a model and no network is needed. ``ChatStream`` reads
the answer of a Chat Completions server, and ``python -m broca.testing.vectors`` plays the project's shared vectors.
"""

from .._broca import ChatStream
from .binary import BinaryNotFoundError, VersionMismatchError
from .process import ServerError
from .proxy import Proxy, ProxyStatus
from .server import Server

__all__ = [
    "BinaryNotFoundError",
    "ChatStream",
    "Proxy",
    "ProxyStatus",
    "Server",
    "ServerError",
    "VersionMismatchError",
]
