"""Command lines as people publish them (`tests/data/launch_lines.jsonl.gz`): what is read of each, or why it is refused; and every suggestion of a refusal works.

`zcat` shows the file, `gzip -9n` packs it again: a line of JSON has `line`, `source`, and `read` (what differs from the defaults) or `refused`.
`held_out`: found after the reader was written, and not looked at before it was counted.
"""

import gzip
import json
import re
import shlex
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from capplan.deploy.command_line import read_command_line
from capplan.deploy.replica_launch import ReplicaLaunch, engine_flags
from capplan.errors import InputError

FILE = Path(__file__).resolve().parents[1] / "data" / "launch_lines.jsonl.gz"
PLAIN = ReplicaLaunch("", "", "")
NOT_COMPARED = ("unread", "assumed")


@cache
def lines():
    return [json.loads(line) for line in gzip.decompress(FILE.read_bytes()).decode("utf-8").splitlines()]


def differing(launch):
    """Return what a launch says beyond the defaults, as the file writes it."""
    said = {field.name: getattr(launch, field.name) for field in fields(ReplicaLaunch)}
    found = {
        name: value
        for name, value in said.items()
        if value != getattr(PLAIN, name) and name not in NOT_COMPARED
    }
    if launch.drafts:
        found["drafts"] = [launch.drafts.method, launch.drafts.draft, launch.drafts.draft_tokens]
    if launch.adapters:
        found["adapters"] = [launch.adapters.adapters, launch.adapters.slots, launch.adapters.rank]
    if launch.assumed:
        found["assumed"] = [line.partition(" (not read")[0] for line in launch.assumed]
    return found


def read_or_refused(line, **how):
    """Return what is read of a line and no refusal, or nothing and the refusal."""
    try:
        return differing(read_command_line(line, **how)), ""
    except InputError as error:
        return {}, str(error)


def test_public_lines_are_read_as_they_say_or_refused_with_the_reason():
    wrong = []
    for row in lines():
        read, refusal = read_or_refused(row["line"])
        if read != row.get("read", {}) or not all(reason in refusal for reason in row.get("refused", [""])):
            wrong.append((row["line"], read, refusal))
    assert wrong == []
    assert len(lines()) >= 300
    assert all(row["source"] for row in lines())


@pytest.mark.parametrize("held_out", [False, True])
def test_most_lines_that_say_all_they_need_are_read(held_out):
    """Lines with variables that nothing sets, without a model or a file, and of other programs say less."""
    less = re.compile(
        r"is a variable|names no model|no such file|a file that is not there|--omni|Diffusion|is no JSON object|starts no engine|starts \d engines|is not a whole number"
    )
    whole = [
        row
        for row in lines()
        if bool(row.get("held_out")) == held_out and not less.search(" ".join(row.get("refused", ())))
    ]
    assert len(whole) >= 60
    assert sum("read" in row for row in whole) >= 0.85 * len(whole)


def test_what_is_not_modelled_is_left_out_where_people_say_so():
    """Every line that is refused for such options alone is read without them, and each of them is an assumption."""
    for row in lines():
        _, refusal = read_or_refused(row["line"])
        if "--ignore-unmodelled" in refusal:
            launch = read_command_line(row["line"], ignore_unmodelled=True)
            stated = " ".join(launch.assumed)
            assert all(reason in stated for reason in row["refused"]), row


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_every_suggested_option_is_accepted(engine):
    """Each option of the table, with a letter left out at its end: what is suggested for it is an option that is read."""
    start = {
        "vllm": "vllm serve o/n",
        "sglang": "python3 -m sglang.launch_server --model-path o/n",
        "trtllm": "trtllm-serve o/n",
    }[engine]
    table = engine_flags(engine)
    tried = 0
    for flag in table.flags.values():
        for name in (
            name for name in flag.names if name.startswith("--") and name not in ("--model", "--model-path")
        ):
            middle = len(name) // 2 + 1
            _, refusal = read_or_refused(f"{start} {name[:middle]}{name[middle + 1 :]} 2")
            suggested = re.search(r"did you mean (\S+)\?", refusal)
            if suggested is None:
                continue
            tried += 1
            _, again = read_or_refused(f"{start} {suggested[1]} 2")
            assert "is no option" not in again, (name, again)
            assert "may change memory" not in again
    assert tried > 5


