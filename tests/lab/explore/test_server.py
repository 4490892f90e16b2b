"""The command: an address of this machine, one line for what cannot be done, and an end by Ctrl-C."""

import builtins
import http.client
import os
import re
import signal
import socket
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from bayesrnn.errors import UserError
from bayesrnn.lab.cli import app
from bayesrnn.lab.explore.server import listen


def invoke(*arguments):
    return CliRunner().invoke(app, ["explore", *map(str, arguments)])


def test_it_listens_on_loopback_alone():
    with listen(0) as listening:
        host, port = listening.getsockname()
        assert host == "127.0.0.1"
        with pytest.raises(UserError, match=f"Port {port} is in use; choose another one with --port, or omit it."):
            listen(port)


def test_what_cannot_be_done_is_one_line(language_runs, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for arguments, message in (
            ((tmp_path,), "is not a run of bayesrnn train"),
            ((language_runs[0], tmp_path / "gone"), "is not a run of bayesrnn train"),
            ((language_runs[0], "--no-browser", "--port", port), f"Port {port} is in use"),
        ):
            result = invoke(*arguments)
            assert result.exit_code == 2, result.output
            assert message in result.stderr
            assert result.stderr.count("\n") == 1


def test_the_missing_extra_is_named(language_runs, monkeypatch):
    original = builtins.__import__

    def without(name, *rest):
        if name.split(".")[0] == "uvicorn":
            raise ModuleNotFoundError("No module named 'uvicorn'", name="uvicorn")
        return original(name, *rest)

    monkeypatch.delitem(sys.modules, "bayesrnn.lab.explore.server", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    result = invoke(language_runs[0])
    assert result.exit_code == 2
    needs = "explore needs a package that is not here (uvicorn); pip install 'bayesrnn[explore]'."
    assert result.stderr == f"bayesrnn: {needs}\n"


@pytest.mark.slow
def test_it_serves_until_ctrl_c_and_writes_nothing(language_runs):
    before = {path: path.stat().st_mtime_ns for path in language_runs[0].rglob("*")}
    command = [sys.executable, "-m", "bayesrnn", "explore", str(language_runs[0]), "--no-browser"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        address = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/#([\w-]{43})\n", process.stdout.readline())
        port, token = address.groups()
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=30)
        headers = {"Origin": f"http://127.0.0.1:{port}", "Content-Type": "application/json"}
        connection.request("POST", "/about", "{}", {**headers, "Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        assert response.status == 200
        assert b"runs" in response.read()
        assert response.getheader("server") is None
        connection.request("POST", "/about", "{}", {**headers, "Authorization": "Bearer x"})
        assert connection.getresponse().status == 401
        connection.close()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert out.endswith("Ended.\n")
    assert err == ""
    assert {path: path.stat().st_mtime_ns for path in language_runs[0].rglob("*")} == before
