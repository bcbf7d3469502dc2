"""Tools: what the model is told, how its arguments are read, and what becomes of results and faults."""

import asyncio
import dataclasses
import decimal
import enum
import functools
import inspect
import json
import threading
from typing import Annotated, Any, Optional, Union

import pydantic
import pytest
from pydantic import BaseModel, Field
from typing_extensions import Literal

from broca import _docstring
from broca.errors import InvalidArgumentError, ToolError, UsageError
from broca.tools import CancelToken, Content, Tool, ToolContext, ToolSet, answer_of, as_tool, tool


def call(tool_: Any, arguments: Any, key: str = "k") -> Any:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return as_tool(tool_).run(ToolContext(tool_.name, "tu_1", key, text))


def refused(make: Any, *words: str) -> str:
    with pytest.raises(InvalidArgumentError) as caught:
        make()
    for word in words:
        assert word in str(caught.value)
    return str(caught.value)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Place:
    path: str
    depth: int = 1


class Filter(BaseModel):
    """Which files."""

    suffix: str = Field(description="Such as .py")
    places: list[Place] = []


class Node(BaseModel):
    value: int
    children: list["Node"] = []


@tool
def search(
    query: str,
    color: Color,
    kind: Literal["file", "dir"] = "file",
    limit: Optional[int] = None,
    within: Annotated[list[Place], Field(max_length=2)] = [],  # noqa: B006
    filter: Optional[Filter] = None,
) -> str:
    """Search the project.

    Everything is searched.

    Args:
        query: What to look for,
            in any case.
        color (Color): Its color.

    Returns:
        The lines.
    """
    return f"{query}/{color}/{kind}/{limit}/{within}/{filter}"


class TestSchema:
    def test_signature_and_docstring_become_what_the_model_is_told(self) -> None:
        assert search.name == "search"
        assert search.description == "Search the project.\n\nEverything is searched."
        schema = search.input_schema
        assert schema["type"] == "object"
        assert schema["required"] == ["query", "color"]
        assert schema["additionalProperties"] is False
        properties = schema["properties"]
        assert list(properties) == ["query", "color", "kind", "limit", "within", "filter"]
        assert properties["query"] == {"description": "What to look for, in any case.", "type": "string"}
        assert properties["color"]["enum"] == ["red", "blue"]
        assert properties["color"]["description"] == "Its color."
        assert properties["kind"]["enum"] == ["file", "dir"]
        assert properties["kind"]["default"] == "file"
        assert properties["limit"] == {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}
        assert properties["within"]["maxItems"] == 2
        assert properties["within"]["items"]["properties"]["depth"]["default"] == 1
        inner = next(part for part in properties["filter"]["anyOf"] if part.get("type") == "object")
        assert inner["properties"]["suffix"]["description"] == "Such as .py"

    def test_definitions_are_written_in_place_unless_they_come_back_to_themselves(self) -> None:
        assert "$defs" not in json.dumps(search.input_schema)

        @tool
        def walk(node: Node, place: Place) -> None: ...

        assert list(walk.input_schema["$defs"]) == ["Node"]
        assert walk.input_schema["properties"]["place"]["properties"]["path"]
        assert call(walk, {"node": {"value": 1, "children": [{"value": 2}]}, "place": {"path": "x"}})[0] != "fail"

    def test_a_function_without_parameters_takes_an_empty_object(self) -> None:
        @tool
        def now() -> str:
            return "noon"

        assert now.input_schema == {"type": "object", "properties": {}, "additionalProperties": False}
        assert call(now, {}) == ("complete_text", "noon")
        assert "no such argument" in call(now, {"zone": "utc"})[1]

    def test_parameters_may_have_the_names_of_anything(self) -> None:
        @tool
        def odd(json: str, copy: int, model_config: bool, schema: str = "s", _hidden: int = 3) -> str:
            return f"{json}{copy}{model_config}{schema}{_hidden}"

        assert list(odd.input_schema["properties"]) == ["json", "copy", "model_config", "schema", "_hidden"]
        arguments = {"json": "j", "copy": 1, "model_config": True, "_hidden": 9}
        assert call(odd, arguments) == ("complete_text", "j1Trues9")

    def test_annotations_of_a_field_count_more_than_the_docstring(self) -> None:
        @tool
        def pick(n: Annotated[int, Field(description="From the field.", ge=1)], m: int = Field(7, le=9)) -> str:
            """Pick.

            Args:
                n: From the docstring.
                m: Second.
            """
            return f"{n} {m}"

        schema = pick.input_schema["properties"]
        assert schema["n"] == {"description": "From the field.", "minimum": 1, "type": "integer"}
        assert schema["m"]["maximum"] == 9 and schema["m"]["default"] == 7
        assert schema["m"]["description"] == "Second."
        assert call(pick, {"n": 1}) == ("complete_text", "1 7")
        assert "greater than or equal to 1" in call(pick, {"n": 0})[1]

    def test_annotations_as_text_are_resolved_where_they_were_written(self) -> None:
        @dataclasses.dataclass
        class Local:
            x: int

        @tool
        def local(value: "Local", also: "Optional[int]" = None) -> "NotThere":  # type: ignore[name-defined]  # noqa: F821
            return f"{type(value).__name__} {value.x}"

        assert call(local, {"value": {"x": 4}}) == ("complete_text", "Local 4")

    def test_an_annotation_may_name_what_comes_later(self) -> None:
        @tool
        def early(value: "LaterType") -> int:  # type: ignore[name-defined]  # noqa: F821
            return value.x  # type: ignore[no-any-return]

        refused(early.declaration, "early", "LaterType")
        globals()["LaterType"] = Place
        try:
            assert early.declaration()["input_schema"]["required"] == ["value"]
        finally:
            del globals()["LaterType"]

    def test_a_default_that_json_cannot_show_is_left_out(self) -> None:
        sentinel = object()

        @tool
        def lax(value: Any = sentinel) -> bool:
            return value is sentinel

        assert "default" not in lax.input_schema["properties"]["value"]
        assert call(lax, {}) == ("complete_text", "true")

    def test_what_json_schema_cannot_say_is_refused_at_the_definition(self) -> None:
        def socket(value: threading.Thread) -> None: ...

        refused(lambda: tool(socket), "socket", "Thread")


