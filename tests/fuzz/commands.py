"""Command lines with small faults, run: an answer that agrees with itself, or one clear refusal.

    python -m tests.fuzz.commands --seconds 600 --seed 1 [--kind estimate]

Of an answer: strict JSON of finite numbers, no time, rate or cost below zero and no latency or price of zero, an exit code that agrees
with what is said, and the same numbers in CSV as in JSON. Of a refusal: nothing on stdout, a line on stderr.
"""

import csv
import io
import json
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import yaml

from capplan.cli.main import main as capplan
from capplan.scenario.scenario import read_scenario
from docs.generators.scenario_keys import example, keys_of
from tests.fuzz.readers import CONFIG, NAMED, SCENARIO, faulty, sealed
from tests.fuzz.turns import asked_until_time_is_over

CASES = 400
"""Of one command and seed, at most."""
TURN_S = 2.0
"""Processor time of one command and seed, at most."""
LONGEST_S = 20.0
"""That one command may take."""
LONGEST_LINE = 2000
REFUSED = 2
FILES = (
    "config.json", "hardware.yaml", "c.calibration.yaml", "model.gguf", "scenario.yaml", "money.yaml", "table.csv", "scrape.txt", "log.jsonl",
    "tokens.yaml", "litellm.json", "plan.json", "results.json",
)  # fmt: skip
"""Files with faults that stand in a command line by their name."""

