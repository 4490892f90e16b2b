"""The server: an address of this machine alone, a token, and the page in a browser."""

import errno
import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import uvicorn

from bayesrnn.errors import UserError
from bayesrnn.lab.explore.application import application
from bayesrnn.lab.explore.panel import Options
from bayesrnn.lab.registry import Saved
from bayesrnn.lab.runs.opening import OpenedRun

HOST = "127.0.0.1"
SETTINGS: dict[str, Any] = {
    "http": "h11", "ws": "none", "lifespan": "on", "log_level": "error", "access_log": False, "server_header": False,
    "proxy_headers": False, "limit_concurrency": 64, "timeout_keep_alive": 20, "timeout_graceful_shutdown": 1,
    "h11_max_incomplete_event_size": 1 << 14,
}  # fmt: skip


def listen(port: int) -> socket.socket:
    """A socket on this machine's own address; port 0 is any free one."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.bind((HOST, port))
    except OSError as error:
        made.close()
        why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
        raise UserError(f"Port {port} {why}; choose another one with --port, or omit it.") from None
    made.listen(16)  # a browser that comes early waits
    return made


def serve(
    runs: Sequence[OpenedRun | Saved], options: Options, *, port: int, browser: bool, say: Callable[[str], None]
) -> None:
    """Serve the page until Ctrl-C.

    The token is in the fragment of the address, which browsers do not send, and so in no log.
    """
    with listen(port) as listening:
        port, token = listening.getsockname()[1], secrets.token_urlsafe(32)
        app = application(runs, options, token=token, port=port)
        server = uvicorn.Server(uvicorn.Config(app, **SETTINGS))
        address = f"http://{HOST}:{port}/#{token}"
        say(f"{address}\nOnly this machine can open it. Ctrl-C ends it.")
        if browser:
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        with suppress(KeyboardInterrupt):  # uvicorn raises it again after it has stopped
            server.run(sockets=[listening])
    say("Ended.")