class TestDocstrings:
    def test_numpy_style(self) -> None:
        text, params = _docstring.read(
            """Add up.

            Parameters
            ----------
            a, b : int
                Two numbers,
                any size.
            c
                A third.

            Returns
            -------
            int
                The sum.

            Notes
            -----
            Fast.
            """
        )
        assert params == {"a": "Two numbers, any size.", "b": "Two numbers, any size.", "c": "A third."}
        assert text == "Add up.\n\nNotes\n-----\nFast."

    def test_rest_style(self) -> None:
        text, params = _docstring.read(
            """Add up.

            :param a: First,
                and foremost.
            :param int b: Second: with a colon.
            :type a: int
            :raises ValueError: never.
            :returns: the sum.
            """
        )
        assert (text, params) == ("Add up.", {"a": "First, and foremost.", "b": "Second: with a colon."})

    def test_google_style(self) -> None:
        text, params = _docstring.read(
            """Add up.

            Args:
              a (int, optional): First: it counts.

              **b: Second.
            Raises:
              ValueError: never.

            Example:
              add(1, 2)
            """
        )
        assert params == {"a": "First: it counts.", "b": "Second."}
        assert text == "Add up.\n\nExample:\n  add(1, 2)"

    @pytest.mark.parametrize("doc", [None, "", "Args:", "Parameters\n---", ":param", "a: b\n  c", "x\n---\ny"])
    def test_prose_is_never_refused(self, doc: Optional[str]) -> None:
        text, params = _docstring.read(doc)
        assert isinstance(text, str) and params == {}


