"""What the recorder wrote, as requests and steps; and the same in a small file, which tests read."""

import gzip
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request, in the order in which the scheduler received them."""

    from_step: int
    """First step that was planned after the scheduler had the request."""
    prompt_tokens: int
    output_tokens: int
    priority: int
    prompt_ids: tuple[int, ...] = ()
    """Full blocks of the prompt; equal ids stand for equal prefixes."""
    output_ids: tuple[int, ...] = ()
    """Full blocks that the response fills."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one step works on."""

    prompts: tuple[tuple[int, int, int], ...]
    """By number of the request: (request, tokens, tokens in the cache before)."""
    decodes: tuple[int, ...]
    """Requests that decode, by number."""
    preempted: tuple[int, ...]
    """Requests that were preempted when the step was planned, by number."""


@dataclass(frozen=True, slots=True)
class StepLog:
    """A recorded run: the limits of the engine, what was sent, what each step did."""

    limits: dict[str, Any]
    requests: tuple[LoggedRequest, ...]
    steps: tuple[Step, ...]


def read_log(lines: Iterable[str], limits: dict[str, Any]) -> StepLog:
    """Return the run that a recorder wrote."""
    rows = [json.loads(line) for line in lines]
    numbers = {row["added"]: place for place, row in enumerate(row for row in rows if "added" in row)}
    ended = {row["finished"]: row for row in rows if "finished" in row}
    ids: dict[str, int] = {}
    requests: list[LoggedRequest] = []
    steps: list[Step] = []
    prefills = _Prefills()
    for row in rows:
        if "added" in row:
            end = ended.get(row["added"], {"blocks": [], "prompt_blocks": 0, "tokens": 1})
            blocks = [ids.setdefault(block, len(ids)) for block in end["blocks"]]
            filled = (end["tokens"] - 1) // int(limits["block_tokens"])
            requests.append(
                LoggedRequest(
                    len(steps), row["prompt_tokens"], row["output_tokens"], row["priority"],
                    tuple(blocks[: end["prompt_blocks"]]), tuple(blocks[end["prompt_blocks"] : filled]),
                )
            )  # fmt: skip
            prefills.known[numbers[row["added"]]] = row["prompt_tokens"]
        elif "batch" in row:
            preempted = tuple(sorted(numbers[name] for name in row["preempted"]))
            prefills.preempt(preempted)
            batch = [(numbers[name], tokens, before) for name, tokens, before in row["batch"]]
            if batch:
                steps.append(prefills.step(batch, preempted))
    return StepLog(limits, tuple(requests), tuple(steps))


class _Prefills:
    """Tells prompts from decoding sequences."""

    def __init__(self) -> None:
        self.known: dict[int, int] = {}
        """Tokens of each request that its next prefill has to work on."""
        self._reached: dict[int, int] = {}
        self._decodes: set[int] = set()

    def preempt(self, requests: Iterable[int]) -> None:
        for request in requests:
            if request in self._decodes:
                self.known[request] = self._reached[request] + 1
                self._decodes.discard(request)

    def step(self, batch: list[tuple[int, int, int]], preempted: tuple[int, ...]) -> Step:
        prompts, decodes = [], []
        for request, tokens, before in batch:
            if request in self._decodes:
                decodes.append(request)
            else:
                prompts.append((request, tokens, before))
                if before + tokens >= self.known[request]:
                    self._decodes.add(request)
            self._reached[request] = before + tokens
        return Step(tuple(sorted(prompts)), tuple(sorted(decodes)), preempted)


def pack(log: StepLog) -> dict[str, Any]:
    """Return a run as small JSON: decoding requests are written only where they differ from the step before."""
    steps: list[list[Any]] = []
    before: tuple[int, ...] | None = None
    for step in log.steps:
        changed = step.decodes != before
        before = step.decodes
        row: list[Any] = [step.prompts, list(step.decodes) if changed else 0]
        steps.append([*row, step.preempted] if step.preempted else row)
    return {
        "limits": log.limits,
        "requests": [list(asdict(request).values()) for request in log.requests],
        "steps": steps,
    }


def unpack(data: dict[str, Any]) -> StepLog:
    """Return the run that `pack` wrote."""
    requests = tuple(
        LoggedRequest(from_step, prompt, output, priority, tuple(prompt_ids), tuple(output_ids))
        for from_step, prompt, output, priority, prompt_ids, output_ids in data["requests"]
    )
    steps: list[Step] = []
    decodes: tuple[int, ...] = ()
    for prompts, changed, *preempted in data["steps"]:
        decodes = decodes if changed == 0 else tuple(changed)
        steps.append(
            Step(tuple(tuple(row) for row in prompts), decodes, tuple(preempted[0]) if preempted else ())
        )
    return StepLog(data["limits"], requests, tuple(steps))


def write_packed(log: StepLog, path: Path) -> None:
    """Write a run as a compressed file, the same bytes for the same run."""
    path.write_bytes(gzip.compress(json.dumps(pack(log), separators=(",", ":")).encode(), mtime=0))


def read_packed(path: Path) -> StepLog:
    """Return the run of a compressed file."""
    return unpack(json.loads(gzip.decompress(path.read_bytes())))
