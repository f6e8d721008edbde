"""No flag is accepted and ignored: two command lines that differ in one flag give different numbers, or a refusal with its reason.

Every flag and argument of every command has one case here; a new one fails the first test until it has a case.
"""

import json
import re
import shlex
from typing import NamedTuple

import pytest
import typer

from capplan.cli.commands import COMMANDS
from capplan.cli.main import app


class Case(NamedTuple):
    """A flag, or an argument in braces, and the line that it is added to."""

    value: str = ""
    """After the flag; of an argument what stands in its place."""
    line: str = ""
    """Instead of the command's usual line."""
    refused: str = ""
    """Words of the reason where the flag is refused, or of what a stand-in was told."""
    file: str = ""
    """What is written to this file differs, or there is none without the flag."""
    words: bool = False
    """What is printed differs, though no number needs to."""


DRAWN = Case("drawn.svg", file="drawn.svg")
HUB = Case(refused="--offline never connects")
"""Of a model that is not shipped; without the flag the hub is asked."""
REVISION = Case("v1", refused="not in the local Hugging Face cache")
TOO_SHORT = Case("1000", refused="longest context of 1000 tokens")
SPARSE = "{command} qwen3-30b-a3b --hardware h100-sxm -tp 2 --offline"
DENSE = Case("2", "{command} llama-3.1-8b --hardware h100-sxm -tp 2 --offline", "on a model without experts")

PARALLEL = {
    "--tensor-parallel": Case("2"),
    "--pipeline-parallel": Case("2"),
    "--expert-parallel": DENSE,
    "--data-parallel": Case("2", SPARSE),
}
LOCAL = Case(
    "",
    "export --model qwen3-30b-a3b --target llamacpp --hardware rtx-3090 --max-model-len 4096 --weight-dtype q4_k_m --offline",
    words=True,
)
"""A replica of llama.cpp that is written as a command."""
CARDS = LOCAL._replace(line=LOCAL.line.replace("rtx-3090", "rtx-3090+rtx-4090"))
SPLIT = "--host-bandwidth '80 GB/s'"
OFFLOADED = Case("8", refused="keeps all weights on the device")
REPLICA = PARALLEL | {
    "--hardware": Case("h200-sxm"),
    "--weight-dtype": Case("fp8"),
    "--kv-dtype": Case("fp8"),
    "--engine": Case("sglang"),
    "--backend": Case("cuda", refused="has no backends"),
    "--n-gpu-layers": OFFLOADED,
    "--n-cpu-moe": OFFLOADED,
    "--tensor-split": Case("3,1", refused="is one device"),
    "--split-mode": Case("row", refused="matrices split over devices"),
    "--main-gpu": Case("1", refused="add --split-mode none"),
    "--host-bandwidth": OFFLOADED._replace(value="'80 GB/s'"),
    "--host-memory": OFFLOADED._replace(value="'64 GB'"),
    "--engine-version": Case("0.6.0"),
    "--max-model-len": Case("1000"),
    "--max-num-seqs": Case("8"),
    "--max-num-batched-tokens": Case("2048"),
    "--cuda-graphs": Case("0"),
    "--gpu-memory-utilization": Case("0.6"),
    "--revision": REVISION,
    "--offline": HUB._replace(line="{command} tiny/unknown --hardware h100-sxm"),
}
SERVED = {
    "--runner": Case("pooling"),
    "--max-loras": Case("8"),
    "--max-lora-rank": Case("64", "{command} llama-3.1-8b --hardware h100-sxm --max-loras 8 --offline"),
}
OUT = {"--format": Case("csv", words=True), "--output": Case("written.csv", file="written.csv")}
ASSUMING = {**OUT, "--assumptions": Case("", words=True)}
ROUTED = "simulate busy.yaml --until 60s --hardware h100-sxm --replicas 2 --routing round_robin --offline"
APART = "simulate busy.yaml --until 60s --hardware h100-sxm --offline --prefill-replicas 1 --decode-replicas 1 --kv-link network"
REPLAY = "simulate chats.yaml --hardware h100-sxm --offline"
SPECULATED = (
    "simulate busy.yaml --hardware h100-sxm --until 20s --offline --acceptance 0.7 --draft-step-time 1ms"
)
DRAFTED = "--acceptance 0.7 --draft-step-time 1ms"
SWEPT = "sweep small.yaml --hardware h100-sxm --request-rate 2 --offline"

CACHED = "cache --prefix-tokens 4000 --requests-per-day 1000 --input-price 3 --read-price 0.3"
PRICES = "prices update offers.csv --date 2026-11-01 --offline"
LITELLM = "cache --prefix-tokens 4000 --requests-per-day 1000 --prices litellm.json --api openai/gpt-5-mini"

