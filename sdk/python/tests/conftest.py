"""A small server that speaks the REST contract, so that the client's own behaviour can be tested alone.

What the real server does is tested end to end (tests/e2e); here it only records requests and answers from a script.
"""
import asyncio
import base64
import json
import pathlib
import sys

import pytest
from aiohttp import WSMsgType, web

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

KEY = "e2b_" + "0" * 40


class FakeServer:
    def __init__(self):
        self.requests = []  # (method, path, query, headers, body)
        self.sandboxes = {}
        self.execs = {}
        self.keys = {}
        self.files = {}
        self.before = []  # answers given instead, one each, before the ordinary ones
        self.pending_creates = 0
        self.url = ""

    def count(self, method, tail):
        return sum(1 for r in self.requests if r[0] == method and r[1].endswith(tail))

    def bodies(self, method, tail):
        return [json.loads(r[4]) for r in self.requests if r[0] == method and r[1].endswith(tail) and r[4]]

    async def handle(self, request):
        body = b"" if request.headers.get("Upgrade") else await request.read()
        self.requests.append((request.method, request.path, dict(request.query), dict(request.headers), body))
        if self.before:
            answer = self.before.pop(0)
            if answer == "drop":
                request.transport.close()
                return web.Response()
            status, value, headers = answer
            return web.json_response(value, status=status, headers=headers)
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            return error(401, "unauthenticated", "no such key")
        parts = request.path.strip("/").split("/")[1:]
        method = getattr(self, f"on_{request.method.lower()}_{parts[0]}", None)
        return await method(request, parts[1:], body) if method else error(404, "not_found", request.path)

    async def on_post_sandboxes(self, request, rest, body):
        if len(rest) == 0:
            return self.create(request, json.loads(body))
        sandbox, what = rest[0], rest[1:]
        if what == ["exec"]:
            return self.exec(json.loads(body))
        if what[:1] == ["exec"] and what[2:] == ["stdin"]:
            self.execs[what[1]]["stdin"] = self.execs[what[1]].get("stdin", b"") + body
            return web.json_response({})
        return web.json_response({})

    def create(self, request, spec):
        key = request.headers["Idempotency-Key"]
        info = self.keys.get(key)
        if info is None:
            info = {"id": f"sb{len(self.sandboxes):024}", "state": "starting" if self.pending_creates else "running", "cause": None, "infra": False,
                    "labels": spec.get("labels", {}), "name": spec.get("name", "")}
            self.keys[key] = self.sandboxes[info["id"]] = info
        elif self.pending_creates > 0:
            self.pending_creates -= 1
            info["state"] = "running" if self.pending_creates == 0 else "starting"
        return web.json_response(info, status=201 if info["state"] == "running" else 202)

    def exec(self, body):
        known = self.keys.get(body["key"])
        if known:
            return web.json_response(known)
        number = f"x{len(self.execs)}"
        out = body.get("shell", " ".join(body.get("argv", []))).encode()
        result = {"exec_id": number, "state": "ended", "status": "exited", "exit_code": 0, "stdout": out.decode(), "stderr": "", "truncated": False,
                  "timed_out": False, "duration_ms": 1.5, "infra": False}
        if "fail" in body.get("shell", ""):
            result.update(exit_code=3, stderr="oh no")
        if "binary" in body.get("shell", ""):
            result.update(stdout="\ufffd", stdout_base64=base64.b64encode(b"\xff").decode())
        if body.get("background"):
            result = {"exec_id": number, "state": "running"}
        self.execs[number] = {"body": body, "result": result, "out": b"line one\nline two\n"}
        self.keys[body["key"]] = result
        return web.json_response(result)

    async def on_get_sandboxes(self, request, rest, body):
        if not rest:
            items = list(self.sandboxes.values())
            at = int(request.query.get("cursor") or 0)
            return web.json_response({"items": items[at:at + 2], "next_cursor": str(at + 2) if at + 2 < len(items) else None})
        if rest[0] not in self.sandboxes:
            return error(404, "not_found", f"there is no sandbox {rest[0]}")
        what = rest[1:]
        if not what:
            return web.json_response(self.sandboxes[rest[0]])
        if what == ["exec", "stream"]:
            return await self.stream(request)
        if what[0] == "exec" and what[2:] == ["output"]:
            at = int(request.query["offset"])
            data = self.execs[what[1]]["out"][at:at + 5]
            ended = at + len(data) >= len(self.execs[what[1]]["out"])
            return web.Response(body=data, headers={"X-Dsec-Offset": str(at), "X-Dsec-End": "true" if ended else "false"})
        if what[0] == "exec":
            entry = self.execs[what[1]]
            entry["looked"] = entry.get("looked", 0) + 1
            if entry["looked"] > 1:
                entry["result"] = {"exec_id": what[1], "state": "ended", "status": "signaled", "exit_code": None, "signal": "SIGTERM", "stdout": ""}
            return web.json_response(entry["result"])
        if what == ["files"]:
            data = self.files.get(request.query["path"])
            return error(404, "not_found", "no such file") if data is None else web.Response(body=data)
        if what == ["files", "stat"]:
            path = request.query["path"]
            return web.json_response({"path": path, "type": "directory" if path.endswith("tree") else "file", "size": 1, "mode": "0644"})
        if what == ["files", "archive"]:
            return web.Response(body=self.files[request.query["path"]])
        if what == ["files", "watch"]:
            return web.Response(body=b'\n{"kind":"create","path":"/a"}\n{"kind":"write","path":"/a"}\n')
        return error(404, "not_found", request.path)

    async def stream(self, request):
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        number = None
        async for message in socket:
            if message.type == WSMsgType.BINARY:
                await socket.send_bytes(b"\x01" + message.data[1:])
                if b"\x04" in message.data:
                    await socket.send_str(json.dumps({"type": "exited", "id": number, "exit_code": 0}))
                continue
            control = json.loads(message.data)
            self.requests.append(("WS", request.path, {}, {}, message.data.encode()))
            if control["type"] == "start":
                number = control["id"]
                self.execs["pty"] = {"result": {"exec_id": "pty", "state": "ended", "exit_code": 0, "stdout": ""}, "out": b"", "looked": -9}
                await socket.send_str(json.dumps({"type": "started", "id": number, "exec_id": "pty"}))
        return socket

    async def on_put_sandboxes(self, request, rest, body):
        self.files[request.query["path"]] = body
        return web.json_response({})

    async def on_patch_sandboxes(self, request, rest, body):
        return web.json_response(self.sandboxes[rest[0]])

    async def on_delete_sandboxes(self, request, rest, body):
        if len(rest) == 1:
            if rest[0] not in self.sandboxes:
                return error(404, "not_found", "gone")
            self.sandboxes[rest[0]].update(state="ended", cause="user")
            return web.json_response(self.sandboxes[rest[0]])
        return web.json_response({})

    async def on_post_images(self, request, rest, body):
        self.files["import"] = body
        return web.json_response({"operation_id": "op1"}, status=202)

    async def on_get_operations(self, request, rest, body):
        return web.json_response({"state": "succeeded", "progress": {"stage": "build", "done_bytes": 5, "total_bytes": 10},
                                  "result": {"name": "x", "digest": "sha256:" + "a" * 64, "kind": "base", "size_bytes": 4096}})


def error(status, code, message, **more):
    return web.json_response({"error": {"code": code, "message": message, "retryable": False, "infra": False, "retry": "never", "details": {}, **more}},
                             status=status)


@pytest.fixture
def scenario():
    """Runs an async function with a fake server and an open client."""
    from libdsec import DSecClient

    def run(function):
        async def whole():
            server = FakeServer()
            app = web.Application(client_max_size=1 << 30)
            app.router.add_route("*", "/{tail:.*}", server.handle)
            runner = web.AppRunner(app)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            server.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
            try:
                async with DSecClient(server.url, KEY) as client:
                    return await asyncio.wait_for(function(server, client), 30)
            finally:
                await runner.cleanup()

        return asyncio.new_event_loop().run_until_complete(whole())

    return run
