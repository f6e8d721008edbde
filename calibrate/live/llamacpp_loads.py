"""llama.cpp's server, measured and predicted: `capplan calibrate --endpoint` first, then open loops that it has not seen.

    python -m calibrate.live.llamacpp_loads ENVIRONMENT FOLDER DEVICE_CALIBRATION [REPEATS]

sends the loads; `calibrate.live.llamacpp_table FOLDER` prints the table.
"""

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from calibrate.live.llamacpp import TELLING, serving
from calibrate.live.llamacpp_log import telling
from calibrate.live.loads import CLOSED, OPEN, sent
from calibrate.live.model import CONFIG, write_model
from capplan.calibrate.endpoint.client import Question, answered, endpoint_of

MODEL = {
    **CONFIG,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
}
"""40 million parameters: in float32 this server works on prompts at a third of the rate of vLLM."""
SLOTS, CONTEXT, BATCH_TOKENS = 12, 4096, 512
FLOAT32 = 0
"""ggml's number of the type."""
FIELDS = (
    f"n_parallel={SLOTS}", f"n_ctx={SLOTS * CONTEXT}", f"n_batch={BATCH_TOKENS}", f"n_ubatch={BATCH_TOKENS}",
    f"cache_type_k={FLOAT32}", f"cache_type_v={FLOAT32}", "cache_prompt=false", "endpoint_metrics=true", TELLING,
)  # fmt: skip
LOADS = (CLOSED[0], CLOSED[-1], *OPEN)
MINUTES = "3"
PRINTED_S = 0.5
"""Until the server has printed what it did."""
ENGINE = (
    "--weight-dtype", "fp32", "--kv-dtype", "fp32", "--engine", "vllm", "--engine-version", "0.32.0", "--max-model-len", str(CONTEXT),
    "--max-num-seqs", str(SLOTS), "--max-num-batched-tokens", str(BATCH_TOKENS),
)  # fmt: skip
"""How the server is described to commands that know no engine by the name of llama.cpp."""


def main(words: list[str]) -> int:
    """Calibrate the server, then send each load as often as there are repeats; keep of its log what tells of steps."""
    environment, folder, device = map(Path, words[:3])
    model = write_model(folder / "tiny", MODEL)
    with serving(environment, model, folder / "server", FIELDS) as live:
        server = replace(endpoint_of(live.url), model="tiny")
        for count in (16, 128, 512):
            answered(server, Question(tuple(range(300, 300 + count)), 8))
        command = [
            sys.executable, "-m", "capplan", "calibrate", "--endpoint", live.url, "--minutes", MINUTES,
            "--max-concurrency", str(SLOTS), "--model", str(model), "--hardware", "measured", "--calibration", str(device),
            *ENGINE, "-o", str(folder / "endpoint.calibration.yaml"),
        ]  # fmt: skip
        code = subprocess.run(command, check=False).returncode  # noqa: S603  # the words above
        if code:
            return code
        for repeat in range(1, 1 + int(words[3] if len(words) > 3 else "2")):
            rate = 0.0
            for load in LOADS:
                begin = live.log.stat().st_size
                path = folder / f"{load.name}.{repeat}.json"
                record = sent(load, server, load.share * rate, path)
                rate = max(rate, record["request_throughput"]) if load.users else rate
                time.sleep(PRINTED_S)
                with live.log.open(encoding="utf-8", errors="replace") as log:
                    log.seek(begin)
                    path.with_suffix(".log").write_text("".join(telling(log)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
