"""The Compose file and the Kubernetes manifest that serve capplan: fields that are published, flags that exist, a token, and no rights."""

import json
import re
from pathlib import PurePosixPath

import pytest
import yaml

from capplan.cli.main import as_click
from capplan.cli.serve import serve_command
from tests.published_fields import TABLE, kind_of, mismatch
from tests.served import ROOT

EXAMPLES = ROOT / "docs/examples/serve"
FILES = ("compose.yaml", "kubernetes.yaml")
OPTIONS = {word: option for option in as_click("serve", serve_command).params for word in option.opts}


def documents(name):
    return list(yaml.safe_load_all((EXAMPLES / name).read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def compose():
    return documents("compose.yaml")[0]["services"]["capplan"]


@pytest.fixture(scope="module")
def pod():
    return documents("kubernetes.yaml")[0]["spec"]["template"]["spec"]


def words_of(words):
    """Return the flags of a command line with their values; every flag is one of `capplan serve`."""
    assert words[0] == "serve"
    flags, left = {}, list(words[1:])
    while left:
        name = left.pop(0)
        assert name in OPTIONS, f"capplan serve has no {name}"
        flags[name] = True if OPTIONS[name].is_flag else left.pop(0)
    return flags


def test_the_command_of_the_manifest_names_the_image_by_digest(pod):
    text = (EXAMPLES / "kubernetes.yaml").read_text(encoding="utf-8")
    old, new = re.search(r"sed 's\|(.*?)\|(.*?)\|' kubernetes.yaml \| kubectl apply", text).groups()
    assert old == f"image: {pod['containers'][0]['image']}"
    assert new == f"image: REGISTRY/{pod['containers'][0]['image']}@sha256:DIGEST"


@pytest.mark.parametrize("name", FILES)
def test_each_field_is_published(name):
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    for document in documents(name):
        kind = kind_of(document)
        assert list(mismatch(document, table[kind]["schema"])) == []
        assert document.get("apiVersion") == table[kind]["apiVersion"]


def test_a_field_that_nobody_publishes_is_noticed():
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    (deployment, _) = documents("kubernetes.yaml")
    deployment["spec"]["template"]["spec"]["containers"][0]["securityContext"]["readonly"] = True
    assert list(mismatch(deployment, table["Deployment"]["schema"]))


def test_both_start_the_server_with_a_token_that_is_there(compose, pod):
    (container,) = pod["containers"]
    of_compose, of_pod = words_of(compose["command"]), words_of(container["args"])
    for flags in (of_compose, of_pod):
        assert flags["--host"] == "0.0.0.0"
        assert "--port" not in flags
    (secret,) = compose["secrets"]
    assert of_compose["--token-file"] == f"/run/secrets/{secret}"
    assert secret in documents("compose.yaml")[0]["secrets"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    file = PurePosixPath(of_pod["--token-file"])
    volume = next(item for item in pod["volumes"] if item["name"] == mounts[str(file.parent)])
    made = re.search(
        r"create secret generic (\S+) --from-literal=(\w+)=", (EXAMPLES / "kubernetes.yaml").read_text()
    )
    assert (volume["secret"]["secretName"], file.name) == made.groups()


def test_ports_and_labels_meet(compose, pod):
    port = OPTIONS["--port"].default
    deployment, service = documents("kubernetes.yaml")
    (container,) = pod["containers"]
    assert [item["containerPort"] for item in container["ports"]] == [port]
    assert container["readinessProbe"]["httpGet"]["port"] == container["ports"][0]["name"]
    assert [item["targetPort"] for item in service["spec"]["ports"]] == [container["ports"][0]["name"]]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert service["spec"]["selector"].items() <= labels.items()
    assert compose["ports"] == [f"127.0.0.1:{port}:{port}"], "a proxy with TLS serves others"


def test_neither_may_more_than_it_needs(compose, pod):
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert compose["cap_drop"] == ["ALL"]
    assert compose["security_opt"] == ["no-new-privileges:true"]
    assert compose["read_only"] is True
    # folders of requests are made there
    assert compose["tmpfs"] == ["/tmp"]
    assert "/tmp" in {mount["mountPath"] for mount in container["volumeMounts"]}


def test_the_image_is_built_with_what_serve_needs(compose, pod):
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert "ARG CONSTRAINTS=plan" in dockerfile
    built = re.search(r"docker build --build-arg CONSTRAINTS=(\w+) -t (\S+) \.", dockerfile)
    assert built[2] == compose["image"] == pod["containers"][0]["image"]
    assert compose["pull_policy"] == "never"
    pinned = set(
        re.findall(r"^([\w.-]+)==", (ROOT / f"constraints/{built[1]}.txt").read_text(), re.MULTILINE)
    )
    assert {"fastapi", "uvicorn"} <= pinned
    assert built[0] in (EXAMPLES / "compose.yaml").read_text(encoding="utf-8")
    assert 'ENTRYPOINT ["capplan"]' in dockerfile
    assert re.search(r"^USER (?!root)", dockerfile, re.MULTILINE)
