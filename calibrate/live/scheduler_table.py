"""Compare recorded runs with the simulator: `python -m calibrate.live.scheduler_table FOLDER [--pack TO]`."""

import sys
from pathlib import Path

from calibrate.live.scheduler_runs import SETTINGS, Setting
from calibrate.live.simulated_steps import agreement, simulated
from calibrate.live.step_logs import StepLog, read_log, write_packed


def limits(setting: Setting) -> dict[str, object]:
    """Return what the simulator has to know of a setting."""
    return {
        "max_num_seqs": setting.max_num_seqs,
        "max_num_batched_tokens": setting.max_num_batched_tokens,
        "block_tokens": setting.block_tokens,
        "blocks": setting.blocks,
        "chunked": setting.chunked,
        "caching": setting.caching,
        "asynchronous": setting.asynchronous,
    }


def recorded(setting: Setting, folder: Path) -> StepLog:
    """Return the recorded run of a setting."""
    with (folder / f"{setting.name}.jsonl").open() as lines:
        return read_log(lines, limits(setting))


def main(arguments: list[str]) -> int:
    """Print one line a setting; with a name after --show, the steps around its first difference."""
    folder = Path(arguments[0])
    print(
        f"{'setting':20} {'requests':>8} {'steps':>6} {'prompts':>7} {'preempted':>9} {'equal':>6}  first difference"
    )
    for setting in SETTINGS:
        if not (folder / f"{setting.name}.jsonl").exists():
            continue
        log = recorded(setting, folder)
        result = agreement(log)
        gone = sum(len(step.preempted) for step in log.steps)
        prompts = sum(bool(step.prompts) for step in log.steps)
        print(
            f"{setting.name:20} {len(log.requests):8} {result.steps:6} {prompts:7} {gone:9} {result.equal:6}  "
            f"{'none' if result.exact else result.first}"
        )
        if "--show" in arguments and setting.name in arguments and result.first is not None:
            ours = simulated(log)
            for place in range(max(result.first - 2, 0), result.first + 3):
                print("  ", place, "engine   ", log.steps[place])
                print("  ", place, "simulator", ours[place])
        if "--pack" in arguments:
            to = Path(arguments[arguments.index("--pack") + 1])
            write_packed(log, to / f"{setting.name}.json.gz")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
