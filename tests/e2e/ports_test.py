"""Hostile servers behind ports: no credential arrives, no script can read the API."""
import http.client
import json
import socket
import threading
import time

import pytest

from support.api import wait_until

# Answers every request with what it got, and with headers that attack a browser.
SERVER = r'''
import http.server, json
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do(self):
        n = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(n)
        answer = json.dumps({"method": self.command, "path": self.path, "headers": [[k, v] for k, v in self.headers.items()], "body": body.decode("latin-1")}).encode()
        self.send_response(200)
        for k, v in (("Set-Cookie", "a=b; Domain=localhost; Path=/"), ("Service-Worker-Allowed", "/"), ("Access-Control-Allow-Origin", "*"),
                     ("Access-Control-Allow-Credentials", "true"), ("Content-Type", "text/html"), ("X-Own", "kept"), ("Clear-Site-Data", '"*"')):
            self.send_header(k, v)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
    do_GET = do_POST = do_PUT = do_DELETE = do_OPTIONS = do_PATCH = do
    def log_message(self, *a): pass
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), H).serve_forever()
'''


@pytest.fixture(scope="module")
def served(debian_box):
    debian_box.write_file("/srv/server.py", SERVER.encode())
    exec_id = debian_box.start(argv=["python3", "/srv/server.py"])
    wait_until(lambda: debian_box.api.raw("GET", debian_box.path + "/ports/8000/").status == 200, 20, "the server inside")
    yield debian_box
    debian_box.signal(exec_id, 9)


def got_headers(answer):
    return {name.lower(): value for name, value in answer.json["headers"]}


def test_a_request_reaches_the_server_with_path_query_method_and_body(served):
    answer = served.api.raw("POST", served.path + "/ports/8000/a/b%20c", b"payload", query={"q": "1"})

    assert answer.status == 200
    assert answer.json["method"] == "POST"
    assert answer.json["path"].startswith("/a/b%20c") and "q=1" in answer.json["path"]
    assert answer.json["body"] == "payload"


@pytest.mark.parametrize("header", ["Authorization", "X-API-Key", "Cookie", "X-Access-Token", "E2b-Traffic-Access-Token", "X-Forwarded-For",
                                    "X-Forwarded-Host", "X-Forwarded-Proto", "X-Dsec-Project", "X-Dsec-Anything", "Proxy-Authorization"])
def test_no_credential_or_forged_header_arrives(served, header):
    headers = {"X-API-Key": served.api.key} if header == "Authorization" else {}
    headers[header] = "Bearer " + served.api.key if header == "Authorization" else "canary-secret" if header != "X-API-Key" else served.api.key

    answer = served.api.raw("GET", served.path + "/ports/8000/", headers=headers)

    assert answer.status == 200, answer
    assert header.lower() not in got_headers(answer), got_headers(answer)
    assert served.api.key not in answer.body.decode()
    assert "canary-secret" not in answer.body.decode()


def test_answers_lose_what_attacks_a_browser_and_keep_the_rest(served):
    answer = served.api.raw("GET", served.path + "/ports/8000/")
    names = {name.lower() for name in answer.headers}

    assert "sandbox" in answer.headers.get("Content-Security-Policy", "")
    assert not names & {"set-cookie", "service-worker-allowed", "access-control-allow-origin", "access-control-allow-credentials", "clear-site-data"}, names
    assert answer.headers["X-Own"] == "kept"


def test_a_browser_navigation_to_the_path_form_is_refused(served):
    answer = served.api.raw("GET", served.path + "/ports/8000/", headers={"Sec-Fetch-Mode": "navigate"})

    assert answer.status in (400, 403), answer


def test_the_path_form_needs_the_key(served):
    assert served.api.raw("GET", served.path + "/ports/8000/", keyed=False).status == 401


def host_form(served):
    return f"8000-{served.id}.localhost:{served.api.port}"


