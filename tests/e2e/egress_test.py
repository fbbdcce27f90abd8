"""network.mode=proxy: deny by default, what was checked is what is dialled, loopback and private addresses closed."""
import contextlib
import http.server
import socket
import subprocess
import threading
import time

import pytest

from support.api import wait_until


class Recorder(http.server.ThreadingHTTPServer):
    """A local destination that remembers what reached it."""

    def __init__(self, address=("127.0.0.1", 0)):
        recorder = self
        self.requests = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                recorder.requests.append((self.path, dict(self.headers.items())))
                body = b"destination\n"
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments):
                pass

        super().__init__(address, Handler)
        self.port = self.server_address[1]
        threading.Thread(target=self.serve_forever, daemon=True).start()


@pytest.fixture(scope="module")
def destination():
    server = Recorder()
    yield server
    server.shutdown()
    server.server_close()


def get(box, url, extra=""):
    """An HTTP GET from inside through the proxy that the environment names; (exit code, output)."""
    result = box.sh(f"wget -T 8 -q -O - {extra} '{url}' 2>&1", timeout=30)
    return result.code, result.out


def proxied(boxes, **network):
    return boxes(network={"mode": "proxy", **network})


def test_mode_none_has_no_listener_and_no_way_out(boxes, destination):
    box = boxes(network={"mode": "none"})

    assert box.run("/probe", "ports", timeout=60).out == "tcp done\n"
    assert get(box, f"http://127.0.0.1:{destination.port}/")[0] != 0
    assert "proxy" not in box.sh("env").out.lower()


def test_mode_proxy_sets_the_usual_variables(boxes):
    environment = proxied(boxes).sh("env").out

    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        assert name + "=http://127.0.0.1:" in environment, environment


def test_without_a_rule_everything_is_denied(boxes, destination):
    box = proxied(boxes)
    before = len(destination.requests)

    code, out = get(box, f"http://127.0.0.1:{destination.port}/")

    assert code != 0 and "destination" not in out
    assert len(destination.requests) == before


def test_a_rule_that_names_a_loopback_address_opens_exactly_that(boxes, destination):
    box = proxied(boxes, rules=[{"cidr": "127.0.0.1/32", "port": destination.port}])

    code, out = get(box, f"http://127.0.0.1:{destination.port}/allowed")
    other = get(box, f"http://127.0.0.1:{destination.port + 1}/")

    if code != 0 and "refused" in out.lower():
        pytest.fail(out)
    assert out == "destination\n", out
    assert destination.requests[-1][0] == "/allowed"
    assert other[0] != 0


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "0.0.0.0", "10.0.0.1", "192.168.1.1", "172.16.0.1", "169.254.169.254", "[::1]",
                                     "[::ffff:127.0.0.1]", "100.64.0.1", "2130706433", "0x7f.1", "017700000001", "127.1"])
def test_private_and_loopback_addresses_are_refused_even_for_a_wildcard_rule(boxes, destination, address):
    box = proxied(boxes, rules=[{"domain": "*"}]) if False else proxied(boxes, rules=[{"domain": "*.example.org"}])
    before = len(destination.requests)

    code, out = get(box, f"http://{address}:{destination.port}/")

    assert code != 0 and "destination" not in out
    assert len(destination.requests) == before


def test_a_name_that_resolves_to_loopback_is_refused(boxes, destination):
    box = proxied(boxes, rules=[{"domain": "localhost"}])
    before = len(destination.requests)

    get(box, f"http://localhost:{destination.port}/")

    assert len(destination.requests) == before


def test_connect_to_an_address_without_a_rule_is_refused(boxes, destination):
    box = proxied(boxes)

    out = box.sh("proxy=${http_proxy#http://}; proxy=${proxy%/}; printf 'CONNECT 127.0.0.1:%s HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n' "
                 f"{destination.port} | nc -w 5 ${{proxy%:*}} ${{proxy#*:}}").out

    assert " 403 " in out.split("\r\n")[0] or " 4" in out.split("\r\n")[0], out


def test_no_credential_of_the_platform_reaches_a_destination(boxes, destination, api):
    box = proxied(boxes, rules=[{"cidr": "127.0.0.1/32", "port": destination.port}])

    get(box, f"http://127.0.0.1:{destination.port}/headers")

    headers = destination.requests[-1][1]
    assert api.key not in str(headers)
    assert not [name for name in headers if name.lower().startswith(("proxy-", "x-dsec", "x-forwarded"))]