RESULTS = "--from bare.json --model llama-3.1-8b --hardware h100-sxm --offline"
COMPARED = "calibrate --compare host.calibration.yaml h100-sxm"

LAUNCH = "'vllm serve llama-3.1-8b --max-num-seqs 4'"
REPLANNED = "replan --plan plan.json --prometheus http://seen"
EXPORTED = "export --plan plan.json --target vllm"
FIRST = "init made.yaml --model llama-3.1-8b --offline"

OF_MODEL = "{command} llama-3.1-8b --request-rate 300req/s --hardware h100-sxm --offline"
OF_USERS = "{command} llama-3.1-8b --users 9000 --think-time 5s --hardware h100-sxm --offline"
ASKED = {
    "--request-rate": Case("900req/s", OF_MODEL),
    "--users": Case("27000", OF_USERS),
    "--think-time": Case("99s", OF_USERS),
    "--trace": Case("day.csv", "{command} llama-3.1-8b --trace chats.jsonl --hardware h100-sxm --offline"),
    "--input-tokens": Case("9000", OF_MODEL),
    "--output-tokens": Case("900", OF_MODEL),
    "--use-case": Case("rag", OF_MODEL),
    "--save": Case("saved.yaml", OF_MODEL, file="saved.yaml"),
    "--ttft-p95": Case("90ms"),
    "--tpot-p95": Case("12ms"),
    "--hardware": Case("h200-sxm"),
    "--weight-dtype": Case("fp8"),
    "--kv-dtype": Case("fp8"),
    "--engine": Case("sglang"),
    "--backend": Case("cuda", refused="has no backends"),
    "--confidence": Case("95%"),
    "--calibration": Case("host.calibration.yaml"),
    "--set": Case("'traffic[0].request_rate=99 req/s'"),
}
"""Flags that are keys of a scenario."""
GIVEN = " --gpus '3 x h100-sxm'"
CAPACITY = {
    flag: case._replace(line=case.line.replace(" --hardware h100-sxm", GIVEN)) for flag, case in ASKED.items()
} | {
    "--users": Case("9", "{command} llama-3.1-8b --offline" + GIVEN),
    "--think-time": Case("99s", "{command} llama-3.1-8b --offline" + GIVEN),
    "--hardware": Case("l40s", "{command} small.yaml --budget 20000 --offline"),
    "--set": Case("traffic[0].input_tokens=900"),
}
"""The same of a command that finds the load."""

