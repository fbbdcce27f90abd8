"""Terminals: one WebSocket each, as docs/specs/exec-stream.md describes."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, AsyncIterator, Dict, Mapping, Optional, Union

import aiohttp

from .errors import DeadlineExceeded, Unavailable, error_from_response
from .process import Process
from .results import CommandResult

if TYPE_CHECKING:
    from .sandbox import Sandbox


class Pty:
    """A terminal in a sandbox. Made by :meth:`Sandbox.pty`; an async iterator of what it prints.

    Closing the handle leaves the program running; :meth:`kill` ends it. As an
    async context manager it kills at the end of the block.
    """

    def __init__(self, sandbox: "Sandbox", socket: aiohttp.ClientWebSocketResponse, exec_id: str, early: bytes = b"") -> None:
        self._sandbox = sandbox
        self._early = early
        self._socket = socket
        self._exited: Optional[Mapping[str, Any]] = None
        self._closed = False
        #: Names the program; :meth:`Sandbox.process` finds it by this.
        self.exec_id = exec_id

    @classmethod
    async def start(cls, sandbox: "Sandbox", body: Mapping[str, Any], rows: int, columns: int) -> "Pty":
        socket = await sandbox._client._transport.websocket(sandbox._path("/exec/stream"))
        try:
            await socket.send_str(json.dumps({"type": "start", "id": 1, "exec": dict(body), "terminal": {"rows": rows, "columns": columns}}))
            early = b""
            while True:
                message = await socket.receive(timeout=30)
                if message.type is aiohttp.WSMsgType.BINARY:  # it printed before the server told that it runs
                    early += bytes(message.data[5:])
                    continue
                if message.type is not aiohttp.WSMsgType.TEXT:
                    raise Unavailable(f"the stream ended before the terminal opened: {message.data!r}", retryable=True, infra=True)
                control = json.loads(message.data)
                if control.get("type") == "started":
                    return cls(sandbox, socket, str(control.get("exec_id", "")), early)
                if control.get("type") in ("error", "failed"):
                    raise error_from_response(int(control.get("status", 400)), control)
        except BaseException:
            await socket.close()
            raise

    async def __aenter__(self) -> "Pty":
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._exited is None and not self._closed:
            try:
                await self.kill()
            finally:
                await self.close()
        else:
            await self.close()

    async def write(self, data: Union[str, bytes]) -> None:
        """Types into the terminal."""
        await self._socket.send_bytes(b"\x00" + (1).to_bytes(4, "big") + (data.encode() if isinstance(data, str) else data))

    async def resize(self, rows: int, columns: int) -> None:
        await self._send({"type": "resize", "id": 1, "rows": rows, "columns": columns})

    async def signal(self, signal: Union[str, int] = "INT") -> None:
        """Sends a signal to the terminal's foreground program."""
        await Process(self._sandbox, self.exec_id).signal(signal)

    async def kill(self) -> None:
        """Ends the program with everything that it started."""
        await Process(self._sandbox, self.exec_id).kill()

    async def _send(self, control: Dict[str, Any]) -> None:
        await self._socket.send_str(json.dumps(control))

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._parts()

    async def _parts(self) -> AsyncIterator[bytes]:
        while self._exited is None:
            data = await self._receive()
            if data is None:
                return
            if data:
                yield data

    async def _receive(self) -> Optional[bytes]:
        """Output, b"" after a control message, None when no more comes."""
        if self._early:
            data, self._early = self._early, b""
            return data
        message = await self._socket.receive()
        if message.type is aiohttp.WSMsgType.BINARY:
            return bytes(message.data[5:])
        if message.type is aiohttp.WSMsgType.TEXT:
            control = json.loads(message.data)
            if control.get("type") == "exited":
                self._exited = control
            elif control.get("type") == "error":
                raise error_from_response(int(control.get("status", 400)), control)
            return b""
        self._closed = True
        return None

    async def read_until(self, text: Union[str, bytes], timeout: float = 10) -> bytes:
        """What is printed up to and with ``text``. DeadlineExceeded, with what came, after ``timeout`` seconds."""
        wanted = text.encode() if isinstance(text, str) else text
        seen = b""

        async def collect() -> bytes:
            nonlocal seen
            while wanted not in seen:
                data = None if self._exited is not None else await self._receive()
                if data is None:
                    raise Unavailable(f"the terminal closed before {wanted!r}; it printed {seen[-500:]!r}")
                seen += data
            return seen

        try:
            return await asyncio.wait_for(collect(), timeout)
        except asyncio.TimeoutError:
            raise DeadlineExceeded(f"{wanted!r} did not come within {timeout:g} s; the terminal printed {seen[-500:]!r}") from None

    async def wait(self, timeout: Optional[float] = None) -> CommandResult:
        """Waits for the program's end, throwing its output away."""
        async def drain() -> None:
            async for _ in self:
                pass

        try:
            await asyncio.wait_for(drain(), timeout)
        except asyncio.TimeoutError:
            raise DeadlineExceeded(f"the terminal's program still runs after {timeout:g} s") from None
        return await Process(self._sandbox, self.exec_id).wait(timeout)

    async def close(self) -> None:
        """Lets go of the terminal; its program runs on, without a terminal to read from."""
        self._closed = True
        await self._socket.close()
