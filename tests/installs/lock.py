"""Write constraints/plan.txt, serve.txt, test.txt and docs.txt: the versions of everything that is installed, with hashes of all their files.

    python -m tests.installs.lock

They hold for every Python and platform that pyproject.toml allows. torch stays out: its builds differ by platform, and each index has
others; the extra `test` pins its version.
"""

import sys

from tests.installs.environment import CONSTRAINTS, declared, empty

BUILD = ("editables>=0.5",)
"""What an editable installation needs without an environment of its own."""
OF_TORCH = ("filelock", "typing-extensions", "sympy", "networkx", "jinja2", "fsspec", "setuptools")
"""What torch needs besides: with them at hand its installation brings nothing that was not tested."""
HEAD = "# Written by python -m tests.installs.lock; make plan, make test and make docs install these versions and no others.\n"


def main() -> int:
    """Write the files; each one pins what the files before it pin."""
    wanted = {
        "plan.txt": [*declared(), *BUILD],
        "serve.txt": [*declared("serve"), *BUILD],
        "test.txt": [*declared("test", "lint"), *BUILD, *OF_TORCH],
        "docs.txt": [*declared("docs"), *BUILD],
    }
    CONSTRAINTS.mkdir(exist_ok=True)
    with empty() as environment:
        environment.install("uv")
        for name, lines in wanted.items():
            asked, written = environment.folder / f"{name}.in", CONSTRAINTS / name
            before = [CONSTRAINTS / each for each in list(wanted)[: list(wanted).index(name)]]
            lines_before = [line for known in before for line in known.read_text().splitlines()]
            pins = dict.fromkeys(line.split(" \\")[0] for line in lines_before if "==" in line)
            (environment.folder / "pins").write_text("\n".join(pins))
            asked.write_text("\n".join(lines))
            command = ["-m", "uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11"]
            how = ["--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url"]
            pinned = ["--constraints", str(environment.folder / "pins"), "--upgrade"]
            environment.run(*command, *how, *pinned, str(asked), "-o", str(written))
            written.write_text(HEAD + written.read_text())
            print(f"{written}: {sum('==' in line for line in written.read_text().splitlines())} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
