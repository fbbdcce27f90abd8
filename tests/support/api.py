"""The REST contract as tests speak it: plain HTTP, nothing hidden, nothing retried."""
import base64
import http.client
import json
import os
import socket
import time
import urllib.parse


class Answer:
    """One HTTP answer, read to its end."""

    def __init__(self, status, headers, body):
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        """The `error` object of the contract; a KeyError says that there is none."""
        return self.json["error"]

    def __repr__(self):
        return f"<{self.status} {self.body[:300]!r}>"


class ApiError(AssertionError):
    def __init__(self, what, answer):
        super().__init__(f"{what}: {answer}")
        self.answer = answer


def encode_query(query):
    pairs = []
    for name, value in (query or {}).items():
        if value is None:
            continue
        pairs.append((name, {True: "true", False: "false"}.get(value, value) if isinstance(value, bool) else value))
    return "?" + urllib.parse.urlencode(pairs) if pairs else ""


class Api:
    """One server and one key. Every call opens a connection of its own unless `keep` is used."""

    def __init__(self, url, key):
        self.url = url
        self.key = key
        parts = urllib.parse.urlsplit(url)
        self.host, self.port = parts.hostname, parts.port

    def connection(self, timeout=60.0):
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout)

    def raw(self, method, path, body=None, headers=None, query=None, timeout=60.0, keyed=True):
        """Sends bytes as they are; any status is an answer."""
        connection = self.connection(timeout)
        try:
            sent = {"Authorization": f"Bearer {self.key}"} if keyed else {}
            sent.update(headers or {})
            connection.request(method, path + encode_query(query), body=body, headers=sent)
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def call(self, method, path, body=None, headers=None, query=None, timeout=60.0):
        """JSON in, any status out."""
        sent = {"Content-Type": "application/json"} if body is not None else {}
        sent.update(headers or {})
        data = None if body is None else json.dumps(body).encode()
        return self.raw(method, path, data, sent, query, timeout)

    def must(self, method, path, body=None, expect=(200, 201, 202, 204), **options):
        """JSON in, JSON out; a status that is not expected fails the test with the answer in it."""
        answer = self.call(method, path, body, **options)
        if answer.status not in (expect if isinstance(expect, tuple) else (expect,)):
            raise ApiError(f"{method} {path}", answer)
        return answer.json if answer.body else {}

    def create(self, image, timeout=60.0, headers=None, **spec):
        """A running sandbox; the test fails with the answer when it does not come."""
        sandbox = self.must("POST", "/v1/sandboxes", {"image": image, **spec}, headers=headers, timeout=timeout, expect=201)
        return Box(self, sandbox)

    def list_all(self, **query):
        items, cursor = [], None
        while True:
            page = self.must("GET", "/v1/sandboxes", query={**query, "cursor": cursor})
            items += page["items"]
            cursor = page.get("next_cursor") or None
            if cursor is None:
                return items


class Result(dict):
    """An exec's answer, with its bytes."""

    @property
    def out(self):
        return self.get("stdout", "")

    @property
    def err(self):
        return self.get("stderr", "")

    @property
    def code(self):
        return self.get("exit_code")

    def bytes_of(self, stream):
        """Exact bytes of "stdout" or "stderr"."""
        if self.get(stream + "_base64") is not None:
            return base64.b64decode(self[stream + "_base64"])
        return self.get(stream, "").encode()

    def values(self):
        """The "name value" lines of the probe program."""
        found = {}
        for line in self.out.splitlines():
            name, _, value = line.partition(" ")
            found[name] = value
        return found


