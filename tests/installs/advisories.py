"""The tested versions against what pip-audit knows, or against a file of advisories that a person brings where the registry of pip-audit cannot be asked.

    python -m tests.installs.advisories [FILE]

FILE has records of the OSV format (https://ossf.github.io/osv-schema/): one JSON object, a list of them, or one a line.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from tests.installs.environment import CONSTRAINTS, empty

PIP_AUDIT = "pip-audit==2.10.1"
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


def audited() -> tuple[list[str], int]:
    """Return what pip-audit knows of the tested versions, a line each, and of how many packages its registry knows nothing."""
    words = ["--require-hashes", "--disable-pip", "--progress-spinner", "off", "--format", "json"]
    for path in sorted(CONSTRAINTS.glob("*.txt")):
        words += ["--requirement", str(path)]
    with empty() as environment:
        environment.install(PIP_AUDIT)
        command = [str(environment.python), "-m", "pip_audit", *words]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if not answer.stdout.strip():
        raise SystemExit(f"pip-audit gave no answer\n{answer.stderr[-2000:]}")
    return judged(json.loads(answer.stdout))


def judged(answer: Mapping[str, Any]) -> tuple[list[str], int]:
    """Return a line for each vulnerability in an answer of pip-audit, and how many packages it left out."""
    found = {
        f"{package['name']} {package['version']}: {advisory['id']}"
        for package in answer["dependencies"]
        for advisory in package.get("vulns", ())
    }
    return sorted(found), len(
        {package["name"] for package in answer["dependencies"] if "skip_reason" in package}
    )


def summary(found: list[str], left_out: int) -> str:
    """Return what pip-audit said in a sentence."""
    known = len(pinned()) - left_out
    return f"{len(found)} known vulnerabilities in the {known} of {len(pinned())} packages that its registry knows"


def main() -> int:
    """Print what pip-audit or the file says of the tested versions; 1 if it says something, or if pip-audit could not ask about all."""
    if len(sys.argv) == 1:
        found, left_out = audited()
        print("\n".join([*found, f"pip-audit: {summary(found, left_out)}"]))
        return 1 if found or left_out else 0
    advisories, versions = records(Path(sys.argv[1]).read_text(encoding="utf-8")), pinned()
    found = sorted(set(findings(advisories, versions)))
    print(
        "\n".join(found)
        or f"none of {len(advisories)} advisories names one of {len(versions)} packages in its tested version"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
