"""What every request must pass before the page is served: host, origin, token, size and rate."""

import hmac
import time
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BYTES = 256 * 1024
"""Largest size of a question."""
PER_SECOND, BURST = 20.0, 60.0
"""Questions: so many per second in the long run, so many at once."""
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Middleware. A refusal is a status and one line, and no header or body of the request appears in it.

    - ``Host`` must name this server. A site that makes its own name point here (DNS rebinding) sends its own.
    - ``Origin`` and ``Sec-Fetch-Site``, which browsers set, must be this page's: other sites may not even load a file.
    - A question is a POST of JSON with an ``Origin`` and the token. The files of the page are public: they say nothing
      about a run.

    Args:
        token: expected as ``Authorization: Bearer TOKEN``.
        port: where the server listens.
        clock: seconds, for the rate.
    """

    def __init__(self, app: ASGIApp, *, token: str, port: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.app, self.token, self.clock = app, token, clock
        self.hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}
        self.left, self.at = BURST, clock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        if scope["type"] != "http":
            return
        refused = self.refusal(scope["method"], Headers(scope=scope))

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        if refused is None:
            await self.app(scope, receive, with_headers)
        else:
            status, text = refused
            await PlainTextResponse(f"{text}\n", status, {"Connection": "close"})(scope, receive, with_headers)

    def refusal(self, method: str, headers: Headers) -> tuple[int, str] | None:
        """Status and reason; None: let it pass."""
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or hosts[0].lower() not in self.hosts:
            return 421, "This server answers to its own address only."
        if any(origin.lower() != f"http://{hosts[0].lower()}" for origin in origins):
            return 403, "Requests of other sites are refused."
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return 403, "Requests of other sites are refused."
        if method in ("GET", "HEAD"):
            return None
        if method != "POST":
            return 405, "Only GET, HEAD and POST are allowed."
        return self._question(headers, origins)

    def _question(self, headers: Headers, origins: list[str]) -> tuple[int, str] | None:
        if not origins:
            return 403, "A question needs an Origin."
        if not self._authorised(headers.getlist("authorization")):
            return 401, "The token is missing or wrong; open the address that the command printed."
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return 415, "A question is JSON."
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit() and len(length) < 10) or int(length) > MOST_BYTES:
            return 413, f"A question has at most {MOST_BYTES} bytes."
        if not self._in_time():
            return 429, "Too many questions; ask again in a second."
        return None

    def _authorised(self, given: list[str]) -> bool:
        """In a time that does not depend on how much of the token is right."""
        expected = f"Bearer {self.token}".encode()
        return len(given) == 1 and hmac.compare_digest(given[0].encode("latin-1", "replace"), expected)

    def _in_time(self) -> bool:
        now = self.clock()
        self.left, self.at = min(BURST, self.left + PER_SECOND * (now - self.at)), now
        if self.left < 1:
            return False
        self.left -= 1
        return True
