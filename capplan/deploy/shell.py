"""Scripts as people paste them: the engine that each command starts, with the words behind its program.

A shell's quotes, comments, variables, operators and here-documents, and the options of `docker run`; nothing is executed.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from capplan.errors import LONGEST_SHOWN, InputError

PROGRAMS = {
    ("vllm", "serve"): "vllm",
    ("-m", "vllm.entrypoints.openai.api_server"): "vllm",
    ("-m", "vllm.entrypoints.api_server"): "vllm",
    ("-m", "vllm.entrypoints.cli.main", "serve"): "vllm",
    ("-m", "sglang.launch_server"): "sglang",
    ("-m", "sglang_router.launch_server"): "sglang",
    ("-m", "dynamo.vllm"): "vllm",
    ("-m", "dynamo.sglang"): "sglang",
    ("sglang", "serve"): "sglang",
    ("trtllm-serve", "serve"): "trtllm",
    ("trtllm-serve",): "trtllm",
    ("llama-server",): "llamacpp",
}
"""Words that start an engine -> the engine; the longer of two comes first."""
KNOWN = "vllm serve, python3 -m sglang.launch_server, trtllm-serve, llama-server"
_MODULE = re.compile(r"[\w./~-]*python[\d.]*")
_SERVES = re.compile(
    r"(?:[\w.:-]+/)*(?:vllm-openai|vllm-cpu-release-repo)[\w.-]*(?::(?P<tag>[\w.-]+))?(?:@\S+)?"
)
"""Images that start vLLM by themselves: those for CUDA, ROCm, XPU and processors."""
_TAGGED = re.compile(
    r"(?:docker\.io/)?(?:vllm/vllm-openai[\w.-]*|lmsysorg/sglang|nvcr\.io/nvidia/tensorrt-llm/release):v?(\d+\.\d+(?:\.\d+)?)"
)
"""Images whose tag is the version of the engine."""
_PROMPT = re.compile(r"\A(?:\([\w.-]+\) )?[$>%] ")
"""What a terminal shows before a command, which people paste with it."""
_LONGEST = 65_536
"""Most letters of a script, and of the values of its variables where they stand in it."""
_DEEPEST = 8
"""Most scripts, one inside the other."""
_CONTAINER = ("docker", "podman", "nerdctl")
_PLAIN = (
    "--rm", "--init", "--privileged", "--read-only", "--detach", "--interactive", "--tty", "--publish-all", "--no-healthcheck",
    "--oom-kill-disable", "--quiet", "--sig-proxy", "--disable-content-trust", "--replace", "--tls-verify",
)  # fmt: skip
"""Options of `docker run` and `podman run` without a value."""
_SAYS = (
    "echo",
    "printf",
    "grep",
    "pkill",
    "pgrep",
    "curl",
    "docker-compose",
    "kubectl",
    "helm",
    "pip",
    "uv",
    "ssh-keygen",
)
"""Programs whose words start nothing."""
_SHELLS = ("bash", "sh", "zsh", "ash", "dash", "eval")
_RUNNERS = ("ssh", "srun", "tmux", "screen", "su", "runuser", "parallel", "sky", "pylet", "sbatch")
"""Programs that run, elsewhere or later, the command that stands in one word of theirs."""
_ASSIGNED = re.compile(r"(?:(?:export|declare|local|readonly)\s+)?([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_VARIABLE = re.compile(
    r"\$\$?(?:(?P<name>[A-Za-z_]\w*)|\{(?P<braced>[A-Za-z_]\w*)(?:\[[@*]\])?(?:(?P<how>:?[-=+?])(?P<other>[^{}]*))?\})"
)
"""A variable, with what stands in its place where it is not set (-, =) or set (+); two dollar signs are one in a Compose file."""
_DEFAULTED = re.compile(r"\$\$?\{(?P<name>[A-Za-z_]\w*):?[-=](?P<other>[^{}]*\$\{[^{}]*\}[^{}]*)\}")
"""A variable whose default holds another one."""
_CONTINUED = re.compile(r"\\[ \t\r]*(?:#[^\n]*)?\n")
_PLACEHOLDER = re.compile(r"<[A-Za-z][\w .:/-]*(?<! )>(?!\w)")
"""What people write for a value of one's own, such as <your model>; `<in >out` and `<in>out` are redirections."""
_REDIRECTED = re.compile(r"(?:(?P<number>\d+)|&)?(?:>>|>&|>\||>|<<<|<)")
_HERE = re.compile(r"<<-?\s*(['\"]?)(\w+)\1([^\n]*)\n")
_OPTION_NEXT = re.compile(r"\s*-(?!--)")
_OPERATORS = re.compile(r"&&|\|\||;;|[|;&()\n]")


