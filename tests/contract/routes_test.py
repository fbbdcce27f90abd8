"""The routes of the source and the paths of api/openapi.yaml, both ways, without a server."""
import re

import yaml

from support.server import ROOT

METHODS = ("get", "put", "post", "delete", "patch")
SANDBOX = "/v1/sandboxes/{ref}"

# What the edge serves below a sandbox: its handlers compare segments, so the list stands here
# and each entry is looked for in the handler's text.
BELOW_SANDBOX = {
    "": ("sandbox.cc", {"GET", "PATCH", "DELETE"}),
    "/stats": ("../edge_serve.cc", {"GET"}),
    "/events": ("../edge_serve.cc", {"GET"}),
    "/pause": ("../edge_serve.cc", {"POST"}),
    "/resume": ("../edge_serve.cc", {"POST"}),
    "/exec": ("exec.cc", {"GET", "POST"}),
    "/exec/stream": ("exec.cc", {"GET"}),
    "/exec/{exec_id}": ("exec.cc", {"GET", "DELETE"}),
    "/exec/{exec_id}/output": ("exec.cc", {"GET"}),
    "/exec/{exec_id}/stdin": ("exec.cc", {"POST"}),
    "/exec/{exec_id}/signal": ("exec.cc", {"POST"}),
    "/exec/{exec_id}/resize": ("exec.cc", {"POST"}),
    "/sessions/{session}": ("../edge_serve.cc", {"DELETE"}),
    "/files": ("files.cc", {"GET", "PUT", "DELETE"}),
    "/files/stat": ("files.cc", {"GET"}),
    "/files/list": ("files.cc", {"GET"}),
    "/files/mkdir": ("files.cc", {"POST"}),
    "/files/move": ("files.cc", {"POST"}),
    "/files/watch": ("files.cc", {"GET"}),
    "/files/archive": ("files.cc", {"GET", "PUT"}),
    "/ports/{port}/{path}": ("../edge_serve.cc", {"GET", "POST", "PUT", "PATCH", "DELETE"}),
}


def described():
    spec = yaml.safe_load((ROOT / "api" / "openapi.yaml").read_text())
    return {(method.upper(), path) for path, methods in spec["paths"].items() for method in methods if method in METHODS}


def registered():
    text = (ROOT / "src" / "apiserver" / "routes.cc").read_text()
    return {route for route in re.findall(r'\{"([A-Z]+|\*)", "([^"]+)", k', text) if route[0] != "*"}


def test_every_route_of_the_apiserver_is_described_and_the_other_way_round():
    assert len(registered()) > 20, "the reader of routes.cc must see its table"
    assert {route for route in registered() if not route[1].startswith(SANDBOX)} == {entry for entry in described() if not entry[1].startswith(SANDBOX)}


def test_what_stands_below_a_sandbox_is_described_and_the_other_way_round():
    served = {(method, SANDBOX + path) for path, (_, methods) in BELOW_SANDBOX.items() for method in methods}
    served |= {route for route in registered() if route[1].startswith(SANDBOX)}

    assert served == {entry for entry in described() if entry[1].startswith(SANDBOX)}


def test_the_handlers_know_every_segment_of_the_list():
    handlers = ROOT / "src" / "edge" / "handlers"
    for path, (file, _) in BELOW_SANDBOX.items():
        text = (handlers / file).read_text()
        for segment in path.split("/")[1 if file != "exec.cc" and file != "files.cc" else 2:]:
            assert segment.startswith("{") or f'"{segment}"' in text, f"{segment} of {path} is not in {file}"


def test_the_list_knows_every_part_that_the_edge_routes():
    text = (ROOT / "src" / "edge" / "edge_serve.cc").read_text()
    areas = set(re.findall(r'area == "([a-z]+)"', text))

    assert areas == {path.split("/")[1] for path in BELOW_SANDBOX if path}
