"""A session as a value that outlives its program."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ._json import compact
from .errors import InvalidArgumentError

if TYPE_CHECKING:
    from .tools import ToolSet


@dataclass(frozen=True)
class SavedSession:
    """Everything that a program needs to go on with a session that another one has left, in any language.

    **It holds the session's key and results of tools: keep it where keys are kept.** Store ``json``, or pickle it;
    that is the text which every language writes and reads. Its ``repr`` says which session it is and nothing else.
    Raises `InvalidArgumentError` for a text that is no saved session.
    """

    json: str = field(repr=False)
    session_id: str = field(init=False, compare=False)
    service: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        # The rest is read by the engine, when it is attached.
        try:
            saved = json.loads(self.json)
            session_id, service = saved["session_id"], saved["service"]
        except (ValueError, TypeError, KeyError, RecursionError):
            session_id = service = None
        if not isinstance(session_id, str) or not isinstance(service, str):
            raise InvalidArgumentError("this is no saved session, or it was damaged")
        object.__setattr__(self, "session_id", session_id)
        object.__setattr__(self, "service", service)

    def __str__(self) -> str:
        return repr(self)


def attach_command(saved: SavedSession | str, tools: ToolSet) -> str:
    """The command that goes on with a saved session."""
    text = saved if isinstance(saved, SavedSession) else SavedSession(saved)
    return compact({"attach": {"saved": text.json, "tools": tools.declarations()}})


def session_id_of(session: SavedSession | str, url: str) -> str:
    """The id of a session that is to be joined."""
    if isinstance(session, SavedSession):
        if session.service.rstrip("/") != url.rstrip("/"):
            raise InvalidArgumentError(f"the session lives at {session.service}, this client asks {url}")
        return session.session_id
    if not isinstance(session, str):
        raise InvalidArgumentError("a session is named by its id, or by what save() gave")
    return session
