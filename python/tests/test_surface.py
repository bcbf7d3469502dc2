"""The public surface: two halves that look alike, errors that follow the table, and values that can be stored."""

from __future__ import annotations

import ast
import copy
import dataclasses
import inspect
import pathlib
import pickle
import platform
import shutil
import subprocess
import sys
import sysconfig
import types
from typing import Any

import pytest

import broca
from broca import _broca, errors, steps, tools, tracing

PAIRS = [
    (broca.Client, broca.AsyncClient),
    (broca.Session, broca.AsyncSession),
    (broca.Turn, broca.AsyncTurn),
    (broca.Subscription, broca.AsyncSubscription),
]
SPECIAL = {
    "__enter__": "__aenter__", "__exit__": "__aexit__", "__iter__": "__aiter__", "__next__": "__anext__",
}  # fmt: skip


def surface(of: type) -> dict[str, Any]:
    named = {name: value for name, value in vars(of).items() if not name.startswith("_")}
    return {**named, **{name: value for name, value in vars(of).items() if name in {*SPECIAL, *SPECIAL.values()}}}


@pytest.mark.parametrize(("sync", "other"), PAIRS, ids=lambda of: of.__name__)
def test_both_halves_have_the_same_names(sync: type, other: type) -> None:
    names = {SPECIAL.get(name, name) for name in surface(sync)}
    assert names == set(surface(other))


@pytest.mark.parametrize(("sync", "other"), PAIRS, ids=lambda of: of.__name__)
def test_both_halves_have_the_same_signatures(sync: type, other: type) -> None:
    for name, member in [("__init__", sync.__init__), *surface(sync).items()]:
        if name == "__init__" and sync is not broca.Client:
            continue
        twin = inspect.getattr_static(other, SPECIAL.get(name, name))
        if isinstance(member, property):
            assert isinstance(twin, property)
            continue
        mine, its = inspect.signature(member), inspect.signature(twin)
        assert list(mine.parameters) == list(its.parameters), name
        for ours, theirs in zip(mine.parameters.values(), its.parameters.values()):
            assert (ours.kind, ours.default) == (theirs.kind, theirs.default), f"{name}({ours.name})"


def test_what_waits_is_a_coroutine_in_the_async_half_and_nothing_is_in_the_other() -> None:
    for sync, other in PAIRS:
        for name, member in surface(sync).items():
            if isinstance(member, types.FunctionType):
                assert not inspect.iscoroutinefunction(member), name
        for name in ("open", "join", "observe", "meta", "close", "ask", "history", "reply", "cancel", "leave"):
            member = vars(other).get(name)
            if isinstance(member, types.FunctionType):
                assert inspect.iscoroutinefunction(member), name


def test_every_row_of_the_table_is_a_class_below_its_parent() -> None:
    table = _broca.error_table()
    assert len(table) > 30
    by_code: dict[int, type] = {}
    for code, kind, name, parent, retry in table:
        row = getattr(errors, name)
        by_code[code] = row
        assert issubclass(row, errors.BrocaError) and issubclass(row, Exception)
        assert (row.code, row.kind, row.retry) == (code, kind, retry), name
        assert name in errors.__all__
        above = errors.BrocaError if parent is None else by_code[parent]
        assert above in row.__bases__, name
    classes = {
        value for value in vars(errors).values() if isinstance(value, type) and value.__module__ == errors.__name__
    }
    assert classes - {errors.BrocaError} == set(by_code.values())


def test_the_layout_is_the_one_that_is_read() -> None:
    from broca import _core

    names = {name: number for number, name, _ in _broca.layout_table()}
    for name in (
        "tool_call",
        "approval",
        "failed",
        "finished",
        "sending",
        "resolve",
        "connect",
        "write",
        "timer",
        "ready",
    ):
        assert getattr(_core, name.upper()) == names[name]


@pytest.mark.parametrize("module", [broca, errors, steps, tools, tracing], ids=lambda module: module.__name__)
def test_public_names_are_documented(module: types.ModuleType) -> None:
    assert module.__doc__
    names = getattr(module, "__all__", None) or [n for n, v in vars(module).items() if is_public(module, n, v)]
    for name in names:
        value = getattr(module, name)
        if not isinstance(value, (type, types.FunctionType)) or value.__module__.startswith("typing"):
            continue
        assert documented(value), f"{module.__name__}.{name}"
        if isinstance(value, type) and value.__module__.startswith("broca.") and value.__module__ != "broca._broca":
            for member, what in vars(value).items():
                if not member.startswith("_") and isinstance(what, (types.FunctionType, property, classmethod)):
                    assert inspect.getdoc(getattr(value, member)), f"{module.__name__}.{name}.{member}"


def is_public(module: types.ModuleType, name: str, value: Any) -> bool:
    return not name.startswith("_") and getattr(value, "__module__", None) == module.__name__


def documented(value: Any) -> bool:
    doc = value.__doc__
    # A dataclass without words gets its signature.
    return bool(doc) and not (dataclasses.is_dataclass(value) and doc.startswith(f"{value.__name__}("))


