"""What the client does by itself: bodies, retries, errors, streams, archives."""
import asyncio
import io
import os
import tarfile
import threading

import pytest

import libdsec
from libdsec import DSecContainerRunArgs, NetworkRule
from libdsec.config import resolve_endpoint
from libdsec.tar_stream import extract_tar, tar_stream

ARGS = DSecContainerRunArgs(container_image="debian:12")
UNAVAILABLE = (503, {"error": {"code": "unavailable", "message": "later", "retryable": True, "infra": True, "retry": "same_key"}}, {})


def test_the_papers_arguments_become_the_contracts_body():
    args = DSecContainerRunArgs(container_image="debian:12", memory_limit_mb=4096, cpu_cores_limit=4, ttl_running_stop=300,
                                network_rules={"npm": False, "pypi": True}, init_user="root", workspace="w:1", toolkits=["t:1"], labels={"job": "j"})

    assert args.to_json() == {
        "backend": "container", "image": "debian:12", "environment": {"workspace": "w:1", "toolkits": ["t:1"]},
        "resources": {"cpu_cores": 4, "memory_mb": 4096}, "lifetime": {"idle_seconds": 300},
        "network": {"mode": "proxy", "services": ["pypi"]}, "labels": {"job": "j"}, "user": "root"}


@pytest.mark.parametrize("args", [
    DSecContainerRunArgs(), DSecContainerRunArgs(container_image="a", base="b"),
    DSecContainerRunArgs(container_image="a", network_allow=[NetworkRule(domain="x", cidr="10.0.0.0/8")])])
def test_arguments_that_contradict_themselves_are_refused(args):
    with pytest.raises(ValueError):
        args.to_json()


def test_where_the_server_is_found(tmp_path):
    (tmp_path / "dsec").mkdir()
    (tmp_path / "dsec" / "config.json").write_text('{"current": "c", "contexts": {"c": {"url": "http://ctx/", "api_key": "k"}}}')
    key_file = tmp_path / "admin.key"
    key_file.write_text("local\n")

    def find(url=None, key=None, **environment):
        return resolve_endpoint(url, key, environment, key_file=str(key_file))

    context = {"XDG_CONFIG_HOME": str(tmp_path)}
    nothing = {"XDG_CONFIG_HOME": str(tmp_path / "none")}
    assert find("http://a", "b", **context).url == "http://a"
    assert find(DSEC_URL="http://env/", DSEC_API_KEY="e", **context) == libdsec.config.Endpoint("http://env", "e")
    assert find(**context) == libdsec.config.Endpoint("http://ctx", "k")
    assert find(DSEC_URL="http://other", **context).api_key == ""
    assert find(**nothing) == libdsec.config.Endpoint("http://127.0.0.1:7780", "local")
    assert "k" not in repr(libdsec.config.Endpoint("u", "k")).split("api_key=")[1].replace("***", "")


def test_a_create_waits_on_with_the_same_key(scenario):
    async def go(server, client):
        server.pending_creates = 3
        sandbox = await client.run_container(ARGS, timeout=20)
        return server, sandbox

    server, sandbox = scenario(go)
    keys = {r[3]["Idempotency-Key"] for r in server.requests if r[1] == "/v1/sandboxes"}
    assert sandbox.state == "running" and len(keys) == 1 and len(server.sandboxes) == 1


def test_a_lost_answer_makes_no_second_sandbox(scenario):
    async def go(server, client):
        server.before = ["drop", UNAVAILABLE]
        await client.run_container(ARGS)
        server.before = ["drop"]
        return server, await (await client.list())[0].run_shell("echo once")

    server, result = scenario(go)
    assert len(server.sandboxes) == 1 and len(server.execs) == 1
    assert result.stdout == "echo once"


def test_a_create_that_times_out_is_removed(scenario):
    async def go(server, client):
        server.pending_creates = 10 ** 6
        with pytest.raises(libdsec.DeadlineExceeded):
            await client.run_container(ARGS, timeout=0.3)
        return server

    server = scenario(go)
    assert [s["state"] for s in server.sandboxes.values()] == ["ended"]


def test_what_must_not_be_repeated_is_not(scenario):
    async def go(server, client):
        sandbox = await client.run_container(ARGS)
        server.before = [UNAVAILABLE]
        with pytest.raises(libdsec.Unavailable):
            await sandbox.files.mkdir("/x")
        return server

    assert scenario(go).count("POST", "/mkdir") == 1


def test_errors_are_typed_and_carry_what_the_server_said(scenario):
    async def go(server, client):
        body = {"code": "exhausted", "message": "no room", "retryable": True, "infra": False, "retry": "after", "details": {"limit": 3}}
        server.before = [(429, {"error": body}, {"Retry-After": "60"})]
        with pytest.raises(libdsec.Exhausted) as exhausted:
            await client.create(ARGS, timeout=1)
        with pytest.raises(libdsec.NotFound) as missing:
            await client.get("nope")
        return exhausted.value, missing.value

    exhausted, missing = scenario(go)
    assert (exhausted.retryable, exhausted.retry_after, exhausted.details, exhausted.status) == (True, 60.0, {"limit": 3}, 429)
    assert missing.code == "not_found" and not missing.infra