SOUND = ("sound.json", "sound.yaml", "sound-plan.json", "sound-result.json")
RESULT = {
    "backend": "vllm", "num_prompts": 20, "completed": 20, "duration": 10.0, "total_input_tokens": 8000, "total_output_tokens": 1200,
    "request_rate": 2.0, "mean_ttft_ms": 60.0, "p95_ttft_ms": 90.0, "mean_tpot_ms": 20.0,
}  # fmt: skip
DEVICES = ("l4", "h100-sxm", "mi300x", "cpu", "hardware.yaml", "h20", "")
MODELS = (
    "llama-3.2-1b", "llama-3.1-8b", "deepseek-v3", "mixtral-8x7b", "sound.json", "config.json", "model.gguf", "nobody/none",
)  # fmt: skip
APIS = (
    "openai/gpt-5-mini",
    "anthropic/claude-sonnet-5-5",
    "google/gemini-2.5-flash",
    "groq/llama-3.1-8b-instant",
    "openai/",
    "/",
)
LAUNCHES = (
    "vllm serve llama-3.2-1b --max-num-seqs 8", "vllm serve llama-3.2-1b -tp 2 --kv-cache-dtype fp8", "vllm serve 'llama", "vllm serve x --enforce-eager",
    "python3 -m sglang.launch_server --model-path llama-3.2-1b --tp 2", "trtllm-serve llama-3.2-1b --config config.json", "docker run vllm", "--launch",
    "vllm serve llama-3.2-1b --speculative-config [1] --max-model-len 9" + "9" * 300, "vllm serve llama-3.2-1b --port 1 --port 2 --\x1b[2J 3",
)  # fmt: skip
TARGETS = ("vllm", "k8s", "compose", "kserve", "llm-d", "keda", "dynamo", "sglang", "skypilot", "none")
KINDS = ("scenarios", "models", "hardware", "engines", "prices", "none")
QUANTITIES = (
    "certainty[0].gpus",
    "certainty[9]",
    "bill",
    "bill.classes[0].usd",
    "choices.surest",
    "plans[1].gpus",
    "simulate.ttft_s.p95",
    "compare[",
    "usd_per_month",
    "ttft_s.p95",
    "gpus",
    "decode.attention_s",
    "kv_cache_tokens",
    "none",
    "ttft_s",
)
LEVERS = ("kv-dtype", "target", "commitment", "answers", "weight-dtype", "speculation", "nothing")
NUMBERS = (
    "1", "2", "8", "64", "1000", "0", "-1", "1.5", "1e9", "1e-14", "nan", "inf", "1,8", "٣", "9" * 400, "", "5 s", "20 ms", "-5 s", "3 req/s",
    "1e24 req/s", "0 req/s", "10 %", "110 %", "0.5", "ttft_p95=1 s", "ttft_p50=-1 s", "abc", "--", "x" * 3000, "\x1b[2J", "bf16", "fp8", "int4",
    "2026-13", "2027-02", "2026-11-31", "3.00 $", "1e300", "null", "{}", "[]", "{1: 2}", "[[[[", "*a", "1:", "-1@1 s", "x:1 B",
)  # fmt: skip
SERVED = (
    "--tensor-parallel", "--pipeline-parallel", "--expert-parallel", "--data-parallel", "--weight-dtype", "--kv-dtype", "--engine",
    "--engine-version", "--max-model-len", "--max-num-seqs", "--max-num-batched-tokens", "--gpu-memory-utilization",
    "--prefix-hit-fraction", "--calibration", "-tp", "--launch",
)  # fmt: skip
LOADS = ("--concurrency", "--request-rate", "--input-tokens", "--output-tokens")
SIMULATED = (
    "--seed", "--replicas", "--until", "--fail", "--deadline", "--queue-limit", "--routing", "--autoscale", "--hedge", "--scheduling",
    "--batch-timeout", "--kv-offload", "--draft-step-time", "--draft-tokens", "--acceptance", "--pipeline-parallel", "-tp", "--set", "--trace",
    "--prefill-replicas", "--decode-replicas", "--kv-link",
)  # fmt: skip
OF_ONE = ("--hardware", "DEVICE", "--input-tokens", "200", "--output-tokens", "20")
SETS = ("--set", "--set", "--set", "--set")
COMMANDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "model": (("MODEL",), ("--weight-dtype", "--revision")),
    "kv-size": (("MODEL",), ("--context", "--sequences", "--kv-dtype", "-tp", "--engine")),
    "hardware": (("DEVICE",), ()),
    "fit": (("MODEL", "--hardware", "DEVICE"), SERVED[:-1]),
    "estimate": (("MODEL", *OF_ONE, "--concurrency", "4"), (*SERVED, *LOADS)),
    "spec": (
        ("--draft-step-time", "2 ms", "--target-step-time", "30 ms", "--acceptance", "0.7"),
        ("--draft-tokens", "--batch", "--acceptance", "--draft-step-time", "--target-step-time"),
    ),
    "simulate": (("SCENARIO", "--hardware", "DEVICE", "-tp", "1", "--replicas", "1", "--until", "5 s"), SIMULATED),
    "workload": (("TRACE",), ("--interval", "--eviction")),
    "fleet": (("SCENARIO",), ("--hardware", "--confidence", *SETS)),
    "levers": (("SCENARIO", "--lever", "LEVER"), ("--lever", *SETS)),
    "what-if": (("SCENARIO",), SETS),
    "compare": (("SCENARIO", "--api", "API"), ("--api", *SETS)),
    "bill": (("SCENARIO", "--focus", "focus.csv"), ("--month", *SETS)),
    "report": (("SCENARIO",), SETS),
    "sweep": (("MODEL", *OF_ONE, "--concurrency", "1,4"), ("--seed", "-tp", "--weight-dtype", "--kv-dtype", *LOADS)),
    "diff": (("PLAN", "PLAN"), ()),
    "check": (("SCENARIO", "--plan", "PLAN"), ("--max-price-age", *SETS)),
    "explain": (("PLAN", "QUANTITY"), ("--api",)),
    "export": (("--plan", "PLAN", "--target", "TARGET"), ("--checkpoint", "--draft", "--image", "--target")),
    "verify-plan": (("--plan", "PLAN", "--results", "RESULT"), ("--interval", "--replicas", "--results")),
    "list": (("KIND", "WORD"), ()),
    "init": (
        ("made.yaml", "--model", "MODEL"),
        ("--from", "--request-rate", "--input-tokens", "--output-tokens", "--ttft-p95", "--tpot-p95", "--hardware"),
    ),
    "cache": (
        ("--prefix-tokens", "4000", "--requests-per-day", "1000", "--api", "API"),
        ("--input-price", "--read-price", "--write-price", "--prices", "--date", "--suffix-tokens", "--time-to-live", "--api"),
    ),
}  # fmt: skip
"""Words of a sound command line, and options that it may have besides."""
PLACES = {
    "MODEL": MODELS,
    "DEVICE": DEVICES,
    "SCENARIO": ("sound.yaml", "scenario.yaml", "money.yaml"),
    "TRACE": ("table.csv", "scrape.txt", "log.jsonl"),
    "API": APIS,
    "LEVER": LEVERS,
    "PLAN": ("sound-plan.json", "plan.json"),
    "RESULT": ("sound-result.json", "results.json", "scrape.txt"),
    "TARGET": TARGETS,
    "KIND": KINDS,
    "WORD": ("llama", "h100", "chat", "", "0.5", "zzz"),
    "QUANTITY": QUANTITIES,
}
VALUES = {
    "--api": APIS,
    "--lever": LEVERS,
    "--prices": ("tokens.yaml", "litellm.json"),
    "--trace": ("table.csv", "log.jsonl"),
    "--calibration": ("c.calibration.yaml", "h100-sxm"),
    "--eviction": ("lru", "lfu", "none"),
    "--routing": ("round_robin", "least_loaded", "prefix", "power_of_two"),
    "--scheduling": ("static", "dynamic", "continuous"),
    "--kv-offload": ("host:9 GB@5 GB/s",),
    "--fail": ("0@1 s",),
    "--autoscale": ("1:9",),
    "--launch": LAUNCHES,
    "--from": (*LAUNCHES, "support-chat", "table.csv", "scrape.txt", "suport-chat"),
    "--target": TARGETS,
    "--results": ("scrape.txt", "results.json"),
    "--hardware": DEVICES,
    "--input-tokens": ("900,2000", "1,2,3", "9,1"),
}
"""What an option takes besides numbers."""
KEYS = [(key.replace("traffic.", "traffic[0].", 1), key, field) for key, field in keys_of()]
"""Of a scenario, as --set takes them."""
ONLINE = ("hardware", "workload", "cache", "list", "export")
"""Commands that never open a connection, and have no --offline."""
TEXTS = ("export", "init")
"""Commands whose answer is no table."""
NO_NUMBERS = {"nan", "inf", "-inf", "None", "True", "False"}
USD_AND_LATENCY = ("usd_per_million_output_tokens", "usd_per_million_tokens", "usd_per_hour")
SIGNED = {
    "more_usd_per_month", "bias", "low_ratio", "change", "error", "offset_s", "waterfall", "memory_bytes", "kv_bytes_available_per_gpu",
    "saved_usd_per_month", "usd_per_month_saved", "months_saved",
}  # fmt: skip
"""Keys whose numbers may be below zero: differences, what is taken from memory, what is left of memory that does not suffice."""


