"""Who may use the server: host names, bearer token, content type, and requests per second and client."""

import hmac
import ipaddress
import time
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.core.errors import BadInput

OPEN_PATHS = ("/health",)  # without a token, for load balancers
MIN_TOKEN = 16  # characters
MAX_TOKEN_FILE = 4096  # bytes
CLIENTS = 10_000  # addresses whose rate is remembered


@dataclass(frozen=True, kw_only=True)
class Access:
    """Rules for requests; the defaults protect a server on this machine from pages in a browser."""

    hosts: tuple[str, ...] = ()  # names in the header Host, besides localhost and addresses; `*` allows all
    token: str | None = None  # of the header Authorization
    rate: float | None = None  # requests per second and client

    def __post_init__(self) -> None:
        if self.rate is not None and not self.rate > 0:
            raise BadInput(f"the rate must be above 0 requests per second, got {self.rate}")

    def allows_host(self, value: str) -> bool:
        """Whether a value of the header Host is accepted."""
        name = value.rpartition("]")[0].lstrip("[") if value.startswith("[") else value.partition(":")[0]
        name = name.lower().rstrip(".")
        return "*" in self.hosts or name in ("localhost", *map(str.lower, self.hosts)) or _is_address(name)

    def allows_token(self, value: str) -> bool:
        """Whether a value of the header Authorization is accepted."""
        return self.token is None or hmac.compare_digest(value.encode(), f"Bearer {self.token}".encode())


def read_token(path: Path) -> str:
    """Read a token of at least 16 characters from a file."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_TOKEN_FILE + 1)
        token = content.decode("ascii").strip() if len(content) <= MAX_TOKEN_FILE else ""
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"the token file {path} cannot be read ({error}): write one line of ASCII into it") from error
    if len(token) < MIN_TOKEN or any(character.isspace() for character in token):
        raise BadInput(f"{path} has no token of at least {MIN_TOKEN} characters without spaces: write one into it")
    return token


class Guard:
    """ASGI middleware that rejects requests which the rules do not allow."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access
        self.buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # client -> requests left, time

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refusal = self._refusal(scope)
            if refusal is not None:
                status, error = refusal
                headers = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}}.get(status)
                await JSONResponse({"error": error}, status_code=status, headers=headers)(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Return status and error of a request that is not allowed."""
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get(b"host", "")
        if not self.access.allows_host(host):
            return 421, f"the host '{host[:100]}' is not allowed: start the server with --allow-host"
        if scope["path"] not in OPEN_PATHS and not self.access.allows_token(headers.get(b"authorization", "")):
            return 401, "the token is missing or wrong: send it as 'Authorization: Bearer TOKEN'"
        if not self._within_rate(scope):
            return 429, f"more than {self.access.rate:g} requests per second from this address: send fewer"
        kind = headers.get(b"content-type", "").partition(";")[0].strip().lower()
        if scope["method"] == "POST" and kind != "application/json":
            return 415, "the content type must be application/json: send the header 'Content-Type: application/json'"
        return None

    def _within_rate(self, scope: Scope) -> bool:
        """Take one request from the client's bucket, which refills with the rate and holds one second of requests."""
        rate = self.access.rate
        if rate is None or scope["path"] in OPEN_PATHS:
            return True
        client, now, full = (scope.get("client") or ("",))[0], time.monotonic(), max(1.0, rate)
        left, before = self.buckets.pop(client, (full, now))
        left = min(full, left + (now - before) * rate)
        self.buckets[client] = (left - 1 if left >= 1 else left, now)
        if len(self.buckets) > CLIENTS:
            self.buckets.popitem(last=False)
        return left >= 1


@lru_cache(256)
def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
