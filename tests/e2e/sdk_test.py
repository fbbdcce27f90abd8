"""libdsec against a real server: the program of the paper, and many sandboxes from one process."""
import asyncio
import os
import subprocess
import sys
import time

import pytest

from support import images
from support.server import ROOT

PAPER = """
import asyncio
from libdsec import DSecClient, DSecContainerRunArgs
async def main():
    client = DSecClient()
    await client.open()
    args = DSecContainerRunArgs(container_image="debian:12", memory_limit_mb=4096, cpu_cores_limit=4,
                                ttl_running_stop=300, network_rules={"npm": False, "pypi": True}, init_user="root")
    sandbox = await client.run_container(args, timeout=120)
    result = await sandbox.run_shell("echo hello")
    print(repr((result.stdout, result.stderr, result.exit_code, result.truncated, result.timed_out)))
    await sandbox.stop()
    await client.close()
asyncio.run(main())
"""


def test_the_program_of_the_paper_runs_as_it_stands(api, debian):
    # The service names are the operator's; here they are defined by the test.
    for name in ("npm", "pypi"):
        answer = api.call("POST", "/v1/services", {"name": name, "hosts": [{"host": "127.0.0.1", "port": 9}]})
        assert answer.status in (200, 201, 409), answer
    images.import_tar(api, "debian:12", images.debian_tar())

    result = subprocess.run([sys.executable, "-c", PAPER], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
                            env={**os.environ, "PYTHONPATH": str(ROOT / "sdk" / "python"), "DSEC_URL": api.url, "DSEC_API_KEY": api.key})

    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == repr(("hello\n", "", 0, False, False))


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 240))


def test_two_hundred_concurrent_sandboxes_from_one_process(api, tiny):
    from libdsec import DSecClient, DSecContainerRunArgs

    async def one(client, number):
        sandbox = await client.run_container(DSecContainerRunArgs(container_image=tiny, memory_limit_mb=64), timeout=60)
        try:
            return (await sandbox.run_shell(f"echo {number}")).stdout
        finally:
            await sandbox.stop()

    async def scenario():
        async with DSecClient(api.url, api.key) as client:
            return await asyncio.gather(*(one(client, n) for n in range(200)))

    started = time.monotonic()
    results = run(scenario())
    print(f"200 create, exec, delete in {time.monotonic() - started:.2f} s")

    assert results == [f"{n}\n" for n in range(200)]


def test_spawn_streams_output_takes_input_and_waits(api, tiny):
    from libdsec import DSecClient, DSecContainerRunArgs

    async def scenario():
        async with DSecClient(api.url, api.key) as client:
            async with await client.run_container(DSecContainerRunArgs(container_image=tiny), timeout=60) as sandbox:
                process = await sandbox.spawn(["cat"], stdin=True)
                await process.write_stdin(b"one\n")
                await process.close_stdin()
                result = await process.wait(timeout=20)
                return await process.stdout.read(), result.exit_code

    assert run(scenario()) == (b"one\n", 0)


def test_files_sessions_and_handles(api, tiny, tmp_path):
    from libdsec import DSecClient, DSecContainerRunArgs, NotFound

    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "file").write_bytes(b"\x00\xff" * 1000)

    async def scenario():
        async with DSecClient(api.url, api.key) as client:
            async with await client.run_container(DSecContainerRunArgs(container_image=tiny), timeout=60) as sandbox:
                await sandbox.files.upload(tmp_path / "tree", "/tmp/up")
                await sandbox.files.download("/tmp/up", tmp_path / "down")
                with pytest.raises(NotFound):
                    await sandbox.files.read("/no/such")
                async with sandbox.session() as session:
                    await session.run_shell("cd /tmp; export X=5")
                    kept = (await session.run_shell("pwd; echo $X")).stdout
                attached = await client.attach(sandbox.to_string())
                return kept, attached.id == sandbox.id

    kept, same = run(scenario())

    assert (tmp_path / "down" / "sub" / "file").read_bytes() == b"\x00\xff" * 1000
    assert kept == "/tmp\n5\n" and same


def test_a_sandbox_is_waited_for_stopped_and_removed(api, tiny):
    from libdsec import DeadlineExceeded, DSecClient, DSecContainerRunArgs, NotFound

    async def scenario():
        async with DSecClient(api.url, api.key) as client:
            sandbox = await client.run_container(DSecContainerRunArgs(container_image=tiny), timeout=60)
            await sandbox.wait(until="running")
            with pytest.raises(DeadlineExceeded):
                await sandbox.wait(timeout=0.2)
            waiting = asyncio.ensure_future(sandbox.wait())
            await sandbox.stop()
            ended = (await waiting).cause
            kept = (await client.get(sandbox.id)).state
            await sandbox.remove()
            await sandbox.remove()
            with pytest.raises(NotFound):
                await client.get(sandbox.id)
            return ended, kept

    assert run(scenario()) == ("user", "ended")


def test_pause_resume_and_many_at_once(api, tiny):
    from libdsec import Conflict, DSecClient, DSecContainerRunArgs

    async def scenario():
        async with DSecClient(api.url, api.key, fence=4) as holder, DSecClient(api.url, api.key) as other:
            args = DSecContainerRunArgs(container_image=tiny, memory_limit_mb=64, labels={"sdk": "pause"}, on_timeout="pause")
            sandbox = await holder.run_container(args)
            await sandbox.pause(wake="holder", reason="thinks")
            assert (sandbox.state, sandbox.info["pause_reason"]) == ("paused", "thinks")
            with pytest.raises(Conflict):
                await (await other.get(sandbox.id)).resume()
            assert (await sandbox.run_shell("echo back")).stdout == "back\n"
            paused = await holder.pause_all("sdk=pause")
            resumed = await holder.resume_all("sdk=pause")
            stopped = await holder.stop_all("sdk=pause")
            assert [[(r.id, r.state, r.ok) for r in each] for each in (paused, resumed, stopped)] == [
                [(sandbox.id, state, True)] for state in ("paused", "running", "ended")]
    run(scenario())


def test_typed_errors_carry_code_retryable_and_infra(api):
    from libdsec import DSecClient, DSecContainerRunArgs, NotFound, Unauthenticated

    async def scenario():
        async with DSecClient(api.url, api.key) as client:
            with pytest.raises(NotFound) as missing:
                await client.run_container(DSecContainerRunArgs(container_image="no-such:1"), timeout=20)
        async with DSecClient(api.url, "e2b_" + "0" * 40) as stranger:
            with pytest.raises(Unauthenticated):
                await stranger.get("x")
        return missing.value

    error = run(scenario())
    assert (error.code, error.retryable, error.infra) == ("not_found", False, False)


def test_the_blocking_mirror_does_the_same(api, tiny):
    from libdsec import DSecContainerRunArgs
    from libdsec.sync import DSecClient

    with DSecClient(api.url, api.key) as client:
        sandbox = client.run_container(DSecContainerRunArgs(container_image=tiny), timeout=60)
        try:
            assert sandbox.run_shell("echo sync").stdout == "sync\n"
        finally:
            sandbox.stop()
