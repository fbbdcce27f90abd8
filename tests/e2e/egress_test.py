"""network.mode=proxy: deny by default, what was checked is what is dialled, loopback and private addresses closed.

The client inside is the probe: it says the status that the proxy gave, so that a
refusal is told from a client that broke. Each block of refusals has a request
beside it that goes through.
"""
import contextlib
import http.server
import os
import socket
import threading

import pytest

from support import images
from support.api import Api, Box, wait_until
from support.server import Server


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

    def rule(self, cidr="127.0.0.1/32"):
        return {"cidr": cidr, "port": self.port}


@pytest.fixture(scope="module")
def destination():
    server = Recorder()
    yield server
    server.shutdown()
    server.server_close()


def proxied(boxes, **network):
    return boxes(network={"mode": "proxy", **network})


def fetch(box, url, *headers):
    """(status of the answer, body) of a GET from inside through the proxy that the environment names."""
    head, _, body = box.run("/probe", "fetch", url, *headers, timeout=30).out.partition("\n\n")
    return head, body


def reaches(box, destination, path="/", host="127.0.0.1"):
    return fetch(box, f"http://{host}:{destination.port}{path}") == ("status 200", "destination\n")


def test_mode_none_has_no_listener_and_no_way_out(boxes, destination):
    closed, control = boxes(network={"mode": "none"}), proxied(boxes)

    assert closed.run("/probe", "ports", timeout=60).out == "tcp done\n"
    assert closed.run("/probe", "dial", "127.0.0.1", str(destination.port)).out == "dial ECONNREFUSED\n"
    assert "proxy" not in closed.sh("env").out.lower()
    assert control.run("/probe", "ports", timeout=60).out == "tcp 53\ntcp 3128\ntcp done\n", "negative control: the scan finds listeners"


def test_mode_proxy_sets_the_usual_variables(boxes):
    environment = proxied(boxes).sh("env").out

    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        assert name + "=http://127.0.0.1:" in environment, environment


def test_without_a_rule_everything_is_denied(boxes, destination):
    box = proxied(boxes)
    before = len(destination.requests)

    status, body = fetch(box, f"http://127.0.0.1:{destination.port}/")

    assert status == "status 403" and "no rule of this sandbox names" in body, body
    assert len(destination.requests) == before


def test_a_rule_that_names_a_loopback_address_opens_exactly_that(boxes, destination):
    box = proxied(boxes, rules=[destination.rule()])

    assert reaches(box, destination, "/allowed")
    assert destination.requests[-1][0] == "/allowed"
    assert fetch(box, f"http://127.0.0.1:{destination.port + 1}/")[0] == "status 403"
    assert fetch(box, f"http://127.0.0.2:{destination.port}/")[0] == "status 403"


# --- addresses: C-03, C-12 -------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def wide_box(api, tiny):
    """Its rules open every public address and every name below example.org."""
    box = api.create(tiny, network={"mode": "proxy", "rules": [{"domain": "*.example.org"}, {"cidr": "0.0.0.0/0"}, {"cidr": "::/0"}]})
    yield box
    box.delete()


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "0.0.0.0", "10.0.0.1", "192.168.1.1", "172.16.0.1", "169.254.169.254", "[::1]",
                                     "[::ffff:127.0.0.1]", "[::]", "[fe80::1]", "[fd00:ec2::254]", "100.64.0.1", "168.63.129.16", "2130706433", "0x7f.1",
                                     "017700000001", "127.1", "localhost"])
def test_private_and_loopback_addresses_are_refused_though_every_address_is_allowed(wide_box, destination, address):
    before = len(destination.requests)

    status, _ = fetch(wide_box, f"http://{address}:{destination.port}/")
    tunnel = wide_box.run("/probe", "connect", f"{address}:{destination.port}").out.splitlines()[0]

    assert status in ("status 403", "status 400"), status
    assert tunnel in ("status 403", "status 400"), tunnel
    assert len(destination.requests) == before


def test_a_name_that_resolves_to_loopback_needs_a_rule_for_the_address_too(boxes, destination):
    by_name = proxied(boxes, rules=[{"domain": "localhost"}])
    by_both = proxied(boxes, rules=[{"domain": "localhost"}, destination.rule()])
    before = len(destination.requests)

    status, body = fetch(by_name, f"http://localhost:{destination.port}/")

    assert status == "status 403" and "loopback" in body, body
    assert len(destination.requests) == before
    assert reaches(by_both, destination, host="localhost")


