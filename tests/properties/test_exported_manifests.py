"""Every exported document against the schema that its project publishes: apiVersion, required fields, no field that the kind does not have, types."""

import json
import re
from dataclasses import replace

import pytest
import yaml

from capplan.deploy.command_line import command_of, read_command_line, shell_text
from capplan.deploy.export import export_text
from capplan.deploy.fleet_launch import fleet_launch
from capplan.errors import InputError
from capplan.fleet.group import RoutedRequests
from capplan.readers.plan_file import ServerRow, read_plan_file
from tests.plan_files import with_changes
from tests.published_fields import TABLE, kind_of, mismatch

PUBLISHED = json.loads(TABLE.read_text())
LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
TEXTS = {
    "name": LABEL, "nvidia.com/gpu": "[1-9][0-9]*", "image": r"\S+:\S+", "port": "http", "targetPort": "http",
    "medium": "Memory", "operator": "In", "topologyKey": "kubernetes.io/hostname|topology.kubernetes.io/zone", "ipc": "host",
    "restartPolicy": "RecreateGroupOnPodRestart", "metricType": "AverageValue", "threshold": "[0-9.]+", "driver": "nvidia",
    "capabilities": "gpu", "device_ids": "[0-9]+", "modelCommand": "vllmServe", "uri": r"hf://\S+", "profiles": LABEL,
    "labels": LABEL, "matchLabels": LABEL, "url": r"https://\S+/", "chart": "[a-z-]+/[a-z-]+",
    "type": "RollingUpdate|prometheus|nvidia|frontend|worker|prefill|decode",
}  # fmt: skip
"""Field -> what every text of that name is, in every kind of document."""


def odd_texts(value, name="document"):
    """Yield the texts, counts and lists of a document that no cluster would take."""
    if isinstance(value, dict):
        free = name in ("model", "modelArtifacts", "components", "env")  # whose names are no labels
        for key, inner in value.items():
            kept = name in ("labels", "matchLabels", "environment") or (free and key == "name")
            yield from odd_texts(inner, name if kept else key)
    elif isinstance(value, list):
        yield from () if value else [f"{name}: is empty"]
        for inner in value:
            yield from odd_texts(inner, name)
    elif isinstance(value, str) and not re.fullmatch(TEXTS.get(name, "(?s:.*)"), value):
        yield f"{name}: {value!r} is not {TEXTS[name]}"
    elif isinstance(value, int) and value < 0:
        yield f"{name}: {value} is below 0"


def unpublished(document):
    """Return what of a document its project's own schema does not have, and what no cluster would take."""
    said = PUBLISHED[kind_of(document)]
    return [
        *mismatch(document, said["schema"]),
        *({document.get("apiVersion")} - {said["apiVersion"]}),
        *odd_texts(document),
    ]


@pytest.fixture(scope="module")
def plans(plan, tmp_path_factory):
    """Return plans of every engine and shape: one device, several servers, attention groups, a config of its own."""
    folder = tmp_path_factory.mktemp("manifests")
    shapes = {
        "one": {},
        "wide": {"chosen": {"tensor_parallel": 8, "pipeline_parallel": 2}},
        "experts": {"chosen": {"tensor_parallel": 1, "data_parallel": 4, "expert_parallel": 4}},
        "sglang": {"inputs": {"engine": {"name": "sglang", "version": "0.5.23"}}},
        "sglang-wide": {
            "chosen": {"tensor_parallel": 16},
            "inputs": {"engine": {"name": "sglang", "version": "0.5.23"}},
        },
        "trtllm": {
            "chosen": {"weight_dtype": "bf16"},
            "inputs": {"engine": {"name": "trtllm", "version": "1.2.0"}},
        },
        "trtllm-drafts": {
            "chosen": {"weight_dtype": "bf16"},
            "inputs": {"engine": {"name": "trtllm", "version": "1.2.0"}},
            "launch": {"speculation": {"method": "mtp", "draft": None, "draft_tokens": 2}},
        },
        "adapters": {
            "inputs": {"content": {"lora": {"adapters": 9}}},
            "launch": {
                "adapters": {"adapters": 9, "slots": 4, "rank": 16, "modules": None, "fully_sharded": False}
            },
        },
        "vectors": {"inputs": {"content": {"runner": "pooling"}}, "launch": {"runner": "pooling"}},
    }
    return {name: with_changes(plan, folder / f"{name}.json", **changes) for name, changes in shapes.items()}


