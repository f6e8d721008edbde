"""Collectives between ranks of this machine: what one rank cannot do ends all of them with a message."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
START = """
import os
import sys
from capplan.calibrate import collectives
from capplan.calibrate.machine import opened
from capplan.errors import InputError
import torch.distributed
child = os.fork()
os.environ["RANK"] = os.environ["LOCAL_RANK"] = "0" if child else "1"
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
if child:
    os.waitpid(child, 0)
"""


def ranks(middle):
    """Run a script that becomes two ranks; return the exit code of rank 0 and what both print."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", START + middle + END],
        cwd=ROOT, capture_output=True, text=True, timeout=120, env=environment, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


@pytest.mark.long
def test_a_collective_that_one_rank_lacks_is_skipped_by_all_and_the_rest_is_measured():
    code, out = ranks(
        "real = collectives._call\n"
        "def broken(operator, *words):\n"
        "    if operator == 'all_gather' and group.rank == 1: raise RuntimeError('no such kernel')\n"
        "    return real(operator, *words)\n"
        "collectives._call = broken\n"
    )
    assert code == 0, out
    assert "all_gather is skipped: rank 1: no such kernel" in out
    assert out.count("'all_reduce'") == 2
    assert "'all_gather'" not in out
    assert "{'gloo'}" in out


@pytest.mark.long
def test_a_rank_that_dies_ends_the_others_with_a_line():
    code, out = ranks(
        "import os\n"
        "real = collectives._call\n"
        "def dying(operator, *words):\n"
        "    if operator == 'reduce_scatter' and group.rank == 1: os._exit(0)\n"
        "    return real(operator, *words)\n"
        "collectives._call = dying\n"
    )
    assert code != 0
    assert "ended rank 0 of 2: the collectives ended" in out
    assert "Traceback" not in out
