"""Answers as values: what the model is told, what is read, and what happens when it does not fit."""

from __future__ import annotations

import dataclasses
import json
import pickle
from typing import Annotated, Any

import pytest
from async_service import Answer, Asked, Service
from conftest import Run
from pydantic import BaseModel, Field, field_validator
from typing_extensions import TypedDict

import broca
from broca import errors


class Line(BaseModel):
    article: str
    count: Annotated[int, Field(ge=1)]


class Invoice(BaseModel):
    number: int
    lines: list[Line] = []

    @field_validator("number")
    @classmethod
    def counts(cls, number: int) -> int:
        if number == 13:
            raise ValueError("13 is never used")
        return number


@dataclasses.dataclass
class Place:
    name: str
    height: float


class Score(TypedDict):
    points: int


class Saying:
    """A service that answers with these texts, one after the other, and what it was asked."""

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)
        self.asked: list[Any] = []
        self.service = Service(self._script)

    def _script(self, asked: Asked, answer: Answer) -> None:
        if asked.method == "session.sendMessage":
            self.asked.append(asked.params["message"]["content"])
            message = {"role": "assistant", "content": [{"type": "text", "text": self.texts.pop(0)}]}
            event = {"id": f"evt_{len(self.asked)}", "session_id": "ses_1", "client_key_id": None}
            event |= {"event_type": "x", "payload": {}, "created_at": "2030-01-01T00:00:00.000Z"}
            answer.terminal(result={"events": [event], "message": message})


def ask(saying: Saying, message: Any, output: Any, **more: Any) -> broca.Reply[Any]:
    with saying.service as service, broca.Client(service.url, "key", environment={}) as client:
        reply: broca.Reply[Any] = client.open().ask(message, output=output, **more)
        return reply


PENS = Line(article="pen", count=2)
FITTING = [
    (Invoice, '{"number": 7, "lines": [{"article": "pen", "count": 2}]}', Invoice(number=7, lines=[PENS])),
    (Place, '{"name": "Oslo", "height": 23.5}', Place("Oslo", 23.5)),
    (Score, ' {"points": 3}\n', {"points": 3}),
    (list[Line], '[{"article": "pen", "count": 1}]', [Line(article="pen", count=1)]),
    (int, "41", 41),
    (Annotated[int, Field(ge=1)], "41", 41),
    (Score, 'Here it is:\n\n```json\n{"points": 3}\n```\nAnything else?', {"points": 3}),
    (str, '```\n"a ``` b"\n```', "a ``` b"),
    (Score, '```py\nprint("no")\n```\nand\n~~~\n{"points": 4}\n~~~', {"points": 4}),
    (Score, '```\n{"points": 1}\n```\nor rather\n```\n{"points": 2}\n```', {"points": 2}),
    (Score, '```\n{"points": 5}\n```\nas in\n```py\nprint(5)\n```', {"points": 5}),
]  # fmt: skip


@pytest.mark.parametrize(("output", "text", "value"), FITTING, ids=lambda value: str(value)[:30])
def test_an_answer_that_fits_is_a_value(output: Any, text: str, value: Any) -> None:
    saying = Saying(text)
    reply = ask(saying, "What is it?", output)
    assert reply.output == value and type(reply.output) is type(value)
    assert reply.text == text and reply.rounds == 1
    [asked] = saying.asked
    assert asked.startswith("What is it?\n\n") and '"type":' in asked


def test_the_model_is_told_the_schema_behind_whatever_is_said() -> None:
    block = {"type": "text", "text": "What is it?"}
    for message in ([block], {"content": [block]}, {"role": "user", "content": "What is it?"}):
        saying = Saying('{"number": 1}')
        ask(saying, message, Invoice)
        [asked] = saying.asked
        told = asked if isinstance(asked, str) else asked[-1]["text"]
        schema = json.loads(told[told.index("{") :])
        assert schema["properties"]["lines"]["items"]["properties"]["count"] == {"minimum": 1, "type": "integer"}
        assert isinstance(asked, str) or asked[0] == block


def test_an_answer_that_does_not_fit_is_sent_back_once_with_what_is_wrong() -> None:
    saying = Saying('{"number": 13, "lines": [{"article": "pen", "count": 0}]}', '{"number": 14}')
    reply = ask(saying, "go", Invoice)
    assert reply.output == Invoice(number=14)
    again = saying.asked[1]
    assert "13 is never used" in again and "`lines[0].count`" in again and "greater than or equal to 1" in again
    # The reply counts both turns.
    assert reply.rounds == 2 and [event.id for event in reply.events] == ["evt_1", "evt_2"]
    assert reply.text == '{"number": 14}'


def test_words_are_sent_back_as_no_json() -> None:
    saying = Saying("I would say three.", '{"points": 3}')
    assert ask(saying, "go", Score).output == {"points": 3}
    assert "Invalid JSON" in saying.asked[1] and "three" not in saying.asked[1]