SHAPES = ("one", "wide", "experts", "sglang", "sglang-wide", "trtllm", "trtllm-drafts", "adapters", "vectors")
REFUSED = {
    ("compose", "wide"), ("compose", "sglang-wide"), ("kserve", "wide"), ("llm-d", "wide"), ("dynamo", "wide"), ("dynamo", "sglang-wide"),
    *((target, shape) for target in ("kserve", "llm-d") for shape in ("sglang", "sglang-wide", "trtllm", "trtllm-drafts")),
    *(("dynamo", shape) for shape in ("trtllm", "trtllm-drafts", "vectors")),
}  # fmt: skip
"""Target and shape that the target cannot express."""


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("target", ["compose", "k8s", "kserve", "llm-d", "dynamo", "keda"])
def test_every_document_is_as_its_schema_says(capplan, plans, target, shape):
    ran = capplan(
        "export --plan",
        plans[shape],
        "--target",
        target,
        *(["--image", "r/n:1"] if target == "dynamo" else []),
    )
    if (target, shape) in REFUSED:
        assert (ran.code, ran.out) == (2, "")
        return
    assert ran.code == 0, ran.err
    documents = list(yaml.safe_load_all(ran.out))
    assert documents
    for document in documents:
        assert unpublished(document) == []
    named = {document["metadata"]["name"] for document in documents if "metadata" in document}
    assert named <= {"small"}


def test_a_service_reaches_the_pods_of_its_deployment(capplan, plans):
    for shape in ("one", "wide"):
        workload, service = yaml.safe_load_all(
            capplan("export", "--plan", plans[shape], "--target", "k8s").out
        )
        spec = workload["spec"]
        template = spec["template"] if shape == "one" else spec["leaderWorkerTemplate"]["leaderTemplate"]
        assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
        ports = [port["name"] for container in template["spec"]["containers"] for port in container["ports"]]
        assert service["spec"]["ports"][0]["targetPort"] in ports


def test_replicas_of_a_server_have_devices_and_ports_of_their_own(capplan, plans):
    services = yaml.safe_load(capplan("export", "--plan", plans["one"], "--target", "compose").out)[
        "services"
    ]
    devices = [
        d
        for s in services.values()
        for r in s["deploy"]["resources"]["reservations"]["devices"]
        for d in r["device_ids"]
    ]
    ports = [port.split(":")[0] for service in services.values() for port in service["ports"]]
    assert len(set(devices)) == len(devices) <= 8
    assert len(set(ports)) == len(ports)


@pytest.mark.parametrize(
    "document",
    [
        {"kind": "Deployment"},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "A"}, "spec": {}},
    ],
)
def test_the_schemas_find_what_is_wrong(document):
    assert unpublished(document)


@pytest.mark.parametrize(
    ("shape", "target", "path", "value", "says"),
    [
        ("one", "k8s", ("spec", "replica"), 3, "document.spec.replica: not published"),
        ("one", "k8s", ("spec", "replicas"), "3", "'3' is no integer"),
        ("wide", "k8s", ("spec", "leaderWorkerTemplate", "restartPolicy"), "Never", "is none of"),
        ("one", "kserve", ("spec", "parallelism", "tensor_parallel"), 2, "tensor_parallel: not published"),
        ("one", "keda", ("spec", "maxReplicaCount"), "9", "'9' is no integer"),
        ("one", "llm-d", ("decode", "replica"), 2, "document.decode.replica: not published"),
        ("one", "k8s", ("metadata", "name"), "Small", "name: 'Small' is not"),
        ("one", "k8s", ("spec", "replicas"), -1, "replicas: -1 is below 0"),
        ("one", "k8s", ("spec", "template", "spec", "containers"), [], "containers: is empty"),
    ],
)
def test_the_published_fields_find_what_is_wrong(capplan, plans, shape, target, path, value, says):
    document = next(yaml.safe_load_all(capplan("export", "--plan", plans[shape], "--target", target).out))
    assert unpublished(document) == []
    inner = document
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    assert any(says in found for found in unpublished(document))


def test_every_kind_that_is_exported_has_a_published_source():
    assert all(re.search(r"@[0-9a-f]{7,}|v1\.\d+", said["source"]) for said in PUBLISHED.values())


def test_the_config_of_trtllm_lies_where_its_command_reads_it(capplan, plans):
    config, workload, _ = yaml.safe_load_all(
        capplan("export", "--plan", plans["trtllm"], "--target", "k8s").out
    )
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    path = container["args"][container["args"].index("--extra_llm_api_options") + 1]
    mount = next(mount for mount in container["volumeMounts"] if mount["name"] == "config")
    assert path == f"{mount['mountPath']}/{next(iter(config['data']))}"
    assert yaml.safe_load(config["data"]["trtllm.yaml"]) == {
        "kv_cache_config": {"enable_block_reuse": True, "dtype": "fp8"}
    }