@dataclass(frozen=True, slots=True)
class Started:
    """An engine that a command starts."""

    engine: str
    version: str | None
    """Version that the tag of an official image states."""
    variables: tuple[str, ...]
    """Names of the variables before the program; their values may be secret."""
    words: tuple[str, ...]
    """What stands behind the program."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files that the script writes before, by their path."""


def engines_started(
    text: str, place: str, values: Mapping[str, str] | None = None, depth: int = 0
) -> list[Started]:
    """Return the engines that a script starts, in its order.

    Parameters
    ----------
    text : the script
    place : of it, for errors
    values : variables that are set where it runs
    depth : scripts that this one is in

    Raises
    ------
    InputError
        a quotation has no end, or a container of an engine starts without one
    """
    if depth > _DEEPEST:
        return []
    if len(text) > _LONGEST:
        raise InputError(f"{place}: is longer than {_LONGEST:,} letters; give the command of the engine")
    script = _Script(_PROMPT.sub("", text.strip()), place, values)
    found = [engine for words in script.commands() for engine in _started(words, place, values, depth)]
    if not found:  # a script may keep its command in a variable
        kept = [word for words in script.values() for word in words if " " in word]
        found = [engine for word in kept for engine in engines_started(word, place, values, depth + 1)]
    return [replace(each, files={**script.files, **each.files}) for each in found]


def engines_in_container(
    image: str, words: Sequence[str], values: Mapping[str, str], place: str, *, whole: bool
) -> list[Started]:
    """Return the engines that a container starts.

    Parameters
    ----------
    image : of the container
    words : of its command
    values : its variables
    place : of it, for errors
    whole : the words are the whole command, not what stands behind the program of the image
    """
    if whole:
        tag = _TAGGED.match(image)
        found = _started(words, place, values)
        return [replace(each, version=each.version or (tag[1] if tag else None)) for each in found]
    return list(_started(["docker", "run", image or "no-image", *words], place, values))


def one_engine(text: str, place: str) -> Started:
    """Return the engine that a script starts; InputError where it starts none, or several."""
    found = engines_started(text, place)
    if len(found) == 1:
        return found[0]
    if not text.strip():
        raise InputError(f"{place}: is empty; known commands: {KNOWN}")
    if not found:
        shown = " ".join(text.split())[:LONGEST_SHOWN]
        raise InputError(
            f"{place}: {shown!r} starts no engine that is known\n  known commands: {KNOWN}, also behind docker run"
        )
    names = ", ".join(f"{each.engine} {' '.join(each.words[:2])}"[:LONGEST_SHOWN] for each in found[:4])
    raise InputError(
        f"{place}: starts {len(found)} engines ({names}); give one command that starts one engine"
    )


