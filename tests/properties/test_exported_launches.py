"""What is exported of a plan: read back it is the same replica, no version gets an option that it does not know, and nothing is left out in silence."""

import json
import math
import re
import shlex
from dataclasses import replace

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from capplan.deploy.command_line import command_of, read_command_line, shell_text
from capplan.deploy.engine_options import METHODS
from capplan.deploy.fleet_launch import fleet_launch
from capplan.deploy.known_deployment import serving_flags
from capplan.deploy.platforms import scaled_objects
from capplan.deploy.replica_launch import Drafts, ReplicaLaunch, engine_flags
from capplan.engine.lookup import version_key
from capplan.errors import InputError
from capplan.model.network import LoraTerms
from capplan.model.sharding import MODULES, weight_bytes_per_rank
from capplan.readers.plan_file import read_plan_file
from capplan.replica.plans import plans_cache_tokens, plans_memory, plans_of
from capplan.scenario.flags import ServingFlags
from capplan.scenario.replica import asked_replica
from capplan.serving.terms import Autoscaling, wanted_replicas
from tests.plan_files import plan_in, with_changes
from tests.sweeps import size_on_few_requests
from tests.tables import rows, table

pytestmark = pytest.mark.usefixtures("shared_runs")
ENGINES = ("vllm", "sglang", "trtllm")
NEWEST_BUILD = engine_flags("llamacpp").releases[-1]
NEWEST = {engine: engine_flags(engine).releases[-1] for engine in ENGINES}


WHOLE_MATRICES = (None, ("o_proj",), ("q_proj", "k_proj", "v_proj"), ("o_proj", "gate_proj", "up_proj"))
"""Matrices with adapters that vLLM, too, can be told apart."""


@st.composite
def adapters_of(draw, engine):
    """Draw room for adapters that the newest version of an engine can express."""
    slots = draw(st.integers(1, 200))
    parts = st.sets(st.sampled_from(MODULES), min_size=1, max_size=len(MODULES) - 1)
    some = parts.map(lambda names: tuple(name for name in MODULES if name in names))
    return LoraTerms(
        slots=slots,
        rank=draw(st.sampled_from((8, 16, 64, 512))),
        adapters=slots + draw(st.integers(0, 300)),
        modules=draw(st.sampled_from(WHOLE_MATRICES) if engine == "vllm" else st.none() | some),
        fully_sharded=draw(st.booleans()) if engine == "vllm" else False,
    )


@st.composite
def launches(draw, engine, version=None):
    """Draw a replica that the newest version of an engine can express."""
    data = draw(st.sampled_from((1, 2, 8)))
    tensor = 1 if engine == "trtllm" and data > 1 else draw(st.sampled_from((1, 2, 4, 8)))
    spread = draw(st.booleans())
    method = draw(st.sampled_from((None, *METHODS[engine])))
    drafts = method and Drafts(
        method,
        None if method in ("mtp", "ngram") else "owner/EAGLE3-draft" if engine == "trtllm" else "owner/draft",
        draw(st.integers(1, 8)),
    )
    gigabytes = draw(st.none() | st.integers(1, 500)) if engine != "trtllm" else None
    unit = 2.0**30 if engine == "vllm" else 1e9 * tensor * data
    return ReplicaLaunch(
        engine=engine,
        version=version or NEWEST[engine],
        model=draw(st.sampled_from(("owner/name", "/models/a b", "o/n-'quoted'"))),
        revision=draw(st.sampled_from((None, "v1.0"))),
        tensor_parallel=tensor,
        data_parallel=data,
        expert_parallel=tensor * data if spread else 1,
        weight_dtype=draw(st.sampled_from((None, "fp8", "bf16"))) if engine != "trtllm" else None,
        kv_dtype=draw(st.sampled_from(("bf16", "fp8"))),
        max_model_len=draw(st.integers(1, 200_000)),
        max_num_seqs=draw(st.integers(1, 4096)),
        max_num_batched_tokens=draw(st.integers(1, 65_536)),
        memory_fraction=draw(st.floats(0.1, 0.99).map(lambda value: round(value, 4))),
        prefix_caching=draw(st.booleans()),
        chunked_prefill=draw(st.sampled_from((None, False, True))),
        cuda_graphs=draw(st.sampled_from((None, 0, 1, 64))) if drafts is None or engine != "trtllm" else None,
        pooling=draw(st.booleans()) if engine != "trtllm" else False,
        adapters=draw(st.none() | adapters_of(engine)),
        drafts=drafts,
        host_cache_bytes=gigabytes and gigabytes * unit,
    )


