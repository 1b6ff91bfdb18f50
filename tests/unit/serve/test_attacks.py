"""Requests and connections that try to stop the server, or to use it without permission."""

import base64
import io
import json
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from holdfast import DomainClassifier
from holdfast.core.errors import BadInput
from holdfast.data.decode import decode_image
from holdfast.serve import connections, requests
from holdfast.serve.access import Access, read_token
from holdfast.serve.requests import Busy, Limits, RequestParser, TooLarge
from holdfast.serve.server import Certificate, serving
from holdfast.serve.service import Service
from tests.unit.serve.test_app import request

GOOD = {"example": [0.0, 1.0]}


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    classifier = DomainClassifier(encoder="mlp", steps=2, batch=4, device="cpu", settings={"encoder.hidden": [4]})
    x = np.random.default_rng(0).normal(size=(16, 2))
    classifier.fit(x, ["pos", "neg"] * 8, domains=["a", "a", "b", "b"] * 4)
    return Service(classifier.save_pretrained(tmp_path_factory.mktemp("attacks") / "model"))


def connect(address):
    host, _, port = urlsplit(address).netloc.partition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def is_closed(connection):
    """Wait for the end of a connection."""
    try:
        return connection.recv(4096) == b""
    except ConnectionError:
        return True


def png(width, height):
    file = io.BytesIO()
    Image.new("1", (width, height)).save(file, format="PNG")
    return base64.b64encode(file.getvalue()).decode()


def test_pixels_are_counted_before_any_image_is_decoded(monkeypatch):
    monkeypatch.setattr(requests, "decode_image", lambda *args, **options: pytest.fail("an image was decoded"))
    parser = RequestParser("image", Limits(pixels=1_000_000), size=8)
    with pytest.raises(TooLarge, match="1000000 pixels"):
        parser.parse(json.dumps({"examples": [png(8, 8), png(8000, 200)]}).encode())
    with pytest.raises(TooLarge, match="1000000 pixels"):
        parser.parse(json.dumps({"examples": [png(800, 800)] * 2}).encode())


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_an_image_above_the_limit_of_pillow_is_rejected():
    with pytest.raises(TooLarge):
        RequestParser("image", Limits(), size=8).parse(json.dumps({"example": png(20_000, 20_000)}).encode())


def test_images_and_molecules_are_parsed_until_the_deadline():
    late = time.monotonic() - 1
    with pytest.raises(Busy):
        RequestParser("image", Limits(), size=8).parse(json.dumps({"example": png(8, 8)}).encode(), until=late)
    graph = {"nodes": 2, "edges": [[0, 1]]}
    with pytest.raises(Busy):
        RequestParser("graph", Limits()).parse(json.dumps({"example": graph}).encode(), until=late)


def test_long_molecules_are_rejected_before_parsing():
    with pytest.raises(TooLarge, match="2001"):
        RequestParser("graph", Limits()).parse(json.dumps({"examples": ["C" * 2001]}).encode())


def test_slow_parsing_blocks_neither_health_nor_the_end_of_the_server(service, monkeypatch):
    running, most, started = [], [], threading.Event()

    def parse(body, *, until=0.0):
        running.append(1)
        most.append(len(running))
        started.set()
        time.sleep(0.4)
        running.pop()
        raise BadInput("no example")

    monkeypatch.setattr(service.parser, "kind", "graph")
    monkeypatch.setattr(service.parser, "parse", parse)
    with ThreadPoolExecutor(8) as pool:
        with serving(service) as address:
            asked = [pool.submit(request, address, "/predict", GOOD) for _ in range(8)]
            assert started.wait(10)
            start = time.perf_counter()
            assert request(address, "/health")[0] == 200
            assert time.perf_counter() - start < 0.4
            assert {each.result(10)[0] for each in asked} == {422}
        assert max(most) == 2


def test_postscript_is_not_read_as_an_image(tmp_path, monkeypatch):
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *args, **options: pytest.fail("Ghostscript was started"))
    file = tmp_path / "picture.png"
    file.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n")
    with pytest.raises(BadInput, match="cannot be read as an image"):
        decode_image(file, 8)


def test_half_open_connections_do_not_exclude_others(service, monkeypatch):
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 8)
    with serving(service) as address, ExitStack() as stack:
        for _ in range(30):
            with suppress(ConnectionError):  # the server may close it at once
                stack.enter_context(connect(address)).sendall(b"GET /health HT")
        assert request(address, "/health")[0] == 200