def test_connect_to_an_address_needs_a_rule(boxes, destination):
    closed, opened = proxied(boxes), proxied(boxes, rules=[destination.rule()])
    target = f"127.0.0.1:{destination.port}"

    assert closed.run("/probe", "connect", target).out.startswith("status 403\n")
    assert opened.run("/probe", "connect", target).out.startswith("status 200\n")


def own_addresses():
    """An address of this machine other than loopback, where it has one."""
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 9))
        return [probe.getsockname()[0]]
    return []


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "[::1]", "[::ffff:127.0.0.1]", "localhost"] + own_addresses())
def test_no_rule_opens_the_platforms_own_port(api, boxes, destination, address):
    bare = address.strip("[]")
    rules = [{"domain": "localhost"}, {"cidr": "127.0.0.0/8"}, {"cidr": "::1"}] + ([{"cidr": bare}] if bare.count(".") == 3 and ":" not in bare else [])
    box = proxied(boxes, rules=rules)

    status, body = fetch(box, f"http://{address}:{api.port}/healthz")

    assert status == "status 403" and "only a service of the operator" in body, (status, body)
    assert box.run("/probe", "connect", f"{address}:{api.port}").out.startswith("status 403\n")
    assert reaches(box, destination), "negative control: the same rules open the port beside it"


def test_the_operator_alone_can_open_the_platforms_port(api, boxes):
    api.must("POST", "/v1/services", {"name": "own-api", "hosts": [{"host": "127.0.0.1", "port": api.port}]})
    box = proxied(boxes, services=["own-api"])

    status, body = fetch(box, f"http://127.0.0.1:{api.port}/v1/sandboxes")
    api.must("DELETE", "/v1/services/own-api")

    assert status == "status 401" and "unauthenticated" in body, (status, body)
    assert fetch(box, f"http://127.0.0.1:{api.port}/v1/sandboxes")[0] == "status 403", "the service is gone, and what it opened is closed"


@pytest.mark.parametrize("cidr", ["169.254.169.254/32", "169.254.0.0/16", "fe80::/10", "fd00:ec2::254", "100.100.100.200", "192.0.0.192", "168.63.129.16",
                                  "0.0.0.0/8", "224.0.0.0/4"])
def test_a_rule_for_metadata_or_for_what_is_never_dialled_is_refused(api, tiny, boxes, destination, cidr):
    rule = {"cidr": cidr}

    created = api.call("POST", "/v1/sandboxes", {"image": tiny, "network": {"mode": "proxy", "rules": [rule]}})
    box = proxied(boxes, rules=[destination.rule()])
    patched = api.call("PATCH", box.path, {"network": {"rules": [rule]}})

    assert created.status == 400 and cidr in created.error["message"], created
    assert patched.status == 400, patched
    assert reaches(box, destination), "a patch that was refused changes nothing"


def test_a_broad_rule_does_not_open_a_metadata_address_within_C03(boxes):
    box = proxied(boxes, rules=[{"cidr": "100.64.0.0/10"}, {"cidr": "0.0.0.0/0"}, {"cidr": "fc00::/7"}])

    for address in ("169.254.169.254", "100.100.100.200", "168.63.129.16", "[fd00:ec2::254]"):
        status, body = fetch(box, f"http://{address}/")
        assert status == "status 403" and "operator" in body, (address, status, body)


def test_only_the_operator_defines_services(api):
    name = f"team-{os.getpid()}"
    api.must("POST", "/v1/projects", {"name": name})
    key = api.must("POST", f"/v1/projects/{name}/keys", {"name": "lead", "role": "admin"})["key"]
    lead = Api(f"http://{api.host}:{api.port}", key)
    service = {"name": "way-in", "hosts": [{"host": "127.0.0.1", "port": api.port}]}

    assert lead.call("POST", f"/v1/projects/{name}/keys", {"name": "more"}).status == 201, "negative control: the key is an admin's"
    assert lead.call("POST", "/v1/services", service).status == 403
    assert lead.call("POST", "/v1/services/detect", {"dry_run": True}).status == 403
    assert lead.call("POST", "/v1/projects", {"name": name + "-child"}).status == 403
    assert api.call("POST", "/v1/services", service).status == 201
    assert lead.call("DELETE", "/v1/services/way-in").status == 403
    assert api.call("DELETE", "/v1/services/way-in").status == 204