def names_in(words):
    return [word for word in words if re.match(r"--[A-Za-z]", word)]


@pytest.mark.parametrize("engine", ENGINES)
@given(data=st.data())
def test_an_exported_command_is_read_back_as_the_same_replica(engine, data, tmp_path_factory):
    launch = data.draw(launches(engine))
    command = command_of(launch)
    folder = tmp_path_factory.getbasetemp()
    if command.config:
        (folder / "trtllm.yaml").write_text(json.dumps(command.config))
    read = read_command_line(shell_text(command), folder=folder)
    assert read == replace(launch, version=None)
    assert read.unread == ()


@st.composite
def replicas_of_llamacpp(draw):
    """Draw a replica of llama.cpp: of a model that is called as another one, of a repository, of a file."""
    several = draw(st.sampled_from((1, 1, 3)))
    return ReplicaLaunch(
        engine="llamacpp",
        version=NEWEST_BUILD,
        model=draw(
            st.sampled_from(("unsloth/Llama-3.1-8B-Instruct", "Qwen/Qwen2-7B", "zai-org/GLM-5.3-BF16"))
        ),
        pipeline_parallel=several,
        weight_dtype=draw(
            st.sampled_from((None, "q8_0", "q4_k_m", "q3_k_l", "q2_k", "q4_0", "iq4_xs", "bf16", "fp16"))
        ),
        kv_dtype=draw(st.sampled_from(("fp16", "bf16", "fp32", "q8_0", "q4_0", "iq4_nl"))),
        max_model_len=draw(st.integers(1, 200_000)),
        max_num_seqs=draw(st.none() | st.integers(1, 64)),
        max_num_batched_tokens=draw(st.none() | st.integers(1, 65_536)),
        gpu_layers=draw(st.none() | st.integers(2, 200)) if several == 1 else None,
        cpu_experts=draw(st.none() | st.integers(1, 200)) if several == 1 else None,
    )


@given(launch=replicas_of_llamacpp())
def test_a_written_command_of_llamacpp_is_read_back_as_the_same_replica(launch):
    read = read_command_line(shell_text(command_of(launch)))
    assert read == replace(launch, version=None)


LOCAL = ("engine=llamacpp", "weight_dtype=q4_k_m", "kv_dtype=fp16", "traffic[0].request_rate=1 req/s", "slo.ttft_p95=5 s", "slo.tpot_p95=200 ms")  # fmt: skip
"""Settings of a plan with llama.cpp."""
SPLIT = ("--hardware", "rtx-3090", "--host-bandwidth", "80 GB/s", "--max-model-len", "8192", "--offline")


@table
def test_a_replica_that_flags_state_is_written_and_read_back_to_the_last_layer(capplan, model, more):
    """`estimate --launch` of the written command is `estimate` of the flags, split and cache included."""
    ran = capplan("export", "--model", model, *SPLIT, *more, "--target", "llamacpp")
    assert ran.code == 0, ran.err
    host = {"host_bandwidth": 80e9, "offline": True}
    read = read_command_line(ran.out)
    written = ServingFlags(
        **serving_flags(read),
        **({"host_bandwidth": 80e9} if read.gpu_layers or read.cpu_experts else {}),
        offline=True,
    )
    stated = ServingFlags(engine="llamacpp", max_model_len=8192, **host, **flags_of(more))
    first, second = (
        asked_replica(name, "rtx-3090", flags).spec
        for name, flags in ((model, stated), (read.model, written))
    )
    assert first == second


@table
def test_what_starts_no_llama_cpp_is_refused(capplan, target, says, tmp_path, monkeypatch):
    size_on_few_requests(monkeypatch)
    plan = plan_in(tmp_path, *LOCAL)
    assert says in capplan.refused("export", "--plan", plan, "--target", target)
    settings = json.loads(exported(capplan, plan, "lmstudio"))
    assert settings["gpu"] == {"ratio": 1.0, "numCpuExpertLayersRatio": 0.0}
    assert "OLLAMA_NUM_PARALLEL=4" in exported(capplan, plan, "ollama")


