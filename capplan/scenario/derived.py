"""A document made of another: some keys in the place of others, each with the line where it stands."""

from collections.abc import Mapping
from typing import Any

from capplan.readers.yaml_file import Document, KeyPath


def derived(document: Document, section: str, changes: Mapping[str, Any], at: KeyPath) -> Document:
    """Return a document without a section, and with the keys of one mapping in it in the place of the others.

    Parameters
    ----------
    document : with the section
    section : top-level key that is left out
    changes : keys that take the place of others, mappings key by key
    at : where the changes stand, for the lines of errors

    Returns
    -------
    Document; all else is that of the first one

    Examples
    --------
    >>> whole = Document("a.yaml", {"slo": {"a": 1, "b": 2}, "x": {"slo": {"b": 3}}}, {("slo",): 1, ("x", "slo"): 3})
    >>> derived(whole, "x", {"slo": {"b": 3}}, ("x",))
    Document(name='a.yaml', value={'slo': {'a': 1, 'b': 3}}, lines={('slo',): 3})
    """
    value = {key: item for key, item in document.value.items() if key != section}
    lines = {path: line for path, line in document.lines.items() if path[:1] != (section,)}
    lines |= {
        path[len(at) :]: line for path, line in document.lines.items() if path[: len(at)] == at and path != at
    }
    return Document(document.name, _changed(value, changes), lines)


def _changed(value: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return keys with others in their place, mappings key by key; null takes a key away."""
    both = {**value, **{key: _inside(value.get(key), new) for key, new in changes.items()}}
    return {key: item for key, item in both.items() if item is not None}


def _inside(old: Any, new: Any) -> Any:
    return _changed(old, new) if isinstance(old, Mapping) and isinstance(new, Mapping) else new
