"""Downloads: whole and of the right checksum or not there, continued after a cut; from a server of our own."""

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from bayesrnn.errors import UserError
from bayesrnn.lab import download

CONTENT = bytes(range(256)) * 700
CHECKSUM = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """``cuts``: bytes after which answers end, one after the other; ``ranges``: whether parts can be asked for."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.cuts, self.ranges, self.status, self.asked = CONTENT, [], True, None, []

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}/digits.gz"


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *arguments): ...

    def do_GET(self):
        server, wanted = self.server, self.headers.get("Range")
        server.asked.append(wanted)
        if server.status:
            self.send_error(server.status)
            return
        start = int(wanted[6:-1]) if wanted and server.ranges else 0
        if wanted and server.ranges and start >= len(server.content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(server.content)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if wanted and server.ranges else 200)
        if wanted and server.ranges:
            self.send_header("Content-Range", f"bytes {start}-{len(server.content) - 1}/{len(server.content)}")
        body = server.content[start:]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: server.cuts.pop(0)] if server.cuts else body)


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    made = Server()
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def fetch(server, folder, **changes):
    options = {"sha256": CHECKSUM, "most": 1_000_000, "timeout": 10.0, **changes}
    return download.fetch(server.address, folder / "new" / "digits.gz", **options)


def names(folder):
    return sorted(p.name for p in (folder / "new").iterdir())


def test_a_file_comes_once(server, tmp_path):
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert names(tmp_path) == ["digits.gz"]
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert server.asked == [None]


def test_a_connection_that_is_cut_is_gone_on_with(server, tmp_path):
    server.cuts = [100_000, 30_000]
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert server.asked == [None, "bytes=100000-", "bytes=130000-"]


def test_a_later_call_goes_on_where_an_earlier_one_gave_up(server, tmp_path):
    server.cuts = [50_000, 1_000, 0]
    with pytest.raises(UserError, match=r"ended 128,200 bytes too early\); .*part has the part that arrived"):
        fetch(server, tmp_path)
    assert names(tmp_path) == ["digits.gz.part"]
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert server.asked[-1] == "bytes=51000-"


def test_a_server_without_parts_sends_all_again(server, tmp_path):
    server.cuts, server.ranges = [100_000], False
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert server.asked == [None, "bytes=100000-"]


def test_a_part_that_was_whole_or_is_too_long(server, tmp_path):
    (tmp_path / "new").mkdir()
    part = tmp_path / "new" / "digits.gz.part"
    part.write_bytes(CONTENT)
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    (tmp_path / "new" / "digits.gz").unlink()
    part.write_bytes(CONTENT + b"more")
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert server.asked[-1] is None


def test_another_file_is_not_kept(server, tmp_path):
    server.content = b"something else"
    with pytest.raises(UserError, match="is not the published file: its checksum is another"):
        fetch(server, tmp_path)
    assert names(tmp_path) == []
    (tmp_path / "new" / "digits.gz").write_bytes(b"mine")
    with pytest.raises(UserError, match="is there already and is not the published file"):
        fetch(server, tmp_path)
    assert (tmp_path / "new" / "digits.gz").read_bytes() == b"mine"


def test_more_than_may_come_is_cut_off(server, tmp_path):
    with pytest.raises(UserError, match="is larger than 1,000 bytes"):
        fetch(server, tmp_path, most=1000)
    assert names(tmp_path) == []


@pytest.mark.parametrize(("status", "times"), [(404, 1), (503, 3)])
def test_a_server_that_refuses(server, tmp_path, status, times):
    server.status = status
    with pytest.raises(UserError, match=f"could not be fetched .*{status}"):
        fetch(server, tmp_path)
    assert len(server.asked) == times
    (tmp_path / "new" / "digits.gz.part").write_bytes(CONTENT[:9])
    with pytest.raises(UserError, match="has the part that arrived"):
        fetch(server, tmp_path)
    assert names(tmp_path) == ["digits.gz.part"]


def test_no_server_and_no_address(server, tmp_path):
    server.shutdown()
    server.server_close()
    with pytest.raises(UserError, match="could not be fetched"):
        fetch(server, tmp_path)
    (tmp_path / "secret").write_text("x")
    with pytest.raises(UserError, match="is no address to fetch from"):
        download.fetch(f"file://{tmp_path}/secret", tmp_path / "out", sha256=CHECKSUM, most=10)