# --- what passes ------------------------------------------------------------------------------------------------------------

def test_no_credential_of_the_platform_and_none_for_the_proxy_reaches_a_destination(boxes, destination, api):
    box = proxied(boxes, rules=[destination.rule()])

    fetch(box, f"http://127.0.0.1:{destination.port}/headers", "Proxy-Authorization: Basic Y2FuYXJ5", "Proxy-Connection: keep-alive", "X-Own: kept")

    path, headers = destination.requests[-1]
    assert path == "/headers" and headers["X-Own"] == "kept", "negative control: the request and its own headers arrived"
    assert api.key not in str(headers)
    assert not [name for name in headers if name.lower().startswith(("proxy-", "x-dsec", "x-forwarded", "via", "forwarded"))], headers


def test_dns_answers_only_allowed_names_C02(boxes):
    box = proxied(boxes, rules=[{"domain": "localhost"}, {"cidr": "127.0.0.1/32"}])

    assert box.run("/probe", "name", "canary.0123456789abcdef.example.org").out == "rcode 3\n"
    assert box.run("/probe", "name", "localhost.example.org").out == "rcode 3\n"
    assert box.run("/probe", "name", "localhost").out == "rcode 0\na 127.0.0.1\n", "negative control: an allowed name is answered"
    assert "nameserver 127.0.0.1" in box.read_file("/etc/resolv.conf").decode()


def test_direct_connects_go_nowhere_C04(boxes, destination):
    box = proxied(boxes, rules=[destination.rule(), {"cidr": "0.0.0.0/0"}])

    for address, port in (("192.0.2.1", 80), ("169.254.169.254", 80), ("10.0.0.1", 22), ("2001:db8::1", 80), ("fe80::1", 80), *((a, 22) for a in own_addresses())):
        assert box.run("/probe", "dial", address, str(port)).out in ("dial ENETUNREACH\n", "dial EHOSTUNREACH\n", "dial EINVAL\n", "dial EADDRNOTAVAIL\n"), address
    assert box.run("/probe", "dial", "127.0.0.1", str(destination.port)).out == "dial ECONNREFUSED\n"
    assert box.run("/probe", "dial", "127.0.0.1", "3128").out == "dial 0\n", "negative control: the dialler connects where someone listens"


def test_a_neighbours_listeners_are_not_there_C04(boxes):
    server, neighbour = proxied(boxes), proxied(boxes)
    server.start(argv=["nc", "-l", "-p", "4444"])
    wait_until(lambda: "115C" in server.sh("cat /proc/net/tcp /proc/net/tcp6").out, 10, "the listener")

    assert neighbour.run("/probe", "dial", "127.0.0.1", "4444").out == "dial ECONNREFUSED\n"
    assert server.run("/probe", "dial", "127.0.0.1", "4444").out == "dial 0\n"


# --- changes ----------------------------------------------------------------------------------------------------------------

