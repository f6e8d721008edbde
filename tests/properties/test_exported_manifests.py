"""Every exported document against a closed schema of its kind: apiVersion, required fields, no field that the kind does not have, types.

The schemas hold the fields that are exported, as the API reference of Kubernetes 1.32, LeaderWorkerSet v1, KEDA v1alpha1, KServe v1alpha2,
llm-d-modelservice, Dynamo v1beta1 and the Compose specification state them.
"""

import json
import re
from dataclasses import dataclass, replace

import pytest
import yaml

from capplan.deploy.command_line import command_of, read_command_line, shell_text
from capplan.deploy.export import export_text
from capplan.deploy.fleet_launch import fleet_launch
from capplan.errors import InputError
from capplan.fleet.plan import RoutedRequests
from capplan.readers.plan_file import ServerRow, read_plan_file
from tests.plan_files import plan_in, with_changes
from tests.published_fields import TABLE, kind_of
from tests.published_fields import mismatch as published_mismatch
from tests.sweeps import size_on_few_requests

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
QUANTITY = re.compile(r"[1-9][0-9]*")


@dataclass(frozen=True)
class Object:
    """A mapping with these fields and no others; a name with `!` is required."""

    fields: dict


@dataclass(frozen=True)
class Of:
    """A list of at least one item, or a mapping whose keys are free."""

    item: object
    keys: re.Pattern | None = None


def mismatch(value, schema, place="document"):
    """Yield what of a value is not as its schema says."""
    if isinstance(schema, Object):
        if not isinstance(value, dict):
            yield f"{place}: no mapping"
            return
        fields = {name.rstrip("!"): inner for name, inner in schema.fields.items()}
        yield from (f"{place}.{name}: unknown" for name in value if name not in fields)
        needed = {name.rstrip("!") for name in schema.fields if name.endswith("!")}
        yield from (f"{place}.{name}: missing" for name in needed - set(value))
        for name in set(value) & set(fields):
            yield from mismatch(value[name], fields[name], f"{place}.{name}")
    elif isinstance(schema, Of) and schema.keys is not None:
        for name, inner in value.items():
            if not schema.keys.fullmatch(name):
                yield f"{place}.{name}: no such key"
            yield from mismatch(inner, schema.item, f"{place}.{name}")
    elif isinstance(schema, Of):
        if not isinstance(value, list) or not value:
            yield f"{place}: no list of at least one"
            return
        for at, inner in enumerate(value):
            yield from mismatch(inner, schema.item, f"{place}[{at}]")
    elif isinstance(schema, re.Pattern):
        if not isinstance(value, str) or not schema.fullmatch(value):
            yield f"{place}: {value!r} is not {schema.pattern}"
    elif isinstance(schema, type):
        if not isinstance(value, schema) or (schema is int and (isinstance(value, bool) or value < 0)):
            yield f"{place}: {value!r} is no {schema.__name__}"
    elif value != schema:
        yield f"{place}: {value!r} is not {schema!r}"


