"""Take part in agent sessions: send messages, run tools, ask for approval, watch.

`AsyncClient` is the client for asyncio, `Client` the one for plain threads. Steps, errors and tools are in
`broca.steps`, `broca.errors` and `broca.tools`; the names that a program needs every day are here.
"""

# First, because everything else needs what it looks for.
from . import _native as _native
from . import errors
from ._core import SavedSession
from ._options import ClientOptions
from ._version import __version__
from .aio import AsyncClient, AsyncSession, AsyncSubscription, AsyncTurn
from .errors import BrocaError
from .steps import (
    Approval,
    ApprovalWithdrawn,
    Cursor,
    DisplayReset,
    Done,
    Event,
    Gap,
    Notification,
    Page,
    ReasoningDelta,
    Received,
    Reply,
    Sending,
    Status,
    Step,
    TextDelta,
    ToolCall,
    ToolCancel,
    ToolInputDelta,
    ToolSettled,
    Usage,
    Warning,
)
from .sync import Client, Session, Subscription, Turn
from .tools import CancelToken, Content, Tool, ToolContext, tool

__all__ = [
    "Approval",
    "ApprovalWithdrawn",
    "AsyncClient",
    "AsyncSession",
    "AsyncSubscription",
    "AsyncTurn",
    "BrocaError",
    "CancelToken",
    "Client",
    "ClientOptions",
    "Content",
    "Cursor",
    "DisplayReset",
    "Done",
    "Event",
    "Gap",
    "Notification",
    "Page",
    "ReasoningDelta",
    "Received",
    "Reply",
    "SavedSession",
    "Sending",
    "Session",
    "Status",
    "Step",
    "Subscription",
    "TextDelta",
    "Tool",
    "ToolCall",
    "ToolCancel",
    "ToolContext",
    "ToolInputDelta",
    "ToolSettled",
    "Turn",
    "Usage",
    "Warning",
    "__version__",
    "errors",
    "tool",
]
