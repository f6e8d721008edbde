"""The address of a server that people name, and a connection to it: nothing secret in the address, and no proxy of the environment."""

import http.client
import os
import ssl
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from capplan.errors import InputError

LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class WebAddress:
    """Where a server listens."""

    host: str
    port: int
    secure: bool
    path: str
    """Path before that of a question, mostly empty."""
    key: str = field(default="", repr=False)
    """Sent as a bearer token; from the environment only."""

    @property
    def shown(self) -> str:
        """Return the address, for people."""
        return f"{'https' if self.secure else 'http'}://{self.host}:{self.port}{self.path}"

    def connection(self, timeout_s: float) -> http.client.HTTPConnection:
        """Return a connection that is not open yet."""
        if self.secure:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self.host, self.port, timeout=timeout_s, context=context)
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)


def web_address(url: str, option: str, variable: str, example: str) -> WebAddress:
    """Return the server at an address.

    Parameters
    ----------
    url : such as http://localhost:8000; without a scheme it is http
    option : that the address was given with, for errors
    variable : name of the environment variable that may hold the key
    example : of an address

    Raises
    ------
    InputError
        the address has no host, another scheme, or holds a user name or a query; or the key would go over the network unencrypted
    """
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
    except ValueError:  # half of the address of IPv6
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(f"{option}: {url!r} is not the address of a server, such as {example}")
    if parts.username or parts.query or parts.fragment:
        raise InputError(
            f"{option}: the address holds a user name or a query\n"
            f"  put the API key into the environment variable {variable}"
        )
    try:
        port = parts.port
    except ValueError:
        raise InputError(f"{option}: the port of {url!r} is not a number from 1 to 65535") from None
    secure = parts.scheme == "https"
    key = os.environ.get(variable, "")
    if key and not secure and parts.hostname not in LOOPBACK:
        raise InputError(
            f"{option}: the API key would go to {parts.hostname} unencrypted\n  use https, or unset {variable}"
        )
    return WebAddress(parts.hostname, port or (443 if secure else 80), secure, parts.path.rstrip("/"), key)