def test_no_server_says_what_to_do():
    async def go():
        async with libdsec.DSecClient("http://127.0.0.1:9", "k") as client:
            await client.list()

    with pytest.raises(libdsec.Unavailable, match="dsec serve") as failure:
        asyncio.new_event_loop().run_until_complete(go())
    assert failure.value.infra


def test_results(scenario):
    async def go(server, client):
        sandbox = await client.run_container(ARGS)
        return [await sandbox.run_shell(c, timeout=5) for c in ("ok", "fail", "binary")]

    ok, failed, binary = scenario(go)
    assert ok.ok and ok.check() is ok and ok.trainable
    assert binary.stdout_bytes == b"\xff" and binary.stdout == "\ufffd"
    with pytest.raises(libdsec.CommandFailed, match="oh no"):
        failed.check()


@pytest.mark.parametrize("body, code", [
    ({"exit_code": None, "signal": "SIGKILL", "timed_out": True}, 124), ({"exit_code": None, "signal": "SIGKILL"}, 137),
    ({"signal": 15}, 143), ({"exit_code": 2}, 2), ({"status": "lost"}, 125)])
def test_exit_codes(body, code):
    assert libdsec.CommandResult.from_json(body).exit_code == code


def test_a_process_is_followed_fed_and_found_again(scenario):
    async def go(server, client):
        sandbox = await client.run_container(ARGS)
        process = await sandbox.spawn(["cat"], stdin=True)
        await process.write_stdin("input", end=True)
        lines = [line async for line in process.stdout.lines()]
        again = await (await client.attach(sandbox.to_string())).process(process.exec_id)
        await again.kill()
        return server, lines, await again.wait(5), await again.stdout.at(5).read()

    server, lines, result, rest = scenario(go)
    assert lines == ["line one", "line two"] and rest == b"one\nline two\n"
    assert result.signal == "SIGTERM" and result.exit_code == 143
    assert server.execs["x0"]["stdin"] == b"input" and server.execs["x0"]["body"]["open_stdin"] is True


def test_a_terminal(scenario):
    async def go(server, client):
        sandbox = await client.run_container(ARGS)
        async with await sandbox.pty(["cat"], rows=30, columns=100) as pty:
            await pty.write("hello")
            seen = await pty.read_until("hello")
            await pty.resize(1, 2)
            await pty.write(b"\x04")
            return server, seen, await pty.wait(5)

    server, seen, result = scenario(go)
    start = server.bodies("WS", "/exec/stream")[0]
    assert seen == b"hello" and result.exit_code == 0
    assert start["terminal"] == {"rows": 30, "columns": 100} and start["exec"]["argv"] == ["cat"]


def test_files_and_trees_go_in_and_out(scenario, tmp_path):
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "sub" / "f").write_bytes(b"x" * 300_000)
    (tmp_path / "in" / "link").symlink_to("sub/f")

    async def go(server, client):
        sandbox = await client.run_container(ARGS)
        await sandbox.files.write("/a b", "text", mode=0o600)
        await sandbox.files.upload(tmp_path / "in", "/tree")
        await sandbox.files.download("/tree", tmp_path / "out")
        events = [event async for event in sandbox.files.watch("/")]
        return server, await sandbox.files.read_text("/a b"), events

    server, text, events = scenario(go)
    assert text == "text" and [e.kind for e in events] == ["create", "write"]
    assert (tmp_path / "out" / "sub" / "f").read_bytes() == b"x" * 300_000
    assert os.readlink(tmp_path / "out" / "link") == "sub/f"
    assert next(r for r in server.requests if r[0] == "PUT")[2]["mode"] == "600"


def test_forty_trees_come_out_at_once(scenario, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "f").write_bytes(os.urandom(4_000_000))

    async def go(server, client):
        sandbox = await client.run_container(ARGS)
        await sandbox.files.upload(tmp_path / "in", "/tree")
        await asyncio.gather(*(sandbox.files.download("/tree", tmp_path / str(n)) for n in range(40)))

    scenario(go)
    assert all((tmp_path / str(n) / "f").stat().st_size == 4_000_000 for n in range(40))