def test_both_spellings_of_a_json_option_mean_the_same():
    for dotted, whole in (
        ("--speculative-config.method mtp --speculative-config.num_speculative_tokens 2", "--speculative-config '{\"method\":\"mtp\",\"num_speculative_tokens\":2}'"),
        ("-sc.method=mtp -sc.num_speculative_tokens=2", "-sc '{\"method\":\"mtp\",\"num_speculative_tokens\":2}'"),
        ("--kv-transfer-config.kv_role kv_consumer --kv_transfer_config.kv_connector NixlConnector", "--kv-transfer-config '{\"kv_role\":\"kv_consumer\",\"kv_connector\":\"NixlConnector\"}'"),
        ("--attention-config.backend FLASH_ATTN", "--attention-config '{\"backend\":\"FLASH_ATTN\"}'"),
        ("--compilation-config.cudagraph_mode NONE", "-cc '{\"cudagraph_mode\":\"NONE\"}'"),
        ("--compilation_config.cudagraph_mode=PIECEWISE", "--compilation-config '{\"cudagraph_mode\":\"PIECEWISE\"}'"),
        ("--limit-mm-per-prompt.video 3", "--limit-mm-per-prompt '{\"video\":3}'"),
    ):  # fmt: skip
        found = [read_or_refused(f"vllm serve o/n {words}") for words in (dotted, whole)]
        assert found[0] == found[1], dotted


def test_every_switch_has_its_no_form():
    table = engine_flags("vllm")
    for flag in table.flags.values():
        if flag.switch and flag.names[0].startswith("--enable-"):
            read, refusal = read_or_refused(f"vllm serve o/n --no-{flag.names[0][2:]}")
            assert not refusal, flag
            assert read.get("chunked_prefill") is not True
            assert read.get("expert_parallel", 1) == 1
    for name in sorted(table.switches & table.harmless):
        off = f"--no-{name.removeprefix('--')}"
        refusal = read_or_refused(f"vllm serve o/n {off}")[1]
        assert bool(refusal) == (off in table.refused), (
            name
        )  # what is on by default, and changes memory or speed


def test_a_line_in_quotes_is_the_same_line():
    """`bash -c`, Docker and variables around a command change nothing of it."""
    plain = "vllm serve o/n -tp 2 --max-model-len 4096"
    read = differing(read_command_line(plain))
    for wrapped in (
        f"bash -c {shlex.quote(plain)}",
        f"A=1 exec {plain}",
        f"docker run --gpus all -v a:/b --rm IMAGE sh -lc {shlex.quote('set -e; ' + plain)}",
        f"M=o/n; {plain.replace('o/n', '${M}')} > log 2>&1 &",
        plain.replace(" -", " \\\n  -"),
        plain.replace(" -", "\n  -"),
        f"# started by hand\n{plain}   # today\n",
    ):
        assert differing(read_command_line(wrapped)) == read, wrapped


def test_whole_prompts_of_sglang_share_the_step_that_it_takes_by_default():
    """`max_prefill_tokens` in `server_args.py` of SGLang; the assumption names the option that is missing."""
    launch = read_command_line("python3 -m sglang.launch_server --model-path o/n --chunked-prefill-size -1")
    assert (launch.chunked_prefill, launch.max_num_batched_tokens) == (False, 16384)
    assert "--chunked-prefill-size -1 without --max-prefill-tokens" in launch.assumed[0]


