import http.server
import threading

import pytest
from llmd_oke.rehearsal.processes import FileReady, HttpReady, TcpReady
from llmd_oke.rehearsal.readiness import is_ready


class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/healthz" else 503)
        self.end_headers()

    def log_message(self, *arguments):
        pass


@pytest.fixture
def port():
    with http.server.HTTPServer(("127.0.0.1", 0), Health) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_an_http_server_is_ready_when_it_answers_200(port):
    assert is_ready(HttpReady(f"http://127.0.0.1:{port}/healthz"))
    assert not is_ready(HttpReady(f"http://127.0.0.1:{port}/starting"))
    assert not is_ready(HttpReady(f"https://127.0.0.1:{port}/healthz"))


def test_a_server_is_ready_when_it_accepts_connections(port):
    assert is_ready(TcpReady(port))


def test_nothing_is_ready_where_nobody_listens():
    assert not is_ready(TcpReady(1))
    assert not is_ready(HttpReady("http://127.0.0.1:1/healthz"))


def test_a_file_makes_ready(tmp_path):
    assert not is_ready(FileReady(str(tmp_path / "ready")))
    (tmp_path / "ready").touch()
    assert is_ready(FileReady(str(tmp_path / "ready")))