class Box:
    """One sandbox under test."""

    def __init__(self, api, info):
        self.api = api
        self.info = info
        self.id = info["id"]
        self.path = f"/v1/sandboxes/{self.id}"

    def refresh(self):
        self.info = self.api.must("GET", self.path)
        return self.info

    @property
    def state(self):
        return self.refresh()["state"]

    def run(self, *argv, timeout=60.0, expect=(200, 201), **options):
        """Runs argv to its end."""
        return self._exec({"argv": list(argv), **options}, timeout, expect)

    def sh(self, shell, timeout=60.0, expect=(200, 201), **options):
        """Runs a shell line to its end."""
        return self._exec({"shell": shell, **options}, timeout, expect)

    def _exec(self, body, timeout, expect):
        deadline = time.monotonic() + timeout
        body.setdefault("wait_ms", int(timeout * 1000))
        answer = self.api.call("POST", self.path + "/exec", body, timeout=timeout + 10)
        if answer.status == 202:
            exec_id = answer.json["exec_id"]
            return self.wait(exec_id, deadline - time.monotonic())
        if answer.status not in expect:
            raise ApiError(f"exec {body}", answer)
        return Result(answer.json)

    def start(self, timeout=30.0, **body):
        """Starts in the background; the exec id."""
        return self.api.must("POST", self.path + "/exec", {"background": True, **body}, timeout=timeout)["exec_id"]

    def get_exec(self, exec_id, **query):
        return Result(self.api.must("GET", f"{self.path}/exec/{exec_id}", query=query))

    def wait(self, exec_id, timeout=60.0):
        """The result of a command once it is over; the test fails past `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            assert left > 0, f"exec {exec_id} is not over: {self.get_exec(exec_id)}"
            result = Result(self.api.must("GET", f"{self.path}/exec/{exec_id}", query={"wait_ms": int(min(left, 10) * 1000)},
                                          timeout=left + 20))
            if result["state"] not in ("running", "starting", "queued"):
                return result

    def output(self, exec_id, stream="stdout", offset=0, wait_ms=0):
        """(bytes, offset of the first of them, whether the stream has ended)."""
        answer = self.api.raw("GET", f"{self.path}/exec/{exec_id}/output",
                              query={"stream": stream, "offset": offset, "wait_ms": wait_ms})
        if answer.status != 200:
            raise ApiError(f"output of {exec_id}", answer)
        return (answer.body, int(answer.headers.get("X-Dsec-Offset", offset)), answer.headers.get("X-Dsec-End") == "true")

    def read_all(self, exec_id, stream="stdout", offset=0, seconds=60.0):
        """Every byte of a stream from `offset` to its end."""
        deadline = time.monotonic() + seconds
        parts = []
        while time.monotonic() < deadline:
            data, start, ended = self.output(exec_id, stream, offset, wait_ms=2000)
            assert start == offset, f"bytes {offset} to {start} are gone"
            parts.append(data)
            offset += len(data)
            if ended:
                return b"".join(parts)
        raise AssertionError(f"{stream} of {exec_id} has not ended within {seconds} s")

    def until_output(self, exec_id, wanted, stream="stdout", seconds=30.0):
        """Reads until `wanted` (bytes) has been seen; all that was read."""
        deadline = time.monotonic() + seconds
        seen = b""
        while wanted not in seen:
            assert time.monotonic() < deadline, f"{wanted!r} not within {seconds} s: {seen[-500:]!r}"
            data, _, ended = self.output(exec_id, stream, len(seen), wait_ms=1000)
            seen += data
            assert not ended or wanted in seen, f"{wanted!r} never came: {seen[-500:]!r}"
        return seen

    def signal(self, exec_id, number):
        return self.api.must("POST", f"{self.path}/exec/{exec_id}/signal", {"signal": number})

    def write_file(self, path, data, mode=None, **query):
        query = {"path": path, "mode": None if mode is None else f"{mode:o}", "parents": True, **query}
        answer = self.api.raw("PUT", self.path + "/files", data, query=query, headers={"Content-Type": "application/octet-stream"})
        if answer.status not in (200, 201, 204):
            raise ApiError(f"write {path}", answer)

    def read_file(self, path, **query):
        answer = self.api.raw("GET", self.path + "/files", query={"path": path, **query})
        if answer.status != 200:
            raise ApiError(f"read {path}", answer)
        return answer.body

    def delete(self):
        return self.api.call("DELETE", self.path)

    def wait_ended(self, seconds=30.0):
        deadline = time.monotonic() + seconds
        while True:
            left = deadline - time.monotonic()
            info = self.api.must("GET", self.path, query={"wait_ms": max(0, int(left * 1000)), "for": "ended"}, timeout=seconds + 30)
            if info["state"] == "ended":
                return info
            assert left > 0, f"not ended within {seconds} s: {info}"


def wait_until(condition, seconds, what):
    """Polls the outside world, which sends no event, until `condition` is true."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


def end_of(api, operation, seconds=60.0):
    """An operation that is over, by its id."""
    deadline = time.monotonic() + seconds
    while True:
        found = api.must("GET", f"/v1/operations/{operation}", query={"wait_ms": 5000})
        if found["state"] not in ("running", "cancelling"):
            return found
        assert time.monotonic() < deadline, f"not over within {seconds} s: {found}"


def pause_or_skip(box):
    """Pauses; a version that cannot says 501, and the test skips."""
    import pytest
    answer = box.api.call("POST", box.path + "/pause", {})
    if answer.status in (404, 501):
        pytest.skip("this version cannot pause sandboxes: " + answer.error["message"])
    assert answer.status in (200, 202), answer


def free_port():
    """A port that was free a moment ago; for addresses that nothing will ever listen on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def key_of(api, role="builder", project=None):
    """(project's name, its Api) with a fresh key."""
    name = project or f"p{os.urandom(4).hex()}"
    if project is None:
        api.must("POST", "/v1/projects", {"name": name})
    made = api.must("POST", f"/v1/projects/{name}/keys", {"name": role, "role": role})
    return name, Api(f"http://{api.host}:{api.port}", made["key"])