@pytest.mark.parametrize(
    ("graphs", "drafts", "read"),
    [
        ("{max_batch_size: 64}", "", 64),
        ("{enable_padding: true}", "", None),
        ("{batch_sizes: [1, 2, 32]}", "", 32),
        ("null", "", 0),
        (
            "{max_batch_size: 64}",
            "speculative_config: {decoding_type: MTP, num_nextn_predict_layers: 1}\n",
            None,
        ),
        (
            "{max_batch_size: 32}",
            "speculative_config: {decoding_type: MTP, num_nextn_predict_layers: 1}\n",
            "refused",
        ),
    ],
)
def test_graphs_of_tensorrt_are_those_of_its_yaml(graphs, drafts, read):
    text = f"cuda_graph_config: {graphs}\n{drafts}"
    script = f"cat > ./c.yml<<EOF\n{text}EOF\ntrtllm-serve o/n --max_batch_size 64 --config c.yml"
    found, refusal = read_or_refused(script)
    if read == "refused":
        assert "cuda_graph_config.max_batch_size limits CUDA graphs" in refusal
    else:
        assert (found.get("cuda_graphs"), refusal) == (read, "")


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("vllm serve o/n --enforce-eager", 0),
        ("vllm serve o/n --no-enforce-eager", None),
        ("vllm serve o/n -cc.cudagraph_mode=NONE", 0),
        ("""vllm serve o/n --compilation-config '{"cudagraph_mode": "NONE"}'""", 0),
        ("""vllm serve o/n --compilation-config '{"max_cudagraph_capture_size": 32}'""", 32),
        ("vllm serve o/n --max-cudagraph-capture-size 64", 64),
        ("sglang serve --model-path o/n --disable-cuda-graph", 0),
        ("sglang serve --model-path o/n --cuda-graph-max-bs 160", 160),
        ("sglang serve --model-path o/n --cuda-graph-bs 1 2 64", 64),
        ("sglang serve --model-path o/n --cuda-graph-bs 1 2 64 --cuda-graph-max-bs 16", 16),
        ("vllm serve o/n --cudagraph-capture-sizes 1 2 8", 8),
        ("""vllm serve o/n -cc '{"cudagraph_capture_sizes": [1, 2, 8]}'""", 8),
        ("vllm serve o/n -O0", 0),
        ("docker run vllm/vllm-openai:v0.14.0 o/n -O0", 0),
        ("vllm serve o/n --enforce-eager=False", None),
        ("vllm serve o/n --enforce-eager true", 0),
    ],
)
def test_a_line_says_which_steps_run_as_cuda_graphs(line, read):
    found, refusal = read_or_refused(line)
    assert (found.get("cuda_graphs"), refusal) == (read, "")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("vllm serve o/n --enforce-eager=$EAGER", "--enforce-eager is not stated: $EAGER is a variable"),
        (
            "vllm serve o/n --enable-expert-parallel=<ep>",
            "--enable-expert-parallel is not stated: <ep> stands for",
        ),
        ("vllm serve o/n --enforce-eager=0", "--enforce-eager=0: a switch is true or false"),
    ],
)
def test_a_switch_of_an_unknown_value_is_not_turned_on(line, why):
    assert why in read_or_refused(line)[1]


def test_a_file_that_echo_writes_is_the_one_that_the_command_names():
    written = 'echo -e "enable_attention_dp: true\\nkv_cache_config:\\n  dtype: fp8" > ./more.yml'
    read, refusal = read_or_refused(f"{written}\ntrtllm-serve o/n --tp_size 4 --config more.yml")
    assert not refusal
    assert (read["data_parallel"], read["kv_dtype"]) == (4, "fp8")


def test_a_client_behind_the_program_of_an_image_starts_no_engine():
    refusal = read_or_refused("docker run --entrypoint vllm vllm/vllm-openai:latest bench serve --model o/n")[
        1
    ]
    assert "starts no engine that is known" in refusal


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (
            "$TP",
            "--max-num-seqs is not stated: $TP is a variable that nothing before it sets; write TP=...; before the command",
        ),
        ("${TP:?}", "write TP=...; before the command"),
        ("$7", "$7 is an argument of its script; write its value"),
        ("$(nproc)", "$(nproc) is a command, and nothing is run; write what it prints"),
        ("'<N>'", "<N> stands for a value of yours; write it"),
        ("'{{ n }}'", "{{ n }} stands for a value of yours; write it"),
    ],
)
def test_a_value_that_is_not_stated_is_the_default_of_the_engine_where_people_say_so(value, why):
    """It is named together with all that is not modelled, so that one answer says everything to be written."""
    line = f"vllm serve o/n --max-num-seqs {value} --omni -tp 2"
    _, refusal = read_or_refused(line)
    assert "2 parts are not modelled or not stated" in refusal
    assert why in refusal
    launch = read_command_line(line, ignore_unmodelled=True)
    assert (launch.max_num_seqs, launch.tensor_parallel) == (None, 2)
    assert launch.assumed[0].startswith("estimated as the engine is by default: --max-num-seqs is not stated")


