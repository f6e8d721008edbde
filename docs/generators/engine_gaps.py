"""List what a release of an engine has that the catalogue lacks: versions, model types, options.

python -m docs.generators.engine_gaps vllm site-packages/vllm
python -m docs.generators.engine_gaps sglang sglang-0.5.23-cp311-cp311-manylinux_2_34_x86_64.whl

The second argument is the installed package, or the wheel that `pip download --no-deps` fetches. Its source is searched, never run.
"""

import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from capplan.deploy.flag_table import engine_flags
from capplan.engine.lookup import version_key
from capplan.engine.versions import RELEASES
from capplan.families.registry import REFUSED, families

PACKAGES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm"}
"""Engine -> its package."""
_OPTION_FILES = re.compile(
    r"arg_utils\.py|server_args\.py|arg_groups/fields/\w+\.py|cli_args\.py|commands/serve\.py"
)
_OPTION = re.compile(r"""["'](--[a-z][a-z0-9_-]+)["']""")
_FIELD = re.compile(r"^    ([a-z]\w+): A\[(?!bool, Arg\(no_cli=True\)\])", re.MULTILINE)
"""Fields of SGLang's arguments, each of which is an option."""
_MODEL_TYPE = re.compile(r"""model_type\b[^=\n]*=\s*["']([\w.-]+)["']""")


def sources(package: Path) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of every Python file of a folder or a wheel."""
    if package.is_dir():
        for path in sorted(package.rglob("*.py")):
            yield str(path.relative_to(package)), path.read_text(encoding="utf-8", errors="ignore")
        return
    with zipfile.ZipFile(package) as wheel:
        for name in sorted(wheel.namelist()):
            if name.endswith(".py"):
                yield name, wheel.read(name).decode(errors="ignore")


def found(files: Iterable[tuple[str, str]]) -> tuple[set[str], set[str]]:
    """Return the model types that configuration classes state, and the options of the server.

    Examples
    --------
    >>> found([("configs/flash.py", 'model_type = "flash_9"'), ("engine/arg_utils.py", 'add("--fast")'), ("x.py", 'add("--slow")')])
    ({'flash_9'}, {'--fast'})
    """
    types: set[str] = set()
    options: set[str] = set()
    for path, text in files:
        if "/configs/" in f"/{path}":
            types.update(_MODEL_TYPE.findall(text))
        if _OPTION_FILES.search(path):
            options.update(_OPTION.findall(text))
        if "arg_groups/fields/" in path:
            options.update(f"--{name.replace('_', '-')}" for name in _FIELD.findall(text))
    return types, options


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
    return named | set(table.refused) | set(table.harmless)


def main() -> int:
    """Print the three lists."""
    engine, package = sys.argv[1], Path(sys.argv[2])
    types, options = found(sources(package))
    lists = {
        "versions": newer_versions(engine),
        "model types": sorted(types - set(families()) - set(REFUSED)),
        "options": sorted(options - known_options(engine)),
    }
    for what, names in lists.items():
        print(f"{len(names)} {what} of {engine} are not in the catalogue")
        print(*(f"  {name}" for name in names), sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