ANY_LABELS = Of(LABEL, re.compile(r"([a-z0-9.-]+/)?[a-z0-9.-]+"))
META = Object({"name!": LABEL, "labels": ANY_LABELS})
LIMITS = Object({"limits!": Object({"nvidia.com/gpu!": QUANTITY})})
MOUNT = Object({"name!": LABEL, "mountPath!": str})
ENV = Object(
    {
        "name!": str,
        "value": str,
        "valueFrom": Object({"secretKeyRef!": Object({"name!": LABEL, "key!": str, "optional": bool})}),
    }
)
CONTAINER = Object(
    {
        "name!": LABEL, "image!": re.compile(r"\S+:\S+"), "command": Of(str), "args": Of(str), "env": Of(ENV), "resources": LIMITS,
        "volumeMounts": Of(MOUNT), "ports": Of(Object({"name!": LABEL, "containerPort!": int})),
        "readinessProbe": Object({"httpGet!": Object({"path!": str, "port!": "http"}), "periodSeconds": int}),
    }
)  # fmt: skip
VOLUME = Object(
    {"name!": LABEL, "emptyDir": Object({"medium!": "Memory"}), "configMap": Object({"name!": LABEL})}
)
EXPRESSION = Object({"key!": str, "operator!": "In", "values!": Of(str)})
TERMS = Object({"nodeSelectorTerms!": Of(Object({"matchExpressions!": Of(EXPRESSION)}))})
NEAR = Object(
    {
        "weight!": int,
        "podAffinityTerm!": Object(
            {
                "labelSelector!": Object({"matchLabels!": ANY_LABELS}),
                "topologyKey!": re.compile("kubernetes.io/hostname|topology.kubernetes.io/zone"),
            }
        ),
    }
)
AFFINITY = Object(
    {
        "nodeAffinity": Object({"requiredDuringSchedulingIgnoredDuringExecution!": TERMS}),
        "podAffinity": Object({"preferredDuringSchedulingIgnoredDuringExecution!": Of(NEAR)}),
    }
)
SPREAD = Object(
    {
        "maxSkew!": int, "topologyKey!": "kubernetes.io/hostname", "whenUnsatisfiable!": str,
        "labelSelector!": Object({"matchLabels!": ANY_LABELS}),
    }
)  # fmt: skip
POD = Object(
    {
        "containers!": Of(CONTAINER), "volumes": Of(VOLUME), "affinity": AFFINITY, "topologySpreadConstraints": Of(SPREAD),
    }
)  # fmt: skip
STRATEGY = Object(
    {"type!": "RollingUpdate", "rollingUpdate!": Object({"maxSurge!": int, "maxUnavailable!": int})}
)
TEMPLATE = Object({"metadata!": Object({"labels!": ANY_LABELS}), "spec!": POD})


def kind(version, name, spec, **more):
    return Object({"apiVersion!": version, "kind!": name, "metadata!": META, "spec!": Object(spec), **more})