class _Script:
    """A script that is read from its start to its end, with the variables and files that it has made so far."""

    def __init__(self, text: str, place: str, values: Mapping[str, str] | None = None) -> None:
        self._text, self._place, self._at = text, place, 0
        self._values = {name: [value] for name, value in (values or {}).items()}
        self._of_variables = 0
        self._word: str | None = None
        self._words: list[str] = []
        self._into = ""
        self.files: dict[str, str] = {}

    def commands(self) -> Iterator[list[str]]:
        """Yield the words of each command; assignments are kept, not yielded."""
        while self._at < len(self._text):
            if self._blank() or self._quoted() or self._redirected() or self._expanded():
                continue
            operator = _OPERATORS.match(self._text, self._at)
            if operator is None:
                self._add(self._text[self._at])
                self._at += 1
            elif operator[0] == "(" and self._word is not None and self._word.endswith("="):
                self._array()
            else:
                self._at = operator.end()
                self._end_word()
                if operator[0] != "\n" or not self._goes_on():
                    yield from self._command()
        self._end_word()
        yield from self._command()

    def _add(self, text: str) -> None:
        self._word = (self._word or "") + text

    def _end_word(self) -> None:
        if self._word is not None:
            self._words.append(self._word)
        self._word = None

    def _goes_on(self) -> bool:
        """Return whether the next line is options only: people leave out the backslash before it."""
        return bool(self._words) and _OPTION_NEXT.match(self._text, self._at) is not None

    def _command(self) -> Iterator[list[str]]:
        words, self._words = self._words, []
        plain = words[1:] if words and words[0] in ("export", "declare", "local", "readonly") else words
        assigned = [_ASSIGNED.fullmatch(word) for word in plain]
        if words and all(assigned):
            for match in assigned:
                if match is not None:
                    before = self._values.get(match[1], []) if match[2] else []
                    self._values[match[1]] = [*before, match[3]]
        elif words and words[0] == "echo" and self._into:
            said = " ".join(word for word in words[1:] if word not in ("-e", "-n"))
            self.files[self._into] = said.replace("\\n", "\n") + "\n"
        elif words:
            yield words
        self._into = ""

    def values(self) -> list[list[str]]:
        """Return the values of the variables that were assigned."""
        return list(self._values.values())

    def _blank(self) -> bool:
        """Pass over a space, a continued line or a comment; return whether there was one."""
        continued = _CONTINUED.match(self._text, self._at)
        letter = self._text[self._at]
        if continued is not None:
            self._at = continued.end()
        elif letter in " \t\r":
            self._at += 1
        elif letter == "#" and self._word is None:
            end = self._text.find("\n", self._at)
            self._at = len(self._text) if end < 0 else end
            return True
        else:
            return False
        self._end_word()
        return True

    def _quoted(self) -> bool:
        """Take what is quoted or escaped; return whether something was."""
        letter = self._text[self._at]
        if letter == "\\":
            self._add(self._text[self._at + 1 : self._at + 2])
            self._at += 2
        elif letter == "'":
            end = self._text.find("'", self._at + 1)
            if end < 0:
                return self._left_over()
            self._add(self._text[self._at + 1 : end])
            self._at = end + 1
        elif letter == '"':
            self._double()
        else:
            return False
        return True

    def _double(self) -> None:
        if self._text.find('"', self._at + 1) < 0:
            self._left_over()
            return
        self._add("")
        self._at += 1
        while self._at < len(self._text):
            letter = self._text[self._at]
            if letter == '"':
                self._at += 1
                return
            following = self._text[self._at + 1 : self._at + 2]
            if letter == "\\" and following in ("$", "`", '"', "\\", "\n"):
                self._add("" if following == "\n" else following)
                self._at += 2
            elif not self._expanded(quoted=True):
                self._add(letter)
                self._at += 1
        raise InputError(f"{self._place}: is badly quoted (no closing quotation); quote JSON in '...'")

    def _left_over(self) -> bool:
        """Pass over a quotation mark that ends the text, which was cut out of a longer quotation."""
        if self._text[self._at + 1 :].strip():
            raise InputError(f"{self._place}: is badly quoted (no closing quotation); quote JSON in '...'")
        self._at = len(self._text)
        return True

    def _expanded(self, *, quoted: bool = False) -> bool:
        """Take a variable with its value, or as it is written where none is known; return whether there was one."""
        if self._text.startswith("$(", self._at):
            return self._substituted()
        match = _VARIABLE.match(self._text, self._at)
        if match is None:
            return self._defaulted(quoted=quoted)
        self._at = match.end()
        name, how = match["name"] or match["braced"], (match["how"] or "")[-1:]
        values, other = self._values.get(name), (match["other"] or "").strip("'\"")
        if how == "+":
            values = [""] if values is None else [other]
        elif values is None and how in ("-", "="):
            values = [other]
        self._of_variables += sum(map(len, values or ()))
        if self._of_variables > _LONGEST:
            raise InputError(f"{self._place}: its variables have more than {_LONGEST:,} letters")
        if values is None:
            self._add(match[0])
        elif quoted and len(values) == 1:
            self._add(values[0])
        else:
            written = "".join(values)
            words = values if len(values) > 1 else [written] if "$(" in written else written.split()
            for number, word in enumerate(words):
                if number:
                    self._end_word()
                self._add(word)
        return True

    def _defaulted(self, *, quoted: bool) -> bool:
        """Put the value of a variable whose default is another variable where it stands; return whether there was one."""
        match = _DEFAULTED.match(self._text, self._at)
        if match is None or len(self._text) > _LONGEST:
            return False
        inner = _Script(match["other"], self._place)
        inner._values = self._values
        known = self._values.get(match["name"])
        default = " ".join(word for command in inner.commands() for word in command)
        value = default if known is None else " ".join(known)
        self._values.setdefault(match["name"], [value])
        self._text = f"{self._text[: self._at]}${{{match['name']}}}{self._text[match.end() :]}"
        return self._expanded(quoted=quoted)

    def _substituted(self) -> bool:
        """Take `$(...)` as it is written: nothing is run."""
        depth, end = 0, self._at
        for end in range(self._at + 1, len(self._text)):
            depth += {"(": 1, ")": -1}.get(self._text[end], 0)
            if depth == 0:
                break
        self._add(self._text[self._at : end + 1])
        self._at = end + 1
        return True

    def _array(self) -> None:
        """Keep the words of `NAME=(...)`."""
        name = str(self._word).removesuffix("=")
        end = self._text.find(")", self._at)
        inside = self._text[self._at + 1 : end if end >= 0 else len(self._text)]
        self._at = end + 1 if end >= 0 else len(self._text)
        self._word = None
        inner = _Script(inside.replace("(", " "), self._place)
        inner._values = self._values
        words = [word for command in inner.commands() for word in command]
        before = self._values.get(name.removesuffix("+"), []) if name.endswith("+") else []
        self._values[name.removesuffix("+")] = [*before, *words]

    def _redirected(self) -> bool:
        """Pass over where output goes, and keep the files of here-documents; return whether there was one."""
        if (placeholder := _PLACEHOLDER.match(self._text, self._at)) is not None:
            self._add(placeholder[0])
            self._at = placeholder.end()
            return True
        if self._here():
            return True
        match = _REDIRECTED.match(self._text, self._at)
        if match is None or (match["number"] and self._word is not None):
            return False
        self._end_word()
        self._at = match.end()
        target = re.compile(r"[ \t]*(\"[^\"]*\"|'[^']*'|[^\s;&|<>]+|&?\d)?").match(self._text, self._at)
        if target is not None:
            self._into = self._named((target[1] or "").strip("'\""))
            self._at = target.end()
        return True

    def _here(self) -> bool:
        """Pass over a here-document and keep the file that it makes; return whether there was one."""
        start = _HERE.match(self._text, self._at)
        if start is None:
            return False
        end = self._text.find(f"\n{start[2]}", start.end() - 1)
        if end < 0:
            return False
        line = self._text[self._text.rfind("\n", 0, self._at) + 1 : start.end()]
        target = re.search(r"(?<!<)>\s*([^\s<>]+)", line)
        if target is not None:
            self.files[self._named(target[1])] = self._text[start.end() : end + 1]
        self._at = end + 1 + len(start[2])
        return True

    def _named(self, path: str) -> str:
        """Return the path of a file, with the variables that are known."""
        inner = _Script(path, self._place)
        inner._values = self._values
        return ("".join(word for command in inner.commands() for word in command) or path).removeprefix("./")


