"""A model is one model, whichever version of transformers saved its config.json: to the last byte, in what the commands print.

Version 5 writes the names of its classes, `dtype` and `rope_parameters`; version 4 wrote other names of some keys, `torch_dtype`,
and `rope_theta` beside `rope_scaling`. Both forms are written here from the names that the classes declare.
"""

import pytest

from capplan.families.config import model_class
from capplan.families.registry import families
from tests.differential.stored import stored
from tests.files import written_to

NAMED_OTHERWISE = ("keys_used", "notes")
"""What echoes the keys of a file."""


def files_by_kind():
    """Return one file of each model type, one that a class saved rather than one with changed values."""
    chosen = {}
    for file, _ in stored():
        if file.kind not in chosen or (not file.change and chosen[file.kind].change):
            chosen[file.kind] = file
    return {kind: file.values for kind, file in chosen.items()}


NOT_SAMPLED = {
    "code_llama", "dbrx", "gemma3n", "kimi_k2", "minimax_m3", "molmo2", "mt5", "perception_lm", "qwen3_omni_moe", "t5", "umt5",
}  # fmt: skip
"""Names of other types, types whose small model the reference does not build, and encoders whose class has a decoder too."""

FILES = files_by_kind()


def other_names(kind):
    """Return every key of a class that has another name -> the other names."""
    known = model_class(kind)
    others = {}
    for alias, name in (known.names if known else {}).items():
        others.setdefault(name, []).append(alias)
    return others


def saved(section, kind, *, version, place=0, whole=True):
    """Return a file as a version saves it; `place` chooses among several old names of one key."""
    known, others = model_class(kind), other_names(kind)
    inner = known.sections if known else {}
    out = {}
    for key, value in section.items():
        name = known.names.get(key, key) if known else key
        held = value
        if isinstance(value, dict) and (key in inner or "model_type" in value):
            held = saved(value, value.get("model_type") or inner[key], version=version, place=place, whole=False)  # fmt: skip
        if version == 4:
            name = others[name][min(place, len(others[name]) - 1)] if name in others else name
        out[name] = held
    if whole:
        dtype = out.pop("dtype", None) or out.pop("torch_dtype", None) or "bfloat16"
        out["torch_dtype" if version == 4 else "dtype"] = dtype
    return in_rotary_form(out, version)


def in_rotary_form(section, version):
    """Return a section with the rotary keys of a version."""
    rotary = section.get("rope_parameters")
    if version == 4 and isinstance(rotary, dict) and "rope_theta" in rotary:
        scaling = {key: value for key, value in rotary.items() if key != "rope_theta"}
        out = {key: value for key, value in section.items() if key != "rope_parameters"}
        default = scaling.get("rope_type") == "default" and len(scaling) == 1
        return out | {"rope_theta": rotary["rope_theta"], "rope_scaling": None if default else scaling}
    return section


def forms(kind):
    """Return the file as version 5 saves it, and as 4 does under each of its names."""
    file = FILES[kind]
    most = max([1, *map(len, other_names(kind).values())])
    return [saved(file, kind, version=5), *(saved(file, kind, version=4, place=n) for n in range(most))]


def printed(capplan, path, *words):
    result = capplan.result(*words[:1], path, *words[1:])
    return {key: value for key, value in result.items() if key not in NAMED_OTHERWISE}


@pytest.mark.parametrize("kind", sorted(FILES))
def test_commands_print_the_same_of_a_file_that_either_version_saved(kind, tmp_path, capplan):
    answers = []
    for number, file in enumerate(forms(kind)):
        folder = tmp_path / str(number) / "model"
        folder.mkdir(parents=True)
        path = written_to(folder / "config.json", file)
        sizes = printed(capplan, path, "kv-size", "--context", "5", "--context", "4096")
        answers.append((printed(capplan, path, "model"), sizes))
    assert all(answer == answers[0] for answer in answers)


def test_every_family_with_two_forms_is_asked():
    """All that a class describes, but for text sections (their whole file asks for them) and what the reference cannot build."""
    described = {kind for kind in families() if model_class(kind)}
    inside = {kind for known in map(model_class, described) for kind in known.sections.values()}
    assert described - inside - set(FILES) == NOT_SAMPLED


def test_the_forms_differ_where_a_class_renames_keys():
    """Where the names are the same the test above would prove nothing."""
    renamed = [kind for kind in FILES if other_names(kind)]
    assert len(renamed) > 30
    differing = [kind for kind in FILES if set(forms(kind)[0]) != set(forms(kind)[1])]
    assert len(differing) == len(FILES)