def flags_of(words):
    names = (word.removeprefix("--").replace("-", "_") for word in words[::2])
    return {
        name: int(value) if value.isdecimal() else value
        for name, value in zip(names, words[1::2], strict=True)
    }


def test_ollama_and_lm_studio_get_what_they_have_words_for(capplan):
    dense = capplan(
        "export --model llama-3.1-70b", *SPLIT, "--weight-dtype", "q4_k_m", "--target", "ollama"
    ).out
    layers = int(re.search(r"PARAMETER num_gpu (\d+)", dense)[1])
    assert "FROM ./Llama-3.1-70B-Q4_K_M.gguf" in dense
    assert "PARAMETER num_ctx 8192" in dense
    command = read_command_line(
        capplan(
            "export --model llama-3.1-70b", *SPLIT, "--weight-dtype", "q4_k_m", "--target", "llamacpp"
        ).out
    )
    assert command.gpu_layers == layers
    experts = ("export", "--model", "qwen3-30b-a3b", *SPLIT, "--weight-dtype", "q8_0", "--target")
    assert "no parameter for experts on the host" in capplan.refused(*experts, "ollama")
    settings = json.loads(capplan(*experts, "lmstudio").out)
    assert settings["contextLength"] == 8192
    assert (
        round(48 * settings["gpu"]["numCpuExpertLayersRatio"])
        == read_command_line(capplan(*experts, "llamacpp").out).cpu_experts
    )


@table
def test_what_is_not_modelled_of_llama_server_is_refused(line, says):
    with pytest.raises(InputError, match=says):
        read_command_line(line)


def test_a_command_as_people_type_it_is_read():
    read = read_command_line("./build/bin/llama-server -hf unsloth/Qwen3-30B-A3B-GGUF:Q4_K_M -fa -ngl 99 -ot '.ffn_.*_exps.=CPU' -c 32768 -np 2 --jinja")  # fmt: skip
    assert (read.model, read.weight_dtype) == ("Qwen/Qwen3-30B-A3B", "q4_k_m")
    assert (read.max_model_len, read.max_num_seqs, read.gpu_layers, read.cpu_experts) == (16384, 2, 99, 999)


def written_or_refused(launch):
    """Return the words of a launch and no reason, or no words and the reason."""
    try:
        return command_of(launch).arguments, ""
    except InputError as error:
        return (), str(error)


@pytest.mark.parametrize("engine", ENGINES)
@given(data=st.data())
def test_no_version_gets_an_option_that_it_does_not_know(engine, data):
    table = engine_flags(engine)
    version = data.draw(st.sampled_from(table.releases))
    launch = replace(data.draw(launches(engine)), version=version)
    words, refusal = written_or_refused(launch)
    if refusal:
        assert version in refusal or "known" in refusal
        return
    by_name = {name: flag for flag in table.flags.values() for name in flag.names}
    for name in names_in(words):
        flag = by_name[name]
        assert version_key(flag.first) <= version_key(version)
        assert flag.last is None or version_key(version) <= version_key(flag.last)


def test_the_newest_versions_know_every_option_of_the_table(shared):
    """Against the parsers of vLLM 0.33.0 and SGLang 0.5.23 themselves."""
    vllm = json.loads((shared / "formats" / "vllm_serve_flags_0.33.0.json").read_text())
    known = {name: row for row in vllm for name in row["flags"]} | {
        "--headless": {"nargs": 0, "choices": None}
    }
    for flag in (flag for flag in engine_flags("vllm").flags.values() if flag.last is None):
        assert {re.split("[.=]", name)[0] for name in flag.names} <= set(known), flag
        assert flag.switch == (known[flag.names[0]]["nargs"] == 0), flag
        assert flag.many == (known[flag.names[0]]["nargs"] == "+"), flag
        choices = known[flag.names[0]]["choices"]
        assert choices is None or set(flag.values) <= set(choices)
    rows = json.loads((shared / "formats" / "sglang_flags_0.5.23.json").read_text())
    fields = {"--" + row[1].replace("_", "-"): row[2] for row in rows}
    written = [flag for flag in engine_flags("sglang").flags.values() if flag.last is None]
    for flag in written:
        assert flag.names[0] in fields, flag
        assert flag.switch == (fields[flag.names[0]] in ("bool", "Optional[bool]")), flag


