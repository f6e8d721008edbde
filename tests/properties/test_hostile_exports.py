"""Whatever text a plan carries, its export has the same commands and the same keys: a shell and a YAML reader read it again."""

import json
import re
import shlex
import shutil
import subprocess

import pytest
import yaml

from capplan.deploy.command_line import unexpanded
from capplan.deploy.export import ENGINES, TARGETS, export_text, exported_replica
from capplan.deploy.fleet_launch import fleet_launch
from capplan.deploy.llamacpp import TARGETS as LLAMACPP_TARGETS
from capplan.errors import InputError
from capplan.readers.plan_file import read_plan_file
from capplan.scenario.flags import ServingFlags
from tests.plan_files import plan_in, with_changes

HOSTILE = (
    "x\n touch INJECTED #", "x\r touch INJECTED", "x\u2028touch INJECTED", "'; touch INJECTED; '", '"; touch INJECTED; "', "$(touch INJECTED)",
    "$(HF_TOKEN)", "${HF_TOKEN}", "$HF_TOKEN", "$$(HF_TOKEN)", "`touch INJECTED`", "--trust-remote-code", "-x", "x\x1b[31mred", "x\u202egnp", "x\x00y", "x\ud800",
    "x: {y: z}", "# x", "x && touch INJECTED", "| touch INJECTED", "EOF", "\\", "{{ .Values.secret }}", "x y", "*", "~",
)  # fmt: skip
BASH = shutil.which("bash") or "/bin/bash"
IN_SHELL = """
say() { printf '%s\\n' "$#" "$@"; }
vllm() { say vllm "$@"; }; python3() { say python3 "$@"; }; cat() { :; }
"""
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
EXPANDED = ("args", "command", "value")
"""Keys of a container in whose texts Kubernetes expands variables."""
VARIABLE = re.compile(r"\$\$|\$\(([A-Za-z_]+)\)")


@pytest.fixture(scope="module")
def plans(plan, tmp_path_factory, few_requests):
    """Plans of identical replicas and of separate pools."""
    words = ("fleet.disaggregation=only", "fleet.kv_link=infiniband-ndr", "slo.tpot_p95=30 ms")
    return {"one": plan, "pools": plan_in(tmp_path_factory.mktemp("pools"), *words)}


def started(text, folder):
    """Return the commands that a shell starts for a script, each as its words."""
    done = subprocess.run(
        [BASH, "-c", IN_SHELL + text], capture_output=True, text=True, cwd=folder, env={"PATH": ""}, timeout=20, check=False
    )  # fmt: skip
    assert done.stderr == ""
    assert list(folder.iterdir()) == []
    lines, commands = done.stdout.split("\n"), []
    while len(lines) > 1:
        count = int(lines.pop(0))
        commands.append([lines.pop(0) for _ in range(count)])
    return commands


def keys(value):
    """Return the structure of a document without its texts."""
    if isinstance(value, dict):
        return {key: keys(inner) for key, inner in value.items()}
    return [keys(inner) for inner in value] if isinstance(value, list) else type(value).__name__


