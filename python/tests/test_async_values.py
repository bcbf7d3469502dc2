"""What comes out of the native module, and the values around it."""

from __future__ import annotations

import copy
import json
import pickle
import random
import ssl
import sys

import pytest

import broca
from broca import _broca, _core, errors, steps
from broca._options import Options

RAW = {
    "id": "evt_1",
    "session_id": "ses_1",
    "client_key_id": "key_1",
    "event_type": "server.message.send",
    "payload": {"text": 'caf\u00e9 \U0001f600 "quoted"\n', "n": 2**80, "list": [1, -2.5, None, True, {}]},
    "created_at": "2030-01-01T00:00:00.000Z",
}
TEXT = json.dumps(RAW)
EVENT = broca.Event(TEXT)


def test_every_row_of_the_table_has_its_class() -> None:
    for code, kind, name, parent, retry in _broca.error_table():
        row = getattr(errors, name)
        assert (row.code, row.kind, row.retry) == (code, kind, retry)
        above = row.__mro__[1]
        assert above is broca.BrocaError if parent is None else above.code == parent
        assert name in errors.__all__


def test_the_numbers_of_records_are_those_of_the_layout() -> None:
    for number, name, _ in _broca.layout_table():
        if name not in ("event", "log", "log_dropped"):
            assert getattr(_core, name.upper()) == number


def test_every_step_record_has_a_reader() -> None:
    for number, name, fields in _broca.layout_table():
        if 1 < number < 64:
            _, known = _core._READERS[number]
            assert known == len(fields) + 1, name


def test_an_error_is_raised_as_the_class_of_its_number_with_all_it_says() -> None:
    with pytest.raises(broca.errors.InvalidArgumentError, match="tiemout") as caught:
        _broca.Engine('{"base_url":"http://h","client_key":"k","tiemout":1}', 1, 1)
    assert (caught.value.code, caught.value.kind, caught.value.retry) == (-2, "invalid_argument", "unsafe")
    assert isinstance(caught.value, ValueError)
    error = errors._of(-301, "no", "unsafe", '{"status": 401, "type": "unauthorized", "title": "T", "detail": "d"}')
    assert isinstance(error, errors.UnauthorizedError) and isinstance(error, errors.ApiError)
    assert (error.status, error.type, error.title, error.detail) == (401, "unauthorized", "T", "d")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.retry, again.details) == (type(error), "no", "unsafe", error.details)


def test_an_unknown_number_is_still_an_error() -> None:
    assert type(errors._of(-7777, "from the future", "safe", None)) is errors.InternalError


def test_a_timeout_is_also_the_builtin_one() -> None:
    assert issubclass(errors.TimeoutError, TimeoutError)


def test_an_event_says_what_its_json_says() -> None:
    assert (EVENT.id, EVENT.type, EVENT.session_id) == ("evt_1", "server.message.send", "ses_1")
    assert (EVENT.client_key_id, EVENT.created_at) == ("key_1", RAW["created_at"])
    assert EVENT.payload == RAW["payload"]
    assert json.loads(EVENT.payload_json) == RAW["payload"]
    assert EVENT.json == TEXT
    assert EVENT.as_dict() == RAW
    assert broca.Event(TEXT.replace('"key_1"', "null")).client_key_id is None


def test_an_event_is_a_frozen_value() -> None:
    other = broca.Event(TEXT)
    another = broca.Event(TEXT.replace("evt_1", "evt_2"))
    assert other == EVENT and hash(EVENT) == hash(other) and another != EVENT
    assert EVENT != TEXT
    with pytest.raises(AttributeError):
        EVENT.id = "x"  # type: ignore[misc]
    with pytest.raises(TypeError):
        type("Own", (broca.Event,), {})
    for copied in (pickle.loads(pickle.dumps(EVENT)), copy.deepcopy(EVENT), copy.copy(EVENT)):
        assert copied == EVENT and copied.payload == EVENT.payload


def test_representations_show_no_payload() -> None:
    assert repr(EVENT) == "Event(server.message.send, evt_1)"
    assert "secret" not in repr(broca.TextDelta("secret", "m"))
    call = steps.ToolCall("call_1", "f", '{"secret":1}', "key", 7, None)  # type: ignore[arg-type]
    assert "secret" not in repr(call) and call.input == {"secret": 1}
    assert "hunter2" not in repr(Options("http://h", "hunter2", {}))


@pytest.mark.skipif(sys.version_info < (3, 10), reason="match needs Python 3.10")
def test_events_and_deltas_match_by_position() -> None:
    namespace: dict[str, object] = {"broca": broca, "event": EVENT, "delta": broca.TextDelta("a", "b")}
    exec(
        "match event:\n case broca.Event('server.message.send', {'n': n}): pass\n"
        "match delta:\n case broca.TextDelta(text, message): pass\n",
        namespace,
    )
    assert (namespace["n"], namespace["text"], namespace["message"]) == (2**80, "a", "b")


def test_what_is_no_event_is_malformed() -> None:
    for text in ("1", "{}", '{"id":"x"}', TEXT + "," + TEXT):
        with pytest.raises(errors.MalformedError):
            broca.Event(text)
    with pytest.raises(errors.InvalidArgumentError):
        broca.Event("{")
    assert _broca.events_of("[1, " + TEXT + "]") == [EVENT]


