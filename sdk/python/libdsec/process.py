"""Processes that run while the caller does something else."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, AsyncIterator, Optional, Union

from .errors import DeadlineExceeded
from .results import CommandResult
from .transport import segment

if TYPE_CHECKING:
    from .sandbox import Sandbox

_WAIT_MS = 20_000


class OutputReader:
    """One output stream of a process: an async iterator of byte strings.

    Offsets are absolute, so a reader can start anywhere (``at``) and another
    process can go on where this one stopped. Bytes that the server no longer
    holds are skipped and counted in ``lost``.
    """

    def __init__(self, process: "Process", stream: str) -> None:
        self._process = process
        self._stream = stream
        #: Where the next byte is read from.
        self.offset = 0
        #: Bytes that were gone before they were read.
        self.lost = 0

    def at(self, offset: int) -> "OutputReader":
        self.offset = offset
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._parts()

    async def _parts(self) -> AsyncIterator[bytes]:
        while True:
            data, ended = await self._next(_WAIT_MS)
            if data:
                yield data
            if ended:
                return

    async def _next(self, wait_ms: int) -> "tuple[bytes, bool]":
        start = {"offset": self.offset}
        ended = False

        def look(headers: Any) -> None:
            nonlocal ended
            start["offset"] = int(headers.get("X-Dsec-Offset", self.offset))
            ended = headers.get("X-Dsec-End", "false") == "true"

        data = await self._process._sandbox._client._transport.bytes(
            "GET", self._process._path("/output"), repeatable=True, response_headers=look,
            query={"stream": self._stream, "offset": self.offset, "wait_ms": wait_ms})
        self.lost += max(0, start["offset"] - self.offset)
        self.offset = start["offset"] + len(data)
        return data, ended

    async def read(self) -> bytes:
        """Everything until the stream ends."""
        return b"".join([part async for part in self])

    async def read_available(self) -> bytes:
        """What is there now; empty when nothing is."""
        parts = []
        while True:
            data, ended = await self._next(0)
            parts.append(data)
            if not data or ended:
                return b"".join(parts)

    async def lines(self) -> AsyncIterator[str]:
        """Line by line, without the line ends, as UTF-8 with U+FFFD for bad bytes."""
        rest = b""
        async for part in self:
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                yield line.decode("utf-8", "replace")
        if rest:
            yield rest.decode("utf-8", "replace")


class Process:
    """A command that was started with :meth:`Sandbox.spawn` or found by :meth:`Sandbox.process`.

    It lives in the sandbox, not in this object: dropping the object ends nothing.
    ``stdout`` and ``stderr`` can be read while it runs and, up to the server's
    caps, afterwards.
    """

    def __init__(self, sandbox: "Sandbox", exec_id: str) -> None:
        self._sandbox = sandbox
        #: Names the command; :meth:`Sandbox.process` finds it by this from anywhere.
        self.exec_id = exec_id
        self.stdout = OutputReader(self, "stdout")
        self.stderr = OutputReader(self, "stderr")

    def __repr__(self) -> str:
        return f"Process({self.exec_id!r} in {self._sandbox.id!r})"

    def _path(self, tail: str = "") -> str:
        return self._sandbox._path(f"/exec/{segment(self.exec_id)}{tail}")

    async def poll(self) -> Optional[CommandResult]:
        """The result when the command has ended, else None. Returns at once."""
        body = await self._sandbox._client._transport.json("GET", self._path())
        return None if is_running(body) else CommandResult.from_json(body)

    async def wait(self, timeout: Optional[float] = None) -> CommandResult:
        """Waits for the end. After ``timeout`` seconds DeadlineExceeded is raised and the command runs on."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            left = _WAIT_MS if deadline is None else int(max(0.0, deadline - loop.time()) * 1000)
            body = await self._sandbox._client._transport.json(
                "GET", self._path(), query={"wait_ms": min(_WAIT_MS, left)})
            if not is_running(body):
                return CommandResult.from_json(body)
            if deadline is not None and loop.time() >= deadline:
                raise DeadlineExceeded(f"{self.exec_id} still runs after {timeout:g} s", retryable=True, retry="same_key")

    async def write_stdin(self, data: Union[str, bytes], *, end: bool = False) -> None:
        """Sends bytes to standard input; ``end`` closes it afterwards. Waits while the command does not read."""
        body = data.encode() if isinstance(data, str) else data
        await self._sandbox._client._transport.bytes(
            "POST", self._path("/stdin"), body, query={"end": end or None},
            headers={"Content-Type": "application/octet-stream"})

    async def close_stdin(self) -> None:
        await self.write_stdin(b"", end=True)

    async def signal(self, signal: Union[str, int] = "TERM") -> None:
        """Sends a signal, by name ("TERM") or number, to the command's process group."""
        await self._sandbox._client._transport.json("POST", self._path("/signal"), {"signal": signal_number(signal)})

    async def kill(self) -> None:
        """Ends the command with everything that it started, and waits for that.

        What a command that has ended already left running is ended too.
        """
        await self._sandbox._client._transport.bytes("DELETE", self._path())

    async def resize(self, rows: int, columns: int) -> None:
        """Of a terminal."""
        await self._sandbox._client._transport.json("POST", self._path("/resize"), {"rows": rows, "columns": columns})


def is_running(body: Any) -> bool:
    return str(body.get("state", "")) in ("running", "starting", "queued", "frozen")


def signal_number(signal: Union[str, int]) -> int:
    import signal as signals

    if isinstance(signal, int):
        return signal
    name = signal.upper()
    name = name if name.startswith("SIG") else "SIG" + name
    try:
        return int(signals.Signals[name])
    except KeyError:
        raise ValueError(f"no such signal: {signal}") from None
