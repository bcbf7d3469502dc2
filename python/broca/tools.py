"""Tools: functions of the program that a model may call.

``@broca.tool`` makes one of a function: its name, its docstring and its type hints become what the model is
told, its arguments are checked before it runs, and whatever it returns or raises becomes the one result of
the call.
"""

from __future__ import annotations

import copy
import functools
import inspect
import json
import math
import sys
import threading
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import CoroutineType
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Generic,
    Protocol,
    TypeVar,
    Union,
    overload,
)

from pydantic_core import PydanticSerializationError, to_json
from typing_extensions import Concatenate, Literal, ParamSpec

from ._json import wire_value
from ._media import is_content, plain
from .errors import InvalidArgumentError, ToolError, UsageError

if TYPE_CHECKING:
    from typing_extensions import SupportsIndex

    from ._mcp import McpServer
    from ._schema import Arguments

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")

NarrowRule = Literal["remove_elements", "at_most", "at_least", "path_within", "one_of_prefix"]
"""How an approval may narrow one argument: an array loses elements, a number becomes smaller or larger, a
path becomes one below it, a text is extended at its end."""

Answer = tuple[str, str]
"""The word and the value of an answer, as the engine takes them."""

ToolLike = Union["Tool[..., Any]", Callable[..., Any]]
"""A tool, or a function that becomes one with the defaults of `tool`."""

Brought = Union["Tool[..., Any]", Callable[..., Any], "McpServer"]
"""What a session brings: tools, and MCP servers whose tools they are."""

_NARROW_RULES = {"remove_elements", "at_most", "at_least", "path_within", "one_of_prefix"}


class _Waits(Protocol):
    def set(self) -> Any: ...


class CancelToken:
    """Says that a call no longer counts: its turn was cancelled, or its time is over. True once it does.

    ``while not context.cancelled: …`` or ``context.cancelled.wait(0.5)``.
    """

    __slots__ = ("_cancelled", "_waiting")

    def __init__(self) -> None:
        self._cancelled = False
        # Few tools wait for it, so that whoever does brings what to wait with.
        self._waiting: list[_Waits] = []

    def __bool__(self) -> bool:
        return self._cancelled

    def __repr__(self) -> str:
        return f"CancelToken({'cancelled' if self else 'not cancelled'})"

    def is_set(self) -> bool:
        """Whether the call was cancelled."""
        return self._cancelled

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until the call is cancelled, at most for `timeout` seconds; says whether it was."""
        if not self._cancelled:
            event = threading.Event()
            self._waiting.append(event)
            # Looked at again, so that neither side misses the other.
            if not self._cancelled:
                event.wait(timeout)
            self._waiting.remove(event)
        return self._cancelled

    def _tell(self, waits: _Waits) -> None:
        """Sets this as soon as the call is cancelled."""
        self._waiting.append(waits)
        if self._cancelled:
            waits.set()

    def _untell(self, waits: _Waits) -> None:
        self._waiting.remove(waits)

    def _set(self) -> None:
        self._cancelled = True
        for event in list(self._waiting):
            event.set()


class ToolContext:
    """What a tool may want to know about its call.

    A parameter with this annotation is filled in, and not shown to the model.
    """

    __slots__ = ("cancelled", "idempotency_key", "input_json", "may_have_run", "name", "tool_use_id")

    name: str
    """The tool's name."""
    tool_use_id: str
    """The call's id in the conversation."""
    idempotency_key: str
    """The same for every attempt at this call: hand it to whatever must not happen twice."""
    input_json: str
    """The arguments, exactly as the model wrote them."""
    may_have_run: bool
    """Whether the program that had the session before may have run this call; nothing says how far it came."""
    cancelled: CancelToken
    """Whether the answer still counts. Async tools are cancelled as tasks as well."""

    def __init__(
        self, name: str, tool_use_id: str, idempotency_key: str, input_json: str, may_have_run: bool = False
    ) -> None:
        self.name = name
        self.tool_use_id = tool_use_id
        self.idempotency_key = idempotency_key
        self.input_json = input_json
        self.may_have_run = may_have_run
        self.cancelled = CancelToken()

    def __repr__(self) -> str:
        return f"ToolContext({self.name}, {self.tool_use_id})"


class ToolInterrupted(Exception):
    """Raised in a tool that does its work elsewhere: it was lost before it ended, and may have run. The message is
    what the model reads."""