def value_of(option: str, random: Random) -> str:
    """Return what stands behind an option: as often what it takes as anything else."""
    if option == "--set":
        written, key, field = random.choice(KEYS)
        return f"{written}={example(key, field) if random.random() < 0.6 else random.choice(NUMBERS)}"
    return random.choice(VALUES[option] if option in VALUES and random.random() < 0.5 else NUMBERS)


def command_line(name: str, random: Random) -> list[str]:
    """Return a command line with up to three faults."""
    sound, options = COMMANDS[name]
    words = [random.choice(PLACES[word][: 2 if random.random() < 0.6 else None]) if word in PLACES else word for word in sound]  # fmt: skip
    for _ in range(random.randint(0, 3)):
        turn = random.random()
        if turn < 0.7 and options:
            option = random.choice(options)
            words += [option, value_of(option, random)]
        elif turn < 0.85 and len(words) > 1:
            words[random.randrange(1, len(words))] = random.choice(NUMBERS)
        elif turn < 0.92:
            words.insert(random.randrange(len(words) + 1), random.choice(NUMBERS))
        elif words:
            del words[random.randrange(len(words))]
    return [name, *([] if name in ONLINE else ["--offline"]), *words]


def ran(words: list[str]) -> tuple[int, str, str]:
    """Run a command line in this process; whatever is raised is a finding."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = capplan(words)
    return code, out.getvalue(), err.getvalue()


def _strict(word: str) -> Any:
    raise AssertionError(f"{word} in JSON")


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every number, text and null of an answer with the keys that lead to it."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, f"{key}.{name}")
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, key)
    else:
        yield key, value


def numbers(value: Any) -> Iterator[tuple[str, float]]:
    """Yield every number of an answer with the keys that lead to it."""
    found = leaves(value)
    return (
        (key, leaf) for key, leaf in found if isinstance(leaf, (int, float)) and not isinstance(leaf, bool)
    )


def check_numbers(command: str, result: dict[str, Any]) -> None:
    """Assert that no number of an answer is one that cannot be."""
    for key, value in numbers(result):
        parts = key.split(".")
        if value < 0.0 and not SIGNED & set(parts):
            raise AssertionError(f"{command}: {key} is {value}")
        latency = len(parts) > 2 and parts[-2] in ("ttft_s", "e2e_s") and parts[-1] in ("mean", "p50", "p99")
        if value == 0.0 and (latency or parts[-1] in USD_AND_LATENCY):
            raise AssertionError(f"{command}: {key} is zero")


def check_code(command: str, code: int, result: dict[str, Any]) -> None:
    """Assert that the exit code says what the answer says."""
    if command == "fit":
        assert (code == 0) == result["fits"], f"exit {code} and fits {result['fits']}"
        assert not result["fits"] or result["kv_bytes_available_per_gpu"] > 0, "fits without a cache"
    elif command == "simulate":
        counted = result["requests"] == result["finished"] + result["shed"] + result["unfinished"]
        assert counted, "requests are not finished, shed and unfinished ones"
        if code == 0 and result["slo_met_fraction"] is not None:
            assert not (result["finished"] == 0 and result["requests"] > 0), "exit 0 and nothing finished"
    else:
        assert code in (0, 3, 4), f"exit {code}"


def check_same_in_csv(words: list[str], code: int, result: dict[str, Any]) -> None:
    """Assert that CSV has the exit code and the numbers of JSON."""
    other, text, _ = ran([*words, "--format", "csv"])
    assert other == code, f"exit {other} in CSV and {code} in JSON"
    known = {float(value) for _, value in numbers(result)}
    texts = {leaf for _, leaf in leaves(result) if isinstance(leaf, str)}  # a version may look like a number
    for row in csv.DictReader(io.StringIO(text)):
        for name, cell in row.items():
            try:
                value = float(cell or "")
            except ValueError:
                continue
            assert value in known or cell in texts, f"{name} is {cell} in CSV alone"


def check_same_on_screen(words: list[str], code: int) -> None:
    """Assert that the table has the exit code of JSON, sends no control sequence and shows no number that is none."""
    other, text, _ = ran([*words, "--format", "table"])
    assert other == code, f"exit {other} as a table and {code} in JSON"
    assert text.strip(), "an empty table"
    assert all(letter.isprintable() or letter == "\n" for letter in text), "a control character on the screen"
    odd = NO_NUMBERS & set(text.split()) - set(" ".join(words).split())
    assert not odd, f"{odd} on the screen"


def check_text(words: list[str]) -> None:
    """Run a command line whose answer is a text or a file of its own, and look at what it says."""
    before = set(Path().iterdir())
    code, out, err = ran(words)
    made = [path for path in set(Path().iterdir()) - before if path.is_file()]
    assert code in (0, REFUSED), f"exit {code}"
    assert all(len(line) <= LONGEST_LINE + 10 for line in err.splitlines()), "a line that is too long"
    if code == REFUSED:
        assert not out, "refused with an answer"
        assert err.strip(), "refused without a word"
        assert not made, "refused with a file"
    elif words[0] == "export":
        assert list(yaml.safe_load_all(out)), "an empty document"
    else:
        (path,) = made
        read_scenario(path.rename("made.yaml"))
        Path("made.yaml").unlink()


def check(words: list[str]) -> None:
    """Run a command line and look at what it says."""
    if words[0] in TEXTS:
        check_text(words)
        return
    began = time.process_time()
    code, out, err = ran([*words, "--format", "json"])
    took = time.process_time() - began
    assert took < LONGEST_S, f"took {took:.1f} s"
    assert code in (0, 2, 3, 4), f"exit {code}"
    assert all(len(line) <= LONGEST_LINE + 10 for line in err.splitlines()), "a line that is too long"
    if not out:
        assert code != 0, "exit 0 and nothing said"
        assert err.strip(), "refused without a word"
        return
    assert code != REFUSED, "refused with an answer"
    envelope = json.loads(out, parse_constant=_strict)
    assert envelope["command"] == words[0]
    check_numbers(words[0], envelope["result"])
    check_code(words[0], code, envelope["result"])
    check_same_in_csv(words, code, envelope["result"])
    check_same_on_screen(words, code)


@cache
def sound_plan() -> str:
    """Return a plan of the tiny scenario."""
    return json.dumps(sealed(NAMED["plan.json"].sound()[0]))


def prepared(folder: Path, random: Random) -> None:
    """Write the files that command lines name: sound ones, and others with faults."""
    (folder / "sound.json").write_text(json.dumps(CONFIG))
    (folder / "sound.yaml").write_text(json.dumps(SCENARIO))
    (folder / "sound-plan.json").write_text(sound_plan())
    (folder / "sound-result.json").write_text(json.dumps(RESULT))
    for name in FILES:
        (folder / name).write_bytes(faulty(NAMED[name], random))


LAST: list[list[str]] = []


def some(name: str, folder: Path, number: int) -> int:
    """Run a command for a moment of processor time, and return how many times; the same number gives the same lines."""
    random, until, done = Random(f"{name} {number}"), time.process_time() + TURN_S, 0
    latest = time.monotonic() + 10.0 * TURN_S  # on a machine that others use
    while done < CASES and time.process_time() < until and time.monotonic() < latest:
        if done % 8 == 0:
            prepared(folder, random)
        line = [word for word in command_line(name, random) if word]
        words = [str(folder / word) if word in (*FILES, *SOUND) else word for word in line]
        LAST[:] = [words]
        check(words)
        done += 1
    return done


if __name__ == "__main__":
    sys.exit(
        asked_until_time_is_over(
            "commands", __doc__, {name: partial(some, name) for name in COMMANDS}, lambda *_: LAST[0]
        )
    )
