"""Collectives between ranks of this machine: what one rank cannot do ends all of them with a message."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
START = """
import sys
from capplan.calibrate import collectives
from capplan.calibrate.machine import opened
from capplan.errors import InputError
group, target = collectives.group_of_environment(), opened("cpu")
collectives.CPU_SIZES, collectives.REPEATS, collectives.TIMEOUT_S = (1024.0, 65536.0), 3, 10.0
"""
END = """
try:
    rows = collectives.collective_times(group, target, quick=False, tell=print)
    print("measured", sorted({m.operator for m in rows}), {m.library for m in rows}, flush=True)
except InputError as error:
    print("ended", error, flush=True)
    sys.exit(2)
"""


def ranks(tmp_path, middle):
    """Run two ranks of a script; return their exit code and what they print."""
    script = tmp_path / "ranks.py"
    script.write_text(START + middle + END)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(script),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, env=environment, check=False
    )
    return done.returncode, done.stdout


def test_a_collective_that_one_rank_lacks_is_skipped_by_all_and_the_rest_is_measured(tmp_path):
    code, out = ranks(
        tmp_path,
        "real = collectives._call\n"
        "def broken(operator, *words):\n"
        "    if operator == 'all_gather' and group.rank == 1: raise RuntimeError('no such kernel')\n"
        "    return real(operator, *words)\n"
        "collectives._call = broken\n",
    )
    assert code == 0, out
    assert "all_gather is skipped: rank 1: no such kernel" in out
    assert out.count("'all_reduce'") == 2
    assert "'all_gather'" not in out
    assert "{'gloo'}" in out


def test_a_rank_that_dies_ends_the_others_with_a_line(tmp_path):
    code, out = ranks(
        tmp_path,
        "import os\n"
        "real = collectives._call\n"
        "def dying(operator, *words):\n"
        "    if operator == 'reduce_scatter' and group.rank == 1: os._exit(0)\n"
        "    return real(operator, *words)\n"
        "collectives._call = dying\n",
    )
    assert code != 0
    assert "ended rank 0 of 2: the collectives ended" in out
    assert "Traceback" not in out