LINES = {
    "init": FIRST,
    "list": "list hardware h100-sxm",
    "export": EXPORTED,
    "verify-plan": "verify-plan --plan plan.json --results served.json --offline",
    "model": "model llama-3.1-8b --offline",
    "kv-size": "kv-size gemma-3-27b --offline",
    "fit": "fit llama-3.1-8b --hardware h100-sxm --offline",
    "estimate": "estimate llama-3.1-8b --hardware h100-sxm --concurrency 8 --offline",
    "spec": "spec llama-3.1-8b --hardware h100-sxm --draft llama-3.2-1b --acceptance 0.7 --draft-tokens 3 --batch 4 --offline",
    "fleet": "fleet small.yaml --offline",
    "capacity": "capacity small.yaml --gpus '3 x h100-sxm' --offline",
    "check": "check small.yaml --plan plan.json --set fleet.hardware=h200-sxm --offline",
    "replan": REPLANNED,
    "diff": "diff plan.json small.yaml --offline",
    "explain": "explain plan.json usd_per_month --offline",
    "levers": "levers small.yaml --offline --lever kv-dtype",
    "what-if": "what-if small.yaml --offline",
    "report": "report small.yaml --offline",
    "compare": "compare small.yaml --api openai/gpt-5-mini --offline",
    "bill": "bill small.yaml --offline",
    "cache": "cache --prefix-tokens 4000 --requests-per-day 1000 --api openai/gpt-5-mini",
    "prices": PRICES,
    "simulate": "simulate busy.yaml --hardware h100-sxm --until 20s --offline",
    "sweep": "sweep llama-3.1-8b --hardware h100-sxm --concurrency 4 --offline",
    "workload": "workload day.csv",
    "validate": "validate points.csv",
    "hardware": "hardware h100-sxm",
    "detect": "detect",
    "calibrate": "calibrate --device cpu -o made.calibration.yaml",
    "serve": "serve",
    "mcp": "mcp",
}
CASES = {
    "mcp": {"--time-limit": Case("2s", refused="2.0 "), "--offline": Case(refused="'offline': True")},
    "serve": {
        "--host": Case("0.0.0.0", refused="give --token-file"),
        "--token-file": Case("more.json", refused="16 or more letters"),
        "--port": Case("8081", refused="8081"),
        "--jobs": Case("7", refused=" 7 "),
        "--time-limit": Case("2s", refused=" 2.0 "),
        "--offline": Case(refused="'offline': True"),
    },
    "init": {
        "{file}": Case("other.yaml", FIRST.replace("made", "another"), file="other.yaml"),
        "--from": Case(LAUNCH, file="made.yaml"),
        "--engine-name": Case("chat", refused="is for a manifest"),
        "--ignore-unmodelled": Case(refused="is for the command of an engine"),
        "--window": Case("2d", refused="--window and --model-name are of --from"),
        "--model-name": Case("m", refused="--window and --model-name are of --from"),
        "--use-case": Case("rag", file="made.yaml"),
        "--model": Case("qwen3-8b", file="made.yaml"),
        "--request-rate": Case("'9 req/s'", file="made.yaml"),
        "--input-tokens": Case("900,2000", file="made.yaml"),
        "--output-tokens": Case("90", file="made.yaml"),
        "--ttft-p95": Case("3s", file="made.yaml"),
        "--tpot-p95": Case("30ms", file="made.yaml"),
        "--hardware": Case("l4", file="made.yaml"),
        "--offline": HUB._replace(line="init hub-made.yaml --model tiny/unknown"),
    },
    "list": {
        "{kind}": Case("prices"),
        "{word}": Case("h200-sxm"),
        "--check": Case("", "list prices"),
        "--prices": Case("litellm.json --date 2026-11-20", "list apis --check", words=True),
        "--date": Case("2026-11-21", "list apis --check --prices litellm.json --date 2026-11-20", words=True),
        **OUT,
    },
    "export": {
        "{plan}": Case("hub-plan.json", "export plan.json --target vllm", words=True),
        "--plan": Case("busy.yaml", refused="is not a plan file"),
        "--target": Case("k8s", words=True),
        "--checkpoint": Case("owner/name", words=True),
        "--draft": Case("owner/name", refused="does not speculate"),
        "--image": Case("owner/name:1", "export --plan plan.json --target k8s", words=True),
        "--output": Case("written.sh", file="written.sh"),
        "--model": Case("llama-3.2-1b", "export plan.json --target vllm", refused="is of a plan"),
        "--hardware": Case(
            "rtx-3090",
            "export --model llama-3.1-70b --target llamacpp --weight-dtype q4_k_m --offline",
            refused="no room",
        ),
        "--pipeline-parallel": LOCAL._replace(value="2"),
        "--weight-dtype": LOCAL._replace(value="q3_k_m"),
        "--kv-dtype": LOCAL._replace(value="q8_0"),
        "--engine-version": LOCAL._replace(
            value="b6000", refused="no option for cpu experts", line=f"{LOCAL.line} {SPLIT} --n-cpu-moe 4"
        ),
        "--n-gpu-layers": LOCAL._replace(value="8", line=f"{LOCAL.line} {SPLIT}"),
        "--n-cpu-moe": LOCAL._replace(value="8", line=f"{LOCAL.line} {SPLIT}"),
        "--tensor-split": CARDS._replace(value="3,1"),
        "--split-mode": CARDS._replace(value="none"),
        "--main-gpu": CARDS._replace(value="1", line=f"{CARDS.line} --split-mode none"),
        "--host-bandwidth": LOCAL._replace(
            value="'80 GB/s'",
            line=LOCAL.line.replace("rtx-3090", "apple-m2-10core:16gb"),
            refused="shares the memory of its host",
        ),
        "--host-memory": LOCAL._replace(
            value="'1 GB'", line=f"{LOCAL.line} {SPLIT} --n-cpu-moe 8", refused="of --host-memory"
        ),
        "--max-model-len": LOCAL._replace(value="1000"),
        "--max-num-seqs": LOCAL._replace(value="2"),
        "--offline": LOCAL._replace(
            line="export --model owner/name --target llamacpp --hardware rtx-3090",
            refused="--offline never connects",
        ),
    },
    "verify-plan": {
        "{plan}": Case(
            "hub-plan.json",
            "verify-plan plan.json --results served.json --offline",
            refused="--offline never connects",
        ),
        "--plan": Case("busy.yaml", refused="is not a plan file"),
        "--results": Case("slow.json"),
        "--interval": Case(
            "90s", "verify-plan --plan plan.json --results latencies.txt --interval 60s --offline"
        ),
        "--replicas": Case("2"),
        "--group": Case("1", refused="are alike"),
        "--endpoint": Case(
            "localhost:9?key=1", "verify-plan --plan plan.json --offline", "user name or a query"
        ),
        "--minutes": Case("2", refused="--minutes is of --endpoint"),
        "--offline": HUB._replace(line="verify-plan --plan hub-plan.json --results served.json"),
        **OUT,
    },
    "model": {
        "{model}": Case("qwen3-8b"),
        "--weight-dtype": Case("fp8"),
        "--revision": REVISION,
        "--offline": HUB._replace(line="model tiny/unknown"),
        **OUT,
    },
    "kv-size": {
        "{model}": Case("qwen3-8b"),
        "--context": Case("777"),
        "--sequences": Case("3"),
        "--kv-dtype": Case("fp8"),
        "--tensor-parallel": Case("2"),
        "--engine": Case("sglang"),
        "--engine-version": Case("0.6.0"),
        "--plot": DRAWN,
        "--max-num-batched-tokens": Case("512"),
        "--revision": REVISION,
        "--offline": HUB._replace(line="kv-size tiny/unknown"),
        **OUT,
    },
    "fit": {"{model}": Case("qwen3-8b"), "--plot": DRAWN, **REPLICA, **SERVED, **OUT},
    "estimate": {
        "{model}": Case("qwen3-8b"),
        "--plot": DRAWN,
        **{
            flag: case._replace(line=case.line and f"{case.line} --concurrency 8")
            for flag, case in REPLICA.items()
        },
        "--expert-parallel": Case("2", f"{SPARSE} --concurrency 8"),
        "--max-model-len": TOO_SHORT,
        "--input-tokens": Case("300"),
        "--output-tokens": Case("90"),
        "--launch": Case(LAUNCH),
        "--ignore-unmodelled": Case(refused="is for the command of --launch"),
        "--concurrency": Case("16"),
        "--request-rate": Case("3", "estimate llama-3.1-8b --hardware h100-sxm --request-rate 1 --offline"),
        "--prefix-hit-fraction": Case("0.5"),
        "--calibration": Case("host.calibration.yaml"),
        **{
            flag: case._replace(line=case.line and f"{case.line} --concurrency 8")
            for flag, case in SERVED.items()
        },
        **OUT,
    },
    "spec": {
        "{model}": Case("llama-3.2-3b"),
        **{
            flag: case._replace(line=case.line and f"{case.line} {DRAFTED}") for flag, case in REPLICA.items()
        },
        "--pipeline-parallel": Case("2", f"spec llama-3.1-8b --hardware h100-sxm --offline {DRAFTED}"),
        "--expert-parallel": Case("2", f"{SPARSE} {DRAFTED}"),
        "--max-model-len": TOO_SHORT,
        "--acceptance": Case("0.9"),
        "--draft": Case("llama-3.2-3b"),
        "--method": Case(
            "eagle", "spec llama-3.1-8b --hardware h100-sxm --method ngram --acceptance 0.7 --offline"
        ),
        "--draft-step-time": Case(
            "4ms", "spec llama-3.1-8b --hardware h100-sxm --draft-step-time 1ms --acceptance 0.7 --offline"
        ),
        "--target-step-time": Case(
            "30ms", "spec --draft-step-time 1ms --target-step-time 20ms --acceptance 0.7"
        ),
        "--draft-tokens": Case("5"),
        "--batch": Case("9"),
        "--draft-tensor-parallel": Case(
            "1", "spec llama-3.1-8b --hardware h100-sxm -tp 2 --draft llama-3.2-1b --acceptance 0.7 --offline"
        ),
        "--input-tokens": Case("30000"),
        "--output-tokens": Case("30000"),
        "--calibration": Case("host.calibration.yaml"),
        **OUT,
    },
    "fleet": {
        "--plot": DRAWN,
        "{scenario}": Case("busy.yaml"),
        **ASKED,
        "--full": Case(words=True),
        "--offline": HUB._replace(line="fleet hub.yaml"),
        **ASSUMING,
    },
    "capacity": {
        "{scenario}": Case("busy.yaml"),
        "--gpus": Case("'9 x h100-sxm'"),
        "--budget": Case("9000", "capacity small.yaml --budget 20000 --offline"),
        **{flag: case for flag, case in CAPACITY.items() if flag not in {"--save", "--request-rate"}},
        "--request-rate": Case(
            "200req/s",
            "capacity llama-3.1-8b --gpus '3 x h100-sxm' --users 9 --offline",
            refused="give one of them",
        ),
        "--offline": HUB._replace(line="capacity hub.yaml --gpus '3 x h100-sxm'"),
        **OUT,
    },
    "check": {
        "{scenario}": Case("busy.yaml"),
        "--plan": Case("busy.yaml", refused="is not a plan file"),
        "--max-price-age": Case("1"),
        "--set": Case("slo.ttft_p95=1ms"),
        "--prometheus": Case("http://seen", "check --plan plan.json", words=True),
        "--window": Case("2d", "check --plan plan.json --prometheus http://seen"),
        "--model-name": Case("m", "check --plan plan.json --prometheus http://seen"),
        "--offline": HUB._replace(line="check hub.yaml --plan plan.json"),
        **ASSUMING,
    },
    "replan": {
        "{plan}": Case("busy.yaml", REPLANNED.replace("--plan ", ""), "is not a plan file"),
        "--plan": Case("busy.yaml", refused="is not a plan file"),
        "--prometheus": Case("http://other", refused="told: http://other"),
        "--window": Case("2d"),
        "--model-name": Case("m"),
        "--prices": Case("today", REPLANNED.replace("plan.json", "dear-plan.json")),
        "--band": Case("0.9"),
        "--offline": Case(refused="--offline never connects"),
        **OUT,
    },
    "diff": {
        "{before}": Case("busy.yaml"),
        "{after}": Case("busy.yaml"),
        "--offline": HUB._replace(line="diff plan.json hub.yaml"),
        **OUT,
    },
    "explain": {
        "{plan_file}": Case("busy.yaml"),
        "{quantity}": Case("gpus"),
        "--api": Case(
            "openai/gpt-5-mini",
            "explain plan.json compare.apis[0].usd_per_month --api openai/gpt-5 --offline",
        ),
        "--offline": HUB._replace(line="explain hub.yaml gpus"),
        **OUT,
    },
    "levers": {
        "{scenario}": Case("busy.yaml"),
        "--plan": Case("plan.json"),
        "--lever": Case("answers"),
        "--set": Case("'traffic[0].request_rate=99 req/s'"),
        "--offline": HUB._replace(line="levers hub.yaml"),
        **ASSUMING,
    },
    "what-if": {
        "{scenario}": Case("busy.yaml"),
        "--plan": Case("plan.json"),
        "--set": Case("'traffic[0].request_rate=99 req/s'"),
        "--offline": HUB._replace(line="what-if hub.yaml"),
        **OUT,
    },
    "compare": {
        "{scenario}": Case("busy.yaml"),
        "--api": Case("openai/gpt-5"),
        "--plan": Case("plan.json"),
        "--set": Case("prices.overhead=10%"),
        "--plot": DRAWN,
        "--offline": HUB._replace(line="compare hub.yaml --api openai/gpt-5-mini"),
        **ASSUMING,
    },
    "bill": {
        "{scenario}": Case("busy.yaml"),
        "--plan": Case("plan.json"),
        "--set": Case("prices.overhead=10%"),
        "--focus": Case("focus.csv", file="focus.csv"),
        "--month": Case("2027-02"),
        "--by": Case("machine", "bill small.yaml --offline --focus focus.csv", file="focus.csv"),
        "--actual": Case("paid.csv"),
        "--focus-version": Case("1.3", "bill small.yaml --offline --focus focus.csv", file="focus.csv"),
        "--metrics": Case("cost.prom", file="cost.prom"),
        "--with": Case("shared.yaml", "bill shared.yaml --offline"),
        "--budget": Case("9000", "bill shared.yaml --with shared.yaml --offline"),
        "--offline": HUB._replace(line="bill hub.yaml"),
        **ASSUMING,
    },
    "prices": {
        "{action}": Case("upgrade", refused="unknown action 'upgrade'"),
        "{files}": Case("other.csv"),
        "--date": Case("2026-11-02", words=True),
        "--project": Case(file=".capplan/machines/acme.yaml"),
        "--plan": Case("plan.json"),
        "--offline": HUB._replace(line="prices update offers.csv --date 2026-11-01 --plan hub-plan.json"),
        **OUT,
    },
    "cache": {
        "--prefix-tokens": Case("5000"),
        "--requests-per-day": Case("99"),
        "--suffix-tokens": Case("100"),
        "--time-to-live": Case("1s"),
        "--api": Case("openai/gpt-5"),
        "--input-price": Case("4", CACHED),
        "--write-price": Case("4", CACHED),
        "--read-price": Case("1", CACHED),
        "--prices": Case("tokens.yaml"),
        "--date": Case("2026-11-02", f"{LITELLM} --date 2026-11-01", words=True),
        **OUT,
    },
    "report": {
        "{scenario}": Case("busy.yaml"),
        "--set": Case("traffic[0].input_tokens=900"),
        "--plan": Case("plan.json"),
        "--author": Case("'Platform team'", "report small.yaml --offline --format markdown", words=True),
        "--date": Case("2026-11-22", "report small.yaml --offline --format markdown", words=True),
        "--levers": Case("", "report small.yaml --offline --format markdown", words=True),
        "--levers-file": Case(
            "plan.json", "report small.yaml --offline", refused="is not an answer of capplan levers"
        ),
        "--offline": HUB._replace(line="report hub.yaml"),
        **OUT,
    },
    "simulate": {
        "{scenario}": Case("small.yaml"),
        "--set": Case("traffic[0].input_tokens=900"),
        "--plan": Case("plan.json", line="simulate small.yaml --until 20s --offline"),
        "--trace": Case("day.csv"),
        "--until": Case("9s"),
        "--warm-up": Case("4s"),
        "--seed": Case("5"),
        "--hardware": Case("h200-sxm"),
        "--tensor-parallel": Case("2"),
        "--pipeline-parallel": Case("2"),
        "--replicas": Case("2"),
        "--queue-limit": Case("1"),
        "--deadline": Case("100ms"),
        "--routing": Case("least_loaded", ROUTED),
        "--fail": Case("1@1s", ROUTED),
        "--autoscale": Case("1:3"),
        "--hedge": Case("100ms", ROUTED),
        "--prefill-replicas": Case("2", APART),
        "--decode-replicas": Case("2", APART),
        "--kv-link": Case("pcie", APART),
        "--scheduling": Case("static"),
        "--batch-timeout": Case(
            "3s", "simulate busy.yaml --hardware h100-sxm --scheduling dynamic --offline"
        ),
        "--kv-offload": Case("host:40GB", REPLAY),
        "--draft": Case(
            "llama-3.2-1b",
            "simulate busy.yaml --hardware h100-sxm --until 20s --offline --acceptance 0.7 --draft llama-3.2-3b",
        ),
        "--draft-step-time": Case("4ms", SPECULATED),
        "--draft-tokens": Case("7", SPECULATED),
        "--acceptance": Case("0.2", SPECULATED),
        "--calibration": Case("host.calibration.yaml"),
        "--reuse-preempted": Case("", "simulate tight.yaml --hardware h100-sxm --until 20s --offline"),
        "--offline": HUB._replace(line="simulate hub.yaml"),
        **OUT,
    },
    "sweep": {
        "{what}": Case("qwen3-8b"),
        "--set": Case("traffic[0].input_tokens=900", SWEPT),
        "--hardware": Case("h200-sxm"),
        "--tensor-parallel": Case("2"),
        "--request-rate": Case("3", SWEPT),
        "--concurrency": Case("8"),
        "--input-tokens": Case("300"),
        "--output-tokens": Case("90"),
        "--weight-dtype": Case("fp8"),
        "--kv-dtype": Case(
            "fp8", "sweep llama-3.1-8b --hardware h100-sxm --concurrency 64 --input-tokens 8000 --offline"
        ),
        "--engine": Case("sglang"),
        "--calibration": Case("host.calibration.yaml"),
        "--seed": Case("9", SWEPT),
        "--workers": Case("3", refused="3 processes"),
        "--dask": Case("tcp://nobody:1", refused="no scheduler answers"),
        "--points": Case("kept.jsonl", file="kept.jsonl"),
        "--plot": DRAWN,
        "--offline": HUB._replace(line="sweep tiny/unknown --hardware h100-sxm --concurrency 4"),
        **OUT,
    },
    "workload": {
        "{files}": Case("night.csv"),
        "--interval": Case("90s", "workload scrape.txt --interval 60s"),
        "--model-name": Case("absent", "workload scrape.txt", refused="no series names a model"),
        "--eviction": Case("lfu", "workload chats.jsonl"),
        "--plot": DRAWN,
        **OUT,
    },
    "validate": {
        "{files}": Case("more.csv"),
        "--kind": Case("kernel", refused="missing for --kind kernel"),
        "--predictions": Case("told.csv", file="told.csv"),
        "--decisions": Case(),
        "--calibration": Case("host.calibration.yaml"),
        **OUT,
    },
    "hardware": {"{name}": Case("h200-sxm"), **OUT},
    "detect": {**OUT},
    "calibrate": {
        "{files}": Case("third.json", f"calibrate more.json {RESULTS}", "third.json"),
        "--device": Case("cuda:1", refused="cuda:1"),
        "--quick": Case(refused="'quick': True"),
        "--minutes": Case("3", refused="'minutes': 3.0"),
        "--threads": Case("2", refused="threads=2"),
        "--force": Case(refused="force=True"),
        "--dry-run": Case(line="calibrate --device cpu", refused="a plan for"),
        "--endpoint": Case("localhost:9?key=1", "calibrate --minutes 2", "user name or a query"),
        "--max-concurrency": Case("5", "calibrate --endpoint localhost:9 --dry-run"),
        "--max-model-len": Case("2000", f"calibrate {RESULTS}", "limits 2000 "),
        "--max-num-seqs": Case("3", f"calibrate {RESULTS}", "limits None 3 "),
        "--max-num-batched-tokens": Case("300", f"calibrate {RESULTS}", "limits None None 300"),
        "--revision": REVISION._replace(line=f"calibrate {RESULTS} --offline"),
        "--gpu-memory-utilization": Case("0.6", f"calibrate {RESULTS}", "limits None None None 0.6"),
        "--results": Case(
            "third.json",
            "calibrate --verify llama-3.1-8b --calibration host.calibration.yaml --hardware h100-sxm --offline",
            "third.json",
        ),
        "--verify": Case(
            "llama-3.2-1b",
            "calibrate --calibration host.calibration.yaml --verify qwen3-0.6b",
            "Llama-3.2-1B on cpu",
        ),
        "--from": Case("third.json", f"calibrate {RESULTS}", "third.json"),
        "--compare": Case("host.calibration.yaml host.calibration.yaml", COMPARED),
        "--model": Case("qwen3-8b", f"calibrate {RESULTS}", "Qwen3-8B"),
        "--hardware": Case("h200-sxm", f"calibrate {RESULTS}", "h200-sxm"),
        "--tensor-parallel": Case("2", f"calibrate {RESULTS}", r"Sharding\(tensor=2.0"),
        "--pipeline-parallel": Case("2", f"calibrate {RESULTS}", "pipeline=2.0"),
        "--expert-parallel": Case("2", f"calibrate {RESULTS} -tp 2", "without experts"),
        "--data-parallel": Case("2", f"calibrate {RESULTS}", r"data=2.0\)"),
        "--weight-dtype": Case("fp8", f"calibrate {RESULTS}", "weights in fp8"),
        "--kv-dtype": Case("fp8", f"calibrate {RESULTS}", "cache in fp8"),
        "--engine": Case("sglang", f"calibrate {RESULTS}", "served by sglang"),
        "--engine-version": Case("0.6.0", f"calibrate {RESULTS}", "0.6.0"),
        "--input-tokens": Case("300", f"calibrate {RESULTS}", "input_tokens=300.0"),
        "--output-tokens": Case("90", f"calibrate {RESULTS}".replace("bare", "batch"), "output_tokens=90.0"),
        "--concurrency": Case("7", f"calibrate {RESULTS}", " concurrency=7.0"),
        "--calibration": Case("host.calibration.yaml", f"calibrate {RESULTS}", "0.02 s a step"),
        "--offline": HUB._replace(line="calibrate --from bare.json --model tiny/unknown --hardware h100-sxm"),
        **{flag: case._replace(line=COMPARED) for flag, case in OUT.items()},
    },
}
UNREAD = {
    "estimate --launch 'vllm serve llama-3.1-8b' --hardware h100-sxm --concurrency 8 --offline": [
        "-tp 2",
        "--engine vllm",
        "--kv-dtype fp8",
    ],
    EXPORTED: ["--image owner/name:1", "--draft owner/name"],
    "init copied.yaml --from support-chat": ["--model llama-3.1-8b"],
    "bill small.yaml --offline": ["--by machine", "--focus-version 1.3", "--budget 9000"],
    "bill shared.yaml --with shared.yaml --offline": ["--month 2027-02", "--metrics cost.prom"],
    "list prices": ["--prices litellm.json", "--date 2026-11-20"],
    "list models": ["--check"],
    "compare --plan plan.json --api openai/gpt-5-mini --offline": ["--set slo.ttft_p95=1s"],
    "cache --prefix-tokens 4000 --requests-per-day 1000 --api openai/gpt-5-mini": [
        "--input-price 1",
        "--date 2026-11-01",
    ],
    CACHED: ["--prices tokens.yaml", "--date 2026-11-01"],
    "sweep small.yaml --request-rate 2 --offline": [
        "--input-tokens 300",
        "--output-tokens 90",
        "--weight-dtype fp8",
        "--kv-dtype fp8",
        "--engine vllm",
    ],
    "sweep small.yaml --hardware h100-sxm --request-rate 2 --offline": ["--plans 2"],
    "sweep llama-3.1-8b --hardware h100-sxm --concurrency 4 --offline": [
        "--plans 2",
        "--set slo.ttft_p95=1s",
    ],
    "simulate --plan plan.json --until 20s --offline": ["--set slo.ttft_p95=1s"],
    "report --plan plan.json --offline": ["--set slo.ttft_p95=1s"],
    "model": ["--weight-dtype fp8", "--revision v1"],
    "model config.json": ["--revision v1"],
    "spec --draft-step-time 1ms --target-step-time 9ms --acceptance 0.7": [
        "-tp 2",
        "--engine vllm",
        "--input-tokens 9",
    ],
    "spec llama-3.1-8b --hardware h100-sxm --draft-step-time 1ms --acceptance 0.7 --offline": [
        "--draft-tensor-parallel 1",
    ],
    "simulate small.yaml --hardware h100-sxm --prefill-replicas 1 --decode-replicas 1 --kv-link network --offline": [
        "--replicas 2"
    ],
    "simulate small.yaml --hardware h100-sxm --until 20s --offline": [
        "--batch-timeout 1s",
        "--draft-tokens 3",
        "--kv-offload 'host:1 GB'",
        "--kv-link pcie",
    ],
    "workload day.csv": ["--interval 60s"],
    "validate starts.csv --kind memory": ["--calibration host.calibration.yaml"],
    "calibrate --device cpu -o made.calibration.yaml": [
        "--model qwen3-8b",
        "--calibration host.calibration.yaml",
        "--concurrency 3",
    ],
    "calibrate --endpoint localhost:9 --dry-run": [
        "--quick",
        "--device cpu",
        "--concurrency 3",
        "--input-tokens 9",
    ],
    f"calibrate {RESULTS}": ["--quick", "--device cpu", "--minutes 3"],
    "calibrate --compare host.calibration.yaml h100-sxm": ["--offline", "--engine vllm", "--verify qwen3-8b"],
}
"""Lines, and what is added to them that nothing there reads."""