@pytest.mark.parametrize(
    ("words", "read"),
    [
        ("--quantization bitsandbytes", {"weight_dtype": "nf4"}),
        (
            "--disable-sliding-window --max-model-len 4096",
            {"max_model_len": 4096, "assumed": ["the model has no window that is shorter than the context"]},
        ),
        ("--disable-custom-all-reduce", {}),
        ("-tp 2 --enable-multimodal-encoder-data-parallel", {"tensor_parallel": 2, "whole_towers": True}),
        ("-cc.cudagraph_mode PIECEWISE", {"assumed": ["decode steps run as whole CUDA graphs"]}),
        ("--scheduling-policy priority", {"assumed": ["requests are served in the order of their arrival"]}),
        ("--enable-chunked-prefill=False", {"chunked_prefill": False}),
        ("--enable-chunked-prefill False", {"chunked_prefill": False}),
        ("--enable-prefix-caching=false", {"prefix_caching": False}),
        ("-tp 2 -ep=false", {"tensor_parallel": 2}),
        ("-tp 2 --enable-expert-parallel true", {"tensor_parallel": 2, "expert_parallel": 2}),
        ("--kv-cache-dtype fp8_ds_mla", {"kv_dtype": "fp8"}),
        ("--quantization ptpc_fp8", {"weight_dtype": "fp8"}),
        ("--quantization awq_marlin", {}),
        ("--decode-context-parallel-size 1 --num-scheduler-steps 1", {}),
        (
            "--max-num-seqs 4 --max-num-seqs 8",
            {"max_num_seqs": 8, "assumed": ["an option that stands twice has its last value"]},
        ),
    ],
)
def test_values_of_switches_and_defaults_are_read(words, read):
    found, refusal = read_or_refused(f"vllm serve o/n {words}")
    assert refusal == ""
    assert found == {"engine": "vllm", "version": None, "model": "o/n"} | read


@pytest.mark.parametrize(
    ("words", "read"),
    [
        ("--tp 4 --moe-a2a-backend deepep --deepep-mode auto", {"tensor_parallel": 4, "expert_parallel": 4}),
        ("--tp 4 --enable-deepep-moe", {"tensor_parallel": 4, "expert_parallel": 4}),
        ("--tp 4 --moe-a2a-backend none", {"tensor_parallel": 4}),
        ("--tp 8 --attn-dp-size 8 --moe-dense-tp-size 1 --enable-dp-lm-head", {"data_parallel": 8}),
        ("--tp 8 --dp 4", {"tensor_parallel": 8}),
        ("--tp 2 --mm-enable-dp-encoder", {"tensor_parallel": 2, "whole_towers": True}),
        ("--disable-decode-cuda-graph", {"cuda_graphs": 0}),
        ("""--cuda-graph-config '{"decode":{"max_bs":64},"prefill":{"backend":"breakable"}}'""", {"cuda_graphs": 64}),
        ("--cuda-graph-backend-decode disabled", {"cuda_graphs": 0}),
        ("--speculative-algorithm DSPARK --speculative-draft-model-path o/d --speculative-dspark-block-size 7", {"drafts": ["dspark", "o/d", 7]}),
    ],
)  # fmt: skip
def test_how_sglang_spreads_experts_and_captures_steps_is_read(words, read):
    found, refusal = read_or_refused(f"sglang serve --model-path o/n {words}")
    assert refusal == ""
    found.pop("assumed", None)
    assert found == {"engine": "sglang", "version": None, "model": "o/n"} | read


