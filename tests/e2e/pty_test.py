"""Terminals over the WebSocket stream."""
import asyncio
import json

import aiohttp
import pytest


def run(coroutine):
    return asyncio.new_event_loop().run_until_complete(asyncio.wait_for(coroutine, 60))


@pytest.fixture(scope="module")
def client_of(api):
    """A libdsec client on this server; the stream protocol is the SDK's business as much as the server's."""
    from libdsec import DSecClient

    def make():
        try:
            return DSecClient(url=api.url, api_key=api.key)
        except TypeError:
            return DSecClient(api.url, api.key)
    return make


async def read_until(pty, wanted, seconds=15):
    seen = b""
    async def loop():
        nonlocal seen
        async for part in pty:
            seen += part if isinstance(part, bytes) else part.encode()
            if wanted in seen:
                return
    await asyncio.wait_for(loop(), seconds)
    return seen


def test_a_terminal_is_a_terminal(client_of, shared_box):
    async def scenario():
        async with client_of() as client:
            sandbox = await client.get(shared_box.id)
            pty = await sandbox.pty(["sh", "-c", "test -t 0 && test -t 1 && stty size && echo is-a-tty"], rows=30, columns=100)
            return await read_until(pty, b"is-a-tty")

    assert b"30 100" in run(scenario())


def test_input_is_echoed_and_answered(client_of, shared_box):
    async def scenario():
        async with client_of() as client:
            sandbox = await client.get(shared_box.id)
            pty = await sandbox.pty(["cat"])
            await pty.write(b"hello\n")
            seen = await read_until(pty, b"hello\r\nhello\r\n")
            await pty.write(b"\x04")
            return seen, await pty.wait()

    seen, result = run(scenario())
    assert b"hello\r\nhello\r\n" in seen
    assert getattr(result, "exit_code", result) == 0


def test_a_resize_reaches_the_program(client_of, shared_box):
    async def scenario():
        async with client_of() as client:
            sandbox = await client.get(shared_box.id)
            pty = await sandbox.pty(["sh", "-c", "trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done"])
            await read_until(pty, b"ready")
            await pty.resize(rows=50, columns=132)
            seen = await read_until(pty, b"50 132")
            await pty.close()
            return seen

    assert b"50 132" in run(scenario())


def test_control_c_interrupts(client_of, shared_box):
    async def scenario():
        async with client_of() as client:
            sandbox = await client.get(shared_box.id)
            pty = await sandbox.pty(["sh", "-c", "echo ready; sleep 100"])
            await read_until(pty, b"ready")
            await pty.write(b"\x03")
            return await asyncio.wait_for(pty.wait(), 10)

    result = run(scenario())
    assert getattr(result, "exit_code", None) in (130, None) or getattr(result, "signal", None)