class Written:
    """A tool's result that is written already: JSON of a string or of an array of content blocks."""

    __slots__ = ("json",)

    def __init__(self, json: str) -> None:
        self.json = json


@dataclass(frozen=True)
class Content:
    """A tool's result as content blocks, passed on to the model as they are.

    Every block is an object with a ``type``, such as ``{"type": "text", "text": "…"}``.
    """

    blocks: Sequence[Mapping[str, Any]]

    def __post_init__(self) -> None:
        if isinstance(self.blocks, (str, bytes)) or not all(isinstance(block, Mapping) for block in self.blocks):
            raise InvalidArgumentError("the blocks of a Content are a list of objects, each with a type")


class Tool(Generic[P, R]):
    """A tool of this program: what the model is told about it, and what runs when it is called.

    Made by `tool`, `Tool.raw` or `Tool.manual`. One that was made of a function is still that function:
    call it as before. Methods work too; the tool is then what an instance gives: ``tools=[files.read]``.
    """

    name: str
    """The name that the model calls."""
    description: str
    """What the model is told about it."""
    sequential: bool
    """Whether it never runs beside another sequential tool."""
    inline: bool
    """Whether it runs where its turn is read, instead of on a thread of its own."""
    timeout: float | None
    """Seconds that one call may take; over it the call is answered as timed out, and told to stop."""
    approval: bool
    """Whether somebody is asked before each call."""
    narrow: Mapping[str, NarrowRule]
    """Which arguments an approval may narrow: JSON pointer to rule."""
    is_async: bool
    """Whether it is run by an ``async def``: such tools need an `AsyncClient`."""
    is_manual: bool
    """Whether the application answers its calls itself."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        sequential: bool = False,
        inline: bool = False,
        timeout: float | None = None,
        approval: bool = False,
        narrow: Mapping[str, NarrowRule] | None = None,
        _names: Mapping[str, Any] | None = None,
    ) -> None:
        """See `tool`, which is the usual way."""
        from . import _schema

        self._binding = "instance"
        if isinstance(function, (staticmethod, classmethod)):
            self._binding = "static" if isinstance(function, staticmethod) else "class"
            function = function.__func__
        if isinstance(function, type) or not callable(function):
            what = "a class" if isinstance(function, type) else f"an object of {type(function).__name__}"
            raise InvalidArgumentError(f"{what} is no tool: give a function, or an instance that has __call__")
        self._function: Callable[..., Any] = function
        self._raw = False
        self._schemas: dict[bool, Arguments] = {}
        self._raw_schema: dict[str, Any] | None = None
        self._bound = False
        self._in_class = False
        self.is_manual = False
        self.is_async = _is_async(function)
        self._settle(
            _name_of(function) if name is None else name,
            _schema.description_of(function) if description is None else description,
            sequential, inline, timeout, approval, narrow,
        )  # fmt: skip
        functools.update_wrapper(self, function, updated=())
        try:
            _schema.check_signature(function)
            if self._binding == "instance" and not _is_written_in_class(function):
                self._arguments(_names or {})
        except NameError:
            # It may exist by the time the tool is used.
            pass
        except _schema.UnfitError as unfit:
            raise self._refused(str(unfit)) from unfit

    @classmethod
    def raw(
        cls,
        name: str,
        description: str,
        input_schema: Mapping[str, Any],
        handler: Callable[[Any, ToolContext], Any],
        *,
        sequential: bool = False,
        inline: bool = False,
        timeout: float | None = None,
        approval: bool = False,
        narrow: Mapping[str, NarrowRule] | None = None,
    ) -> Tool[[Any, ToolContext], Any]:
        """A tool with a JSON Schema made elsewhere.

        The handler gets the arguments as JSON gives them, unchecked, and the context. Its result is treated
        as everywhere: a str as it is, a `Content` as blocks, anything else as JSON.
        """
        made: Tool[[Any, ToolContext], Any] = cls.manual(
            name, description, input_schema,
            sequential=sequential, timeout=timeout, approval=approval, narrow=narrow,
        )  # fmt: skip
        if not callable(handler):
            raise made._refused("its handler cannot be called")
        made.is_manual = False
        made.is_async = _is_async(handler)
        made._function = handler
        made._raw = True
        made._set_inline(inline)
        return made

    @classmethod
    def manual(
        cls,
        name: str,
        description: str,
        input_schema: Mapping[str, Any],
        *,
        sequential: bool = False,
        timeout: float | None = None,
        approval: bool = False,
        narrow: Mapping[str, NarrowRule] | None = None,
    ) -> Tool[..., Any]:
        """A tool whose calls the application answers itself, with ``complete()`` or ``fail()``."""
        made: Tool[..., Any] = cls.__new__(cls)
        made._binding = "static"
        made._function = _run_by_the_application
        made._raw = False
        made._schemas = {}
        made._bound = made._in_class = False
        made.is_manual = True
        made.is_async = False
        made._settle(name, description, sequential, False, timeout, approval, narrow)
        if not isinstance(input_schema, Mapping) or input_schema.get("type") != "object":
            raise made._refused('its input schema must describe an object: {"type": "object", …}')
        made._raw_schema = dict(input_schema)
        return made

    @property
    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema of its arguments."""
        if self._raw_schema is not None:
            return self._raw_schema
        return self._arguments({}).schema

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function, as if it were no tool."""
        result: R = self._function(*args, **kwargs)
        return result

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Tool[P, R]: ...
    @overload
    def __get__(self: Tool[Concatenate[Any, Q], R], instance: object, owner: type | None = None) -> Tool[Q, R]: ...
    def __get__(self, instance: object | None, owner: type | None = None) -> Tool[..., Any]:
        if self._bound or self._binding == "static":
            return self
        if self._binding == "class":
            instance = owner
        if instance is None:
            return self
        bound = copy.copy(self)
        bound._bound = True
        bound._function = functools.partial(self._function, instance)
        functools.update_wrapper(bound._function, self._function, updated=())
        return bound

    def __copy__(self) -> Tool[P, R]:
        made: Tool[P, R] = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        """By its name, as functions are pickled: the name of the function is the tool's now. Where a module cannot be
        imported by others (a notebook), by value, for picklers that take functions so."""
        name: str = getattr(self, "__qualname__", "")
        found: Any = sys.modules.get(getattr(self, "__module__", ""))
        if name and found is not None and found is not sys.modules.get("__main__"):
            for part in name.split("."):
                found = getattr(found, part, None)
            if found is self:
                return name
        return super().__reduce_ex__(protocol)

    def __set_name__(self, owner: type, name: str) -> None:
        self._in_class = self._binding == "instance"

    def __repr__(self) -> str:
        by = "the application" if self.is_manual else "a task" if self.is_async else "a thread"
        if self.inline:
            by = "whoever reads the turn"
        return f"Tool({self.name}, run by {by})"

    def declaration(self) -> dict[str, Any]:
        """What the engine has to know of it. Raises `InvalidArgumentError` for a tool that cannot be used."""
        if self._in_class and not self._bound:
            raise self._refused("it is a method, and nobody knows of which object: take it from an instance")
        declared: dict[str, Any] = {
            "name": self.name,
            "description": self.description or None,
            "input_schema": self.input_schema,
            "sequential": self.sequential,
            "approval": self.approval,
            "narrow": dict(self.narrow),
        }
        if self.timeout is not None:
            declared["timeout_ms"] = math.ceil(self.timeout * 1000)
        return declared

    def run(self, context: ToolContext) -> Answer:
        """Runs one call, which may block, and gives its answer. What is no `Exception` goes through."""
        try:
            args, kwargs = self._call_arguments(context)
            result = self._function(*args, **kwargs)
            if type(result) is str:
                return "complete_text", result
            if inspect.isawaitable(result):
                if inspect.iscoroutine(result):
                    result.close()
                return (
                    "fail",
                    "TypeError: the tool returned an awaitable: it has to be written with async def",
                )
            return _answer(result)
        except Exception as error:
            return _failure(error)

    async def run_async(self, context: ToolContext) -> Answer:
        """Runs one call of an ``async def`` tool and gives its answer. Cancellation goes through."""
        try:
            args, kwargs = self._call_arguments(context)
            result = self._function(*args, **kwargs)
            if type(result) is CoroutineType or isinstance(result, Awaitable):
                result = await result
            return _answer(result)
        except Exception as error:
            return _failure(error)

    def _call_arguments(self, context: ToolContext) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self._raw:
            return (json.loads(context.input_json), context), {}
        arguments = self._schemas.get(self._bound) or self._arguments({})
        try:
            kwargs = arguments.read(context.input_json)
        except ValueError as unfit:
            raise _UnfitArguments(str(unfit)) from None
        for parameter in arguments.context_parameters:
            kwargs[parameter] = context
        return (), kwargs

    def _arguments(self, names: Mapping[str, Any]) -> Arguments:
        """Read once for all instances of a method."""
        found = self._schemas.get(self._bound)
        if found is None:
            from . import _schema

            function = self._function.func if self._bound else self._function  # type: ignore[attr-defined]
            try:
                found = _schema.Arguments(function, names, ToolContext, is_method=self._bound)
            except _schema.UnfitError as unfit:
                raise self._refused(str(unfit)) from unfit
            except NameError as unknown:
                if names:
                    raise
                raise self._refused(f"an annotation cannot be resolved: {unknown}") from unknown
            self._schemas[self._bound] = found
        return found

    def _settle(
        self,
        name: str,
        description: str,
        sequential: bool,
        inline: bool,
        timeout: float | None,
        approval: bool,
        narrow: Mapping[str, NarrowRule] | None,
    ) -> None:
        self.name, self.description = name, description
        self._set_inline(inline)
        self.sequential, self.timeout, self.approval = sequential, timeout, approval
        self.narrow = dict(narrow or {})
        if not isinstance(name, str) or not name:
            raise InvalidArgumentError("a tool needs a name: give name=…")
        if timeout is not None and not 0 < timeout < math.inf:
            raise self._refused("its timeout must be a number of seconds above 0")
        for pointer, rule in self.narrow.items():
            if rule not in _NARROW_RULES:
                raise self._refused(
                    f'there is no narrowing rule "{rule}" (there are: {", ".join(sorted(_NARROW_RULES))})'
                )
            if pointer and not pointer.startswith("/"):
                raise self._refused(f'"{pointer}" is no JSON pointer: write "/{pointer}"')

    def _set_inline(self, inline: bool) -> None:
        if inline and self.is_async:
            raise self._refused("inline=True is for plain functions: an async def runs on the loop anyway")
        self.inline = bool(inline)

    def _refused(self, why: str) -> InvalidArgumentError:
        return InvalidArgumentError(f'the tool "{self.name}": {why}')


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    sequential: bool = False,
    inline: bool = False,
    timeout: float | None = None,
    approval: bool = False,
    narrow: Mapping[str, NarrowRule] | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    sequential: bool = False,
    inline: bool = False,
    timeout: float | None = None,
    approval: bool = False,
    narrow: Mapping[str, NarrowRule] | None = None,
) -> Any:
    """Makes a tool of a function, a method, a `functools.partial` or an object with ``__call__``.

    The JSON Schema comes from the type hints, through pydantic: defaults, ``Literal``, enums, dataclasses,
    pydantic models and ``Annotated[…, Field(…)]`` all mean what they mean there. The docstring gives the
    description, and those of the parameters (Google, NumPy or reST style). A parameter annotated
    `ToolContext` is filled in and not shown to the model.

    name: Instead of the function's name.
    description: Instead of the docstring's text.
    sequential: Never run it beside another sequential tool.
    inline: Run it where the turn is read, as a plain call: the thread that iterates the turn or waits for the reply, or
        the loop's. That saves waking a thread, and is for functions that are quick and never block: while one runs
        nothing else of the turn moves, calls beside it wait for it, and nothing can abandon it. Its `timeout` is
        looked at when it returns. See docs/python.md.
    timeout: Seconds that one call may take.
    approval: Ask before each call.
    narrow: Which arguments an approval may narrow: JSON pointer to rule: ``{"/paths": "remove_elements"}``.

    Raises `InvalidArgumentError` for a function that a model cannot call.
    """
    # Annotations may name what only the place of the definition knows.
    frame = sys._getframe(1)
    names = {} if frame.f_locals is frame.f_globals else dict(frame.f_locals)

    def make(function: Callable[..., Any]) -> Tool[..., Any]:
        return Tool(
            function, name=name, description=description, sequential=sequential, inline=inline,
            timeout=timeout, approval=approval, narrow=narrow, _names=names,
        )  # fmt: skip

    return make if function is None else make(function)


def listed(tools: Iterable[Brought]) -> list[Brought]:
    """What was given for ``tools=``. Raises `InvalidArgumentError` for what is no list."""
    if isinstance(tools, (str, bytes)) or not isinstance(tools, Iterable):
        raise InvalidArgumentError("tools= takes a list of tools")
    return list(tools)


def has_servers(tools: Iterable[Brought]) -> bool:
    """Whether MCP servers are among the tools."""
    from ._mcp import McpServer

    return any(isinstance(tool, McpServer) for tool in tools)


def as_tool(given: Brought) -> Tool[..., Any]:
    """The tool that was given, or made of the function that was given."""
    if isinstance(given, Tool):
        return given
    if has_servers((given,)):
        raise UsageError("an MCP server is brought when a session is opened, joined or attached to")
    function = getattr(given, "__func__", None)
    if isinstance(function, Tool):
        # A class method over a tool.
        bound: Tool[..., Any] = function.__get__(getattr(given, "__self__", None))
        return bound
    made: Any = given
    return Tool(made)


class ToolSet:
    """The tools of a session, by name."""

    __slots__ = ("_before", "_by_name")

    def __init__(self, tools: Iterable[Brought], *, asynchronous: bool, before: ToolSet | None = None) -> None:
        """``before``: the set that this one replaces, should the service refuse it. Raises `InvalidArgumentError` for
        unusable tools, `UsageError` for async ones in a `Client`."""
        self._by_name: dict[str, Tool[..., Any]] = {}
        for tool in map(as_tool, listed(tools)):
            if tool.name in self._by_name:
                raise InvalidArgumentError(f'the tool "{tool.name}": two tools have this name')
            if tool.is_async and not asynchronous:
                raise UsageError(
                    f'the tool "{tool.name}" is an async def, which needs a running event loop: '
                    "use broca.AsyncClient, or write it as a plain def"
                )
            self._by_name[tool.name] = tool
        self._before: dict[str, Tool[..., Any]] = {} if before is None else {**before._before, **before._by_name}

    def declarations(self) -> list[dict[str, Any]]:
        """What the engine has to know of them."""
        return [tool.declaration() for tool in self._by_name.values()]

    def all(self) -> list[Tool[..., Any]]:
        """The tools, in their order."""
        return list(self._by_name.values())

    def runnable(self, name: str) -> Tool[..., Any] | None:
        """The tool that runs a call by itself; None when the application has to answer it."""
        found = self._by_name.get(name) or self._before.get(name)
        return None if found is None or found.is_manual else found


def failure_text(error: BaseException) -> str:
    """What a model reads about an exception: its type and its text; of a `ToolError` the text alone."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:
        text = "(its text cannot be shown)"
    if isinstance(error, ToolError):
        return text
    return f"{name}: {text}" if text else name