def records(fields):
    """Return fields of a launch whose adapters and drafts are mappings."""
    kinds = {"adapters": LoraTerms, "drafts": Drafts}
    return {
        name: kinds[name](
            **{key: tuple(each) if isinstance(each, list) else each for key, each in value.items()}
        )
        if isinstance(value, dict)
        else value
        for name, value in fields.items()
    }


@pytest.mark.parametrize(("engine", "version", "change", "says"), rows("launches")["refused"])
def test_what_an_engine_cannot_express_is_refused(engine, version, change, says):
    with pytest.raises(InputError, match=says):
        command_of(replace(ReplicaLaunch(engine, version, "o/n", kv_dtype="bf16"), **records(change)))


def exported(capplan, plan, target, *more):
    ran = capplan("export", "--plan", plan, "--target", target, *more)
    assert ran.code == 0, ran.err
    return ran.out


def with_its_file(text, folder):
    """Return the command of an exported text, after its YAML was written where the text says."""
    here = re.search(r"cat > (\S+) <<'EOF'\n(.*?)EOF\n", text, re.DOTALL)
    if here is None:
        return text
    (folder / here[1]).write_text(here[2])
    return text[here.end() :]


KINDS = {
    "plain": (),
    "adapters": ("lora.adapters=12", "lora.max_loras=4", "lora.max_lora_rank=64", "lora.fully_sharded=true"),
    "adapters of one matrix": ("lora.adapters=4", "lora.modules=[o_proj]", "engine_version='0.33.0'"),
    "adapters on SGLang": ("lora.adapters=4", "lora.modules=[q_proj,v_proj]", "engine=sglang"),
    "whole prompts": ("chunked_prefill=false", "engine_version='0.33.0'"),
    "without CUDA graphs": ("cuda_graphs=0",),
    "few CUDA graphs on SGLang": ("cuda_graphs=16", "engine=sglang"),
    "whole prompts on SGLang": ("chunked_prefill=false", "engine=sglang"),
    "llama.cpp": LOCAL,
    "chunks on TensorRT-LLM": ("chunked_prefill=true", "engine=trtllm", "weight_dtype=bf16"),
}
"""Kind of replica -> settings of the scenario of its plan."""


@pytest.mark.parametrize("kind", KINDS)
def test_the_exported_replica_holds_what_the_plan_says(capplan, kind, tmp_path, monkeypatch):
    """The command, read as any command line is and sized anew, has the cache of the plan, to the token."""
    size_on_few_requests(monkeypatch)
    plan = plan_in(tmp_path, *KINDS[kind])
    inputs = json.loads(plan.read_text())["result"]
    monkeypatch.chdir(tmp_path)
    text = exported(capplan, plan, inputs["plan_file"]["inputs"]["engine"]["name"])
    read = read_command_line(with_its_file(text, tmp_path))
    serving = ServingFlags(
        **serving_flags(read)
        | {"engine_version": inputs["plan_file"]["inputs"]["engine"]["version"], "offline": True}
    )
    spec = asked_replica(read.model, inputs["chosen"]["hardware"], serving).spec
    plans = plans_of([spec])
    (tokens,) = plans_cache_tokens(plans, plans_memory(plans), 1020.0)
    assert tokens == pytest.approx(inputs["chosen"]["kv_cache_tokens"], rel=1e-9)


def test_scaling_has_as_many_replicas_at_the_peak_as_the_plan(capplan, plan):
    (scaled,) = yaml.safe_load_all(exported(capplan, plan, "keda"))
    result = json.loads(plan.read_text())["result"]
    (trigger,) = scaled["spec"]["triggers"]
    threshold = float(trigger["metadata"]["threshold"])
    spares = re.search(r"\+ (\d+) \* ([\d.]+)$", trigger["metadata"]["query"])
    wanted = result["plan_file"]["inputs"]["request_rate"] + int(spares[1]) * float(spares[2])
    assert (
        min(math.ceil(wanted / threshold * (1 - 1e-5)), scaled["spec"]["maxReplicaCount"])
        == result["chosen"]["replicas"]
    )
    assert (
        scaled["spec"]["minReplicaCount"] <= scaled["spec"]["maxReplicaCount"] == result["chosen"]["replicas"]
    )