def test_the_second_answer_that_does_not_fit_is_an_error_without_its_words() -> None:
    saying = Saying("hunter2", '{"number": "hunter2", "hunter2": 1}')
    with pytest.raises(errors.OutputInvalidError, match="Invoice") as caught:
        ask(saying, "go", Invoice)
    error = caught.value
    assert error.details == {"faults": ["int_parsing"], "repairs": 1} and len(saying.asked) == 2
    assert "hunter2" not in f"{error} {error!r} {error.details} {error.__cause__} {error.__context__} {error.reply!r}"
    # The program can look at it, with what it took; also in another process.
    again = pickle.loads(pickle.dumps(error))
    for reply in (error.reply, again.reply):
        assert reply is not None and reply.text == '{"number": "hunter2", "hunter2": 1}' and reply.rounds == 2


@pytest.mark.parametrize("repairs", [0, 1, 3])
def test_an_answer_is_sent_back_as_often_as_was_said(repairs: int) -> None:
    saying = Saying(*["no"] * repairs, '{"points": 3}')
    reply = ask(saying, "go", Score, repairs=repairs)
    assert reply.output == {"points": 3} and reply.rounds == repairs + 1
    assert len(reply.events) == repairs + 1
    saying = Saying(*["no"] * (repairs + 1))
    with pytest.raises(errors.OutputInvalidError) as caught:
        ask(saying, "go", Score, repairs=repairs)
    assert len(saying.asked) == repairs + 1 and caught.value.details == {"faults": ["json_invalid"], "repairs": repairs}


@pytest.mark.parametrize("repairs", [-1, 1.5, True, "2"], ids=str)
def test_repairs_that_are_no_number_of_times_are_refused_before_anything_is_sent(repairs: Any) -> None:
    saying = Saying()
    with pytest.raises(errors.InvalidArgumentError, match="repairs"):
        ask(saying, "go", Score, repairs=repairs)
    assert not saying.asked


def test_the_async_half_does_the_same(run: Run) -> None:
    async def main(url: str) -> None:
        async with broca.AsyncClient(url, "key", environment={}) as client:
            session = await client.open()
            reply = await session.ask("go", output=Score)
            assert reply.output == {"points": 2} and reply.rounds == 2
            with pytest.raises(errors.OutputInvalidError, match="Score"):
                await session.ask("go", output=Score)
            with pytest.raises(errors.OutputInvalidError) as caught:
                await session.ask("go", output=Score, repairs=2)
            assert caught.value.reply is not None and caught.value.reply.rounds == 3

    saying = Saying("no", '{"points": 2}', "no", "never", "no", "no", "nor now")
    with saying.service as service:
        run(main(service.url))


class NotJson:
    pass


@pytest.mark.parametrize("output", [NotJson, "Nothing", 7], ids=str)
def test_a_type_without_a_schema_is_refused_before_anything_is_sent(output: Any) -> None:
    saying = Saying()
    with pytest.raises(errors.InvalidArgumentError, match="output="):
        ask(saying, "go", output)
    assert not saying.asked
    with pytest.raises(errors.InvalidArgumentError, match="a message is"):
        ask(Saying(), 7, Score)


def test_a_type_checker_knows_the_output(tmp_path: Any) -> None:
    checker = pytest.importorskip("mypy.api")
    source = tmp_path / "program.py"
    source.write_text(
        "import broca\n"
        "from pydantic import BaseModel\n"
        "from typing import TypedDict\n"
        "class Invoice(BaseModel):\n"
        "    number: int\n"
        "class Score(TypedDict):\n"
        "    points: int\n"
        "def one(session: broca.Session) -> None:\n"
        "    reveal_type(session.ask('go', output=Invoice).output)\n"
        "    reveal_type(session.ask('go', output=list[Invoice]).output)\n"
        "    reveal_type(session.ask('go', output=Score).output['points'])\n"
        "    reveal_type(session.ask('go').output)\n"
        "    reply: broca.Reply = session.ask('go')\n"
        "    session.ask('go', output=Invoice).output.total\n"
        "async def other(session: broca.AsyncSession) -> None:\n"
        "    reveal_type((await session.ask('go', output=Invoice)).output)\n"
        "    reveal_type((await session.ask('go', output=Invoice | None)).output)\n"
    )
    told, _, _ = checker.run(["--strict", "--no-incremental", "--python-version", "3.12", str(source)])
    lines = [line.partition(": ")[2] for line in told.splitlines() if "program.py" in line]
    said = [line.split('"')[1] for line in lines if "Revealed type" in line]
    assert said == ["program.Invoice", "list[program.Invoice]", "int", "None", "program.Invoice", "Any"], told
    assert [line for line in lines if line.startswith("error: ")] == [
        'error: "Invoice" has no attribute "total"  [attr-defined]'
    ], told