def words_of(value, under=""):
    """Yield the texts of a document, each with the key that it stands under."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from words_of(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from words_of(inner, under)
    else:
        yield under, str(value)


def as_a_pod_sees_it(word):
    """Expand a word as Kubernetes does, which here knows every variable."""
    return VARIABLE.sub(lambda found: "$" if found[0] == "$$" else f"<{found[1]}>", word)


def exported(plan, target, tmp_path, **texts):
    """Return the export of a plan in which device, model, revision or scenario have these texts."""
    inputs = {key: value for key, value in texts.items() if key in ("model", "content")}
    chosen = {"hardware": texts["hardware"]} if "hardware" in texts else {}
    named = {"provider": "AWS", "sku": texts.get("machine", "eight"), "region": texts.get("machine", "here")}
    if json.loads(plan.read_text())["result"]["chosen"]["transfer"] is None:
        named |= chosen
    if target != "skypilot" and "machine" in texts:
        named["provider"] = texts["machine"]
    changed = with_changes(plan, tmp_path / "plan.json", chosen=chosen, inputs=inputs, order=named)
    file = read_plan_file(changed)
    flags = {"checkpoint": texts.get("checkpoint"), "image": texts.get("image")}
    if target in (*ENGINES, "keda", "skypilot"):
        flags["image"] = None
    elif target == "dynamo" and flags["image"] is None:
        flags["image"] = "registry/name:tag"
    return export_text(file, fleet_launch(file, **flags), target)


def asked(text):
    """Return every place of a plan, or flag of the command, that can carry a text."""
    yield "device", {"hardware": text}
    yield "revision", {"model": {"revision": text}}
    yield "checkpoint", {"checkpoint": text}
    yield "image", {"image": text}
    yield "scenario", {"content": {"name": text}}
    yield "machine", {"machine": text}


def read(text):
    """Return the documents of an export."""
    return list(yaml.load_all(text, Loader=LOADER))


def same_commands_and_keys(found, expected, target, place, text, empty):
    """Assert that an export with a hostile text is read as one with a plain text is."""
    where = f"{place} {text!r} in {target}"
    if target in ENGINES:
        mine, others = started(found, empty), started(expected, empty)
        assert [len(words) for words in mine] == [len(words) for words in others], where
        changed = {word for a, b in zip(mine, others, strict=True) for word, other in zip(a, b, strict=True) if word != other}  # fmt: skip
        assert changed <= {text}, where
        return
    documents, others = read(found), read(expected)
    if place != "scenario":  # its name is a part of keys, in letters and dashes
        assert keys(documents) == keys(others), where
    words = list(words_of(documents))
    in_pods = [as_a_pod_sees_it(word) for key, word in words if key in EXPANDED]
    assert "<HF_TOKEN>" not in "".join(in_pods), where
    if target == "compose":
        rest = [word.replace("$$", "") for _, word in words if word != "${HF_TOKEN:-}"]
        assert "$" not in "".join(rest), where


@pytest.mark.parametrize(
    "target", [name for name in TARGETS if name not in ("sglang", "trtllm", *LLAMACPP_TARGETS)]
)
@pytest.mark.parametrize("kind", ["one", "pools"])
def test_an_export_has_the_commands_and_keys_that_plain_names_have(plans, kind, target, tmp_path):
    plan, empty = plans[kind], tmp_path / "empty"
    empty.mkdir()
    plain = {"hardware": "h100-sxm", "model": {"revision": "main"}, "checkpoint": "owner/name", "image": "registry/name:tag"}  # fmt: skip
    answered, refused = 0, []
    if target == "keda" and kind == "pools":
        pytest.skip("separate pools are not scaled by one rate")
    usual = {}
    for place, hostile in asked("x"):
        try:
            usual[place] = exported(
                plan, target, tmp_path, **{key: plain[key] for key in hostile if key in plain}
            )
        except InputError:
            continue
    for text in HOSTILE:
        for place, hostile in asked(text):
            if place not in usual:
                continue
            expected = usual[place]
            try:
                found = exported(plan, target, tmp_path, **hostile)
            except InputError as refusal:
                refused.append(str(refusal))
                continue
            answered += 1
            same_commands_and_keys(found, expected, target, place, text, empty)
    assert answered > 10
    assert not any(letter in words for words in refused for letter in "\x1b\r\x00\u202e")


def test_a_hostile_name_of_a_gguf_file_stays_one_word():
    """In the command of llama-server, and in a Modelfile, of which it fills the rest of a line."""
    flags, answered = ServingFlags(max_model_len=4096, weight_dtype="q4_k_m", offline=True), 0
    for text in HOSTILE:
        for name in (text, f"{text}.gguf", f"owner/{text}-GGUF"):
            try:
                command, file = (exported_replica("llama-3.2-1b", "rtx-3090", flags, target, name) for target in LLAMACPP_TARGETS[:2])  # fmt: skip
            except InputError:
                continue
            words = shlex.split(command, comments=True)
            plain = shlex.split(exported_replica("llama-3.2-1b", "rtx-3090", flags, "llamacpp", name.replace(text, "plain")), comments=True)  # fmt: skip
            assert [word for word in words if word.startswith("--")] == [
                word for word in plain if word.startswith("--")
            ]
            assert len(words) == len(plain)
            assert [line.split()[0] for line in file.splitlines() if not line.startswith("#")] == [
                "FROM",
                "PARAMETER",
                "PARAMETER",
            ]
            answered += 1
    assert answered > 20


def test_a_variable_in_a_word_stays_the_text_that_it_is():
    for text in HOSTILE:
        (word,) = unexpanded([text])
        assert as_a_pod_sees_it(word) == text


def test_a_device_whose_name_has_a_line_end_is_refused(tmp_path, capplan):
    from capplan.readers.text_file import data_folder

    sound = (data_folder("hardware_specs") / "h100-sxm.yaml").read_text()
    body = re.sub(r"(?m)^name: .*$", "name: 'x\n\n  touch INJECTED #'", sound, count=1)
    (tmp_path / "device.yaml").write_text(body)
    error = capplan.refused("fit", "llama-3.1-8b", "--hardware", tmp_path / "device.yaml")
    assert "name" in error
    assert "one line of plain text" in error