@pytest.mark.parametrize("before", [b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_late_headers_close_the_connection(service, monkeypatch, before):
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.3)
    with serving(service) as address, connect(address) as held:
        if before:
            held.sendall(before)
            assert b"200 OK" in held.recv(4096)
        held.sendall(b"GET /health HTTP/1.1\r\nX: ")
        start = time.perf_counter()
        assert is_closed(held)
        assert 0.1 < time.perf_counter() - start < 5


def test_large_headers_close_the_connection(service):
    with serving(service) as address, connect(address) as held:
        held.sendall(b"GET /health HTTP/1.1\r\nX: " + b"a" * (connections.HEADER_BYTES + 1))
        assert b" 400 " in held.recv(4096)
        assert is_closed(held)
        assert request(address, "/health")[0] == 200


def test_a_content_length_of_thousands_of_digits_is_read(service):
    body = json.dumps(GOOD).encode()
    with serving(service) as address, connect(address) as sent:
        head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
        sent.sendall(head + b"0" * 5000 + str(len(body)).encode() + b"\r\n\r\n" + body)
        assert b" 500 " not in sent.recv(4096)


def test_hosts_and_content_types(service):
    with serving(service) as address:
        assert request(address, "/predict", GOOD)[0] == 200
        assert request(address, "/predict", GOOD, Content_Type="text/plain")[0] == 415
        status, answer = request(address, "/predict", GOOD, Host="evil.example")
        assert (status, "--allow-host" in answer) == (421, True)
    access = Access(hosts=("models.example",))
    hosts = {
        "Models.Example:8000": True,
        "[::1]:80": True,
        "10.0.0.7": True,
        "localhost.evil.example": False,
        "": False,
    }
    assert {host: access.allows_host(host) for host in hosts} == hosts
    assert Access(hosts=("*",)).allows_host("anything")


def test_token(service, tmp_path):
    file = tmp_path / "token"
    file.write_text("correct-horse-battery\n")
    with serving(service, Access(token=read_token(file))) as address:
        assert request(address, "/health")[0] == 200
        assert request(address, "/model")[0] == 401
        assert request(address, "/predict", GOOD, Authorization="Bearer wrong")[0] == 401
        assert request(address, "/predict", GOOD, Authorization="Bearer correct-horse-battery")[0] == 200
    for content in ("short", "two words that are long", "ä" * 20):
        file.write_text(content)
        with pytest.raises(BadInput, match="token"):
            read_token(file)
    with pytest.raises(BadInput, match="token"):
        read_token(tmp_path / "missing")


def test_rate_per_client(service):
    with serving(service, Access(rate=5)) as address:
        statuses = [request(address, "/predict", GOOD)[0] for _ in range(12)]
        assert statuses[:5] == [200] * 5
        assert 429 in statuses
        assert request(address, "/health")[0] == 200
        time.sleep(0.5)
        assert request(address, "/predict", GOOD)[0] == 200


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_tls(service, tmp_path):
    from holdfast.serve.server import _server

    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -keyout {key} -out {cert} -days 1 -subj /CN=localhost"
    subprocess.run(command.split(), check=True, capture_output=True)
    tls = Certificate(certificate=cert, key=key)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = _server(service, None, tls)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        trusted = ssl.create_default_context(cafile=str(cert))
        trusted.check_hostname = False
        url = f"https://127.0.0.1:{listening.getsockname()[1]}/health"
        try:
            with urllib.request.urlopen(url, context=trusted, timeout=20) as answer:
                assert answer.status == 200
        finally:
            server.should_exit = True
            thread.join()
    with pytest.raises(BadInput, match="certificate"):
        Certificate(certificate=key, key=cert)


@pytest.fixture
def copied(service, tmp_path):
    return shutil.copytree(service.folder, tmp_path / "copy")


def test_files_of_a_served_model_may_change(copied):
    served = Service(copied)
    row = requests.ParsedRequest(np.zeros((1, 2), dtype=np.float32), ("vector", 2))
    before = served.answer([row])
    for path in copied.rglob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-40])
        os.truncate(path, 0)
    assert served.answer([row]) == before


@pytest.mark.parametrize("name", ["README.md", "record.json", "model.safetensors"])
def test_links_out_of_a_model_folder_are_refused(copied, tmp_path, name):
    secret = tmp_path / "secret"
    shutil.copy(copied / name, secret)
    (copied / name).unlink()
    (copied / name).symlink_to(secret)
    with pytest.raises(BadInput, match="link out of the model folder"):
        Service(copied)


@pytest.mark.parametrize("name", ["record.json", "model.safetensors", "extra"])
def test_pipes_in_a_model_folder_are_refused(copied, name):
    (copied / name).unlink(missing_ok=True)
    os.mkfifo(copied / name)
    with pytest.raises(BadInput, match="not a regular file"):
        Service(copied)


def test_classes_with_the_same_name_are_refused(copied):
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**config, "classes": ["pos", "pos"]}))
    with pytest.raises(BadInput, match="class twice"):
        Service(copied)
