"""The text below each field of a record as its description: in schemas and pages only, since reading source takes a while."""

import ast
import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from capplan.readers.record import Record


@cache
def field_texts(record: type) -> Mapping[str, str]:
    """Return what stands below the fields of a record, those of the records it extends included."""
    texts: dict[str, str] = {}
    for owner in reversed(record.__mro__):
        if owner is not Record and (issubclass(owner, Record) or is_dataclass(owner)):
            (body,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
            assert isinstance(body, ast.ClassDef)
            for field, below in pairwise(body.body):
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    texts[field.target.id] = _text(below)
    return {name: text for name, text in texts.items() if text}


def _text(statement: ast.stmt) -> str:
    value = statement.value if isinstance(statement, ast.Expr) else None
    text = value.value if isinstance(value, ast.Constant) else None
    return inspect.cleandoc(text) if isinstance(text, str) else ""


class Described(GenerateJsonSchema):
    """A generator of schemas that describes fields by their text."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Return the schema of a record with its descriptions."""
        return _described(super().model_schema(schema), schema["cls"])

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        """Return the schema of a record that is a dataclass with its descriptions."""
        return _described(super().dataclass_schema(schema), schema["cls"])


def _described(json_schema: JsonSchemaValue, record: type) -> JsonSchemaValue:
    properties: Mapping[str, dict[str, Any]] = json_schema.get("properties", {})
    for name, text in field_texts(record).items():
        properties[name]["description"] = text
    return json_schema
