"""Files to read: defaults, small models, one to five keys changed or left out, as two versions of transformers save them."""

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

from transformers import PreTrainedConfig
from transformers.models.auto import modeling_auto as auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.differential.records import File
from tests.differential.reference import ENCODERS
from tests.differential.small import default_file, small_file

Path = tuple[str, ...]

UNTOUCHED = ("model_type", "transformers_version", "architectures", "rope_parameters", "rope_scaling", "rope_theta",
             "dtype", "quantization_config", "id2label", "label2id", "code2wav_config")  # fmt: skip
"""Keys that are never changed or left out."""


def key_paths(section: dict[str, Any], path: Path = ()) -> Iterator[Path]:
    """Return the paths of the keys that a file may lack or say otherwise."""
    for key, value in section.items():
        if key in UNTOUCHED or key.endswith(("_token_id", "_token_index", "_token_ids")):
            continue
        if isinstance(value, dict) and "__float__" not in value:
            yield from key_paths(value, (*path, key))
        else:
            yield (*path, key)


def other_value(value: Any, chance: random.Random) -> Any:
    """Return another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return chance.choice(
            [v for v in (0, 1, 2, 3, 4, 6, 8, 12, 24, value // 2, value * 2, None) if v != value]
        )
    if isinstance(value, float):
        return chance.choice([0.0, 1.0, value * 2, value / 2])
    if value is None:
        return chance.choice([2, 4, 8, 24, True])
    if isinstance(value, list) and value:
        return chance.choice(
            [chance.sample(value, len(value)), list(reversed(value)), [chance.choice(value)] * len(value)]
        )
    return value


def at(file: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the section that holds the last key of a path."""
    for key in path[:-1]:
        file = file[key]
    return file


def saved_by_5(values: dict[str, Any]) -> dict[str, Any] | None:
    """Return the file as transformers 5 saves it, or None where its class refuses it."""
    try:
        decoded = PreTrainedConfig._decode_special_floats(copy.deepcopy(values))
        text = CONFIG_MAPPING[values["model_type"]].from_dict(decoded).to_json_string()
    except Exception:  # noqa: BLE001 - whatever a class raises for a file that it refuses
        return None
    return json.loads(text)


def saved_by_4(values: dict[str, Any], *, whole: bool = True) -> dict[str, Any]:
    """Return a file with the names of transformers 4: torch_dtype, rope_theta beside rope_scaling, names of old releases."""
    kind = values["model_type"]
    names = {} if kind not in CONFIG_MAPPING else CONFIG_MAPPING[kind].attribute_map
    old = {new: name for name, new in names.items()}
    out: dict[str, Any] = {}
    for key, value in values.items():
        if key == "rope_parameters" and isinstance(value, dict) and "rope_theta" in value:
            out["rope_theta"] = value["rope_theta"]
            rest = {k: v for k, v in value.items() if k != "rope_theta"}
            out["rope_scaling"] = None if rest.get("rope_type") == "default" and len(rest) == 1 else rest
        elif isinstance(value, dict) and "model_type" in value:
            out[key] = saved_by_4(value, whole=False)
        else:
            out[old.get(key, key)] = value
    if whole:
        out.setdefault("torch_dtype", out.pop("dtype", None) or "bfloat16")
    return out


def by_hand(values: dict[str, Any]) -> dict[str, Any]:
    """Return a file as people write it: no release, and nothing said of embedding and head."""
    left_out = ("transformers_version", "tie_word_embeddings", "tie_embedding")
    return {
        key: by_hand(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if key not in left_out
    }


def heads_of(kind: str) -> list[str]:
    """Return the classes of a type that end in scores, the one without a head, and an encoder's for masked tokens."""
    tables = [
        auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
        auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
        auto.MODEL_MAPPING_NAMES,
    ]
    if kind in ENCODERS:
        tables.append(auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES)
    return [name for table in tables if isinstance(name := table.get(kind), str)]


def files(kind: str, seed: int, changed: int) -> Iterator[File]:
    """Return the files of one model type: default, small, by hand, each key left out, `changed` with other values."""
    chance = random.Random(f"{kind} {seed}")
    try:
        default = default_file(kind)
        yield File(kind, "", "default", default)
        yield File(kind, "", "default 4", saved_by_4(default))
        small = small_file(kind)
    except Exception:  # noqa: BLE001 - a class whose defaults are not valid
        return
    yield File(kind, "", "5", small)
    yield File(kind, "", "4", saved_by_4(small))
    yield File(kind, "", "by hand", by_hand(small))
    for name in heads_of(kind):
        yield File(kind, f"architectures = {name}", "5", small | {"architectures": [name], "num_labels": 3})
    paths = list(key_paths(small))
    for path in paths:
        lacking = copy.deepcopy(small)
        del at(lacking, path)[path[-1]]
        yield File(kind, f"without {'.'.join(path)}", "5", lacking)
    for _ in range(changed):
        typed = copy.deepcopy(small)
        said = []
        for path in chance.sample(paths, min(len(paths), chance.choice([1, 1, 2, 3, 4, 5]))):
            section = at(typed, path)
            section[path[-1]] = other_value(section[path[-1]], chance)
            said.append(f"{'.'.join(path)} = {json.dumps(section[path[-1]])}")
        change = ", ".join(said)
        yield File(kind, change, "typed", typed)
        resaved = saved_by_5(typed)
        if resaved is not None:
            yield File(kind, change, "5", resaved)
            yield File(kind, change, "4", saved_by_4(resaved))