def test_the_host_form_is_another_origin_without_api(served):
    api = served.api

    page = api.raw("GET", "/x", headers={"Host": host_form(served), "Cookie": "own=kept"})
    other = api.raw("GET", "/v1/sandboxes", headers={"Host": host_form(served)})

    assert page.status == 200 and page.json["path"] == "/x"
    assert api.key not in page.body.decode() and "authorization" not in got_headers(page)
    assert other.json.get("path") == "/v1/sandboxes", "the API must not answer on a port's origin"
    assert "set-cookie" not in {name.lower() for name in page.headers}, "a cookie for the parent domain would reach the API"


def test_the_host_form_needs_an_id_that_is_one(served):
    api = served.api
    for host in (f"8000-{'a' * 26}.localhost", f"8000-{served.id[:-1]}.localhost", f"8000-{served.id}.evil.example", f"0-{served.id}.localhost",
                 f"8000.{served.id}.localhost", f"x.8000-{served.id}.localhost"):
        answer = api.raw("GET", "/", headers={"Host": f"{host}:{api.port}"}, keyed=False)
        assert answer.status in (400, 401, 403, 404) and b'"headers"' not in answer.body, (host, answer)


def test_a_script_of_a_ports_page_cannot_use_the_api(served):
    # What a browser says of such a script: its origin and where the request comes from. The key may be in the page's hands or not.
    api = served.api
    own = f"127.0.0.1:{api.port}"
    for headers in ({"Origin": "http://" + host_form(served)}, {"Origin": "null"}, {"Sec-Fetch-Site": "same-site"}, {"Sec-Fetch-Site": "cross-site"},
                    {"Origin": "http://evil.example"}):
        for method, path in (("GET", "/v1/sandboxes"), ("POST", "/v1/sandboxes"), ("OPTIONS", "/v1/sandboxes"), ("GET", "/healthz"),
                             ("GET", served.path + "/ports/8000/")):
            answer = api.raw(method, path, b"{}" if method == "POST" else None, headers={"Host": own, **headers})
            assert answer.status == 403, (headers, method, path, answer)
            assert not [name for name in answer.headers if name.lower().startswith("access-control-")]
    assert api.raw("GET", "/v1/sandboxes", headers={"Host": own, "Origin": "http://" + own, "Sec-Fetch-Site": "same-origin"}).status == 200, "negative control"


def test_a_script_of_a_ports_page_cannot_open_a_websocket_of_the_api(served):
    def upgrade(origin):
        with socket.create_connection((served.api.host, served.api.port), timeout=10) as connection:
            connection.sendall((f"GET {served.path}/exec/stream HTTP/1.1\r\nHost: 127.0.0.1:{served.api.port}\r\nAuthorization: Bearer {served.api.key}\r\n"
                                f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
                                f"Origin: http://{origin}\r\n\r\n").encode())
            return connection.recv(4096).split(b"\r\n")[0]

    assert b" 403 " in upgrade(host_form(served))
    assert b" 101 " in upgrade(f"127.0.0.1:{served.api.port}"), "negative control"


def test_a_port_where_nobody_listens_is_a_typed_error_and_no_infra(served):
    answer = served.api.raw("GET", served.path + "/ports/9/")

    assert answer.status in (502, 503), answer
    assert answer.error["infra"] is False


@pytest.mark.parametrize("port", ["0", "65536", "abc", "-1", "80.0", "00080000"])
def test_a_port_that_is_none_is_a_400_or_404(served, port):
    assert served.api.raw("GET", f"{served.path}/ports/{port}/").status in (400, 404)


RAW = {
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 50\r\n\r\nhello",
    "length and chunked": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "no http": b"\x00\x01\x02garbage\r\n\r\n",
    "header without end": b"HTTP/1.1 200 OK\r\nX: " + b"a" * 200000,
    "split response": b"HTTP/1.1 200 OK\r\nX: a\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno",
    "early close": b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nshort",
    "bad chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\nhello\r\n",
    "negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    "status line bomb": b"HTTP/1.1 200 " + b"O" * 100000 + b"\r\n\r\n",
    "endless interim": b"HTTP/1.1 100 Continue\r\n\r\n" * 5000,
    "nothing": b"",
    "switching uninvited": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
}