class TestCallables:
    def test_a_tool_is_still_its_function(self) -> None:
        assert "query='x'" in repr(search("x", Color.RED)) or search("x", Color.RED).startswith("x/")
        assert inspect.signature(search).parameters["kind"].default == "file"
        assert search.__name__ == "search" and search.__doc__ and search.__wrapped__

    def test_methods_are_taken_from_an_instance(self) -> None:
        class Files:
            def __init__(self, root: str) -> None:
                self.root = root

            @tool(name="read_file")
            def read(self, path: str) -> str:
                """Read it."""
                return f"{self.root}/{path}"

            @classmethod
            @tool
            def kind(cls, x: int) -> str:
                return f"{cls.__name__}{x}"

            @tool
            @classmethod
            def kind2(cls, x: int) -> str:
                return f"{cls.__name__}{x}"

            @staticmethod
            @tool
            def plain(x: int) -> int:
                return x

            @tool
            @staticmethod
            def plain2(x: int) -> int:
                return x

        files = Files("/a")
        assert files.read("x") == "/a/x"
        assert list(files.read.input_schema["properties"]) == ["path"]
        assert call(files.read, {"path": "x"}) == ("complete_text", "/a/x")
        assert call(Files("/b").read, {"path": "x"}) == ("complete_text", "/b/x")
        assert (files.read.name, files.read.description) == ("read_file", "Read it.")
        refused(Files.read.declaration, "read_file", "instance")
        assert files.read.declaration()["name"] == "read_file"
        for bound in (Files.kind, files.kind, Files.kind2, files.kind2):
            as_class_tool = as_tool(bound)
            assert list(as_class_tool.input_schema["properties"]) == ["x"]
            assert call(as_class_tool, {"x": 1}) == ("complete_text", "Files1")
        for static in (Files.plain, files.plain, Files.plain2, files.plain2):
            assert call(static, {"x": 1}) == ("complete_text", "1")

    def test_bound_methods_partials_and_callable_objects(self) -> None:
        class Adder:
            """Adds."""

            def __init__(self, by: int) -> None:
                self.by = by

            def __call__(self, n: int) -> int:
                return n + self.by

            def add(self, n: int) -> int:
                """Add one."""
                return n + self.by

        bound = tool(Adder(2).add)
        assert (bound.name, bound.description, call(bound, {"n": 1})) == (
            "add",
            "Add one.",
            ("complete_text", "3"),
        )
        instance = tool(name="adder")(Adder(3))
        assert (instance.name, instance.description) == ("adder", "Adds.")
        assert call(instance, {"n": 1}) == ("complete_text", "4")

        def power(base: int, exponent: int, modulo: Optional[int] = None) -> int:
            """Power.

            Args:
                modulo: Rest of what.
            """
            return pow(base, exponent, modulo)

        partial = tool(functools.partial(power, 2, modulo=100))
        assert (partial.name, partial.description) == ("power", "Power.")
        # What the program has bound is not the model's to change.
        assert list(partial.input_schema["properties"]) == ["exponent"]
        assert call(partial, {"exponent": 7}) == ("complete_text", "28")
        assert "no such argument" in call(partial, {"exponent": 7, "modulo": 5})[1]

    def test_signatures_that_a_model_cannot_call_are_refused(self) -> None:
        def many(*args: int) -> None: ...
        def keywords(**kwargs: int) -> None: ...
        def positional(a: int, /) -> None: ...

        refused(lambda: tool(many), "many", "*args", "list")
        refused(lambda: tool(keywords), "keywords", "**kwargs")
        refused(lambda: tool(positional), "positional", '"a"', "/")
        refused(lambda: tool(Place), "class")
        refused(lambda: tool(7), "int")  # type: ignore[call-overload]

    def test_options_are_checked(self) -> None:
        def f() -> None: ...

        refused(lambda: tool(timeout=0)(f), '"f"', "timeout")
        refused(lambda: tool(name="")(f), "name")
        refused(lambda: tool(narrow={"/a": "widen"})(f), "widen", "remove_elements")  # type: ignore[dict-item]
        refused(lambda: tool(narrow={"a": "at_most"})(f), '"/a"')
        made = tool(
            name="g",
            description="G.",
            sequential=True,
            timeout=1.0005,
            approval=True,
            narrow={"/a": "at_most"},
        )(f)
        assert made.declaration() == {
            "name": "g", "description": "G.", "input_schema": made.input_schema, "sequential": True,
            "timeout_ms": 1001, "approval": True, "narrow": {"/a": "at_most"},
        }  # fmt: skip

    def test_raw_and_manual_tools_bring_their_schema(self) -> None:
        schema = {"type": "object", "properties": {"n": {}}}
        seen = []

        def handler(arguments: Any, context: ToolContext) -> Any:
            seen.append((arguments, context.input_json))
            return Content([{"type": "text", "text": "a"}])

        raw = Tool.raw("raw", "Raw.", schema, handler)
        assert raw.input_schema == schema and not raw.is_manual
        assert call(raw, '{"n": 123456789012345678901234567890}') == (
            "complete",
            '[{"type":"text","text":"a"}]',
        )
        assert seen == [({"n": 123456789012345678901234567890}, '{"n": 123456789012345678901234567890}')]
        manual = Tool.manual("manual", "By hand.", schema, approval=True)
        assert manual.is_manual and manual.declaration()["approval"] is True
        with pytest.raises(UsageError):
            manual()
        refused(lambda: Tool.raw("r", "", {"type": "string"}, handler), '"r"', "object")
        refused(lambda: Tool.raw("r", "", schema, None), "handler")  # type: ignore[arg-type]