@pytest.fixture
def silent():
    """A destination that accepts, says nothing and keeps the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        kept = []

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    kept.append(listener.accept()[0])

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        for connection in kept:
            connection.close()


def test_the_policy_changes_live_and_cuts_what_it_no_longer_allows_C09(api, boxes, destination, silent):
    flow = {"cidr": "127.0.0.1/32", "port": silent}
    box = proxied(boxes, rules=[destination.rule(), flow])
    cut = box.start(argv=["/probe", "hold", f"127.0.0.1:{silent}"])
    box.until_output(cut, b"open\n")

    api.must("PATCH", box.path, {"network": {"rules": [flow]}})
    assert fetch(box, f"http://127.0.0.1:{destination.port}/")[0] == "status 403"
    assert box.get_exec(cut)["state"] == "running", "negative control: a flow that is still allowed goes on"
    api.must("PATCH", box.path, {"network": {"rules": [destination.rule()]}})

    assert box.wait(cut, 5).code == 0
    assert box.read_all(cut) == b"open\nclosed\n"
    assert reaches(box, destination)


def test_a_service_that_is_not_defined_cannot_be_patched_in(api, boxes, destination):
    box = proxied(boxes, rules=[destination.rule()])

    answer = api.call("PATCH", box.path, {"network": {"services": ["no-such-service"], "rules": []}})

    assert answer.status == 400 and "no-such-service" in answer.error["message"], answer
    assert reaches(box, destination)


def test_a_named_service_opens_its_destination_until_it_is_gone(api, boxes, destination):
    api.must("POST", "/v1/services", {"name": "local-test", "hosts": [{"host": "127.0.0.1", "port": destination.port}]})
    box, other = proxied(boxes, services=["local-test"]), proxied(boxes)

    assert reaches(box, destination, "/service")
    assert not reaches(other, destination), "a sandbox that does not name the service"
    api.must("DELETE", "/v1/services/local-test")
    assert not reaches(box, destination)


def test_an_unknown_service_is_refused_at_create(api, tiny):
    answer = api.call("POST", "/v1/sandboxes", {"image": tiny, "network": {"mode": "proxy", "services": ["no-such-service"]}})

    assert answer.status == 400 and "no-such-service" in answer.error["message"], answer


def test_the_proxy_and_its_rules_survive_a_restart_of_serve(destination):
    server = Server(name="egress").start()
    try:
        images.import_tar(server.api, "tiny:1", images.tiny_tar())
        server.api.must("POST", "/v1/services", {"name": "gone", "hosts": [{"host": "127.0.0.2", "port": destination.port}]})
        box = server.api.create("tiny:1", network={"mode": "proxy", "services": ["gone"], "rules": [destination.rule()]})
        assert reaches(box, destination)
        server.api.must("DELETE", "/v1/services/gone")

        server.restart()

        again = Box(server.api, server.api.must("GET", box.path))
        wait_until(lambda: reaches(again, destination), 10, "the way out, again")
        assert fetch(again, f"http://127.0.0.1:{destination.port + 1}/")[0] == "status 403"
        assert fetch(again, f"http://127.0.0.2:{destination.port}/")[0] == "status 403"
        assert fetch(again, f"http://127.0.0.1:{server.api.port}/")[0] == "status 403"
    finally:
        complaints = server.close()
    assert not complaints, complaints


# --- hostile clients ---------------------------------------------------------------------------------------------------------

def test_garbage_at_the_proxy_ends_in_a_refusal(boxes, destination):
    box = proxied(boxes, rules=[destination.rule()])
    before = len(destination.requests)
    good = f"http://127.0.0.1:{destination.port}/"
    for junk in ("GET / HTTP/1.1", "CONNECT", "GET http:// HTTP/1.1", "CONNECT a:99999 HTTP/1.1", "GET ftp://x/ HTTP/1.1",
                 "CONNECT [::1 HTTP/1.1", f"POST {good} HTTP/1.1\\r\\nContent-Length: -1", f"GET {good} HTTP/1.1\\r\\nContent-Length: 1\\r\\nContent-Length: 2",
                 f"GET {good} HTTP/1.1\\r\\nTransfer-Encoding: chunked\\r\\nContent-Length: 5"):
        answer = box.sh(f"printf '{junk}\\r\\n\\r\\n' | nc -w 3 127.0.0.1 3128", timeout=20).out
        assert answer.startswith(("HTTP/1.1 4", "HTTP/1.1 501")), (junk, answer)

    assert len(destination.requests) == before
    assert reaches(box, destination)


def test_an_open_connection_flood_is_bounded_and_hurts_no_neighbour_C11(server, boxes, destination):
    loud, quiet = proxied(boxes, rules=[destination.rule()]), proxied(boxes, rules=[destination.rule()])
    descriptors = f"/proc/{server.child.pid}/fd"
    before = len(os.listdir(descriptors))
    loud.start(argv=["/probe", "flood", "1000"])

    wait_until(lambda: len(os.listdir(descriptors)) >= before + 120, 10, "the flood, as far as it gets")
    assert all(reaches(quiet, destination) for _ in range(5))
    assert len(os.listdir(descriptors)) < before + 180, "128 connections of one sandbox, and a few of the others"
