"""Fields of manifests as their projects publish them: drawn once into a table with its sources, and held against every exported document.

The table (`tests/data/manifest_fields.json`) has the fields that are exported, each with the type, the values and the pattern of the published schema,
and what the schema requires beside them. A field that is exported and not in the table fails the tests; to draw it anew from schemas at hand:

    python -m tests.published_fields SOURCES.json DOCUMENTS.yaml

SOURCES.json names the schema of each kind, {kind: {"file": ..., "source": "repository@commit path", "licence": ...}}; DOCUMENTS.yaml has exported documents
and those of `docs/examples/serve`.
"""

import json
import re
import sys
from pathlib import Path

import yaml

TABLE = Path(__file__).parent / "data" / "manifest_fields.json"
KEPT = ("enum", "pattern", "minimum")


def kind_of(document):
    """Return the kind of a document; a Compose file, a Helmfile and the values of a chart have none."""
    return document.get("kind") or (
        "compose" if "services" in document else "helmfile" if "releases" in document else "llm-d"
    )


def schema_of(whole, version):
    """Return the schema of one version out of a CustomResourceDefinition, or a JSON schema as it is."""
    if whole.get("kind") != "CustomResourceDefinition":
        return whole
    versions = {item["name"]: item["schema"]["openAPIV3Schema"] for item in whole["spec"]["versions"]}
    return versions[version.rpartition("/")[2]]


def resolved(schema, root, value):
    """Return a schema without references and choices: of those, the first that a value of this type may be."""
    while "$ref" in schema:
        schema = at_pointer(root, schema["$ref"].rpartition("#/")[2])
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    for choice in (*schema.get("oneOf", ()), *schema.get("anyOf", ())):
        inner = resolved(choice, root, value)
        if type_name(value) in types_of(inner):
            return {**{key: part for key, part in schema.items() if key not in ("oneOf", "anyOf")}, **inner}
    return schema


def at_pointer(root, pointer):
    """Return the part of a schema that a reference names."""
    for part in pointer.split("/"):
        root = root[part]
    return root


def types_of(schema):
    """Return the types that a schema states."""
    stated = schema.get("type", "object" if "properties" in schema else "any")
    return [stated] if isinstance(stated, str) else stated


def type_name(value):
    """Return what JSON schema calls the type of a value."""
    names = {dict: "object", list: "array", bool: "boolean", int: "integer", str: "string", float: "number"}
    return names.get(type(value), "null")


def drawn(schema, values, root):
    """Return the fields of a schema that some values have; ValueError for one that it does not have."""
    schema = resolved(schema, root, values[0])
    found = {"type": types_of(schema)}
    found |= {key: schema[key] for key in KEPT if key in schema}
    if isinstance(values[0], list):
        items = [item for value in values for item in value]
        return found | {"item": drawn(schema["items"], items, root)} if items else found
    if not isinstance(values[0], dict):
        return found
    properties = schema.get("properties", {})
    names = dict.fromkeys(name for value in values for name in value)
    patterns = schema.get("patternProperties", {})
    free = schema.get("additionalProperties") or next(iter(patterns.values()), None)
    if not properties and free:
        inner = [value[name] for value in values for name in value]
        return found | {
            "keys": next(iter(patterns), ".*"),
            "item": drawn({} if free is True else free, inner, root),
        }
    if not properties:  # an object that the schema leaves open, as metadata
        return found | {"type": ["any"]}
    fields = {}
    for name in names:
        if name not in properties:
            raise ValueError(f"{name} is no field; known: {', '.join(properties)}")
        fields[name] = drawn(properties[name], [value[name] for value in values if name in value], root)
    return found | {"required": sorted(schema.get("required", ())), "fields": fields}


def draw(sources, documents):
    """Return the table of fields of exported documents, by kind."""
    table = {}
    for kind, said in sources.items():
        own = [document for document in documents if kind_of(document) == kind]
        file, _, pointer = said["file"].partition("#/")
        whole = schema_of(yaml.safe_load(Path(file).read_text()), own[0].get("apiVersion", ""))
        table[kind] = {key: said[key] for key in ("source", "licence")} | {
            "apiVersion": own[0].get("apiVersion"),
            "schema": drawn(at_pointer(whole, pointer) if pointer else whole, own, whole),
        }
    return table


def mismatch(value, node, place="document"):
    """Yield what of a value is not as the table says."""
    if "any" in node["type"]:
        return
    if type_name(value) not in node["type"]:
        yield f"{place}: {value!r} is no {' or '.join(node['type'])}"
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from mismatch(inner, node["item"], f"{place}[{at}]")
    elif isinstance(value, dict) and "item" in node:
        for name, inner in value.items():
            if not re.search(node["keys"], name):
                yield f"{place}.{name}: no such key"
            yield from mismatch(inner, node["item"], f"{place}.{name}")
    elif isinstance(value, dict):
        yield from (
            f"{place}.{name}: not published, or not drawn yet" for name in value if name not in node["fields"]
        )
        yield from (f"{place}.{name}: missing" for name in node["required"] if name not in value)
        for name in set(value) & set(node["fields"]):
            yield from mismatch(value[name], node["fields"][name], f"{place}.{name}")
    elif value not in node.get("enum", (value,)):
        yield f"{place}: {value!r} is none of {', '.join(map(str, node['enum']))}"
    elif isinstance(value, str) and not re.search(node.get("pattern", ""), value):
        yield f"{place}: {value!r} is not {node['pattern']}"
    elif isinstance(value, int) and value < node.get("minimum", value):
        yield f"{place}: {value} is below {node['minimum']}"


def main(sources, documents):
    found = [document for document in yaml.safe_load_all(Path(documents).read_text()) if document]
    table = draw(json.loads(Path(sources).read_text()), found)
    rows = (f"{json.dumps(kind)}: {json.dumps(said)}" for kind, said in sorted(table.items()))
    TABLE.write_text("{" + ",\n".join(rows) + "}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