def hostile(*members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, kind, value in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            if kind == tarfile.REGTYPE:
                info.size = len(value)
                tar.addfile(info, io.BytesIO(value))
            else:
                info.linkname = value
                tar.addfile(info)
    return io.BytesIO(out.getvalue())


@pytest.mark.parametrize("members", [
    [("../out", tarfile.REGTYPE, b"x")], [("/tmp/dsec-absolute", tarfile.REGTYPE, b"x")],
    [("d", tarfile.SYMTYPE, "/tmp"), ("d/dsec-through", tarfile.REGTYPE, b"x")], [("h", tarfile.LNKTYPE, "../../etc/passwd")],
    [("s", tarfile.SYMTYPE, "/etc/passwd"), ("h", tarfile.LNKTYPE, "s")]])
def test_nothing_lands_outside_the_target(tmp_path, members):
    with pytest.raises(ValueError):
        extract_tar(hostile(*members), tmp_path / "target")
    assert not (tmp_path / "out").exists() and not os.path.exists("/tmp/dsec-through")


def test_a_tree_is_streamed_as_a_valid_archive(tmp_path):
    (tmp_path / ("n" * 150)).write_bytes(b"y" * 1_000_000)
    (tmp_path / "empty").mkdir()

    async def collect():
        return [part async for part in tar_stream(tmp_path, owner="5:6")]

    parts = asyncio.new_event_loop().run_until_complete(collect())
    assert max(map(len, parts)) < 1_000_000
    with tarfile.open(fileobj=io.BytesIO(b"".join(parts))) as tar:
        members = tar.getmembers()
    assert [(m.name, m.uid, m.gid) for m in members] == [("empty", 5, 6), ("n" * 150, 5, 6)]


def test_a_group_keeps_what_runs_and_says_what_does_not(scenario):
    async def go(server, client):
        bad = (400, {"error": {"code": "invalid_argument", "message": "bad"}}, {})
        server.before = [bad]
        async with await client.create_group(ARGS, 5, min_ready=3, concurrency=1) as group:
            assert len(group) == 4 and list(group.errors) == [0]
        server.before = [bad]
        with pytest.raises(libdsec.InvalidArgument):
            await client.create_group(ARGS, 2, concurrency=1)
        return server

    assert {s["state"] for s in scenario(go).sandboxes.values()} == {"ended"}


def test_listing_follows_the_pages(scenario):
    async def go(server, client):
        await client.create_group(ARGS, 5)
        return len(await client.list()), len(await client.list(limit=3))

    assert scenario(go) == (5, 3)


def test_hundreds_of_commands_run_at_once(scenario):
    async def go(server, client):
        sandboxes = (await client.create_group(ARGS, 300)).sandboxes
        results = await asyncio.gather(*(s.run_shell(f"echo {n}") for n, s in enumerate(sandboxes)))
        return [r.stdout for r in results]

    assert scenario(go) == [f"echo {n}" for n in range(300)]


def test_an_import_is_sent_and_followed(scenario, tmp_path):
    (tmp_path / "f").write_text("x")
    seen = []

    async def go(server, client):
        layer = await client.images.import_("x:1", tmp_path, owner="0:0", progress=lambda p: seen.append(p.stage))
        return server, layer

    server, layer = scenario(go)
    assert layer.kind == "base" and seen == ["send", "build"]
    assert tarfile.open(fileobj=io.BytesIO(server.files["import"])).getnames() == ["f"]


def test_the_network_can_be_changed_between_stages(scenario):
    async def go(server, client):
        sandbox = await client.run_container(ARGS)
        await sandbox.set_network({"pypi": True}, allow=[NetworkRule(domain="example.org", port=443)])
        await sandbox.set_network({})
        return server

    first, second = [b["network"] for b in scenario(go).bodies("PATCH", "0")]
    assert first == {"services": ["pypi"], "rules": [{"domain": "example.org", "port": 443}]}
    assert second == {"services": [], "rules": []}


def test_the_blocking_mirror_does_the_same(scenario):
    import libdsec.sync as blocking

    def work(url, key, out):
        with blocking.DSecClient(url, key) as client, client.run_container(ARGS) as sandbox:
            out["stdout"] = sandbox.run_shell("echo hi").stdout
            process = sandbox.spawn(["cat"])
            out["parts"] = b"".join(process.stdout)
            out["lines"] = list(process.stdout.at(0).lines())
            sandbox.files.write("/f", b"1")
            out["read"] = sandbox.files.read("/f")
            out["list"] = [type(s).__module__ for s in client.list()]
            out["id"] = blocking.sandbox_from_string(client, sandbox.to_string()).refresh().id == sandbox.id

    async def go(server, client):
        out = {}
        thread = threading.Thread(target=work, args=(server.url, "e2b_" + "0" * 40, out))
        thread.start()
        while thread.is_alive():
            await asyncio.sleep(0.01)
        return server, out

    server, out = scenario(go)
    assert out == {"stdout": "echo hi", "parts": b"line one\nline two\n", "lines": ["line one", "line two"], "read": b"1",
                   "list": ["libdsec.sync"], "id": True}
    assert [s["state"] for s in server.sandboxes.values()] == ["ended"]


def test_the_mirror_has_everything(scenario):
    import inspect

    import libdsec.sync as blocking

    for name in libdsec.__all__:
        kind, mirror = getattr(libdsec, name), getattr(blocking, name)
        if inspect.isclass(kind) and mirror is not kind:
            for method, member in vars(kind).items():
                if inspect.isfunction(member) and not method.startswith("_"):
                    assert hasattr(mirror, method), f"{name}.{method}"
                    assert not inspect.iscoroutinefunction(getattr(mirror, method))


def test_the_mirrors_types_are_those_of_the_sources():
    import pathlib
    import subprocess
    import sys

    tool = pathlib.Path(__file__).resolve().parents[1] / "tools" / "make_sync_stub.py"
    assert subprocess.run([sys.executable, tool, "--check"], check=False).returncode == 0
