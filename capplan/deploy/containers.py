"""The container that runs one engine: its words, and its pod as Kubernetes, KServe and Dynamo take it."""

from ipaddress import IPv4Address
from pathlib import PurePosixPath
from typing import Any

from capplan.deploy.command_words import CONFIG_FILE, Command, command_of
from capplan.deploy.engine_option import option
from capplan.deploy.fleet_launch import FleetLaunch, Group
from capplan.deploy.written_text import unexpanded
from capplan.errors import InputError

PORT = 8000
CONFIG_FOLDER = "/etc/capplan"
LEADER_PORT = 20000
HUB_ACCESS = "hf-token"
"""Secret that holds the token of the hub, where a checkpoint needs one."""
ANY_ADDRESS = str(IPv4Address(0))
SHARED_MEMORY = str(PurePosixPath("/dev", "shm"))
_PROGRAM_WORDS = {"vllm": 2, "sglang": 3, "trtllm": 1}


def container_command(group: Group) -> Command:
    """Return the command of an engine that others reach over the network; its config lies where it is mounted."""
    command = command_of(group.launch)
    words = [f"{CONFIG_FOLDER}/{CONFIG_FILE}" if word == CONFIG_FILE else word for word in command.words]
    return Command((*words, "--host", ANY_ADDRESS, "--port", str(PORT)), command.config, command.remarks)


def program_and_arguments(group: Group, words: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Return the words of the program, and those behind it."""
    count = _PROGRAM_WORDS[group.launch.engine]
    return list(words[:count]), list(words[count:])


def pod(
    fleet: FleetLaunch, group: Group, extra: tuple[str, ...] = (), *, serves: bool = True
) -> dict[str, Any]:
    """Return the pod of one server of a replica.

    Parameters
    ----------
    fleet : image, resource and devices per server
    group : what runs in it
    extra : further words of the command: which server of the replica it is
    serves : it answers requests, so that its health can be asked
    """
    command = container_command(group)
    program, arguments = program_and_arguments(group, (*unexpanded(command.words), *extra))
    devices = group.launch.devices // fleet.servers(group)
    container: dict[str, Any] = {
        "name": "engine",
        "image": fleet.needed_image(),
        "command": program,
        "args": arguments,
        "env": [
            {
                "name": "HF_TOKEN",
                "valueFrom": {"secretKeyRef": {"name": HUB_ACCESS, "key": "token", "optional": True}},
            }
        ],
        "resources": {"limits": {fleet.resource: str(devices)}},
        "volumeMounts": [{"name": "shm", "mountPath": SHARED_MEMORY}],
    }
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    if serves:
        container["ports"] = [{"name": "http", "containerPort": PORT}]
        container["readinessProbe"] = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 10}
    if command.config:
        container["volumeMounts"].append({"name": "config", "mountPath": CONFIG_FOLDER})
        volumes.append({"name": "config", "configMap": {"name": group.name}})
    return {"containers": [container], "volumes": volumes}


def server_words(group: Group, servers: int, rank: str, leader: str) -> tuple[str, ...]:
    """Return the words that tell one server of a replica which one it is.

    Parameters
    ----------
    group : whose engine is asked
    servers : of one replica
    rank : of this server, from 0, or a variable of it
    leader : address of the first one
    """
    launch = group.launch
    if launch.engine == "trtllm" or (launch.engine == "vllm" and launch.data_parallel > 1):
        what = " with attention groups" if launch.data_parallel > 1 else ""
        raise InputError(
            f"{launch.engine}: a replica{what} over {servers} servers is not exported\n"
            "  plan with: --set fleet.max_gpus_per_replica=..., the devices of one server"
        )
    address = leader if launch.engine == "vllm" else f"{leader}:{LEADER_PORT}"
    words = [
        *option(launch, "nodes", servers, needed="replicas over servers"),
        *option(launch, "node_rank", rank),
    ]
    words += option(launch, "leader", address)
    if launch.engine == "vllm" and rank != "0":
        words += option(launch, "headless")
    return tuple(words)
