"""Concurrent benchmark clients against a server that misbehaves."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lab.benchmarks.clients import ask


class Misbehaving(BaseHTTPRequestHandler):
    """Answer a text with one prediction, `none` with zero, `fault` with status 422, and `gone` not at all."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        text = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["example"]
        if text == "gone":
            self.close_connection = True
            return
        content = json.dumps({"predictions": [] if text == "none" else [{"label": text}]}).encode()
        self.send_response(422 if text == "fault" else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        for at in range(0, len(content), 7):  # in small chunks
            self.wfile.write(content[at : at + 7])
            self.wfile.flush()

    def log_message(self, *_):
        pass


@pytest.fixture
def port():
    with ThreadingHTTPServer(("127.0.0.1", 0), Misbehaving) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def send(port, *texts):
    return ask("127.0.0.1", port, [json.dumps({"example": text}) for text in texts], clients=4)


def test_every_body_is_sent_once(port):
    outcome = send(port, *(f"text {i}" for i in range(30)))
    assert (outcome["errors"], outcome["unanswered"]) == ([], 0)
    assert outcome["seconds"] > 0


def test_errors_are_counted(port):
    outcome = send(port, *["good"] * 10, "none", "fault", "gone", *["good"] * 10)
    assert sorted(error[:3] for error in outcome["errors"]) == ["200", "422", "Con"]
    assert outcome["unanswered"] == 1