def _started(
    command: Sequence[str], place: str, values: Mapping[str, str] | None = None, depth: int = 0
) -> Iterator[Started]:
    """Yield the engines that one command starts: one, or those of a script in its words."""
    if not command or (Path(command[0]).name in _SAYS and list(command[:2]) != ["uv", "run"]):
        return
    image_at = _image_at(command)
    tag = _TAGGED.match(command[image_at]) if image_at is not None else None
    version = tag[1] if tag else None
    for at in range(len(command)):
        for program, engine in PROGRAMS.items():
            name = Path(command[at]).name if program[0] != "-m" else command[at]
            if (name, *command[at + 1 : at + len(program)]) == program:
                behind = command[at + len(program) :]
                behind = _told_by_dynamo(behind) if program[-1] == "dynamo.vllm" else behind
                yield Started(engine, version, _variables(command[:at]), tuple(behind))
                return
        if " " in command[at] or "\n" in command[at]:
            set_here = {**(values or {}), **_set_by(command[:at])}
            script = _with_arguments(command, at)
            inner = engines_started(script, place, set_here, depth + 1) if script else []
            for each in inner:
                before = (*_variables(command[:at]), *each.variables)
                yield replace(each, version=each.version or version, variables=before)
            if inner:
                return
    entry = None if image_at is None else _entry_point(command[:image_at])
    if image_at is not None and entry is not None and entry.startswith("["):
        listed = re.findall(r'"([^"]*)"', entry)
        for each in _started([*listed, *command[image_at + 1 :]], place, values, depth):
            yield replace(each, version=each.version or version)
    elif image_at is not None and _serves(command[image_at], command[image_at + 1 :]):
        rest = command[image_at + 1 :]
        if rest and _MODULE.fullmatch(rest[0]) is None and Path(rest[0]).name not in _SHELLS:
            served = rest[1:] if rest[0] == "serve" else rest
            if rest[:1] != ["bench"] and (entry is None or "vllm" in entry):
                yield Started("vllm", version, _variables(command[:image_at]), tuple(served))


