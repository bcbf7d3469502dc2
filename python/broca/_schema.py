"""From a Python signature to what a model is told, and from a model's arguments back to a call.

pydantic does the work; it is imported with the first tool that has a Python signature, not with the package.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Callable

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from typing_extensions import get_args, get_origin

from . import _docstring

# A model that got this much wrong does not need the rest; and the text must stay small.
_FAULTS = 5
_FAULT_CHARS = 300


class UnfitError(Exception):
    """Why a function cannot be a tool."""


class Arguments:
    """The arguments of one function: their JSON Schema, and how they are read."""

    __slots__ = ("_by_field", "_has_default_info", "_model", "context_parameters", "schema")

    def __init__(
        self,
        function: Callable[..., Any],
        names: Mapping[str, Any],
        context_type: type,
        *,
        is_method: bool = False,
    ) -> None:
        """Raises NameError when an annotation names what does not exist yet, `UnfitError` for the rest."""
        parameters = _parameters(function)[1 if is_method else 0 :]
        hints = _hints(function, names)
        described = _docstring.read(_doc(function))[1]
        self.context_parameters: list[str] = []
        self._by_field: dict[str, str] = {}
        self._has_default_info: set[str] = set()
        fields: dict[str, Any] = {}
        for parameter in parameters:
            annotation = hints.get(parameter.name, Any)
            if _names_type(annotation, context_type):
                self.context_parameters.append(parameter.name)
                continue
            # Names of its own keep a parameter called `json` or `copy` apart from what a model's class has.
            field = f"argument_{len(fields)}"
            self._by_field[field] = parameter.name
            own = Field(alias=parameter.name, description=described.get(parameter.name))
            if get_origin(annotation) is Annotated:
                base, *extra = get_args(annotation)
            else:
                base, extra = annotation, []
            # What the author says about a field counts more than the docstring: it comes later.
            parts = (base, own, *extra)
            annotated = Annotated[parts]  # type: ignore[valid-type]
            default = ... if parameter.default is inspect.Parameter.empty else parameter.default
            if isinstance(default, FieldInfo):
                self._has_default_info.add(field)
            fields[field] = (annotated, default)
        try:
            self._model: type[BaseModel] = create_model(
                "Arguments", __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=False), **fields
            )
            self.schema: dict[str, Any] = _schema_of(self._model)
        except NameError:
            raise
        except Exception as error:
            raise UnfitError(f"its arguments have no JSON Schema: {_first_line(error)}") from error

    def read(self, input_json: str) -> dict[str, Any]:
        """The keyword arguments that the JSON stands for. Raises ValueError with a text for the model."""
        try:
            model: Any = self._model.__pydantic_validator__.validate_json(input_json)
        except ValidationError as error:
            raise ValueError(faults_of(error, "the arguments do not fit", self._by_field)) from None
        values = model.__dict__
        # What the model left out is left out of the call: the function knows its defaults best.
        given = model.__pydantic_fields_set__
        if self._has_default_info:
            given = given | self._has_default_info
        return {name: values[field] for field, name in self._by_field.items() if field in given}


def check_signature(function: Callable[..., Any]) -> None:
    """Refuses parameters that a JSON object cannot fill."""
    _parameters(function)


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError) as error:
        raise UnfitError(f"its signature cannot be read: {error}") from error
    bound = function.keywords if isinstance(function, functools.partial) else {}
    parameters = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            raise UnfitError(
                f"it takes *{parameter.name}, but a model calls by name: write a parameter with a list type"
            )
        if parameter.kind is parameter.VAR_KEYWORD:
            raise UnfitError(f"it takes **{parameter.name}, but a model must be told every name: write them out")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise UnfitError(
                f'its parameter "{parameter.name}" is positional-only, but a model calls by name: '
                "remove the / from the signature"
            )
        # What the program has decided with functools.partial is not the model's to change.
        if parameter.name not in bound:
            parameters.append(parameter)
    return parameters


def _hints(function: Callable[..., Any], names: Mapping[str, Any]) -> dict[str, Any]:
    written = _annotated(function)
    # The result's annotation does not matter here, and may name what only a type checker sees.
    annotations = {name: hint for name, hint in written.__annotations__.items() if name != "return"}
    source = inspect.unwrap(written)
    only_these = types.SimpleNamespace(__annotations__=annotations)
    try:
        return typing.get_type_hints(
            only_these, globalns=getattr(source, "__globals__", {}), localns=dict(names), include_extras=True
        )
    except (TypeError, SyntaxError, AttributeError) as error:
        raise UnfitError(f"an annotation cannot be understood: {_first_line(error)}") from error


def _annotated(function: Callable[..., Any]) -> Any:
    """The function that the annotations belong to."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function):
        return function
    return type(function).__call__


