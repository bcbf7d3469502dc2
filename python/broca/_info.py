"""How a session stands, and what is kept with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ._json import compact, wire_value
from .errors import InvalidArgumentError, MalformedError


@dataclass(frozen=True)
class TurnInfo:
    """The turn of a session at one moment.

    ``status``: ``idle``, ``running`` or ``paused``. ``owner``: the client key whose turn it is. ``expires_in_ms``: for
    how long nobody takes a paused turn over. ``waiting``: how many calls wait for theirs.
    """

    status: str
    owner: str | None = None
    expires_in_ms: int | None = None
    waiting: int = 0


@dataclass(frozen=True)
class SessionInfo:
    """How a session stands: its ``state`` (``open``, ``closed`` or ``error``), its times as the service writes them,
    who opened it and who drives it, its turn, and how far its log has come.

    ``metadata`` is what its participants keep with it, ``metadata_version`` how often that was changed.
    ``last_event_id`` is a cursor from which `subscribe` shows what comes. ``compaction`` is the mode in which the
    history is compacted.
    """

    session_id: str
    state: str
    created_at: str
    updated_at: str
    closed_at: str | None
    created_by: str
    drivers: tuple[str, ...]
    turn: TurnInfo
    compaction: str
    metadata_version: int
    events: int
    last_event_id: str | None
    profile: Any = field(repr=False)
    metadata: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class SessionPage:
    """A page of a client's sessions, the newest first. ``next`` is where the following one begins; ``None`` at the
    end."""

    sessions: list[SessionInfo]
    next: str | None


def metadata_json(metadata: Any) -> str:
    """JSON text of the metadata of a session, or of what changes in it."""
    text = wire_value(metadata, "the metadata")
    if not text.startswith("{"):
        raise InvalidArgumentError("the metadata of a session is an object: a mapping with strings as its keys")
    return text


def update_command(metadata: Any, version: int | None) -> str:
    """The command that changes what is kept with a session."""
    return f'{{"update":{{"metadata":{metadata_json(metadata)},"version":{compact(version, "the version")}}}}}'


def sessions_command(cursor: str | None, limit: int | None) -> str:
    """The command that lists a page of the client's sessions."""
    return compact({"sessions": {"cursor": cursor, "limit": limit}})


def info_of(value: Any) -> SessionInfo:
    """What the service tells of a session. Members that this version does not know are passed over."""
    try:
        turn = value.get("turn") or {}
        return SessionInfo(
            session_id=value["session_id"],
            state=value["state"],
            created_at=value["created_at"],
            updated_at=value["updated_at"],
            closed_at=value.get("closed_at"),
            created_by=value["created_by"],
            drivers=tuple(value.get("drivers", ())),
            turn=TurnInfo(
                turn.get("status", "idle"), turn.get("owner"), turn.get("expires_in_ms"), turn.get("waiting", 0)
            ),
            compaction=value.get("compaction", ""),
            metadata_version=value.get("metadata_version", 0),
            events=value.get("events", 0),
            last_event_id=value.get("last_event_id"),
            profile=value.get("profile"),
            metadata=value.get("metadata") or {},
        )
    except (AttributeError, KeyError, TypeError):
        raise MalformedError("what the service tells of a session cannot be read: a member is missing") from None


def session_page(value: Any) -> SessionPage:
    """A page of sessions, as the service lists them."""
    items = value.get("items")
    if not isinstance(items, list):
        raise MalformedError("what the service tells of sessions cannot be read: it is no list")
    return SessionPage([info_of(item) for item in items], value.get("next_cursor"))
