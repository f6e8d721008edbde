"""Files are opened in one place, which has the limits: what else opens one writes it, or reads what the package itself ships."""

import ast

from tests.rules.test_rooms import FILES, ROOT

OPENS = {
    "open", "fdopen", "read_text", "read_bytes", "read_csv", "read_json", "read_parquet", "read_pickle", "load", "safe_load",
    "loadtxt", "genfromtxt", "fromfile", "memmap", "GzipFile", "ZipFile", "TarFile", "mmap", "write_text", "write_bytes",
}  # fmt: skip
ALLOWED = {
    "capplan/readers/text_file.py": {"open", "mmap"},
    "capplan/readers/point_file.py": {"open"},  # appends to the file
    "capplan/readers/catalogue/models.py": {"write_bytes"},  # what the hub sent, into its cache
    "capplan/recorded/traces/rows.py": {"loadtxt"},  # of lines that were read
    "capplan/accuracy/kernels.py": {"read_bytes"},  # that a kernel moves
    "capplan/report/show.py": {"open", "fdopen"},
    "capplan/review/page.py": {"ZipFile"},  # packs tables, in memory
    "capplan/cli/api/declared.py": {"write_bytes"},  # the files of a request, into its own folder
    "capplan/cli/api/jobs.py": {"read_text"},  # what a worker printed
    "capplan/cli/api/worker.py": {"open", "fdopen"},  # where it prints
    "capplan/cli/commands.py": {
        "read_text"
    },  # commands.json beside it, so that a start imports no other room
    "capplan/cli/mcp.py": {"open"},  # /dev/null, in the place of stdin and stdout
    "capplan/cli/main.py": {"open", "read_text"},  # /dev/null, and what the build left beside the core
    "capplan/engine/lookup.py": {"read_text"},  # host_times.json beside it
    "capplan/families/inert.py": {"read_text"},  # the data files beside it
    "capplan/replica/speculation.py": {"read_text"},  # measured_pairs.json beside it
}
OURS = {"read_text", "read_json"}
"""Functions of capplan.readers; those of paths and of pandas are called on something."""


def opened(path):
    """Yield the name and the line of every call in a file that opens one."""
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)) if any(name in text for name in OPENS) else ():
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in OPENS and not (name in OURS and isinstance(node.func, ast.Name)):
            yield name, node.lineno


def test_every_file_is_opened_by_the_one_reader():
    found = {str(path.relative_to(ROOT)): list(opened(path)) for path in FILES}
    wrong = [
        f"{file}:{line}: {name}; read with capplan.readers.text_file"
        for file, calls in found.items()
        for name, line in calls
        if name not in ALLOWED.get(file, ())
    ]
    assert wrong == []
    assert {file: {name for name, _ in found[file]} for file in ALLOWED} == ALLOWED