def _doc(function: Callable[..., Any]) -> str | None:
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function):
        return inspect.getdoc(function)
    return inspect.getdoc(type(function).__call__) or inspect.getdoc(type(function))


def description_of(function: Callable[..., Any]) -> str:
    """What the docstring says, without its sections about parameters and results."""
    doc = _doc(function)
    if not inspect.isroutine(function) and not isinstance(function, functools.partial):
        own = type(function).__call__.__doc__
        doc = own or inspect.getdoc(type(function))
    return _docstring.read(doc)[0]


def _names_type(annotation: Any, wanted: type) -> bool:
    if annotation is wanted:
        return True
    return any(_names_type(part, wanted) for part in get_args(annotation) if isinstance(part, type))


class _Schema(GenerateJsonSchema):
    """No titles made of names, and no warnings about defaults that JSON cannot show."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _schema_of(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema(by_alias=True, schema_generator=_Schema)
    schema.pop("title", None)
    # Some models insist on it.
    schema.setdefault("properties", {})
    return _without_references(schema)


def schema_of_type(adapter: TypeAdapter[Any]) -> dict[str, Any]:
    """The JSON Schema of any type that pydantic knows."""
    return _without_references(adapter.json_schema(by_alias=True, schema_generator=_Schema))


def _without_references(schema: dict[str, Any]) -> dict[str, Any]:
    """Writes in place what is not part of itself."""
    definitions: dict[str, JsonSchemaValue] = schema.pop("$defs", {})
    recursive = {name for name in definitions if _reaches(name, definitions[name], definitions, set())}
    inlined: dict[str, Any] = _inline(schema, definitions, recursive)
    if recursive:
        inlined["$defs"] = {name: _inline(definitions[name], definitions, recursive) for name in sorted(recursive)}
    return inlined


def _target(schema: Any) -> str | None:
    reference = schema.get("$ref") if isinstance(schema, dict) else None
    prefix = "#/$defs/"
    return reference[len(prefix) :] if isinstance(reference, str) and reference.startswith(prefix) else None


def _reaches(wanted: str, schema: Any, definitions: Mapping[str, Any], seen: set[str]) -> bool:
    """Whether a definition comes back to itself: such a one cannot be written in place."""
    target = _target(schema)
    if target is not None:
        if target == wanted:
            return True
        if target not in seen:
            seen.add(target)
            if _reaches(wanted, definitions.get(target), definitions, seen):
                return True
    if isinstance(schema, dict):
        return any(_reaches(wanted, part, definitions, seen) for part in schema.values())
    if isinstance(schema, list):
        return any(_reaches(wanted, part, definitions, seen) for part in schema)
    return False


def _inline(schema: Any, definitions: Mapping[str, Any], kept: set[str]) -> Any:
    """Writes definitions in place, as the simplest reader of schemas needs it."""
    if isinstance(schema, list):
        return [_inline(part, definitions, kept) for part in schema]
    if not isinstance(schema, dict):
        return schema
    target = _target(schema)
    if target is None or target in kept or target not in definitions:
        return {key: _inline(part, definitions, kept) for key, part in schema.items()}
    beside = {key: _inline(part, definitions, kept) for key, part in schema.items() if key != "$ref"}
    return {**_inline(definitions[target], definitions, kept), **beside}


def faults_of(error: ValidationError, what: str, names: Mapping[str, str] | None = None) -> str:
    """What is wrong, by place, for a model; ``names`` are those of arguments. Values are not repeated: they may be
    huge."""
    faults = error.errors(include_url=False, include_input=False, include_context=False)
    said = []
    for fault in faults[:_FAULTS]:
        place = _place(fault["loc"], names or {})
        message = fault["msg"]
        if fault["type"] == "extra_forbidden" and names is not None:
            message = "there is no such argument"
        text = f"`{place}`: {message}" if place else message
        said.append(text if len(text) <= _FAULT_CHARS else text[:_FAULT_CHARS] + "…")
    more = len(faults) - len(said)
    return f"{what}: " + "; ".join(said) + (f"; and {more} more" if more else "")


def _place(location: tuple[int | str, ...], names: Mapping[str, str]) -> str:
    place = ""
    for part in location:
        if isinstance(part, int):
            place += f"[{part}]"
        else:
            word = names.get(part, part)
            word = word if len(word) <= 80 else word[:80] + "…"
            place += f".{word}" if place else word
    return place


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__
