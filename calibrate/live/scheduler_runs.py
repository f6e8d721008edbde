"""Settings of the scheduler that are held against the simulator, and the traffic that is sent under each."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from calibrate.live.model import CONFIG
from capplan.calibrate.endpoint.client import Answered, Endpoint, Question, answered, endpoint_of
from capplan.calibrate.endpoint.series import open_loop, shared_loop, together

SMALL = {
    **CONFIG,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
"""Steps of a few milliseconds: the order of events is of interest here, not their time."""
BLOCK = 32
Exchange: TypeAlias = tuple[Question, Answered]


@dataclass(frozen=True, slots=True)
class Setting:
    """Limits of the engine and what is sent to it."""

    name: str
    flags: tuple[str, ...] = ()
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 256
    block_tokens: int = BLOCK
    blocks: int = 0
    """Blocks of the cache; 0: as many as its memory holds."""
    chunked: bool = True
    caching: bool = False
    traffic: str = "poisson"
    asynchronous: bool = False

    @property
    def options(self) -> list[str]:
        """Return the options of `vllm serve`."""
        words = [
            "--max-num-seqs", str(self.max_num_seqs), "--max-num-batched-tokens", str(self.max_num_batched_tokens),
            "--block-size", str(self.block_tokens), "--max-model-len", "1280",
            "--enable-prefix-caching" if self.caching else "--no-enable-prefix-caching",
            "--enable-chunked-prefill" if self.chunked else "--no-enable-chunked-prefill",
        ]  # fmt: skip
        if self.blocks:
            words += ["--num-gpu-blocks-override", str(self.blocks)]
        return [*words, *self.flags]


SETTINGS = (
    Setting("chunked"),
    Setting("budget-64", max_num_batched_tokens=64),
    Setting("unchunked", chunked=False, max_num_batched_tokens=2048),
    Setting("few-sequences", max_num_seqs=4),
    Setting("block-64", block_tokens=64, blocks=60),
    Setting("small-cache", blocks=48),
    Setting("small-cache-128", block_tokens=128, blocks=18),
    Setting("priority", flags=("--scheduling-policy", "priority"), max_num_seqs=6, traffic="priority"),
    Setting("priority-small", flags=("--scheduling-policy", "priority"), blocks=48, traffic="priority"),
    Setting("shared-prefix", caching=True, blocks=160, traffic="shared"),
    Setting("sessions", caching=True, blocks=200, traffic="sessions"),
    Setting("sessions-small", caching=True, blocks=90, traffic="sessions"),
    Setting("asynchronous", asynchronous=True),
    Setting("asynchronous-small", asynchronous=True, blocks=48),
    Setting("asynchronous-few", asynchronous=True, max_num_seqs=4),
)


def tokens(draw: random.Random, count: int) -> tuple[int, ...]:
    """Return random token ids."""
    return tuple(draw.randrange(10, 31000) for _ in range(count))


def _lengths(draw: random.Random) -> tuple[int, int]:
    return min(int(draw.lognormvariate(4.6, 0.9)) + 4, 900), min(int(draw.lognormvariate(3.0, 0.8)) + 1, 160)


def _open(
    server: Endpoint, draw: random.Random, count: int, rate: float, priority: Callable[[], int | None]
) -> list[Exchange]:
    questions, times, now_s = [], [], 0.0
    for _ in range(count):
        prompt, output = _lengths(draw)
        questions.append(Question(tokens(draw, prompt), output, priority()))
        now_s += draw.expovariate(rate) * (0.2 if draw.random() < 0.7 else 2.8)
        times.append(now_s)
    return list(zip(questions, open_loop(server, questions, times), strict=True))


def shared(server: Endpoint, draw: random.Random) -> list[Exchange]:
    """Send prompts that start with one of four system prompts."""
    heads = [tokens(draw, length) for length in (96, 200, 333, 64)]
    questions, times, now_s = [], [], 0.0
    for _ in range(200):
        prompt, output = _lengths(draw)
        questions.append(Question(heads[draw.randrange(4)] + tokens(draw, prompt // 2), output))
        now_s += draw.expovariate(45.0)
        times.append(now_s)
    return list(zip(questions, open_loop(server, questions, times), strict=True))


def sessions(server: Endpoint, draw: random.Random) -> list[Exchange]:
    """Let twelve users talk: each turn sends what was said before."""
    exchanges: list[Exchange] = []

    def user() -> Callable[[], object]:
        said: list[int] = []
        asked: list[Question] = []

        def turn(new: tuple[int, ...], output: int) -> Question:
            said.extend(new)
            asked.append(Question(tuple(said), output))
            return asked[-1]

        def heard(place: int, answer: Answered) -> None:
            said.extend(int(word[1:]) for word in answer.text.split())
            exchanges.append((asked[place], answer))

        lengths = [(tokens(draw, draw.randrange(10, 90)), draw.randrange(4, 50)) for _ in range(9)]
        return partial(shared_loop, server, [partial(turn, *each) for each in lengths], 1, heard)

    together([user() for _ in range(12)])
    return exchanges


def exchanged(name: str, kind: str, url: str) -> list[Exchange]:
    """Warm a server, send it the traffic of a setting, and say how many requests failed; return each request with its answer."""
    server = replace(endpoint_of(url), model="tiny")
    answered(server, Question((300, 301, 302), 4))
    sent = _traffic(kind, server)
    wrong = [answer.error for _, answer in sent if answer.error]
    print(f"{name}: {len(sent)} requests, {len(wrong)} errors {wrong[:2]}", flush=True)
    return sent


def _traffic(kind: str, server: Endpoint) -> list[Exchange]:
    draw = random.Random(11)  # lengths and times
    if kind == "shared":
        return shared(server, draw)
    if kind == "sessions":
        return sessions(server, draw)

    def rank() -> int | None:
        return draw.randrange(3) if kind == "priority" else None

    return _open(server, draw, 200, 45.0, rank)
