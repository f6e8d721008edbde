"""A plugin of vLLM that writes one line of JSON for each step of its scheduler; it runs in the process of the engine.

vLLM loads it by the entry point that `write_plugin` writes next to the log. It imports nothing of capplan. A line says what
happened: a request reached the scheduler, or a step was planned (which requests, how many tokens each, how many were computed
before, who was preempted), or its output arrived. Times are of the monotonic clock, in seconds.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

LOG = "CAPPLAN_STEP_LOG"
"""Environment variable with the path of the log."""

ASYNCHRONOUS = "CAPPLAN_ASYNCHRONOUS"
"""Environment variable that keeps asynchronous scheduling on."""

NO_CHAT = "CAPPLAN_NO_CHAT"
"""Environment variable of a server that answers completions only."""

LOOK_S = 5e-4
"""Of a step of 30 ms and more; it is in the times of the steps that are recorded."""

ENTRY_POINT = "[vllm.general_plugins]\ncapplan_recorder = recorder:register\n"
METADATA = "Metadata-Version: 2.1\nName: capplan-recorder\nVersion: 0\n"


def write_plugin(folder: Path) -> None:
    """Write what makes the recorder a plugin into a folder, which goes onto PYTHONPATH of the server."""
    about = folder / "capplan_recorder-0.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text(METADATA)
    (about / "entry_points.txt").write_text(ENTRY_POINT)
    (folder / "recorder.py").write_text(Path(__file__).read_text())


def planned(scheduler: Any, output: Any, start_s: float) -> dict[str, Any]:
    """Return the line of a planned step: by request, in the order of the engine, [id, tokens, tokens computed before]."""
    tokens = output.num_scheduled_tokens
    requests = scheduler.requests
    rows = [
        [name, count, int(requests[name].num_computed_tokens) - count]
        for name, count in tokens.items()
        if name in requests
    ]
    return {
        "at_s": start_s,
        "planned_s": time.monotonic() - start_s,
        "batch": rows,
        "preempted": sorted(output.preempted_req_ids or ()),
        "waiting": len(scheduler.waiting),
        "running": len(scheduler.running),
        "free_blocks": scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
    }


def added(request: Any) -> dict[str, Any]:
    """Return the line of a request that reaches the scheduler."""
    return {
        "added": request.request_id,
        "at_s": time.monotonic(),
        "prompt_tokens": len(request.prompt_token_ids),
        "output_tokens": request.max_tokens,
        "priority": request.priority,
    }


def finished(scheduler: Any, request: Any) -> dict[str, Any]:
    """Return the line of a request that leaves the scheduler, with the hashes of its blocks."""
    return {
        "finished": request.request_id,
        "tokens": request.num_tokens,
        "blocks": [value[:6].hex() for value in request.block_hashes],
        "prompt_blocks": request.num_prompt_tokens // scheduler.block_size,
    }


def keep_asynchronous() -> None:
    """Let vLLM plan a step before the output of the one before it is there, which it leaves out on processors."""
    from vllm.platforms.cpu import CpuPlatform  # type: ignore[import-not-found]

    check = CpuPlatform.check_and_update_config.__func__

    def checked(cls: Any, config: Any) -> None:
        check(cls, config)
        config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = classmethod(checked)


def wait_without_spinning() -> None:
    """Let the engine's processes sleep for half a millisecond between two looks at what the other one has written, where they look all the time.

    On two cores that are those of the worker and of client and HTTP server, a process that looks all the time takes a core that it has no use for.
    """
    from vllm.distributed.device_communicators import shm_broadcast  # type: ignore[import-not-found]

    shm_broadcast.sched_yield = lambda: time.sleep(LOOK_S)


def without_chat() -> None:
    """Let a server of gpt-oss start without the tokens of its chat format, which are downloaded; loads are completions."""
    from types import SimpleNamespace

    from vllm.entrypoints.openai.parser import harmony_utils  # type: ignore[import-not-found]

    none = SimpleNamespace(stop_tokens_for_assistant_actions=list)
    harmony_utils.get_encoding = lambda: none


def register() -> None:
    """Wrap four methods of the scheduler; vLLM calls this once in each of its processes."""
    path = os.environ.get(LOG)
    if not path:
        return
    if os.environ.get("VLLM_TARGET_DEVICE") == "cpu":
        wait_without_spinning()
    if os.environ.get(ASYNCHRONOUS):
        keep_asynchronous()
    if os.environ.get(NO_CHAT):
        without_chat()
    from vllm.v1.core.sched.scheduler import Scheduler  # type: ignore[import-not-found]

    if hasattr(Scheduler, "capplan_recorded"):
        return
    Scheduler.capplan_recorded = True
    log = Path(path).open("a", buffering=1)  # noqa: SIM115
    schedule, update, add = Scheduler.schedule, Scheduler.update_from_output, Scheduler.add_request
    free = Scheduler._free_request  # noqa: SLF001

    def write(line: dict[str, Any]) -> None:
        log.write(json.dumps(line) + "\n")

    def add_request(self: Any, request: Any) -> Any:
        write(added(request))
        return add(self, request)

    def free_request(self: Any, request: Any, *args: Any, **options: Any) -> Any:
        write(finished(self, request))
        return free(self, request, *args, **options)

    def schedule_step(self: Any, *args: Any, **options: Any) -> Any:
        start_s = time.monotonic()
        output = schedule(self, *args, **options)
        if output.num_scheduled_tokens or output.preempted_req_ids:
            write(planned(self, output, start_s))
        return output

    def update_from_output(self: Any, scheduled: Any, output: Any) -> Any:
        start_s = time.monotonic()
        result = update(self, scheduled, output)
        if scheduled.num_scheduled_tokens:
            write({"output_s": start_s, "updated_s": time.monotonic() - start_s})
        return result

    Scheduler.schedule = schedule_step
    Scheduler.update_from_output = update_from_output
    Scheduler.add_request = add_request
    Scheduler._free_request = free_request  # noqa: SLF001
