"""A build twice, of a clean copy in an empty environment: the same bytes, an SBOM, what auditors know of the tested versions.

    python -m tests.installs.built [--keep dist]

`SOURCE_DATE_EPOCH` is the date of the last commit. The compiled core is built with the compiler at hand, twice, and without it.
"""

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import capplan
from tests.installs import advisories
from tests.installs.environment import CONSTRAINTS, ROOT, Environment, empty, project, record


def copied(folder: Path) -> Path:
    """Return a copy of the committed tree."""
    folder.mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)
    return folder


def commit_date() -> str:
    """Return when the last commit was made, in seconds since 1970."""
    words = ["git", "log", "-1", "--format=%ct"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def digests(environment: Environment, tree: Path, out: Path, env: dict[str, str]) -> dict[str, str]:
    """Build sdist and wheel of a tree, and return the digest of each file."""
    environment.run("-m", "hatchling", "build", "-d", str(out), cwd=tree, env=env)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(out.iterdir())}


def components(environment: Environment) -> list[dict[str, str]]:
    """Return what the program runs with, as components of an SBOM."""
    own = {"pip", "setuptools", project()["project"]["name"]}
    found = environment.versions()
    return [
        {"type": "library", "name": name, "version": version, "purl": f"pkg:pypi/{name}@{version}"}
        for name, version in sorted(found.items())
        if name not in own
    ]


def bill(environment: Environment, wheel: Path) -> str:
    """Return the SBOM of an installed wheel: CycloneDX 1.5, which the same build writes in the same bytes."""
    about = project()["project"]
    root = {
        "type": "application",
        "name": about["name"],
        "version": capplan.__version__,
        "licenses": [{"license": {"id": about["license"]}}],
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}],
    }
    sbom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": root},
        "components": components(environment),
    }
    return json.dumps(sbom, indent=1) + "\n"


def faults_of_release(version: str, changes: str, tags: list[str]) -> list[str]:
    """Return why a commit is no release of a version; empty if it may be one.

    Parameters
    ----------
    version : of the package
    changes : text of the changelog
    tags : of the commit
    """
    faults = []
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changes, re.MULTILINE):
        faults.append(f"CHANGELOG.md has no release {version} with its date")
    faults += [
        f"the tag {tag} is not v{version}" for tag in tags if tag.startswith("v") and tag != f"v{version}"
    ]
    return faults


def main() -> int:
    """Build twice, compare, install the wheel where nothing else is, and keep the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keep", type=Path, help="folder for the wheel, the sdist and the SBOM")
    asked = parser.parse_args()
    tags = subprocess.run(["git", "tag", "--points-at", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()  # fmt: skip
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    faults = faults_of_release(capplan.__version__, changes, tags) if asked.keep else []
    if faults:
        print("\n".join(faults), file=sys.stderr)
        return 1
    figures: dict[str, object] = {}
    with empty() as builder, tempfile.TemporaryDirectory() as name:
        builder.install("--require-hashes", "--requirement", str(CONSTRAINTS / "plan.txt"))
        built: dict[str, list[dict[str, str]]] = {}
        for how, extra in (("compiled", {}), ("pure", {"CAPPLAN_PURE": "1"})):
            for turn in ("a", "b"):
                env = {"SOURCE_DATE_EPOCH": commit_date(), "TZ": "Asia/Tokyo" if turn == "b" else "UTC", **extra}  # fmt: skip
                tree = copied(Path(name) / f"{how}-{turn}")
                out = Path(name) / f"{how}-{turn}-out"
                built.setdefault(how, []).append(digests(builder, tree, out, env))
        same = {how: first == second for how, (first, second) in built.items()}
        wheel = next((Path(name) / "compiled-a-out").glob("*.whl"))
        with empty() as bare:
            bare.install("--require-hashes", "--requirement", str(CONSTRAINTS / "plan.txt"))
            bare.install("--no-deps", str(wheel))
            bare.run("-P", "-m", "capplan", "kv-size", "llama-3.1-8b", cwd=Path(name))
            sbom = bill(bare, wheel)
        if asked.keep:
            for how in built:
                shutil.copytree(Path(name) / f"{how}-a-out", asked.keep, dirs_exist_ok=True)
            (asked.keep / f"{wheel.stem}.cdx.json").write_text(sbom, encoding="utf-8")
    figures |= {"audit": advisories.summary(*advisories.audited())}
    figures |= {"same bytes": same, "components": len(json.loads(sbom)["components"])}
    record("build", "twice", figures)
    print(json.dumps(figures, indent=1))
    return 0 if all(same.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