class TestRunning:
    def test_arguments_are_what_the_annotations_say(self) -> None:
        seen: list[Any] = []

        @tool
        def take(place: Place, filter: Filter, color: Color, n: int, d: decimal.Decimal, u: Union[int, str]) -> None:
            seen.extend([place, filter, color, n, d, u])

        arguments = (
            '{"place": {"path": "p"}, "filter": {"suffix": ".py", "places": [{"path": "q", "depth": 3}]},'
            ' "color": "blue", "n": 9007199254740993, "d": "0.10", "u": "x"}'
        )
        assert call(take, arguments) == ("complete_text", "null")
        filtered = Filter(suffix=".py", places=[Place("q", 3)])
        assert seen == [Place("p"), filtered, Color.BLUE, 9007199254740993, decimal.Decimal("0.10"), "x"]

    def test_defaults_are_those_of_the_function(self) -> None:
        shared: list[int] = []

        @tool
        def remember(into: list[int] = shared) -> bool:
            return into is shared

        assert call(remember, {}) == ("complete_text", "true")

    def test_arguments_that_do_not_fit_are_a_failure_that_names_the_place(self) -> None:
        word, text = call(search, {"color": "green", "within": [{"path": "a"}, {"path": 5}]})
        assert word == "fail" and text.startswith("the arguments do not fit: ")
        assert "`query`: " in text and "`color`: " in text and "`within[1].path`: " in text
        for odd in ("[]", "7", "null", '"x"'):
            word, text = call(search, odd)
            assert word == "fail" and text.startswith("the arguments do not fit: "), text

    def test_the_failure_does_not_repeat_huge_input(self) -> None:
        word, text = call(search, {"query": 5, "color": "x" * 100_000, "k" * 100_000: 1})
        assert word == "fail" and len(text) < 2_000
        many = {f"extra{n}": n for n in range(1_000)}
        word, text = call(search, {**many, "query": "q", "color": "red"})
        assert word == "fail" and len(text) < 2_000 and "and 995 more" in text

    def test_results_are_text_json_or_blocks(self) -> None:
        class Word(str):
            pass

        cases = [
            ("plain", ("complete_text", "plain")),
            (Word("word"), ("complete_text", "word")),
            ("", ("complete_text", "")),
            (None, ("complete_text", "null")),
            ({"a": [1, 2.5, None, "ü"]}, ("complete_text", '{"a":[1,2.5,null,"ü"]}')),
            (Place("p"), ("complete_text", '{"path":"p","depth":1}')),
            (Filter(suffix=".c"), ("complete_text", '{"suffix":".c","places":[]}')),
            ([Color.RED, decimal.Decimal("1.5")], ("complete_text", '["red","1.5"]')),
            (9007199254740993, ("complete_text", "9007199254740993")),
            (Content([{"type": "text", "text": "t"}]), ("complete", '[{"type":"text","text":"t"}]')),
        ]
        for result, answer in cases:
            assert answer_of(result) == answer
            assert call(tool(lambda result=result: result), {}) == answer  # type: ignore[misc]

    def test_a_result_without_json_is_a_failure(self) -> None:
        @tool
        def handle() -> Any:
            return threading.Lock()

        word, text = call(handle, {})
        assert word == "fail" and "no JSON" in text
        refused(lambda: answer_of(object()), "no JSON")
        refused(lambda: Content("text"), "list")  # type: ignore[arg-type]

    def test_exceptions_are_failures_with_type_and_text(self) -> None:
        class Shy(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no")

        for error, text in [
            (FileNotFoundError(2, "No such file", "x"), "FileNotFoundError: [Errno 2] No such file: 'x'"),
            (ValueError("bad"), "ValueError: bad"),
            (KeyError(), "KeyError"),
            (Shy(), "Shy: (its text cannot be shown)"),
            (ToolError("the disk is full"), "the disk is full"),
        ]:

            def fails(error: Exception) -> Any:
                @tool
                def failing() -> None:
                    raise error

                return failing

            assert call(fails(error), {}) == ("fail", text)

    @pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
    def test_what_ends_a_program_is_no_result(self, stop: Any) -> None:
        @tool
        def stops() -> None:
            raise stop

        with pytest.raises(stop):
            call(stops, {})

    def test_the_context_is_filled_in_and_not_shown(self) -> None:
        @tool
        def inspect_(n: int, context: ToolContext, maybe: Optional[ToolContext] = None) -> str:
            return f"{n} {context.name} {context.tool_use_id} {context.idempotency_key} {maybe is context}"

        @tool
        def only(context: ToolContext) -> str:
            return context.input_json

        assert list(only.input_schema["properties"]) == []
        assert call(only, "{ }") == ("complete_text", "{ }")
        schema = inspect_.input_schema["properties"]
        assert "context" not in schema
        assert call(inspect_, {"n": 1}, "key") == ("complete_text", "1 inspect_ tu_1 key True")

    def test_async_functions_are_run_by_a_task(self) -> None:
        @tool
        async def slow(n: int) -> dict[str, int]:
            await asyncio.sleep(0)
            if n < 0:
                raise ValueError("negative")
            return {"n": n}

        class Later:
            async def __call__(self, n: int) -> int:
                return n

        assert slow.is_async and tool(functools.partial(slow._function, 1)).is_async and tool(Later()).is_async

        def run(arguments: str) -> Any:
            return asyncio.run(slow.run_async(ToolContext("slow", "t", "k", arguments)))

        assert run('{"n": 1}') == ("complete_text", '{"n":1}')
        assert run('{"n": -1}') == ("fail", "ValueError: negative")
        assert run("{}")[0] == "fail"
        assert asyncio.run(slow(3)) == {"n": 3}

    def test_a_plain_function_that_returns_an_awaitable_fails_with_the_cure(self) -> None:
        async def inner() -> int:
            return 1

        @tool
        def lazy() -> Any:
            return inner()

        assert "async def" in call(lazy, {})[1]

    def test_a_token_wakes_who_waits_for_it(self) -> None:
        token = CancelToken()
        assert not token and not token.wait(0.001)
        threading.Timer(0.01, token._set).start()
        assert token.wait(30) and token and token.is_set()


class TestToolSet:
    def test_plain_functions_are_tools(self) -> None:
        def ls(path: str) -> str:
            return path

        tools = ToolSet([ls, search, Tool.manual("hand", "", {"type": "object"})], asynchronous=False)
        assert [declared["name"] for declared in tools.declarations()] == ["ls", "search", "hand"]
        assert tools.runnable("hand") is None and tools.runnable("nobody") is None
        found = tools.runnable("ls")
        assert found is not None and call(found, {"path": "x"}) == ("complete_text", "x")

    def test_tools_that_cannot_work_are_refused_by_name(self) -> None:
        async def later() -> None: ...

        refused(lambda: ToolSet([search, search], asynchronous=True), "search", "two tools")
        with pytest.raises(UsageError, match=r'"later".*AsyncClient'):
            ToolSet([later], asynchronous=False)
        assert ToolSet([later], asynchronous=True).runnable("later")
        refused(lambda: ToolSet("search", asynchronous=True), "list")
        refused(lambda: ToolSet([7], asynchronous=True), "int")  # type: ignore[list-item]


def test_pydantic_is_version_two() -> None:
    assert pydantic.VERSION.startswith("2.")
