"""What a load run asks, and the prompts that it asks with."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from edge_infer.errors import ConfigError
from edge_infer.harness.memory import process_memory

# Common words: about one token each in every large vocabulary.
_TEXT = (
    "the of and to in is you that it he was for on are as with his they at be this have from or "
    "one had by word but not what all were we when your can said there use an each which she do "
    "how their if will up other about out many then them these so some her would make like him "
    "into time has look two more write go see number no way could people my than first water been "
    "call who oil its now find long down day did get come made may part"
)
WORDS = _TEXT.split()


@dataclass(frozen=True)
class LoadOptions:
    """What to ask of which server."""

    url: str
    """The server, with or without the /v1 of its API."""
    clients: tuple[int, ...] = (1, 4, 16)
    seconds: float = 30.0
    prompt_tokens: int = 512
    generate_tokens: int = 64
    model: str | None = None
    """None: the first one that the server lists."""
    chat: bool = False
    """Chat completions instead of text completions."""
    ignore_eos: bool = True
    """Asks for answers of full length; a parameter beyond OpenAI's that some servers refuse."""
    api_key: str | None = None
    pid: int | None = None
    """The server's process, where it runs on this machine."""
    timeout: float = 300.0
    """Seconds without a sign of life after which a request has failed."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError(
                f"{self.url!r} is not an http(s) URL.", remedy="For example http://127.0.0.1:8000."
            )
        for name, values, low, high in (
            ("clients", self.clients, 1, 1024),
            ("seconds", (self.seconds,), 0.1, 86400),
            ("prompt_tokens", (self.prompt_tokens,), 1, 1 << 20),
            ("generate_tokens", (self.generate_tokens,), 1, 1 << 20),
            ("timeout", (self.timeout,), 0.1, 86400),
        ):
            if not values or not all(low <= v <= high for v in values):
                shown = ",".join(f"{v:g}" for v in values) or "nothing"
                raise ConfigError(f"{name} = {shown}; numbers of {low} to {high} are needed.")
        if len(set(self.clients)) != len(self.clients):
            raise ConfigError(f"clients = {self.clients}: a number stands there twice.")
        if self.pid is not None and process_memory(self.pid) is None:
            raise ConfigError(f"There is no process {self.pid} whose memory can be read.")

    @property
    def base(self) -> str:
        """The API's base, without credentials of the URL."""
        parts = urlsplit(self.url)
        path = parts.path.rstrip("/")
        path = path if path.endswith("/v1") else path + "/v1"
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], path, "", ""))

    @property
    def command(self) -> list[str]:
        """The command line that repeats the run."""
        words = ["edge-infer", "bench", "--url", self.base]
        words += ["--clients", ",".join(map(str, self.clients)), "--seconds", f"{self.seconds:g}"]
        words += ["--prompt-tokens", str(self.prompt_tokens)]
        words += ["--generate-tokens", str(self.generate_tokens)]
        words += ["--chat"] if self.chat else []
        words += [] if self.ignore_eos else ["--no-ignore-eos"]
        return words


class Prompts:
    """Random prompts of a length, every one another one, so that no cached prefix helps."""

    def __init__(self, options: LoadOptions, model: str, words: int, seed: int) -> None:
        self._options, self._model, self._words = options, model, words
        self._random = random.Random(seed)

    def body(self, max_tokens: int) -> dict[str, Any]:
        """The next request."""
        text = " ".join(self._random.choice(WORDS) for _ in range(self._words))
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._options.chat:
            body["messages"] = [{"role": "user", "content": text}]
        else:
            body["prompt"] = text
        if self._options.ignore_eos:
            body["ignore_eos"] = True
        return body

    @property
    def path(self) -> str:
        return "chat/completions" if self._options.chat else "completions"
