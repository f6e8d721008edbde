"""The commands: `commands.json` has the name of each, its file, the line that `capplan --help` shows for it, and a line that runs.

A command is one function that returns the exit code, in the file of its subject: `kv-size` is `kv_size_command` in models.py. A new
command is that function and an entry of the table; nothing is imported before the command is called.
"""

import json
from pathlib import Path

_TABLE = json.loads(Path(__file__).with_name("commands.json").read_text(encoding="utf-8"))
COMMANDS: dict[str, str] = {name: row["says"] for name, row in _TABLE.items()}
FUNCTIONS = {name: f"{row['file']}.{name.replace('-', '_')}_command" for name, row in _TABLE.items()}
"""Name of a command -> file of this folder, and its function there."""
EXAMPLES: dict[str, str] = {name: row["example"] for name, row in _TABLE.items()}
"""A line that runs, for the help of each command; docs/commands/ has the same."""

DROPPED = {
    "spec --draft-weight-dtype": "the draft is stored as its config says; write the draft that is published in that format, or --draft-step-time",
    "sweep --plans": "the best plan of each device is swept; write --hardware and -tp for other plans",
    "sweep --slo": "write a scenario with these targets under slo, and sweep it",
    "workload --lognormal": "quantiles are written; write mean and p95 in their place",
}
"""Option that there is no more, after its command -> what to write instead."""