def flags_of(command):
    """Return the options of a command, and its arguments in braces."""
    found = typer.main.get_command(app).get_command(None, command)
    return {p.opts[0] if p.opts[0].startswith("-") else f"{{{p.opts[0]}}}" for p in found.params}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_has_its_case(command):
    assert set(CASES[command]) == flags_of(command)


def with_flag(words, flag, value):
    """Return a line with a flag added, or set anew where the line has it; an argument in its place."""
    found, values = list(words), shlex.split(value)
    if flag.startswith("{"):
        arguments = [name for name in CASES[words[0]] if name.startswith("{")]
        found[1 + arguments.index(flag)] = value
    elif flag in found:
        at = found.index(flag) + 1
        found[at : at + len(values)] = values
    else:
        found += [flag, *values]
    return found


def written(path):
    return path.read_bytes() if path.exists() else b""


@pytest.mark.parametrize(("command", "flag"), [(c, f) for c in CASES for f in CASES[c]])
def test_a_flag_changes_what_is_answered(command, flag, line, numbers, small_files):
    if command == "calibrate":
        pytest.importorskip("torch", reason="a calibration needs the extra")
    case = CASES[command][flag]
    before = shlex.split((case.line or LINES[command]).format(command=command))
    after = with_flag(before, flag, case.value)
    assert after != before
    if case.refused:
        first, second = line(before), line(after)
        assert second.code == 2
        assert re.search(case.refused, second.err), second.err
        assert not re.search(case.refused, first.err)
    elif case.file:
        found = []
        for words in (before, after):
            (small_files / case.file).unlink(missing_ok=True)
            assert line(words, anew=True).code != 2
            found.append(written(small_files / case.file))
        assert found[1] not in (b"", found[0])
    elif case.words:
        first, second = line(before), line(after)
        assert 2 not in (first.code, second.code)
        assert first.out != second.out
    else:
        asked = flag.strip("-").replace("-", "_")
        first, second = (line([*words, "--format", "json"]) for words in (before, after))
        assert 2 not in (first.code, second.code), (first.err, second.err)
        was, now = (
            numbers(json.loads(ran.out)["result"], asked) if ran.out else None for ran in (first, second)
        )
        assert was != now


def test_a_calibration_counts_in_a_sweep_of_a_scenario_too(line, numbers):
    first, second = (
        line([*shlex.split(SWEPT), *more, "--format", "json"])
        for more in ((), ("--calibration", "host.calibration.yaml"))
    )
    assert (first.code, second.code) == (0, 0), (first.err, second.err)
    was, now = (numbers(json.loads(ran.out)["result"], "calibration") for ran in (first, second))
    assert was != now


@pytest.mark.parametrize(
    ("start", "flag"), [(start, flag) for start, flags in UNREAD.items() for flag in flags]
)
def test_a_flag_that_nothing_reads_is_refused(start, flag, line):
    first, second = line(shlex.split(start)), line(shlex.split(f"{start} {flag}"))
    assert first.code != 2 or first.err.startswith("told: ")
    assert second.code == 2
    assert not second.err.startswith("told: ")