WORKLOAD = {
    "replicas!": int,
    "parallelism!": Object({"tensor!": int, "data": int, "dataLocal": int, "expert": bool}),
    "template!": POD,
}
CHART_CONTAINER = Object(
    {
        "name!": LABEL, "image!": str, "modelCommand!": "vllmServe", "args!": Of(str), "resources!": LIMITS, "mountModelVolume": bool
    }
)  # fmt: skip
CHART_WORKLOAD = {
    "create!": bool,
    "replicas": int,
    "parallelism": Object({"tensor!": int, "data!": int, "dataLocal!": int}),
    "containers": Of(CHART_CONTAINER),
}
DEVICE = Object({"driver!": "nvidia", "device_ids!": Of(re.compile("[0-9]+")), "capabilities!": Of("gpu")})
SERVICE = Object(
    {
        "image!": str, "entrypoint!": Of(str), "command!": Of(str), "ports!": Of(re.compile("[0-9]+:[0-9]+")), "ipc": "host",
        "environment": Of(str, re.compile("[A-Z_]+")), "volumes": Of(str), "configs": Of(Object({"source!": LABEL, "target!": str})),
        "profiles": Of(LABEL), "deploy!": Object({"resources!": Object({"reservations!": Object({"devices!": Of(DEVICE)})})}),
    }
)  # fmt: skip
SCHEMAS = {
    "Deployment": kind("apps/v1", "Deployment", {"replicas!": int, "strategy": STRATEGY, "selector!": Object({"matchLabels!": ANY_LABELS}), "template!": TEMPLATE}),
    "Service": kind("v1", "Service", {"selector!": ANY_LABELS, "ports!": Of(Object({"name!": LABEL, "port!": int, "targetPort!": "http"}))}),
    "ConfigMap": Object({"apiVersion!": "v1", "kind!": "ConfigMap", "metadata!": META, "data!": Of(str, re.compile(r"[\w.]+"))}),
    "LeaderWorkerSet": kind(
        "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet",
        {
            "replicas!": int,
            "leaderWorkerTemplate!": Object(
                {"size!": int, "restartPolicy": "RecreateGroupOnPodRestart", "leaderTemplate": TEMPLATE, "workerTemplate!": TEMPLATE}
            ),
        },
    ),
    "ScaledObject": kind(
        "keda.sh/v1alpha1", "ScaledObject",
        {
            "scaleTargetRef!": Object({"apiVersion!": str, "kind!": str, "name!": LABEL}), "minReplicaCount": int, "maxReplicaCount": int,
            "triggers!": Of(Object({"type!": "prometheus", "metricType": "AverageValue",
                                    "metadata!": Object({"serverAddress!": str, "query!": str, "threshold!": re.compile(r"[0-9.]+")})})),
        },
    ),
    "LLMInferenceService": kind(
        "serving.kserve.io/v1alpha2", "LLMInferenceService",
        {
            "model!": Object({"uri!": re.compile(r"hf://\S+"), "name": str}), **WORKLOAD, "prefill": Object(WORKLOAD),
            "router": Object({"gateway": Object({}), "route": Object({}), "scheduler": Object({})}),
        },
    ),
    "DynamoGraphDeployment": kind(
        "nvidia.com/v1beta1", "DynamoGraphDeployment",
        {
            "components!": Of(Object({"name!": str, "type!": re.compile("frontend|worker|prefill|decode"), "replicas!": int,
                                      "podTemplate!": Object({"spec!": POD})})),
        },
    ),
    "compose": Object({"services!": Of(SERVICE, LABEL), "volumes": Object({"huggingface": object}), "configs": Of(Object({"content!": str}), LABEL)}),
    "llm-d": Object(
        {
            "multinode!": bool, "modelArtifacts!": Object({"name!": str, "uri!": re.compile(r"hf://\S+")}),
            "accelerator": Object({"type!": "nvidia"}), "decode!": Object(CHART_WORKLOAD), "prefill!": Object(CHART_WORKLOAD),
        }
    ),
}  # fmt: skip
SCHEMAS["helmfile"] = Object(
    {
        "repositories!": Of(Object({"name!": LABEL, "url!": re.compile(r"https://\S+/")})),
        "releases!": Of(Object({"name!": LABEL, "chart!": re.compile(r"[a-z-]+/[a-z-]+"), "values!": Of(SCHEMAS["llm-d"])})),
    }
)  # fmt: skip
"""Kind of a document, or target of one without a kind -> its schema."""


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    """Return plans of every engine and shape: one device, several servers, attention groups, a config of its own."""
    folder = tmp_path_factory.mktemp("manifests")
    with pytest.MonkeyPatch.context() as patch:
        size_on_few_requests(patch)
        plan = plan_in(folder)
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


PUBLISHED = json.loads(TABLE.read_text())


def unpublished(document):
    """Return what of a document its project's own schema does not have."""
    said = PUBLISHED[kind_of(document)]
    return [
        *published_mismatch(document, said["schema"]),
        *({document.get("apiVersion")} - {said["apiVersion"]}),
    ]


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
        assert list(mismatch(document, SCHEMAS[document.get("kind", target)])) == []
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
    assert list(mismatch(document, SCHEMAS["Deployment"]))
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
    assert set(PUBLISHED) == set(SCHEMAS)
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
        assert list(mismatch(document, SCHEMAS[document.get("kind", target)])) == []
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
        ("chat", {"replicas": 3, "spare_replicas": 1, "hardware": "l4", "planned_request_rate_limit_per_replica": 2.0}),
        ("documents", {"replicas": 2, "spare_replicas": 0, "tensor_parallel": 2, "planned_request_rate_limit_per_replica": 0.5}),
    ]  # fmt: skip
    groups = [
        replace(whole, **row, requests=RoutedRequests(classes=(name,), request_fraction=0.5, max_model_len=4096))
        for name, row in rows
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
        assert list(mismatch(document, SCHEMAS[kind_of(document)])) == []
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
        assert all(list(mismatch(each, SCHEMAS["llm-d"])) == unpublished(each) == [] for each in values)
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
        assert list(mismatch(document, SCHEMAS[document["kind"]])) == unpublished(document) == []
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
        assert list(mismatch(document, SCHEMAS["Deployment"])) == unpublished(document) == []
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
