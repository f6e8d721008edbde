"""List what a release of an engine has that the catalogue lacks: versions, model types, classes of models, options.

python -m docs.generators.engine_gaps vllm site-packages/vllm
python -m docs.generators.engine_gaps sglang sglang-0.5.23-cp311-cp311-manylinux_2_34_x86_64.whl
python -m docs.generators.engine_gaps trtllm TensorRT-LLM

The second argument is the installed package, a folder of its source, or the wheel that `pip download --no-deps` fetches (the package index has
none of TensorRT-LLM, whose options are in the reference of its tests). Its source is searched, never run. A class is known by its type in transformers (`.[oracle]`), or by its name.
"""

import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import yaml

from capplan.deploy.replica_launch import engine_flags
from capplan.engine.lookup import version_key
from capplan.engine.versions import RELEASES
from capplan.families.registry import REFUSED, families

PACKAGES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm"}
"""Engine -> its package."""
_OPTION_FILES = re.compile(r"arg_utils\.py|server_args\.py|arg_groups/fields/\w+\.py|cli_args\.py")
_OPTIONS_OF_TRTLLM = "trtllm_serve_cli.yaml"
"""Every option of every command of `trtllm-serve`, as its tests compare it (tests/unittest/api_stability/references/)."""
_NO_LANGUAGE_MODEL = "multimodal_gen/"
"""Folder of SGLang's server of diffusion models."""
_OPTION = re.compile(r"""["'](--[a-z][a-z0-9_-]+)["']""")
_FIELD = re.compile(r"^    ([a-z]\w+): A\[(?!bool, Arg\(no_cli=True\)\])", re.MULTILINE)
"""Fields of SGLang's arguments, each of which is an option."""
_MODEL_TYPE = re.compile(r"""model_type\b[^=\n]*=\s*["']([\w.-]+)["']""")


_CLASS_FILES = re.compile(r"models/registry\.py|_arch_index\.py")
_CLASS = re.compile(
    r"""["'](\w+For(?:CausalLM|ConditionalGeneration|SequenceClassification|TextEmbedding)|\w+LMHeadModel)["']"""
)
_ENTRY = re.compile(r"^EntryClass = (\[[^\]]*\]|\w+)", re.MULTILINE)
"""Classes that a file of SGLang serves."""
_DRAFTS = re.compile(r"eagle|mtp|draft|dflash|medusa|dspark|nextn", re.IGNORECASE)
_HEAD = re.compile(r"(Sparse)?(For\w+|LMHeadModel|ChatModel|Chat)$")


def sources(package: Path) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of every Python file of a folder or a wheel, and of the list of TensorRT-LLM's options."""
    if package.is_dir():
        for path in sorted([*package.rglob("*.py"), *package.rglob(_OPTIONS_OF_TRTLLM)]):
            if _NO_LANGUAGE_MODEL in path.as_posix():
                continue
            yield str(path.relative_to(package)), path.read_text(encoding="utf-8", errors="ignore")
        return
    with zipfile.ZipFile(package) as wheel:
        for name in sorted(wheel.namelist()):
            if name.endswith(".py") and _NO_LANGUAGE_MODEL not in name:
                yield name, wheel.read(name).decode(errors="ignore")


def found(files: Iterable[tuple[str, str]]) -> tuple[set[str], set[str]]:
    """Return the model types that configuration classes state, and the options of the server.

    Examples
    --------
    >>> found([("configs/flash.py", 'model_type = "flash_9"'), ("engine/arg_utils.py", 'add("--fast")'), ("x.py", 'add("--slow")')])
    ({'flash_9'}, {'--fast'})
    >>> found([("references/trtllm_serve_cli.yaml", "commands: {serve: {options: {a: {flags: [--a]}}}, other: {options: {b: {flags: [--b]}}}}")])
    (set(), {'--a'})
    """
    types: set[str] = set()
    options: set[str] = set()
    for path, text in files:
        if "/configs/" in f"/{path}":
            types.update(_MODEL_TYPE.findall(text))
        if _OPTION_FILES.search(path):
            options.update(_OPTION.findall(text))
        if path.endswith(_OPTIONS_OF_TRTLLM):
            of_server = yaml.safe_load(text)["commands"]["serve"]["options"]
            options.update(name for option in of_server.values() for name in option["flags"])
        if "arg_groups/fields/" in path:
            options.update(f"--{name.replace('_', '-')}" for name in _FIELD.findall(text))
    return types, options


def served(files: Iterable[tuple[str, str]]) -> set[str]:
    """Return the classes of models that an engine serves, drafts left out.

    Examples
    --------
    >>> files = [("models/registry.py", '"NewForCausalLM": ("new", "NewForCausalLM"), "EagleNewForCausalLM": 1'), ("models/old.py", "EntryClass = [OldModel]")]
    >>> sorted(served(files))
    ['NewForCausalLM', 'OldModel']
    """
    names: set[str] = set()
    for path, text in files:
        if _CLASS_FILES.search(path):
            names.update(_CLASS.findall(text))
        if "models/" in path:
            names.update(name for entry in _ENTRY.findall(text) for name in re.findall(r"\w+", entry))
    return {name for name in names if not _DRAFTS.search(name)}


def is_read(name: str) -> bool:
    """Return whether a file of that class is read or rejected with a reason, by its type in transformers or by its name.

    Examples
    --------
    >>> is_read("LlamaForCausalLM"), is_read("BaichuanForCausalLM"), is_read("NewestForCausalLM")
    (True, True, False)
    """
    known = set(families()) | set(REFUSED)
    plain = {kind.replace("_", "").replace("-", "").lower() for kind in known}
    return _types_of_classes().get(name, "") in known or _HEAD.sub("", name).replace("_", "").lower() in plain


@cache
def _types_of_classes() -> dict[str, str]:
    """Return the type of every class that transformers maps; nothing where it is not installed."""
    try:
        from transformers.models.auto import modeling_auto as auto
    except ImportError:
        return {}
    of_class: dict[str, str] = {}
    tables = (value for key, value in vars(auto).items() if key.endswith("_MAPPING_NAMES"))
    for table in tables:
        for kind, names in table.items():
            of_class.update(dict.fromkeys(names if isinstance(names, (tuple, list)) else (names,), kind))
    return of_class


def newer_versions(engine: str) -> list[str]:
    """Return the versions on the package index that are newer than the newest known one."""
    command = [sys.executable, "-m", "pip", "index", "versions", "--pre", PACKAGES[engine]]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603 - fixed words
    listed = re.search(r"Available versions: (.*)", answer)
    newest = max(version_key(version) or (0, 0, 0) for _, version in RELEASES[engine])
    versions = listed[1].split(", ") if listed else []
    return [version for version in versions if (version_key(version) or newest) > newest]


def known_options(engine: str) -> set[str]:
    """Return every option of an engine that the catalogue reads, refuses or passes over."""
    table = engine_flags(engine)
    named = {name for flag in table.flags.values() for name in flag.names}
    return named | set(table.refused) | set(table.assumed) | set(table.harmless) | set(table.aliases)


def main() -> int:
    """Print the three lists."""
    engine, package = sys.argv[1], Path(sys.argv[2])
    files = list(sources(package))
    types, options = found(files)
    lists = {
        "versions": newer_versions(engine),
        "model types": sorted(types - set(families()) - set(REFUSED)),
        "classes": sorted(name for name in served(files) if not is_read(name)),
        "options": sorted(options - known_options(engine)),
    }
    for what, names in lists.items():
        print(f"{len(names)} {what} of {engine} are not in the catalogue")
        print(*(f"  {name}" for name in names), sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
