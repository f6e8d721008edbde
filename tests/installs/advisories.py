"""The tested versions against a file of advisories that a person brings, where the registry of pip-audit cannot be asked.

    python -m tests.installs.advisories FILE

FILE has records of the OSV format (https://ossf.github.io/osv-schema/): one JSON object, a list of them, or one a line.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from tests.installs.environment import CONSTRAINTS

_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\\\]+)", re.MULTILINE)


def pinned() -> dict[str, set[str]]:
    """Return the versions of each package in constraints/."""
    found: dict[str, set[str]] = {}
    for path in CONSTRAINTS.glob("*.txt"):
        for name, version in _PIN.findall(path.read_text(encoding="utf-8")):
            found.setdefault(canonicalize_name(name), set()).add(version)
    return found


def records(text: str) -> list[Mapping[str, Any]]:
    """Return the advisories of a file."""
    try:
        whole = json.loads(text)
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    return whole if isinstance(whole, list) else [whole]


def is_affected(version: str, affected: Mapping[str, Any]) -> bool:
    """Return whether a version is listed, or lies in a range that was introduced and not yet fixed; one that cannot be compared counts as affected."""
    if version in affected.get("versions", ()):
        return True
    for span in affected.get("ranges", ()):
        if span.get("type") != "ECOSYSTEM":
            continue
        inside = False
        try:
            for event in span.get("events", ()):
                if "introduced" in event and Version(event["introduced"]) <= Version(version):
                    inside = True
                if "fixed" in event and Version(event["fixed"]) <= Version(version):
                    inside = False
                if "last_affected" in event and Version(event["last_affected"]) < Version(version):
                    inside = False
        except InvalidVersion:
            inside = True
        if inside:
            return True
    return False


def findings(advisories: list[Mapping[str, Any]], versions: Mapping[str, set[str]]) -> Iterator[str]:
    """Yield a line for each version that an advisory names; one that was withdrawn names none."""
    for advisory in advisories:
        for affected in () if advisory.get("withdrawn") else advisory.get("affected", ()):
            package = affected.get("package", {})
            name = canonicalize_name(str(package.get("name")))
            for version in sorted(versions.get(name, ())) if package.get("ecosystem") == "PyPI" else ():
                if is_affected(version, affected):
                    yield f"{name} {version}: {advisory.get('id')}: {advisory.get('summary', '')}".rstrip(
                        ": "
                    )


def main() -> int:
    """Print what the file says of the tested versions; 1 where it says something."""
    advisories, versions = records(Path(sys.argv[1]).read_text(encoding="utf-8")), pinned()
    found = sorted(set(findings(advisories, versions)))
    print(
        "\n".join(found)
        or f"none of {len(advisories)} advisories names one of {len(versions)} packages in its tested version"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
