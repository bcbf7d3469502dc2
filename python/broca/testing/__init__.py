"""What tests of programs that use Broca need: a service of their own, and a network that breaks on demand.

    from broca.testing import Server

    def test_the_answer(…):
        with Server(script={"rules": [{"then": {"text": "42"}}]}) as server:
            client = broca.Client(server.url, key=server.key)

Everything here is plain Python over the ``broca`` command; no key of a model and no network is needed.
"""

from .binary import BinaryNotFoundError, VersionMismatchError
from .process import ServerError
from .proxy import Proxy, ProxyStatus
from .server import Server

__all__ = [
    "BinaryNotFoundError",
    "Proxy",
    "ProxyStatus",
    "Server",
    "ServerError",
    "VersionMismatchError",
]