@pytest.fixture(scope="module")
def pools(plans):
    """Return what a plan with a prefill and a decode pool starts: two devices for each prompt, one for each output."""
    file = read_plan_file(plans["one"])
    chosen = file.answer.chosen
    pool = {"replicas": 3, "spare_replicas": 1, "planned_request_rate_limit_per_replica": 0.0}
    groups = [
        replace(chosen.groups[0], **pool, role="prefill", tensor_parallel=2),
        replace(chosen.groups[0], **pool, role="decode"),
    ]
    apart = replace(chosen, groups=tuple(groups))
    file = with_chosen(file, apart)
    return file, fleet_launch(file, image="r/n:1")


@pytest.mark.parametrize("target", ["k8s", "kserve", "llm-d", "dynamo"])
def test_pools_are_started_apart(pools, target):
    documents = list(yaml.safe_load_all(export_text(*pools, target)))
    for document in documents:
        assert unpublished(document) == []
    text = yaml.safe_dump(documents)
    assert text.count("NixlConnector") == 2
    if target == "k8s":
        assert [d["metadata"]["name"] for d in documents if d["kind"] == "Deployment"] == [
            "small-prefill",
            "small-decode",
        ]
    elif target == "kserve":
        spec = documents[0]["spec"]
        assert (spec["parallelism"]["tensor"], spec["prefill"]["parallelism"]["tensor"]) == (1, 2)
    elif target == "llm-d":
        assert [documents[0][role]["parallelism"]["tensor"] for role in ("prefill", "decode")] == [2, 1]
    else:
        parts = documents[0]["spec"]["components"]
        assert [part["type"] for part in parts] == ["frontend", "prefill", "decode"]
        words = [part["podTemplate"]["spec"]["containers"][0]["args"] for part in parts[1:]]
        assert [line[-2:] for line in words] == [
            ["--disaggregation-mode", "prefill"],
            ["--disaggregation-mode", "decode"],
        ]


def with_chosen(file, plan):
    """Return a plan file whose only plan is another one."""
    return replace(file, answer=file.answer.model_copy(update={"plans": [plan], "recommended": 0}))


def with_inputs(file, **changed):
    """Return a plan file that was made from other inputs."""
    origin = file.answer.plan_file
    origin = origin.model_copy(update={"inputs": origin.inputs.model_copy(update=changed)})
    return replace(file, answer=file.answer.model_copy(update={"plan_file": origin}))


@pytest.fixture(scope="module")
def mix(plans):
    """Return what a mix starts: chat on three of one GPU, documents on two of two."""
    file = read_plan_file(plans["one"])
    (whole,) = file.answer.chosen.groups
    rows = [
        ("chat", 4096, {"replicas": 3, "spare_replicas": 1, "hardware": "l4", "planned_request_rate_limit_per_replica": 2.0}),
        ("documents", 9000, {"replicas": 2, "spare_replicas": 0, "tensor_parallel": 2, "planned_request_rate_limit_per_replica": 0.5}),
    ]  # fmt: skip
    groups = [
        replace(whole, **row, requests=RoutedRequests(classes=(name,), request_fraction=0.5, max_model_len=longest))
        for name, longest, row in rows
    ]  # fmt: skip
    servers = [
        ServerRow(devices_per_server=8, vendor="NVIDIA"),
        ServerRow(devices_per_server=4, vendor="NVIDIA"),
    ]
    launch = file.inputs.launch.model_copy(update={"servers": servers})
    mixed = replace(file.answer.chosen, groups=tuple(groups))
    return with_inputs(with_chosen(file, mixed), launch=launch)