def answer_of(result: Any) -> Answer:
    """The answer that a result stands for: a str as it is, a `Content`, images and files (also in a list) as
    blocks, anything else as JSON text.

    Raises `InvalidArgumentError` for what has no JSON.
    """
    if isinstance(result, str):
        return "complete_text", str(result)
    if isinstance(result, Written):
        return "complete", result.json
    if isinstance(result, Content):
        return "complete", wire_value(list(result.blocks), "the content")
    if is_content(result):
        return "complete", wire_value(plain(result), "the content")
    try:
        return "complete_text", to_json(result, inf_nan_mode="null").decode()
    except (PydanticSerializationError, ValueError, RecursionError) as fault:
        raise InvalidArgumentError(f"the result is no JSON: {failure_text(fault)}") from None


class _UnfitArguments(Exception):
    """The model's arguments do not fit; the text is for the model."""


def _failure(error: Exception) -> Answer:
    if isinstance(error, ToolInterrupted):
        return "interrupted", str(error) or "The call was interrupted. It may have run, in whole or in part."
    return "fail", str(error) if isinstance(error, _UnfitArguments) else failure_text(error)


def _answer(result: Any) -> Answer:
    try:
        return answer_of(result)
    except InvalidArgumentError as unfit:
        return "fail", str(unfit)


def _is_async(function: Any) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _name_of(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) else type(function).__name__


def _is_written_in_class(function: Any) -> bool:
    """Whether a function stands in the body of a class, where its first parameter may be the instance."""
    if inspect.ismethod(function) or not inspect.isfunction(function):
        return False
    place = function.__qualname__.rpartition(".")[0]
    return bool(place) and not place.endswith("<locals>")


def _run_by_the_application(*_: Any, **__: Any) -> Any:
    raise UsageError("this tool has no function: the application answers its calls")
