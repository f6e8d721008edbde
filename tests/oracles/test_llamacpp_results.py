"""What llama-bench and llama-batched-bench print, in each of their formats, as results and as rows of measured speeds."""

import csv
import io
import json

import pytest

from capplan.errors import InputError
from capplan.recorded.measured import measured_table
from capplan.recorded.results.read import read_results

ROW = {
    "build_commit": "6f7a1bc0", "build_number": 7421, "cpu_info": "AMD Ryzen 9 7950X 16-Core Processor", "gpu_info": "NVIDIA GeForce RTX 4090",
    "backends": "CUDA", "model_filename": "/models/Llama-3.1-8B-Instruct-Q4_K_M.gguf", "model_type": "llama 8B Q4_K - Medium",
    "model_size": 4912898304, "model_n_params": 8030261248, "n_batch": 2048, "n_ubatch": 512, "n_threads": 16, "type_k": "f16", "type_v": "f16",
    "n_gpu_layers": 99, "n_cpu_moe": 0, "flash_attn": True, "n_depth": 0, "test_time": "2026-11-02T10:00:00Z",
}  # fmt: skip
PROMPT = ROW | {"n_prompt": 512, "n_gen": 0, "avg_ns": 40_000_000, "avg_ts": 12800.0, "stddev_ts": 25.5}
GENERATION = ROW | {
    "n_prompt": 0,
    "n_gen": 128,
    "n_depth": 4096,
    "avg_ns": 1_000_000_000,
    "avg_ts": 128.0,
    "stddev_ts": 0.5,
}
MARKDOWN = """\
ggml_cuda_init: GGML_CUDA_FORCE_MMQ:    no
ggml_cuda_init: found 1 CUDA devices:
  Device 0: NVIDIA GeForce RTX 4090, compute capability 8.9, VMM: yes
| model                          |       size |     params | backend    | ngl | fa | type_k |            test |                  t/s |
| ------------------------------ | ---------: | ---------: | ---------- | --: | -: | -----: | --------------: | -------------------: |
| llama 8B Q4_K - Medium         |   4.58 GiB |     8.03 B | CUDA       |  99 |  1 |    f16 |           pp512 |    12800.00 ± 25.50 |
| llama 8B Q4_K - Medium         |   4.58 GiB |     8.03 B | CUDA       |  99 |  1 |    f16 |   tg128 @ d4096 |       128.00 ± 0.50 |

build: 6f7a1bc0 (7421)
"""
BATCHED = {
    "n_kv_max": 8192, "n_batch": 2048, "n_ubatch": 512, "flash_attn": 1, "is_pp_shared": 0, "n_gpu_layers": 99, "n_threads": 8, "n_threads_batch": 8,
    "pp": 512, "tg": 128, "pl": 4, "n_kv": 2560, "t_pp": 0.25, "speed_pp": 8192.0, "t_tg": 2.0, "speed_tg": 256.0, "t": 2.25, "speed": 1137.78,
}  # fmt: skip
BATCHED_MARKDOWN = """\
main: n_kv_max = 8192, n_batch = 2048, n_ubatch = 512, flash_attn = 1, is_pp_shared = 0, n_gpu_layers = 99, n_threads = 8, n_threads_batch = 8

|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |
|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|
|   512 |    128 |    4 |   2560 |    0.250 |  8192.00 |    2.000 |   256.00 |    2.250 |  1137.78 |
"""


def of_csv(rows):
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0].keys(), quoting=csv.QUOTE_ALL)
    writer.writeheader()
    writer.writerows(
        [
            {key: int(value) if isinstance(value, bool) else value for key, value in row.items()}
            for row in rows
        ]
    )
    return text.getvalue()


FILES = {
    "bench.json": json.dumps([PROMPT, GENERATION]),
    "bench.jsonl": "\n".join(map(json.dumps, (PROMPT, GENERATION))),
    "bench.csv": of_csv([PROMPT, GENERATION]),
    "bench.md": MARKDOWN,
    "bench.txt": MARKDOWN,
}


@pytest.fixture
def speeds():
    """Return the rows of a file, of a kind that is recognised by its columns."""
    return lambda path: measured_table(path)[1]


@pytest.mark.parametrize("name", FILES)
def test_every_format_of_llama_bench_is_the_same_result(tmp_path, name):
    path = tmp_path / name
    path.write_text(FILES[name])
    prompt, generation = read_results(path)
    assert (prompt.tool, prompt.engine, prompt.kind, prompt.input_tokens) == (
        "llama-bench",
        "llama.cpp",
        "prefill",
        512,
    )
    assert prompt.ttft_s.mean == pytest.approx(0.04)
    assert (generation.kind, generation.context_tokens) == ("decode", 4096 + 64)
    assert generation.tpot_s.mean == pytest.approx(1 / 128)
    assert (prompt.hardware, prompt.model) == ("NVIDIA GeForce RTX 4090", "llama 8B Q4_K - Medium")


@pytest.mark.parametrize("name", FILES)
def test_every_format_of_llama_bench_is_the_same_row_of_speeds(tmp_path, name, speeds):
    path = tmp_path / name
    path.write_text(FILES[name])
    prompt, generation = speeds(path)
    shared = {"device": "NVIDIA GeForce RTX 4090", "device_count": "1", "backend": "cuda", "build": "7421", "quant": "Q4_K_M", "n_gpu_layers": "99",
              "flash_attention": "1", "kv_type": "f16", "parallel": "1", "tool": "llama-bench"}  # fmt: skip
    assert shared.items() <= prompt.items()
    assert shared.items() <= generation.items()
    assert (prompt["prompt_tokens"], prompt["gen_tokens"], float(prompt["tok_s"])) == ("512", "0", 12800.0)
    assert (generation["gen_tokens"], generation["depth_tokens"], float(generation["tok_s"])) == (
        "128",
        "4096",
        128.0,
    )
    assert float(generation["tok_s_stddev"]) == 0.5
    assert float(prompt["model_size_gib"]) == pytest.approx(4.58, abs=0.01)
    assert prompt["model"] == ("llama 8B" if name in ("bench.md", "bench.txt") else "Llama-3.1-8B-Instruct")


