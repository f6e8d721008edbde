"""Write capplan/families/classes.json: keys, defaults and names of the configuration classes of transformers.

python -m docs.generators.model_classes
"""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import transformers
from transformers.models.auto import modeling_auto as auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from capplan.families.inert import is_inert
from capplan.families.registry import families

FILE = Path(__file__).resolve().parents[2] / "capplan" / "families" / "classes.json"
_HEADS = (
    auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
    auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _described(kind: str, config: Any) -> dict[str, Any]:
    """Return the description of one class, as `ModelClass` holds it."""
    declared = type(config).default_config_fields()
    defaults = {}
    for one in fields(type(config)):
        value = _plain(declared.get(one.name))
        if is_inert(one.name) or callable(value) or isinstance(value, dict):
            continue
        defaults[one.name] = value
    sections = {
        key: section.model_type
        for key in type(config).sub_configs
        if (section := getattr(config, key, None)) is not None and hasattr(section, "model_type")
    }
    optional = {key: one.model_type for key, one in _optional(config).items()}
    known = {key: value for key, value in defaults.items() if key not in sections and key not in optional}
    names = {old: new for old, new in type(config).attribute_map.items() if not is_inert(new)}
    described: dict[str, Any] = {"defaults": dict(sorted(known.items()))}
    if names:
        described["names"] = names
    if sections:
        described["sections"] = sections
    if optional:
        described["optional_sections"] = optional
    inside = {key: own for key in sections if (own := _section_defaults(type(config), key, sections[key]))}
    if inside:
        described["section_defaults"] = inside
    if not _ties(kind):
        described["ties"] = False
    if _ties_by_text(type(config), sections):
        described["ties_by_text"] = True
    return described


def _optional(config: Any) -> dict[str, Any]:
    """Return the classes of the sections that a model of this class has only where its file states them, as built from nothing."""
    specs = {key: getattr(spec, "config_class", spec) for key, spec in type(config).sub_configs.items()}
    return {
        key: kind()
        for key, kind in specs.items()
        if getattr(config, key, None) is None and getattr(kind, "model_type", "") in CONFIG_MAPPING
    }


def _section_defaults(whole: Any, key: str, kind: str) -> dict[str, Any]:
    """Return the defaults that a class completes its section with, where they differ from those of the section's own class.

    Most classes have such values for a section that is missing altogether; they do not count here.
    """
    spec = (whole.sub_configs_defaults or {}).get(key)
    if spec is None or not spec.init_kwargs or kind not in CONFIG_MAPPING:
        return {}
    try:
        stated = getattr(whole(**{key: {"model_type": kind}}), key).to_dict()
    except Exception:  # noqa: BLE001 - whatever a class raises for a section without keys
        return {}
    usual, declared = CONFIG_MAPPING[kind]().to_dict(), CONFIG_MAPPING[kind].default_config_fields()
    taken = {name: value for name, value in sorted(spec.init_kwargs.items()) if stated.get(name) == value}
    if all(value == usual.get(name) for name, value in taken.items()):
        return {}
    return {
        name: value for name, value in taken.items() if not is_inert(name) and value != declared.get(name)
    }


def _ties(kind: str) -> bool:
    for head in reversed(_HEADS):
        name = head.get(kind)
        if name:
            found = getattr(transformers, name if isinstance(name, str) else name[0], None)
            return bool(getattr(found, "_tied_weights_keys", None))
    return True


def _ties_by_text(whole: Any, sections: dict[str, str]) -> bool:
    """Return whether a class takes over the key of its text section where its own says false."""
    if "text_config" not in sections:
        return False
    inside = {"model_type": sections["text_config"], "tie_word_embeddings": True}
    return bool(getattr(whole(tie_word_embeddings=False, text_config=inside), "tie_word_embeddings", False))


def classes() -> dict[str, Any]:
    """Return the description of the class of every family, and of the classes of their sections."""
    wanted = [CONFIG_MAPPING[kind]() for kind in families() if kind in CONFIG_MAPPING]
    found: dict[str, Any] = {}
    while wanted:
        config = wanted.pop()
        if not config.model_type or config.model_type in found:
            continue
        found[config.model_type] = _described(config.model_type, config)
        wanted += [
            s for key in type(config).sub_configs if hasattr(s := getattr(config, key, None), "model_type")
        ]
        wanted += _optional(config).values()
    return dict(sorted(found.items()))


def main() -> None:
    """Write the file, one class a line."""
    lines = [f"  {json.dumps(kind)}: {json.dumps(one)}" for kind, one in classes().items()]
    head = json.dumps(f"configuration classes of transformers {transformers.__version__}, Apache-2.0")
    FILE.write_text(f'{{"source": {head},\n "classes": {{\n' + ",\n".join(lines) + "\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