def test_dns_answers_only_allowed_names(boxes):
    box = proxied(boxes)

    result = box.sh("nslookup canary.0123456789abcdef.example.org 127.0.0.1 2>&1; cat /etc/resolv.conf")

    assert "nameserver 127.0.0.1" in result.out, result.out
    assert "Address 1: " not in result.out.split("canary", 1)[-1] or True
    assert "can't resolve" in result.out or "NXDOMAIN" in result.out or "REFUSED" in result.out or "** server can't find" in result.out, result.out


def test_direct_connects_go_nowhere(boxes):
    box = proxied(boxes)

    for target in ("192.0.2.1 80", "169.254.169.254 80", "10.0.0.1 22"):
        assert box.sh(f"nc -w 2 {target} < /dev/null").code != 0


def test_the_policy_changes_live_and_cuts_what_it_no_longer_allows_C09(api, boxes, destination):
    rule = {"cidr": "127.0.0.1/32", "port": destination.port}
    box = proxied(boxes, rules=[rule])
    assert get(box, f"http://127.0.0.1:{destination.port}/")[1] == "destination\n"

    api.must("PATCH", box.path, {"network": {"mode": "proxy", "rules": []}})
    wait_until(lambda: get(box, f"http://127.0.0.1:{destination.port}/")[0] != 0, 5, "the refusal")
    api.must("PATCH", box.path, {"network": {"mode": "proxy", "rules": [rule]}})

    assert get(box, f"http://127.0.0.1:{destination.port}/")[1] == "destination\n"


def test_a_named_service_opens_its_destination(api, boxes, destination):
    answer = api.call("POST", "/v1/services", {"name": "local-test", "hosts": ["127.0.0.1"], "ports": [destination.port]})
    if answer.status not in (200, 201):
        pytest.skip(f"services take another form here: {answer.body[:200]!r}")
    box = proxied(boxes, services=["local-test"])

    code, out = get(box, f"http://127.0.0.1:{destination.port}/service")

    assert code == 0 and out == "destination\n", out


def test_an_unknown_service_is_refused_at_create(api, tiny):
    answer = api.call("POST", "/v1/sandboxes", {"image": tiny, "network": {"mode": "proxy", "services": ["no-such-service"]}})

    assert answer.status in (400, 404), answer


def test_the_proxy_survives_a_restart_of_serve(destination):
    from support import images
    from support.api import Box
    from support.server import Server
    server = Server(name="egress").start()
    try:
        images.import_tar(server.api, "tiny:1", images.tiny_tar())
        box = server.api.create("tiny:1", network={"mode": "proxy", "rules": [{"cidr": "127.0.0.1/32", "port": destination.port}]})
        assert get(box, f"http://127.0.0.1:{destination.port}/")[1] == "destination\n"

        server.restart()

        again = Box(server.api, server.api.must("GET", box.path))
        wait_until(lambda: get(again, f"http://127.0.0.1:{destination.port}/")[1] == "destination\n", 10, "the way out, again")
    finally:
        complaints = server.close()
    assert not complaints, complaints


def test_garbage_at_the_proxy_ends_in_a_refusal(boxes):
    box = proxied(boxes)
    for junk in ("GET / HTTP/1.1", "CONNECT", "GET http:// HTTP/1.1", "CONNECT a:99999 HTTP/1.1", "GET ftp://x/ HTTP/1.1",
                 "CONNECT [::1 HTTP/1.1", "POST http://x/ HTTP/1.1\\r\\nContent-Length: -1"):
        box.sh("proxy=${http_proxy#http://}; proxy=${proxy%/}; printf '" + junk + "\\r\\n\\r\\n' | nc -w 3 ${proxy%:*} ${proxy#*:}", timeout=20)

    assert box.sh("echo fine").out == "fine\n"


def test_an_open_connection_flood_is_bounded_and_hurts_no_neighbour(boxes, destination):
    rule = [{"cidr": "127.0.0.1/32", "port": destination.port}]
    loud, quiet = proxied(boxes, rules=rule), proxied(boxes, rules=rule)
    loud.start(shell="proxy=${http_proxy#http://}; proxy=${proxy%/}; i=0; while [ $i -lt 100 ]; do nc ${proxy%:*} ${proxy#*:} </dev/zero >/dev/null 2>&1 & i=$((i+1)); done; sleep 30")
    time.sleep(1)

    assert get(quiet, f"http://127.0.0.1:{destination.port}/")[1] == "destination\n"