@pytest.mark.parametrize("case", sorted(RAW))
def test_a_server_that_breaks_http_hurts_nobody(boxes, case):
    box = boxes()
    box.write_file("/tmp/answer", RAW[case])
    box.start(shell="while :; do nc -l -p 8001 < /tmp/answer > /tmp/request; done")
    wait_until(lambda: "1F41" in box.sh("cat /proc/net/tcp /proc/net/tcp6").out, 10, "the listener")

    started = time.monotonic()
    try:
        answer = box.api.raw("GET", box.path + "/ports/8001/", timeout=40)
    except (http.client.HTTPException, OSError):
        answer = None  # a broken answer may be passed on as a broken connection

    assert time.monotonic() - started < 40
    assert box.api.raw("GET", "/healthz", keyed=False).status == 200
    assert box.sh("echo fine").out == "fine\n"
    request = box.sh("cat /tmp/request").out
    assert box.api.key not in request
    assert answer is None or answer.status >= 200


def test_a_websocket_passes_both_ways(served):
    # A server that upgrades anything and echoes raw bytes afterwards.
    served.write_file("/srv/upgrade.py", b'''
import socket, hashlib, base64
s = socket.create_server(("127.0.0.1", 8002))
while True:
    c, _ = s.accept()
    head = b""
    while b"\\r\\n\\r\\n" not in head: head += c.recv(4096)
    key = [l.split(b": ")[1] for l in head.split(b"\\r\\n") if l.lower().startswith(b"sec-websocket-key")][0]
    accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    c.sendall(b"HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\nSec-WebSocket-Accept: " + accept + b"\\r\\n\\r\\n")
    c.sendall(b"\\x81\\x05hello")
    c.recv(100); c.close()
''')
    exec_id = served.start(argv=["python3", "/srv/upgrade.py"])
    wait_until(lambda: "1F42" in served.sh("cat /proc/net/tcp").out, 10, "the listener")
    with socket.create_connection((served.api.host, served.api.port), timeout=10) as connection:
        connection.sendall((f"GET {served.path}/ports/8002/ws HTTP/1.1\r\nHost: 127.0.0.1:{served.api.port}\r\nAuthorization: Bearer {served.api.key}\r\n"
                            "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n").encode())
        seen = b""
        while b"hello" not in seen:
            part = connection.recv(4096)
            assert part, seen
            seen += part
    served.signal(exec_id, 9)

    assert b" 101 " in seen.split(b"\r\n")[0]


def test_a_slow_client_of_a_port_holds_nobody_up(served):
    stuck = []
    for _ in range(20):
        connection = socket.create_connection((served.api.host, served.api.port), timeout=10)
        connection.sendall(b"GET " + served.path.encode() + b"/ports/8000/ HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        stuck.append(connection)

    started = time.monotonic()
    assert served.api.raw("GET", served.path + "/ports/8000/").status == 200
    assert time.monotonic() - started < 3
    [c.close() for c in stuck]


def test_a_large_download_is_streamed_not_buffered(server, boxes, served):
    import pathlib
    served.write_file("/srv/large.py", b'''
import socket
s = socket.create_server(("127.0.0.1", 8003))
while True:
    c, _ = s.accept()
    c.recv(65536)
    c.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 300000000\\r\\n\\r\\n")
    try:
        for _ in range(3000): c.sendall(b"x" * 100000)
    except OSError: pass
    c.close()
''')
    exec_id = served.start(argv=["python3", "/srv/large.py"])
    wait_until(lambda: "1F43" in served.sh("cat /proc/net/tcp").out, 10, "the listener")
    status = pathlib.Path(f"/proc/{server.child.pid}/status")

    def rss():
        return int(next(line for line in status.read_text().splitlines() if line.startswith("VmRSS")).split()[1])

    before = rss()
    connection = served.api.connection(timeout=60)
    connection.request("GET", served.path + "/ports/8003/", headers={"Authorization": "Bearer " + served.api.key})
    response = connection.getresponse()
    response.read(1000)
    time.sleep(2)
    grown = rss() - before
    total = 1000 + sum(len(part) for part in iter(lambda: response.read(1 << 20), b""))
    served.signal(exec_id, 9)

    assert grown < 32 << 10, f"{grown} KiB for a reader that does not read"
    assert total == 300000000