@pytest.mark.parametrize("target", ["compose", "k8s", "kserve", "llm-d", "dynamo", "keda"])
def test_each_group_of_a_mix_is_a_deployment_of_its_own_behind_the_stated_rule(mix, target):
    image = "r/n:1" if target == "dynamo" else None
    text = export_text(mix, fleet_launch(mix, image=image), target)
    assert "# the router in front of the groups has to send chat to small-1; documents to small-2" in text
    documents = list(yaml.safe_load_all(text))
    for document in documents:
        assert unpublished(document) == []
    started = [document for document in documents if document.get("kind") not in ("Service", "ConfigMap")]
    names, replicas, devices = ["small-1", "small-2"], [3, 2], [1, 2]
    if target == "compose":
        (whole,) = started
        of = {
            name: [service for service in whole["services"].values() if service["profiles"] == [name]]
            for name in names
        }
        assert [len(services) for services in of.values()] == replicas
        for services, each, most in zip(of.values(), devices, (8, 4), strict=True):
            ids = [int(number) for service in services for number in device_ids(service)]
            assert ids == list(range(each * len(services)))
            assert max(ids) < most
            assert [service["ports"] for service in services] == [
                [f"{8000 + at}:8000"] for at in range(len(services))
            ]
        assert "docker compose -f FILE --profile NAME up -d" in text
        return
    if target == "llm-d":
        (whole,) = started
        assert [release["name"] for release in whole["releases"]] == names
        values = [release["values"][0] for release in whole["releases"]]
        assert all(unpublished(each) == [] for each in values)
        assert [each["decode"]["replicas"] for each in values] == replicas
        assert [each["decode"]["parallelism"]["tensor"] for each in values] == devices
        assert "helmfile apply -f FILE" in text
        return
    assert [document["metadata"]["name"] for document in started] == names
    specs = [document["spec"] for document in started]
    if target == "keda":
        assert [spec["scaleTargetRef"]["name"] for spec in specs] == names
        assert [(spec["minReplicaCount"], spec["maxReplicaCount"]) for spec in specs] == [(2, 3), (1, 2)]
        queries = [spec["triggers"][0]["metadata"] for spec in specs]
        assert [query["threshold"] for query in queries] == ["2", "0.5"]
        assert all(f'service="{name}"' in query["query"] for name, query in zip(names, queries, strict=True))
    elif target == "dynamo":
        workers = [spec["components"][1] for spec in specs]
        assert [worker["replicas"] for worker in workers] == replicas
        assert [spec["components"][0]["type"] for spec in specs] == ["frontend", "frontend"]
        limits = [worker["podTemplate"]["spec"]["containers"][0]["resources"]["limits"] for worker in workers]
        assert limits == [{"nvidia.com/gpu": str(each)} for each in devices]
    else:
        assert [spec["replicas"] for spec in specs] == replicas
    if target == "k8s":
        pods = [spec["template"]["spec"]["containers"][0]["args"] for spec in specs]
        assert [words[words.index("--max-model-len") + 1] for words in pods] == ["4096", "9000"]


def device_ids(service):
    return [
        number
        for part in service["deploy"]["resources"]["reservations"]["devices"]
        for number in part["device_ids"]
    ]