def _random_value(random: random.Random, depth: int) -> object:
    kind = random.randrange(9 if depth else 6)
    if kind == 0:
        return random.choice([None, True, False])
    if kind == 1:
        return random.randrange(-(2 ** random.randrange(1, 200)), 2 ** random.randrange(1, 200))
    if kind == 2:
        return random.choice([0.0, -0.0, 1e300, 5e-324, random.uniform(-1e6, 1e6), 1e16])
    if kind < 6:
        letters = 'ab\u00e9\u20ac\U0001f600"\\/\n\t\r\b\f\x00\x1f\x7f\u2028'
        return "".join(random.choice(letters) for _ in range(random.randrange(100)))
    if kind < 8:
        return {str(_random_value(random, 0)): _random_value(random, depth - 1) for _ in range(random.randrange(6))}
    return [_random_value(random, depth - 1) for _ in range(random.randrange(6))]


@pytest.mark.parametrize("seed", range(20))
def test_json_is_decoded_as_the_standard_library_does(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(200):
        value = _random_value(chance, 5)
        for text in (
            json.dumps(value),
            json.dumps(value, ensure_ascii=False),
            json.dumps(value, indent=chance.choice([0, 1, 7])),
        ):
            decoded = _broca.decode_json(text)
            assert decoded == json.loads(text)
            assert repr(decoded) == repr(json.loads(text))


BROKEN = [
    '"\\ud83d"', '"\\ude00\\ud83d"', '"\\ud83dx"', '"\\ud83d\\u0041"', '"\\u12"', '"\\x"', '"open', "[1,]", "[1", "{",
    '{"a"}', '{"a":}', '{"a":1,}', "{1:2}", "01", "-", "1.", "1e", "+1", ".5", "nul", "NaN", "1 2", "", " ", "[" * 300,
    "9" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("text", BROKEN)
def test_what_cannot_be_shown_is_malformed_and_not_repeated(text: str) -> None:
    with pytest.raises(errors.MalformedError) as caught:
        _broca.decode_json(text)
    assert "9999" not in str(caught.value) and "ud83d" not in str(caught.value)


def test_the_last_of_repeated_members_counts_and_pairs_are_joined() -> None:
    assert _broca.decode_json('{"a":1,"a":2}') == {"a": 2}
    assert _broca.decode_json('"\\ud83d\\ude00\\u0000"') == "\U0001f600\0"


def test_a_broken_payload_leaves_the_rest_of_the_event_readable() -> None:
    event = broca.Event(TEXT.replace('"caf', '"\\ud83d caf'))
    assert event.id == "evt_1" and "ud83d" in event.payload_json
    with pytest.raises(errors.MalformedError):
        _ = event.payload


def test_cursors_can_be_stored() -> None:
    cursor = broca.Cursor("evt_1")
    assert pickle.loads(pickle.dumps(cursor)) == cursor
    assert str(cursor) == "evt_1" and str(broca.Cursor.START) == ""


@pytest.mark.parametrize("options", [{"tiemout": 1}, {"tool_threads": 0}, {"connect_timeout_ms": "soon"}])
def test_options_that_cannot_be_used_are_refused_at_once(options: dict[str, object]) -> None:
    with pytest.raises(errors.InvalidArgumentError):
        broca.AsyncClient("http://127.0.0.1:1", "k", **options)  # type: ignore[arg-type]


def test_addresses_that_cannot_be_used_are_refused_without_the_key() -> None:
    for url in ("ftp://h", "127.0.0.1:80", "http://"):
        with pytest.raises(errors.InvalidArgumentError) as caught:
            broca.AsyncClient(url, "hunter2")
        assert "hunter2" not in str(caught.value)


def test_proxies_come_from_the_environment_unless_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "socks5://one:1")
    monkeypatch.setenv("https_proxy", "socks5://one:1")
    with pytest.raises(errors.InvalidArgumentError, match="socks5"):
        broca.AsyncClient("https://far.example", "k")
    broca.AsyncClient("https://far.example", "k", environment={})


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (None, "eof"),
        (ConnectionRefusedError(), "refused"),
        (BrokenPipeError(), "reset"),
        (ConnectionResetError(), "reset"),
        (TimeoutError(), "timed_out"),
        (OSError(113, "no route"), "unreachable"),
        (OSError(24, "too many"), "local"),
        (ssl.SSLError(1, "x"), "tls_other"),
    ],
)
def test_exceptions_have_one_word_each(fault: BaseException | None, why: str) -> None:
    assert _core.close_reason(fault) == why


def test_answers_are_true_in_time_and_can_be_awaited() -> None:
    assert bool(steps.Answered(True)) and not steps.Answered(False)
    awaiting = steps.Answered(True).__await__()
    with pytest.raises(StopIteration) as stop:
        next(awaiting)
    assert stop.value.value is True


def test_a_sub_interpreter_is_refused_with_a_sentence() -> None:
    interpreters = pytest.importorskip("_xxsubinterpreters")
    other = interpreters.create()
    try:
        with pytest.raises(Exception, match=r"sub-?interpreter"):
            interpreters.run_string(other, f"import sys; sys.path[:] = {sys.path!r}; import broca._broca")
    finally:
        interpreters.destroy(other)
