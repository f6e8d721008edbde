"""llama.cpp's server on this machine: its scheduler recorded and compared with the simulator.

    python -m calibrate.live.llamacpp ENVIRONMENT FOLDER [--pack TO]

At its highest verbosity the server prints what each batch holds: the token of every slot that decodes, and where each prompt is when
a piece of it is added.
"""

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from calibrate.live.llamacpp_log import ServerLog
from calibrate.live.model import write_model
from calibrate.live.scheduler_runs import SMALL, exchanged
from calibrate.live.server import HOST, Live, NoServerError, await_answer, launched
from calibrate.live.simulated_steps import agreement
from calibrate.live.step_logs import StepLog, write_packed

PORT = 8124
ALONE = (f"port={PORT}", f'hostnames=["{HOST}"]', "cpuparams.n_threads=1", "cpuparams_batch.n_threads=1")
"""One thread, so that the other core is free for client and HTTP server."""
SEPARATE = ("kv_unified=false", "cache_ram_mib=0")
"""Each slot has a cache of its own; none is copied to the memory of the host."""
TELLING = "verbosity=5"
CONTEXT = 1280
"""Tokens of a slot."""


@dataclass(frozen=True, slots=True)
class Slots:
    """Limits of the server and what is sent to it."""

    name: str
    slots: int = 16
    batch_tokens: int = 256
    caching: bool = False
    traffic: str = "poisson"

    fields: tuple[str, ...] = ()
    """Further fields of the server's parameters."""

    @property
    def words(self) -> list[str]:
        """Return all of them."""
        return [
            f"n_parallel={self.slots}", f"n_ctx={CONTEXT * self.slots}", f"n_batch={self.batch_tokens}",
            f"n_ubatch={min(self.batch_tokens, 512)}", f"cache_prompt={str(self.caching).lower()}", *self.fields,
        ]  # fmt: skip


SETTINGS = (
    Slots("slots-16"),
    Slots("slots-16-batch-64", batch_tokens=64),
    Slots("slots-16-batch-2048", batch_tokens=2048),
    Slots("slots-4", slots=4),
    Slots("slots-4-batch-2048", slots=4, batch_tokens=2048),
    Slots("slots-shared-prefix", slots=8, caching=True, traffic="shared"),
    Slots("slots-sessions", slots=16, caching=True, traffic="sessions"),
    Slots("slots-sessions-few", slots=6, caching=True, traffic="sessions"),
    Slots("slots-one-cache", slots=4, fields=("kv_unified=true",)),
    Slots("slots-copied", slots=6, caching=True, traffic="sessions", fields=("cache_ram_mib=8192",)),
)
"""The last two are what the server does by itself: one cache for all slots, and copies of slots in the memory of the host."""


@contextlib.contextmanager
def serving(
    environment: Path, model: Path, folder: Path, fields: Sequence[str], *, within_s: float = 60.0
) -> Iterator[Live]:
    """Yield llama.cpp's server with random weights; it ends with the block.

    Parameters
    ----------
    environment : folder of the virtual environment that has xllamacpp
    model : folder of its config
    folder : where the log goes
    fields : of the server's parameters, as `llamacpp_server` takes them
    within_s : [s]
        until it must answer
    """
    folder.mkdir(parents=True, exist_ok=True)
    live = Live(f"http://{HOST}:{PORT}", folder / "server.log", folder / "server.log")
    script = Path(__file__).with_name("llamacpp_server.py")
    words = [
        str(environment / "bin" / "python"),
        str(script),
        str(model / "weights.gguf"),
        *ALONE,
        *SEPARATE,
        *fields,
    ]
    with launched(words, os.environ, live.log) as process:
        await_answer(process, live, within_s)
        yield live


def record(setting: Slots, environment: Path, folder: Path) -> None:
    """Start the server, send the traffic, and keep its log and what was said."""
    model = write_model(folder / "model", SMALL)
    with serving(environment, model, folder / setting.name, [*setting.words, TELLING]) as live:
        sent = exchanged(setting.name, setting.traffic, live.url)
    spoken = [(question.prompt, [int(word[1:]) for word in answer.text.split()]) for question, answer in sent]
    (folder / f"{setting.name}.json").write_text(json.dumps(spoken) + "\n")
    shutil.copy(live.log, folder / f"{setting.name}.log")


def recorded(setting: Slots, folder: Path) -> StepLog:
    """Return the recorded run of a setting."""
    limits = {
        "policy": "slots",
        "max_num_seqs": setting.slots,
        "max_num_batched_tokens": setting.batch_tokens,
        "block_tokens": 1,
        "blocks": 0,
        "chunked": True,
        "caching": setting.caching,
        "asynchronous": False,
    }
    spoken = json.loads((folder / f"{setting.name}.json").read_text()) if setting.caching else ()
    with (folder / f"{setting.name}.log").open(errors="replace") as lines:
        return ServerLog(lines).step_log(limits, spoken)


def main(arguments: list[str]) -> int:
    """Record each setting, and print how many of its steps the simulator takes."""
    environment, folder = map(Path, arguments[:2])
    for setting in SETTINGS:
        try:
            record(setting, environment, folder)
        except NoServerError as problem:
            print(f"{setting.name}: {problem}", file=sys.stderr)
            return 1
    print(f"{'setting':22} {'requests':>8} {'steps':>6} {'equal':>6} {'as vLLM':>8}  first difference")
    for setting in SETTINGS:
        log = recorded(setting, folder)
        result, in_order = agreement(log), agreement(replace(log, limits={**log.limits, "policy": "mixed"}))
        print(
            f"{setting.name:22} {len(log.requests):8} {result.steps:6} {result.equal:6} {in_order.equal:8}  "
            f"{'none' if result.exact else result.first}"
        )
        if "--pack" in arguments:
            write_packed(log, Path(arguments[arguments.index("--pack") + 1]) / f"{setting.name}.json.gz")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
