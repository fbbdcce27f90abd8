"""api/openapi.yaml is the served contract, and its errors are the error table."""
import json
import os
import pathlib
import re

import pytest
import yaml

from support.server import BIN, ROOT, Server

SPEC_FILE = ROOT / "api" / "openapi.yaml"

pytestmark = pytest.mark.skipif(not SPEC_FILE.exists(), reason="no api/openapi.yaml yet")


@pytest.fixture(scope="module")
def spec():
    return yaml.safe_load(SPEC_FILE.read_text())


@pytest.fixture(scope="module")
def api():
    if os.geteuid() != 0 or not (BIN / "dsec").exists():
        pytest.skip("needs root and a built dsec")
    server = Server(name="openapi").start()
    yield server.api
    assert not server.close()


def operations(spec):
    for path, methods in spec["paths"].items():
        for method, operation in methods.items():
            if method in ("get", "put", "post", "delete", "patch", "head", "options"):
                yield path, method.upper(), operation


def references(node):
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "$ref":
                yield value
            else:
                yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def resolve(spec, reference):
    node = spec
    for part in reference.removeprefix("#/").split("/"):
        node = node[part.replace("~1", "/").replace("~0", "~")]
    return node


def test_every_reference_leads_somewhere(spec):
    for reference in references(spec):
        assert reference.startswith("#/"), reference
        resolve(spec, reference)


def test_every_operation_has_an_id_a_summary_and_an_error_answer(spec):
    ids = []
    for path, method, operation in operations(spec):
        assert operation.get("operationId"), f"{method} {path}"
        assert operation.get("summary"), f"{method} {path}"
        assert operation.get("responses"), f"{method} {path}"
        ids.append(operation["operationId"])
    assert len(ids) == len(set(ids)), "operationIds are unique"


def test_path_parameters_are_declared(spec):
    for path, method, operation in operations(spec):
        declared = set()
        for parameter in operation.get("parameters", []) + spec["paths"][path].get("parameters", []):
            parameter = resolve(spec, parameter["$ref"]) if "$ref" in parameter else parameter
            if parameter["in"] == "path":
                declared.add(parameter["name"])
        assert set(re.findall(r"\{(\w+)\}", path)) == declared, f"{method} {path}"


def test_request_objects_are_closed(spec):
    """Unknown fields are refused, and the contract says so."""
    open_ones = []
    for path, method, operation in operations(spec):
        for media, content in (operation.get("requestBody") or {}).get("content", {}).items():
            if media != "application/json":
                continue
            schema = content["schema"]
            name = schema.get("$ref", f"{method} {path}")
            schema = resolve(spec, schema["$ref"]) if "$ref" in schema else schema
            if schema.get("type") == "object" and schema.get("additionalProperties") is not False:
                open_ones.append(name)
    assert not open_ones, open_ones


def test_the_error_codes_are_those_of_the_source(spec):
    table = (ROOT / "src" / "base" / "error.cc").read_text()
    in_source = set(re.findall(r'\{"([a-z_]+)", *\d{3}', table))
    schema = next((s for name, s in spec["components"]["schemas"].items() if name.lower().startswith("error") and "code" in str(s)), None)
    in_spec = set(re.findall(r"[a-z_]+", " ".join(code for codes in find_enums(schema, "code") for code in codes)))

    assert in_source, "the reader of error.cc must see its table"
    assert in_source == in_spec


def find_enums(node, name):
    if isinstance(node, dict):
        if name in node and isinstance(node[name], dict) and "enum" in node[name]:
            yield node[name]["enum"]
        for value in node.values():
            yield from find_enums(value, name)
    elif isinstance(node, list):
        for value in node:
            yield from find_enums(value, name)


def test_the_error_table_of_the_docs_is_the_one_of_the_source():
    file = ROOT / "api" / "errors.md"
    if not file.exists():
        pytest.skip("no api/errors.md yet")
    rows = re.findall(r'\{"([a-z_]+)", *(\d{3}), *(true|false), *(true|false), *"([a-z_]+)"', (ROOT / "src" / "base" / "error.cc").read_text())
    text = file.read_text()
    for code, status, *_ in rows:
        assert re.search(rf"{code}[^\n]*{status}", text), f"{code} {status} is not in api/errors.md"


def test_the_served_contract_is_the_one_in_the_tree(spec, api):
    served = api.call("GET", "/v1/openapi.json")

    assert served.status == 200
    assert served.json["paths"].keys() == spec["paths"].keys()
    assert json.loads(json.dumps(spec, default=str)) == served.json


def test_every_path_of_the_contract_is_known_to_the_server(spec, api):
    """A path that the contract names never answers with the error of an unknown path."""
    unknown = api.call("GET", "/v1/certainly/not/there")
    assert unknown.status == 404
    marker = re.sub(r"[/\w.-]*certainly/not/there", "", unknown.error["message"]).strip()
    missing = []
    for path, method, _ in operations(spec):
        filled = re.sub(r"\{port\}", "80", path)
        filled = re.sub(r"\{\w+\}", "nothing", filled)
        if method == "GET" and path.endswith(("/v1/events", "/watch")):
            continue
        answer = api.call(method, filled, {} if method in ("POST", "PUT", "PATCH") else None, timeout=20)
        if answer.status == 405 or (answer.status == 404 and answer.body and marker and marker == re.sub(
                re.escape(filled), "", answer.json.get("error", {}).get("message", "")).strip()):
            missing.append(f"{method} {path}: {answer}")
    assert not missing, "\n".join(missing)


def test_answers_to_wrong_requests_match_the_error_schema(spec, api):
    for path, method, operation in operations(spec):
        if method not in ("POST", "PATCH") or "application/json" not in (operation.get("requestBody") or {}).get("content", {}):
            continue
        filled = re.sub(r"\{\w+\}", "nothing", path)
        answer = api.call(method, filled, {"certainly_unknown_field": 1})
        assert answer.status in (400, 404, 409), f"{method} {path}: {answer}"
        assert set(answer.error) >= {"code", "message", "retryable", "infra", "retry"}, f"{method} {path}"
