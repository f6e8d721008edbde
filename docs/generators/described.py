"""The text below each field of a record as its description: in schemas and pages only, since reading source takes a while."""

import ast
import inspect
import textwrap
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from capplan.readers.record import Record


@cache
def field_texts(record: type[BaseModel]) -> Mapping[str, str]:
    """Return what stands below the fields of a record, those of the records it extends included."""
    texts: dict[str, str] = {}
    for owner in reversed(record.__mro__):
        if issubclass(owner, Record) and owner is not Record:
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
        json_schema = super().model_schema(schema)
        properties: Mapping[str, dict[str, Any]] = json_schema.get("properties", {})
        record: type[BaseModel] = schema["cls"]
        for name, text in field_texts(record).items():
            properties[name]["description"] = text
        return json_schema