def test_no_hour_is_scaled_below_the_replicas_that_it_needs(capplan, tmp_path):
    """KEDA's own rule at the rate of each hour, for bursts that few replicas carry worse than many."""
    scenario, plan = tmp_path / "day.yaml", tmp_path / "plan.json"
    scenario.write_text(
        "name: day\nmodel: meta-llama/Llama-3.1-8B-Instruct\n"
        "traffic: [{request_rate: 30 req/s, arrival_cv: 2.5, daily_curve: office, input_tokens: 900, output_tokens: 150}]\n"
        "slo: {ttft_p95: 500 ms, tpot_p95: 60 ms}\nfleet: {hardware: [l40s], tensor_parallel: 1, pipeline_parallel: 1}\n"
    )
    assert capplan("fleet", scenario, "--offline", "-o", plan).code == 0
    result = json.loads(plan.read_text())["result"]
    (scaled,) = yaml.safe_load_all(exported(capplan, plan, "keda"))
    threshold = float(scaled["spec"]["triggers"][0]["metadata"]["threshold"])
    hours, spares = result["over_time"], result["chosen"]["spare_replicas"]
    needed = [gpus // result["chosen"]["gpus_per_replica"] for gpus in hours["needed_gpus"]]
    kept = [
        min(math.ceil(rate / threshold) + spares, scaled["spec"]["maxReplicaCount"])
        for rate in hours["request_rate"]
    ]
    assert all(have >= count + spares for have, count in zip(kept, needed, strict=True))
    planned = result["chosen"]["planned_request_rate_limit_per_replica"]
    assert threshold < planned
    assert any(
        math.ceil(rate / planned) < count for rate, count in zip(hours["request_rate"], needed, strict=True)
    )


@given(
    planned=st.floats(0.05, 40.0),
    hours=st.lists(st.tuples(st.floats(0.01, 300.0), st.integers(1, 12)), max_size=6),
    spares=st.integers(0, 3),
    busy=st.integers(1, 20),
    rate=st.floats(0.0, 400.0),
)
def test_a_simulated_autoscaler_has_as_many_replicas_as_the_exported_one(
    plan, planned, hours, spares, busy, rate
):
    """Kubernetes' rule on the written threshold and query, next to the rule of the simulation, whose spares do not serve."""
    fleet = fleet_launch(read_plan_file(plan), image=None)
    group = replace(
        fleet.groups[0],
        planned_rate=planned,
        hourly_loads=tuple(hours),
        spare_replicas=spares,
        replicas=busy + spares,
    )
    (written,) = scaled_objects(replace(fleet, groups=(group,)))
    (trigger,) = written["spec"]["triggers"]
    threshold = float(trigger["metadata"]["threshold"])
    added = re.search(r"\+ (\d+) \* ([\d.e+-]+)$", trigger["metadata"]["query"])
    metric = rate + (int(added[1]) * float(added[2]) if added else 0.0)
    bounds = written["spec"]["minReplicaCount"], written["spec"]["maxReplicaCount"]
    exported_count = sorted((bounds[0], math.ceil(metric / threshold - 1e-9), bounds[1]))[1]
    rule = Autoscaling(1, busy, start_s=0.0, rate_per_s=float(f"{group.scaling_rate:.6g}"))
    assert exported_count == wanted_replicas(rule, rate * (1.0 - 1e-12)) + spares


@pytest.mark.long
def test_an_autoscaled_simulation_keeps_the_replicas_that_the_targets_need(capplan, tmp_path):
    """At the peak the exported scaler keeps the replicas of the plan; so does the simulated one, and as many requests are within the limits."""
    scenario, plan = tmp_path / "busy.yaml", tmp_path / "plan.json"
    scenario.write_text(
        "name: busy\nmodel: meta-llama/Llama-3.1-8B-Instruct\n"
        "traffic: [{request_rate: 60 req/s, input_tokens: 900, output_tokens: 150}]\n"
        "slo: {ttft_p95: 500 ms, tpot_p95: 30 ms}\nfleet: {hardware: [l40s], tensor_parallel: 1, pipeline_parallel: 1}\n"
    )
    assert capplan("fleet", scenario, "--offline", "-o", plan).code == 0
    busy = json.loads(plan.read_text())["result"]["chosen"]
    count = busy["replicas"] - busy["spare_replicas"]
    assert count > 4
    run = ("simulate", "--plan", plan, "--offline", "--until", "15 min", "--format", "json")
    static, scaled = (
        json.loads(capplan(*run, *more).out)["result"] for more in ((), ("--autoscale", f"1:{count}"))
    )
    assert scaled["operation"]["replicas_mean"] > count - 0.5
    assert scaled["slo_met_fraction"] > static["slo_met_fraction"] - 0.02
    (written,) = yaml.safe_load_all(exported(capplan, plan, "keda"))
    threshold = float(written["spec"]["triggers"][0]["metadata"]["threshold"])
    shown = capplan(*run[:-2], "--autoscale", f"1:{count}").out
    assert f"one replica for each {threshold:.4g} requests per second" in " ".join(shown.split())


@pytest.mark.parametrize("target", ["kserve", "llm-d"])
def test_platforms_that_write_the_parallelism_get_the_rest_as_options(capplan, plan, target, tmp_path):
    moe = with_changes(
        plan, tmp_path / "p.json", chosen={"tensor_parallel": 2, "data_parallel": 2, "expert_parallel": 4}
    )
    (document,) = yaml.safe_load_all(exported(capplan, moe, target))
    part = document["spec"] if target == "kserve" else document["decode"]
    assert part["parallelism"]["tensor"] == part["parallelism"]["data"] == 2
    assert part["replicas"] == json.loads(plan.read_text())["result"]["chosen"]["replicas"]
    container = (part["template"]["containers"] if target == "kserve" else part["containers"])[0]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    words = container["args"] if target == "llm-d" else shlex.split(container["env"][0]["value"])
    assert ("--enable-expert-parallel" in words) == (target == "llm-d")
    assert part["parallelism"].get("expert") == (True if target == "kserve" else None)
    kept = [word for word in words if word != "--enable-expert-parallel"]
    read = read_command_line(shlex.join(["vllm", "serve", "o/n", *kept]))
    whole = read_command_line(exported(capplan, moe, "vllm"))
    assert replace(read, model="") == replace(
        whole, model="", tensor_parallel=1, data_parallel=1, expert_parallel=1
    )


def test_a_replica_over_servers_is_a_set_of_pods(capplan, plan, tmp_path):
    wide = with_changes(plan, tmp_path / "p.json", chosen={"tensor_parallel": 8, "pipeline_parallel": 2})
    wide_set, service = yaml.safe_load_all(exported(capplan, wide, "k8s"))
    template = wide_set["spec"]["leaderWorkerTemplate"]
    assert (wide_set["kind"], template["size"]) == ("LeaderWorkerSet", 2)
    leader, worker = (
        template[name]["spec"]["containers"][0] for name in ("leaderTemplate", "workerTemplate")
    )
    assert leader["resources"]["limits"] == worker["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert leader["args"][-6:] == shlex.split(
        "--nnodes 2 --node-rank 0 --master-addr '$(LWS_LEADER_ADDRESS)'"
    )
    assert worker["args"][-7:] == ["--nnodes", "2", "--node-rank", "$(LWS_WORKER_INDEX)", "--master-addr", "$(LWS_LEADER_ADDRESS)", "--headless"]  # fmt: skip
    assert service["spec"]["selector"]["role"] == "leader"
    for target in ("compose", "kserve", "llm-d"):
        assert (
            "servers" in capplan("export", "--plan", wide, "--target", target).err
            or "spans 2" in capplan("export", "--plan", wide, "--target", target).err
        )


@pytest.mark.parametrize(("target", "changes", "says"), rows("launches")["targets"])
def test_what_a_target_cannot_express_is_refused_in_a_line(capplan, plan, tmp_path, target, changes, says):
    ran = capplan("export", "--plan", with_changes(plan, tmp_path / "p.json", **changes), "--target", target)
    assert ran.code == 2
    assert says in ran.err
    assert ran.out == ""


def test_what_was_named_by_hand_is_served(capplan, plan, tmp_path):
    changed = with_changes(
        plan, tmp_path / "p.json", chosen={"weight_dtype": "int4"}, launch={"speculation": {"method": "eagle", "draft": None, "draft_tokens": 3}}
    )  # fmt: skip
    launch = read_command_line(
        exported(capplan, changed, "vllm", "--checkpoint", "o/x-w4a16", "--draft", "o/EAGLE3-y")
    )
    assert (launch.model, launch.weight_dtype, launch.drafts) == (
        "o/x-w4a16",
        None,
        Drafts("eagle", "o/EAGLE3-y", 3),
    )
    assert "image: r/n:1" in exported(capplan, plan, "k8s", "--image", "r/n:1")


def test_what_no_option_says_stands_in_a_comment(capplan, plan, tmp_path):
    old = with_changes(
        plan,
        tmp_path / "p.json",
        chosen={"kv_dtype": "bf16", "routing": "prefix_aware"},
        inputs={"engine": {"version": "0.8.5"}},
    )
    comments = [line for line in exported(capplan, old, "vllm").splitlines() if line.startswith("#")]
    assert any("KV cache is planned in bf16; auto is" in line for line in comments)
    assert any("routed by prefix_aware" in line for line in comments)
    assert "--kv-cache-dtype auto" in exported(capplan, old, "vllm")


def model_or_refusal(line):
    """Return the model of a command line and no reason, or no model and the reason."""
    try:
        return read_command_line(line).model, ""
    except InputError as error:
        return "", str(error)


@given(st.text(max_size=60))
@example("vllm serve o/n --max-num-seqs")
@example("vllm serve 'o/n")
@example("docker run vllm/vllm-openai")
@example("vllm serve o/n --speculative-config [1]")
def test_any_text_is_a_launch_or_one_clear_refusal(text):
    for line in (text, f"vllm serve {text}", f"vllm serve o/n --max-model-len {text}"):
        model, refusal = model_or_refusal(line)
        assert model or refusal.startswith("--launch: ")


@pytest.mark.parametrize(("line", "read"), rows("launches")["read"])
def test_launches_as_people_write_them(line, read):
    launch = read_command_line(line)
    assert launch.model == "o/n"
    assert {name: getattr(launch, name) for name in read} == records(read)


def test_what_was_not_read_is_named_without_its_value(capplan):
    line = "HF_TOKEN=secret vllm serve llama-3.1-8b --api-key hidden --port 80 --brand-new 3"
    ran = capplan("estimate", "--launch", line, "--hardware", "h100-sxm", "--concurrency", 1, "--offline")
    assert ran.code == 0
    assert "not read of --launch: HF_TOKEN, --api-key, --port, --brand-new" in ran.err
    assert "secret" not in ran.err + ran.out
    assert "hidden" not in ran.err + ran.out


@pytest.mark.parametrize("model", ["$MODEL", "<MODEL>"])
def test_a_model_that_a_command_does_not_name_is_named_next_to_it(capplan, model):
    words = (
        "--launch",
        f"vllm serve {model} -tp 2",
        "--hardware",
        "h100-sxm",
        "--concurrency",
        1,
        "--offline",
    )
    ran = capplan("estimate", *words)
    assert ran.code == 2
    assert f"{model}" in ran.err
    assert "name the model: capplan estimate OWNER/NAME --launch" in ran.err
    assert capplan("estimate", "llama-3.1-8b", *words).code == 0


def test_what_is_not_modelled_is_an_assumption_where_people_say_so(capplan):
    """The numbers are those of the command without it."""
    load = ("--hardware", "h100-sxm", "--concurrency", 8, "--offline", "--format", "json")
    more = (
        " --cpu-offload-gb 10 --speculative-config.method mtp --speculative-config.num_speculative_tokens 1"
    )
    line = "vllm serve llama-3.1-8b --max-num-seqs 64"
    plain = capplan("estimate", "--launch", line, *load)
    refused = capplan("estimate", "--launch", line + more, *load)
    ignored = capplan("estimate", "--launch", line + more, "--ignore-unmodelled", *load)
    assert (plain.code, refused.code, ignored.code) == (0, 2, 0), ignored.err
    assert json.loads(plain.out)["result"] == json.loads(ignored.out)["result"]
    assumed = " ".join(row["assumption"] for row in json.loads(ignored.out)["assumptions"])
    assert "--cpu-offload-gb moves weights to the host" in assumed
    assert "it speculates" in assumed
    needless = capplan("estimate", "llama-3.1-8b", "--ignore-unmodelled", *load)
    assert (needless.code, needless.out) == (2, "")


def test_whole_towers_take_memory_of_every_rank():
    """Seven of eight parts of the tower more on each of eight ranks, and nothing else."""
    name, load = "qwen3-vl-8b-instruct", "h100-sxm"

    def weights(more):
        launch = read_command_line(f"vllm serve {name} -tp 4 {more}")
        serving = ServingFlags(**serving_flags(launch) | {"offline": True})
        spec = asked_replica(launch.model, load, serving).spec
        return spec.network, float(weight_bytes_per_rank(spec.network, spec.sharding))

    (network, split), (_, whole) = weights(""), weights("--mm-encoder-tp-mode data")
    tower = network.vision_parameters * 2.0
    assert tower > 0
    assert whole - split == pytest.approx(tower * 3 / 4)


@pytest.mark.parametrize(("launch", "flags"), rows("launches")["flags"])
def test_an_estimate_of_what_is_read_is_that_of_its_flags(capplan, launch, flags):
    load = ("--hardware", "h100-sxm", "--concurrency", 8, "--offline", "--format", "json")
    by_launch = capplan("estimate", "--launch", launch, *load)
    by_flags = capplan("estimate", "llama-3.1-8b", *shlex.split(flags), *load)
    assert by_launch.code == by_flags.code == 0, by_launch.err
    assert json.loads(by_launch.out)["result"] == json.loads(by_flags.out)["result"]


def test_prompts_that_are_not_cut_stall_those_who_decode(capplan):
    """Beside chunks the longest pause between tokens is a chunk; beside whole prompts it is a prompt."""
    load = shlex.split("--hardware h100-sxm --concurrency 16 --input-tokens 16000 --offline --format json")
    line = "vllm serve llama-3.1-8b --max-model-len 20000 --max-num-batched-tokens"
    cut, whole = (
        json.loads(capplan("estimate", "--launch", f"{line} {more}", *load).out)["result"]["tpot_s"]["p99"]
        for more in ("2048", "20000 --disable-chunked-prefill")
    )
    assert whole > cut
    refused = capplan("estimate", "--launch", f"{line} 2048 --disable-chunked-prefill", *load)
    assert (refused.code, refused.out) == (2, "")
    assert "the longest would never start" in refused.err


def test_a_pooled_model_generates_no_tokens(capplan):
    words = shlex.split(
        "--launch 'vllm serve llama-3.1-8b --runner pooling' --hardware h100-sxm --concurrency 8"
    )
    ran = capplan("estimate", *words, "--output-tokens", 9, "--offline")
    assert (ran.code, ran.out) == (2, "")
    assert "generates no tokens" in ran.err


@pytest.mark.parametrize("target", ["vllm", "k8s", "compose", "kserve", "llm-d", "keda"])
def test_a_plan_for_scores_is_exported(capplan, tmp_path, monkeypatch, target):
    """The search of the shipped reranker itself, whose plan has no outputs and no time between tokens."""
    size_on_few_requests(monkeypatch)
    plan = tmp_path / "plan.json"
    assert capplan("fleet", "rerank", "--set", "fleet.hardware=[h100-sxm]", "-o", plan, "--offline").code == 0
    text = exported(capplan, plan, target)
    if target == "keda":
        assert "ScaledObject" in text
        return
    assert ("--runner pooling" in text) or ("- pooling" in text)
    assert "--enable-prefix-caching" not in text
    assert "scheduler" not in text
    assert "is named with --checkpoint" in text
    if target == "vllm":
        assert read_command_line(text).pooling


def test_every_option_of_the_newest_parsers_is_read_or_judged(shared):
    """An option is read, neutral, an assumption or refused with what it does: vLLM 0.33.0 and SGLang 0.5.23."""
    vllm = json.loads((shared / "formats" / "vllm_serve_flags_0.33.0.json").read_text())
    sglang = json.loads((shared / "formats" / "sglang_flags_0.5.23.json").read_text())
    parsed = {
        "vllm": {name for row in vllm for name in row["flags"]},
        "sglang": {"--" + row[1].replace("_", "-") for row in sglang},
    }
    for engine, names in parsed.items():
        table = engine_flags(engine)
        listed = {*table.refused, *table.assumed, *table.harmless, *table.aliases}
        known = {re.split("[.=]", name)[0] for name in listed}
        known |= {name for flag in table.flags.values() for name in flag.names}
        turned = {f"--no-{name.removeprefix('--')}" for name in known}
        assert sorted(names - known - turned) == []
        assert all(table.refused.values())