def test_groups_of_a_mix_ask_for_what_their_own_servers_have(mix):
    """Slices of one GPU beside whole ones of another, and GPUs of two vendors: neither is called what the other is."""
    chat, documents = mix.answer.chosen.groups
    slices = replace(mix.answer.chosen, groups=(replace(chat, hardware="h100-sxm:1g.10gb"), documents))
    sliced = with_chosen(mix, slices)
    pods = [
        item
        for item in yaml.safe_load_all(export_text(sliced, fleet_launch(sliced, image=None), "k8s"))
        if item["kind"] == "Deployment"
    ]
    limits = [item["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] for item in pods]
    assert limits == [{"nvidia.com/mig-1g.10gb": "1"}, {"nvidia.com/gpu": "2"}]
    servers = [
        ServerRow(devices_per_server=8, vendor="NVIDIA"),
        ServerRow(devices_per_server=8, vendor="AMD"),
    ]
    launch = mix.inputs.launch.model_copy(update={"servers": servers})
    other = with_inputs(mix, launch=launch)
    assert [group.resource for group in fleet_launch(other, image=None).groups] == [
        "nvidia.com/gpu",
        "amd.com/gpu",
    ]
    with pytest.raises(InputError, match="no image of vllm for amd devices is known"):
        export_text(other, fleet_launch(other, image=None), "k8s")
    with pytest.raises(InputError, match="one image does not run on devices of amd and nvidia"):
        export_text(other, fleet_launch(other, image="r/n:1"), "k8s")
    with pytest.raises(InputError, match="compose: reserves NVIDIA devices"):
        export_text(other, fleet_launch(other, image=None), "compose")


@pytest.mark.parametrize("target", ["k8s", "kserve", "dynamo"])
def test_pods_of_each_group_run_on_the_machines_that_were_ordered_for_it(mix, target):
    """Two kinds of GPU in one cluster: both are called nvidia.com/gpu, and the instance type tells them apart."""
    line = mix.answer.chosen.order.machines[0]
    lines = [
        line.model_copy(update={"sku": sku, "hardware": hardware, "provider": "AWS"})
        for sku, hardware in (("g6.48xlarge", "l4"), ("p5.48xlarge", mix.answer.chosen.groups[1].hardware))
    ]
    order = mix.answer.chosen.order.model_copy(update={"machines": lines})
    ordered = with_chosen(mix, replace(mix.answer.chosen, order=order))
    text = export_text(ordered, fleet_launch(ordered, image="r/n:1" if target == "dynamo" else None), target)
    documents = [item for item in yaml.safe_load_all(text) if item["kind"] not in ("Service", "ConfigMap")]
    found = []
    for document in documents:
        assert unpublished(document) == []
        spec = document["spec"]
        part = spec["components"][1]["podTemplate"] if target == "dynamo" else spec["template"]
        pod = part if target == "kserve" else part["spec"]
        (terms,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
            "nodeSelectorTerms"
        ]
        found.append([(one["key"], one["values"]) for one in terms["matchExpressions"]])
    key = "node.kubernetes.io/instance-type"
    assert found == [[(key, ["g6.48xlarge"])], [(key, ["p5.48xlarge"])]]
    assert "pods run on g6.48xlarge" in text


def test_a_mix_is_not_scaled_between_the_limits_of_one_group(mix):
    content = mix.inputs.content | {"commitments": {"max_replicas": 9}}
    limited = with_inputs(mix, content=content)
    with pytest.raises(
        InputError, match="count the replicas of one group, and the plan is a mix; leave them out"
    ):
        export_text(limited, fleet_launch(limited, image=None), "keda")


def test_pools_of_engines_are_read_back_as_pools(pools):
    file, fleet = pools
    text = export_text(file, replace(fleet, image=None), "vllm")
    prefill, decode = (
        read_command_line(part[part.index("vllm serve") :]) for part in text.split("\n# ")[-2:]
    )
    assert (prefill.role, prefill.tensor_parallel, prefill.max_num_seqs) == ("either", 2, None)
    assert (decode.role, decode.tensor_parallel, decode.max_num_seqs) == (
        "either",
        1,
        file.inputs.launch.max_num_seqs,
    )
    assert "limits of the prefill engines are left to the engine" in text
    sglang = [replace(group.launch, engine="sglang", version="0.5.23") for group in fleet.groups]
    assert [read_command_line(shell_text(command_of(launch))).role for launch in sglang] == [
        "prefill",
        "decode",
    ]


@pytest.mark.parametrize(
    ("link", "topology"),
    [
        ("pcie", "kubernetes.io/hostname"),
        ("nvlink4", "kubernetes.io/hostname"),
        ("network", "topology.kubernetes.io/zone"),
        ("ethernet-400g", "topology.kubernetes.io/zone"),
        ("40 GB/s", "topology.kubernetes.io/zone"),
    ],
)
def test_pools_are_placed_near_each_other_as_their_link_reaches(pools, link, topology):
    file, fleet = pools
    documents = list(yaml.safe_load_all(export_text(file, replace(fleet, image=None, link=link), "k8s")))
    started = [document for document in documents if document["kind"] == "Deployment"]
    for document in started:
        assert unpublished(document) == []
        (near,) = document["spec"]["template"]["spec"]["affinity"]["podAffinity"][
            "preferredDuringSchedulingIgnoredDuringExecution"
        ]
        term = near["podAffinityTerm"]
        assert term["topologyKey"] == topology
        assert term["labelSelector"]["matchLabels"] == started[0]["spec"]["template"]["metadata"]["labels"]
        spread = "topologySpreadConstraints" in document["spec"]["template"]["spec"]
        assert not (spread and topology == "kubernetes.io/hostname")


def test_pools_of_a_rack_are_not_asked_into_one_of_its_servers(pools):
    file, fleet = pools
    groups = tuple(replace(group, devices_per_server=4) for group in fleet.groups)
    text = export_text(file, replace(fleet, image=None, link="nvlink5", groups=groups), "k8s")
    assert "topology.kubernetes.io/zone" in text


def test_pools_that_cannot_be_started_or_scaled_are_refused(pools):
    file, fleet = pools
    with pytest.raises(InputError, match="separate pools are not scaled by one rate"):
        export_text(file, replace(fleet, image=None), "keda")
    with pytest.raises(InputError, match="separate pools are not exported"):
        command_of(replace(fleet.groups[0].launch, engine="trtllm", version="1.2.0"))
