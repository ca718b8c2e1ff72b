"""Settings of a connection."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from ._errors import InvalidArgument

DEFAULT_URL = "http://127.0.0.1:7423"
USER_AGENT = "tidebox-python/0.1.0"
# Longest time to connect: long enough for one lost packet on a slow network.
CONNECT_MAX = 5.0
# Longest `Retry-After` that a call waits for; a longer one is left to the caller.
RETRY_AFTER_MAX = 30.0
# Deadline of calls that wait for work, such as the pull of an image.
LONG = 330.0


@dataclass(frozen=True)
class Config:
    """Settings of a connection, from arguments or the environment."""

    url: str
    socket: str | None
    headers: dict[str, str] = field(repr=False)
    timeout: float
    retries: int
    stream_timeout: float
    ca_file: str | None

    @classmethod
    def resolve(
        cls,
        url: str | None,
        api_key: str | None,
        user_id: str | None,
        headers: Mapping[str, str] | None,
        timeout: float,
        retries: int,
        stream_timeout: float,
        ca_file: str | os.PathLike[str] | None,
    ) -> Config:
        """Returns the settings; arguments come before the environment."""
        url = (url or os.environ.get("TIDEBOX_URL") or DEFAULT_URL).rstrip("/")
        socket = None
        if url.startswith("unix://"):
            url, socket = "http://localhost", url.removeprefix("unix://")
        elif not url.startswith(("http://", "https://")):
            raise InvalidArgument(f"the URL {url!r} must begin with http://, https:// or unix://")
        sent = {"user-agent": USER_AGENT}
        key = api_key if api_key is not None else os.environ.get("TIDEBOX_API_KEY")
        user = user_id if user_id is not None else os.environ.get("TIDEBOX_USER_ID")
        for name, value in (("x-api-key", key), ("x-user-id", user)):
            if value and value.strip():
                sent[name] = value.strip()
        sent.update({name.lower(): value for name, value in (headers or {}).items()})
        for name, value in sent.items():
            if not (name + value).isascii() or not (name + value).isprintable():
                raise InvalidArgument(f"the header {name!r} has a character that headers cannot carry")
        if timeout <= 0 or stream_timeout <= 0 or retries < 0:
            raise InvalidArgument("`timeout` and `stream_timeout` must be positive, `retries` not negative")
        ca = os.fspath(ca_file) if ca_file is not None else os.environ.get("TIDEBOX_CA_FILE") or None
        return cls(url, socket, sent, timeout, retries, stream_timeout, ca)

    @property
    def address(self) -> str:
        """Address for messages."""
        return f"unix://{self.socket}" if self.socket else self.url

    @property
    def is_local(self) -> bool:
        """True if the server is on this machine."""
        host = self.url.split("://", 1)[1].split("/", 1)[0]
        return self.socket is not None or host.startswith(("127.", "localhost", "[::1]"))