def test_everything_is_named_in_all_and_typed() -> None:
    for name in broca.__all__:
        assert hasattr(broca, name)
    root = pathlib.Path(broca.__file__).parent
    assert (root / "py.typed").exists()
    for path in sorted(root.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                assert node.returns is not None, f"{path.name}: {node.name}"


EVENT = (
    '{"id":"evt_1","session_id":"ses_1","client_key_id":null,"event_type":"x","payload":{"n":9007199254740993},'
    '"created_at":"2030-01-01T00:00:00.000Z"}'
)
VALUES = [
    broca.Cursor("evt_1"),
    broca.Cursor.START,
    broca.SavedSession('{"session_id":"ses_1","service":"http://127.0.0.1:1"}'),
    broca.Spent(1, 2, 3, 4),
    broca.TextDelta("a", "msg_1"),
    broca.ReasoningDelta("a", "msg_1"),
    broca.ToolInputDelta("{", "tu_1"),
    broca.Gap("deltas", 3, None, None, broca.Cursor("evt_1")),
    broca.Status("reconnecting", 5, "io", "gone"),
    broca.Status("queued", None, None, "place 1 of 2 at the service", 1, 2),
    broca._info.info_of(
        {
            "session_id": "s",
            "state": "open",
            "created_at": "a",
            "updated_at": "b",
            "created_by": "k",
            "metadata": {"n": 1},
        }
    ),
    broca.Warning("junk", "a line"),
    broca.Done(broca.Reply("text", '{"role":"assistant","content":"text"}', broca.Usage(1, 2), 1, f"[{EVENT}]")),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_values_can_be_stored(value: Any, protocol: int) -> None:
    again = pickle.loads(pickle.dumps(value, protocol))
    assert again == value and type(again) is type(value) and copy.deepcopy(value) == value


def test_events_can_be_stored() -> None:
    [event] = _broca.events_of(f"[{EVENT}]")
    again = pickle.loads(pickle.dumps(event))
    assert again == event and again.json == event.json == EVENT
    assert again.payload == {"n": 9007199254740993} and (again.id, again.type) == ("evt_1", "x")


@pytest.mark.parametrize("code", sorted(row[0] for row in _broca.error_table()))
def test_errors_can_be_stored(code: int) -> None:
    error = errors._of(code, "what was wrong", "unknown", '{"status": 404, "n": 9007199254740993}')
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == "what was wrong"
    assert (again.code, again.kind, again.retry) == (error.code, error.kind, error.retry)
    assert again.details == {"status": 404, "n": 9007199254740993}


class ErrorOfTheApplication(errors.ApiError):
    def __init__(self, order: int, where: str) -> None:
        super().__init__(f"order {order} was refused", details={"status": 409})
        self.where = where


def test_errors_of_the_application_can_be_stored() -> None:
    error = ErrorOfTheApplication(7, "warehouse")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is ErrorOfTheApplication
        assert (str(again), again.args, again.where, again.status) == (str(error), error.args, "warehouse", 409)


WRONG = {"features": "display", "tool_threads": "4", "ssl_context": "system", "no_such_option": 1}


@pytest.mark.parametrize("name", WRONG)
def test_options_that_cannot_be_used_are_refused_by_name(name: str) -> None:
    for client in (broca.Client, broca.AsyncClient):
        with pytest.raises(errors.InvalidArgumentError, match=name):
            client("http://127.0.0.1:1", "k", **{name: WRONG[name]})


@pytest.mark.parametrize("broken", [False, True], ids=["missing", "of another platform"])
def test_a_native_module_that_cannot_be_loaded_is_named_with_the_platform(tmp_path: pathlib.Path, broken: bool) -> None:
    native = pathlib.Path(_broca.__file__)
    shutil.copytree(native.parent, tmp_path / "broca", ignore=shutil.ignore_patterns(native.name, "__pycache__"))
    if broken:
        (tmp_path / "broca" / native.name).write_bytes(b"no library")
    told = subprocess.run([sys.executable, "-c", "import broca"], cwd=tmp_path, capture_output=True, text=True)
    last = told.stderr.splitlines()[-1]
    assert told.returncode == 1 and last.startswith("ImportError: the native module of broca cannot be loaded by")
    for word in (platform.python_version(), sysconfig.get_platform(), str(tmp_path), "_broca."):
        assert word in last
    assert ("found none" in last) is not broken


def test_nothing_private_is_shown() -> None:
    client = broca.Client("http://127.0.0.1:1", "bae_secret", environment={})
    shown = [client, broca.AsyncClient("http://127.0.0.1:1", "bae_secret", environment={}), client._options]
    shown += [broca.Reply("secret", "secret", None, 1, "secret"), broca.Done(broca.Reply("secret", "", None, 1, ""))]
    shown += [tools.ToolContext("t", "tu_1", "k", "secret"), steps.Notification("m", "secret")]
    assert not [value for value in shown if "secret" in repr(value)]


def test_a_decorated_function_keeps_its_signature_for_type_checkers(tmp_path: pathlib.Path) -> None:
    checker = pytest.importorskip("mypy.api")
    source = tmp_path / "program.py"
    source.write_text(
        "import broca\n"
        "@broca.tool\n"
        "def size(path: str) -> int: return 1\n"
        "class Files:\n"
        "    @broca.tool(timeout=5)\n"
        "    def read(self, path: str) -> str: return path\n"
        "reveal_type(size('x'))\n"
        "reveal_type(Files().read('x'))\n"
        "size(1)\n"
        "Files().read()\n"
    )
    told, _, _ = checker.run(["--strict", "--no-incremental", "--python-version", "3.12", str(source)])
    lines = [line.partition(": ")[2] for line in told.splitlines() if "program.py" in line]
    assert [line.rstrip('"').rpartition(".")[2].rpartition('"')[2] for line in lines[:2]] == ["int", "str"], told
    assert len(lines) == 4 and all(line.startswith("error: ") for line in lines[2:]), told