def test_dense_layers_that_are_split_otherwise_than_attention_are_not_modelled():
    refusal = read_or_refused(
        "sglang serve --model-path o/n --tp 8 --dp 4 --enable-dp-attention --moe-dense-tp-size 1"
    )[1]
    assert "--moe-dense-tp-size splits dense layers in another way" in refusal


def test_a_host_cache_of_unknown_size_is_an_assumption():
    for line in (
        "sglang serve --model-path o/n --enable-hierarchical-cache --hicache-ratio 2",
        """vllm serve o/n --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'""",
    ):
        launch = read_command_line(line)
        assert (launch.host_cache_bytes, launch.role) == (None, None)
        assert launch.assumed[-1].startswith("prefixes are kept on the GPUs only, unless --")


@pytest.mark.parametrize(
    ("before", "script"),
    [
        ("docker run -e TP=2 IMAGE bash -c", "vllm serve o/n -tp $TP"),
        ("docker run --env=TP=2 IMAGE bash -c", "vllm serve o/n -tp $TP"),
        ("TP=2 bash -c", "vllm serve o/n -tp $TP"),
        ("ssh node1", "vllm serve o/n -tp 2"),
        ("sbatch --wrap", "vllm serve o/n -tp 2"),
    ],
)
def test_a_command_in_one_word_of_another_has_the_variables_that_are_set_for_it(before, script):
    assert read_command_line(f"{before} '{script}'").tensor_parallel == 2


def test_the_yaml_of_old_releases_of_tensorrt_says_the_same():
    old = "pytorch_backend_config:\n  use_cuda_graph: true\n  cuda_graph_max_batch_size: 64\n  enable_overlap_scheduler: true\n  kv_cache_dtype: fp8\n"
    new = "cuda_graph_config: {max_batch_size: 64}\nkv_cache_config: {dtype: fp8}\n"
    read = [
        read_or_refused(f"cat > c.yml<<EOF\n{text}EOF\ntrtllm-serve o/n --config c.yml")
        for text in (old, new)
    ]
    assert read[0] == read[1]
    assert read[0][0]["cuda_graphs"] == 64


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("vllm serve o/n --disable-sliding-window", "ends the context at the window"),
        ("vllm serve o/n -tp 2 --disable-custom-all-reduce", "sends between GPUs in another way"),
        ("vllm serve o/n --context-length 4096", "did you mean --max-model-len?"),
        ("trtllm-serve o/n --max-num-seqs 64", "did you mean --max_batch_size?"),
        ("vllm serve o/n --speculative-config ${SPEC}", "--speculative-config is not stated: ${SPEC} is a"),
        (
            "vllm serve o/n -tp $TP --max-model-len ${LEN}",
            "write TP=...; LEN=...; before the command, or add",
        ),
        (
            "vllm serve o/n --quantization sym_int4",
            "--quantization sym_int4 makes weights that are not modelled",
        ),
        ("docker run vllm/vllm-openai:v0.11.0 o/n -O0", "sets how much is compiled before vllm 0.12.0"),
        (
            "vllm serve --config=x.yaml",
            "names no model; write it behind the program, e.g. vllm serve OWNER/NAME\n  --config x.yaml names a file that is not there",
        ),
        (
            "sglang serve --model-path o/n --num-gpus 2 --ulysses-degree 2",
            "serves images or video by SGLang Diffusion",
        ),
        (
            """docker run --entrypoint='["bash"]' vllm/vllm-openai:v0.14.0 -c ls""",
            "starts no engine that is known",
        ),
    ],
)
def test_what_is_not_read_says_why(line, why):
    assert why in read_or_refused(line)[1]


def test_a_terminal_and_an_entry_point_around_a_command_change_nothing_of_it():
    plain = differing(read_command_line("vllm serve o/n -tp 2"))
    for line in (
        "> vllm serve o/n -tp 2",
        "(venv) $ vllm serve o/n -tp 2",
        """podman run --entrypoint='["vllm", "serve"]' IMAGE o/n -tp 2""",
    ):
        assert differing(read_command_line(line)) == plain