@pytest.mark.parametrize(
    ("name", "text"), [("batched.jsonl", json.dumps(BATCHED)), ("batched.md", BATCHED_MARKDOWN)]
)
def test_llama_batched_bench_is_a_batch_and_two_speeds(tmp_path, name, text, speeds):
    path = tmp_path / name
    path.write_text(text)
    (result,) = read_results(path, hardware="rtx-4090")
    assert (result.kind, result.concurrency, result.input_tokens, result.output_tokens) == (
        "static_batch",
        4,
        512,
        128,
    )
    assert (result.ttft_s.mean, result.tpot_s.mean, result.e2e_s.mean) == (0.25, 2.0 / 128, 2.25)
    prompt, generation = speeds(path)
    assert (prompt["parallel"], prompt["prompt_tokens"], prompt["gen_tokens"], float(prompt["tok_s"])) == (
        "4",
        "512",
        "0",
        8192.0,
    )
    assert (generation["depth_tokens"], generation["gen_tokens"], float(generation["tok_s"])) == (
        "512",
        "128",
        256.0,
    )
    assert (prompt["n_gpu_layers"], prompt["flash_attention"], prompt["ubatch"]) == ("99", "1", "512")


@pytest.mark.parametrize(
    ("line", "device", "count"),
    [
        ("  Device 0: AMD Radeon RX 7900 XTX, gfx1100 (0x1100), VMM: no, Wave Size: 32", "AMD Radeon RX 7900 XTX", "1"),
        ("ggml_vulkan: 0 = AMD Radeon RX 7900 XTX (RADV NAVI31) (radv) | uma: 0 | fp16: 1 | warp size: 64", "AMD Radeon RX 7900 XTX (RADV NAVI31) (radv)", "1"),
        ("ggml_metal_init: found device: Apple M2 Ultra\nggml_metal_init: picking default device: Apple M2 Ultra", "Apple M2 Ultra", "1"),
        ("  Device 0: NVIDIA GeForce RTX 3090, compute capability 8.6, VMM: yes\n  Device 1: NVIDIA GeForce RTX 3090, compute capability 8.6, VMM: yes", "NVIDIA GeForce RTX 3090", "2"),
    ],
)  # fmt: skip
def test_devices_are_read_from_the_lines_above_a_table(tmp_path, speeds, line, device, count):
    path = tmp_path / "bench.txt"
    path.write_text("\n".join([line, *MARKDOWN.splitlines()[3:]]))
    row = speeds(path)[0]
    assert (row["device"], row["device_count"]) == (device, count)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("pp512 ", "lunch ", "the test 'lunch' is not read; known: pp512, tg128, pp512+tg128, tg32 @ d4096"),
        ("12800.00 ± 25.50", "fast", "'fast' is not a number, in a table of llama.cpp"),
        ("pp512 ", f"pp{'9' * 400} ", "is not read; known: pp512"),
        ("12800.00 ± 25.50", "9" * 400, "is not a number, in a table of llama.cpp"),
        ("12800.00 ± 25.50", "0.00 ± 0.00", "is not a speed in tokens per second"),
    ],
)
def test_a_table_that_says_nothing_is_refused_with_its_cell(tmp_path, speeds, old, new, words):
    path = tmp_path / "bench.md"
    path.write_text(MARKDOWN.replace(old, new))
    with pytest.raises(InputError) as error:
        speeds(path)
    assert words in str(error.value)
    assert str(path) in str(error.value)


def test_several_tables_of_one_file_are_read_and_other_tables_are_not(tmp_path, speeds):
    path = tmp_path / "readme.md"
    path.write_text(f"# Notes\n\n| day | who |\n| --- | --- |\n| 1 | me |\n\n{MARKDOWN}\n\n{MARKDOWN}")
    assert len(speeds(path)) == 4
    path.write_text("# Notes\n\n| day | who |\n| --- | --- |\n| 1 | me |\n")
    with pytest.raises(InputError):
        speeds(path)


@pytest.mark.parametrize(
    ("printed", "hardware"),
    [("Apple M2 Ultra", "apple-m2-ultra-76core"), ("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090"), ("a card of ours", "apple-m2-ultra-76core")],
)  # fmt: skip
def test_hardware_may_be_stated_where_the_file_does_not_name_one_device(tmp_path, printed, hardware):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps([PROMPT | {"gpu_info": printed}]))
    (result,) = read_results(path, hardware="apple-m2-ultra-76core")
    assert result.hardware == hardware


def test_older_tables_and_settings_that_llama_cpp_chose_are_read(tmp_path, speeds):
    path = tmp_path / "bench.md"
    old = (
        MARKDOWN.replace("tg128 @ d4096", "tg 128")
        .replace("pp512", "pp 512")
        .replace("8B Q4_K - Medium", "7B mostly Q4_0")
        .replace("|  99 |  1 |", "|  -1 | auto |")
    )
    path.write_text(old)
    prompt, generation = speeds(path)
    assert (prompt["prompt_tokens"], generation["gen_tokens"]) == ("512", "128")
    assert (prompt["model"], prompt["quant"], prompt["n_gpu_layers"], prompt["flash_attention"]) == (
        "llama 7B",
        "Q4_0",
        "",
        "",
    )