def _serves(image: str, words: Sequence[str]) -> bool:
    """Return whether an image starts vLLM by itself: an official one, or one of its name that is given the options of the server."""
    named = "vllm" in image.rpartition("/")[2] and bool(words) and words[0].startswith("-")
    return _SERVES.fullmatch(image) is not None or (
        named and any(word.partition("=")[0] == "--model" for word in words)
    )


_POOLS = {"--is-prefill-worker": "kv_producer", "--is-decode-worker": "kv_consumer"}
_MODES = {"prefill": "kv_producer", "decode": "kv_consumer"}


def _told_by_dynamo(words: Sequence[str]) -> list[str]:
    """Return the words of a worker of Dynamo as vLLM is told its pool, which Dynamo tells by options of its own."""
    kept, roles = list(words), [_POOLS[word] for word in words if word in _POOLS]
    kept = [word for word in kept if word not in _POOLS]
    if "--disaggregation-mode" in kept[:-1]:
        at = kept.index("--disaggregation-mode")
        roles += [role for mode, role in _MODES.items() if kept[at + 1] == mode]
        del kept[at : at + 2]
    return [*kept, *(f"--kv-transfer-config.kv_role={role}" for role in roles[:1])]


_ARGUMENTS = re.compile(r'"\$?\$(?:@|\{@\})"|\$?\$(?:@|\{@\})')
"""The arguments of a script, where they stand in it; Compose files write two dollar signs."""


def _with_arguments(words: Sequence[str], at: int) -> str:
    """Return the script in a word, with the arguments that its shell is given behind it; empty where the word is no script."""
    if not _script_at(words, at):
        return ""
    given = shlex.join(words[at + 2 :]) if words[at - 1].endswith("c") else ""
    return given.join(_ARGUMENTS.split(words[at])) if given else words[at]


def _script_at(words: Sequence[str], at: int) -> bool:
    """Return whether a word is a script: what a shell is given behind -c, or all that it is given."""
    return at > 0 and (
        re.fullmatch(r"-\w*c", words[at - 1]) is not None
        or Path(words[at - 1]).name in _SHELLS
        or Path(words[0]).name in _RUNNERS
    )


def _image_at(command: Sequence[str]) -> int | None:
    """Return where the image of `docker run` stands: the first word that is no option and no value of one."""
    names = [Path(word).name for word in command]
    start = min((names.index(name) for name in _CONTAINER if name in names), default=len(command))
    if "run" not in command[start:]:
        return None
    at = list(command).index("run", start) + 1
    while at < len(command) and command[at].startswith("-"):
        word = command[at]
        alone = (
            "=" in word
            or word in _PLAIN
            or re.fullmatch(r"-[itdPq]+", word)
            or re.fullmatch(r"-[epv]\S+", word)
        )
        at += 1 if alone else 2
    return at if at < len(command) else None


def _entry_point(words: Sequence[str]) -> str | None:
    """Return the program that `docker run` starts instead of that of the image."""
    for at, word in enumerate(words):
        if word == "--entrypoint" and at + 1 < len(words):
            return words[at + 1]
        if word.startswith("--entrypoint="):
            return word.partition("=")[2]
    return None


def _variables(words: Sequence[str]) -> tuple[str, ...]:
    """Return the variables that stand before a program, by name; their values may be secret."""
    return tuple(_set_by(words))


def _set_by(words: Sequence[str]) -> dict[str, str]:
    """Return the variables that the words before a program set for it, as `NAME=VALUE` or behind -e of a container."""
    named = (_ASSIGNED.fullmatch(word.removeprefix("--env=").removeprefix("-e")) for word in words)
    return {match[1]: match[3] for match in named if match is not None}
