"""A sandbox, as a handle: what can be done with it and what is known of it."""

from __future__ import annotations

import asyncio
import json
import uuid
from types import TracebackType
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Type, Union

from .args import NetworkRule, network_json
from .errors import DeadlineExceeded, DSecError, NotFound, SandboxEnded, error_from_response
from .files import Files
from .images import ProgressCallback, finish_operation
from .process import Process, is_running
from .pty import Pty
from .results import Checkpoint, CommandResult, ExecInfo, Layer
from .transport import segment

if TYPE_CHECKING:
    from .client import DSecClient

_WAIT_MS = 25_000
_GRACE_S = 30.0


class Sandbox:
    """One sandbox. Made by ``client.run_container`` and its like, or by ``client.get``.

    The object is a handle: dropping it ends nothing. As an async context manager
    it stops the sandbox at the end of the block. ``id``, ``name``, ``state``,
    ``cause`` and the like are those of the last answer; :meth:`refresh` asks again.
    """

    def __init__(self, client: "DSecClient", info: Mapping[str, Any]) -> None:
        self._client = client
        #: The sandbox object of the contract, as last seen.
        self.info: Dict[str, Any] = dict(info)
        #: Files inside: read, write, list, upload, download, watch, …
        self.files = Files(self)

    def __repr__(self) -> str:
        return f"Sandbox({self.id!r}, state={self.state!r})"

    async def __aenter__(self) -> "Sandbox":
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        # Also when the surrounding task is being cancelled: nothing is left behind.
        await asyncio.shield(self.stop())

    def _path(self, tail: str = "") -> str:
        return f"/v1/sandboxes/{segment(self.id)}{tail}"

    @property
    def id(self) -> str:
        return str(self.info.get("id", ""))

    @property
    def name(self) -> str:
        return str(self.info.get("name") or "")

    @property
    def state(self) -> str:
        """queued, placing, starting, running, pausing, paused, resuming, ending or ended."""
        return str(self.info.get("state", ""))

    @property
    def cause(self) -> str:
        """Why it ended: user, ttl, idle, oom, exit, env_destroyed, …; empty while it lives."""
        cause = self.info.get("cause")
        return "" if cause in (None, "none") else str(cause)

    @property
    def infra(self) -> bool:
        """It ended by the platform's fault. A trainer masks the rollout."""
        return bool(self.info.get("infra", False))

    @property
    def trainable(self) -> bool:
        """Whatever happened is the agent's own doing and may be scored."""
        return not self.infra

    @property
    def labels(self) -> Dict[str, str]:
        return dict(self.info.get("labels") or {})

    def to_string(self) -> str:
        """A handle as text, without any key: another process attaches by ``client.attach(text)``."""
        return json.dumps({"dsec": 1, "url": self._client.url, "id": self.id}, separators=(",", ":"))

    # Lifecycle ------------------------------------------------------------

    async def refresh(self) -> "Sandbox":
        """Asks the server for the present state; returns self."""
        self.info = dict(await self._client._transport.json("GET", self._path()))
        return self

    async def stop(self, timeout: float = 60) -> None:
        """Ends the sandbox and waits for it; what is recorded of it stays. One that is gone already is no error."""
        try:
            answer = await self._client._transport.json("DELETE", self._path(), timeout=timeout)
            if isinstance(answer, dict) and answer.get("id") == self.id:
                self.info = dict(answer)
            else:
                self.info["state"] = "ended"
        except NotFound:
            self.info["state"] = "ended"

    async def remove(self, timeout: float = 60) -> None:
        """Ends the sandbox and has it forgotten: record, name, output and history. One that is gone already is no error.

        DeadlineExceeded: it still ends and is not forgotten; the call may be made again.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        try:
            while True:
                left = max(0.1, deadline - loop.time())
                self.info = dict(await self._client._transport.json("DELETE", self._path(), query={"forget": True}, timeout=left))
                if self.state == "ended":
                    return
        except NotFound:
            self.info["state"] = "ended"

    async def wait(self, timeout: Optional[float] = None, *, until: str = "ended") -> "Sandbox":
        """Waits until the sandbox has ended, and tells the cause by ``.cause``; with ``until="running"``, until it runs or never will.

        ``timeout`` is in seconds; when it passes, DeadlineExceeded is raised and
        nothing of the sandbox has changed. The server answers at the moment itself.
        """
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            left = 60.0 if deadline is None else max(0.0, min(60.0, deadline - loop.time()))
            self.info = dict(await self._client._transport.json("GET", self._path(), query={"wait_ms": int(left * 1000), "for": until}))
            if self.state in (until, "ended") or (until == "running" and self.state == "ending"):
                return self
            if deadline is not None and loop.time() >= deadline:
                raise DeadlineExceeded(f"{self.id} is {self.state}, not {until}, after {timeout:g} s", retryable=True)

    async def pause(self, *, wake: Optional[str] = None, reason: Optional[str] = None) -> "Sandbox":
        """Freezes the sandbox and gives its memory back; the next request that needs it resumes it.

        With ``wake="holder"`` only a client with this client's ``fence`` or a higher one does.
        """
        return await self._change("POST", "/pause", {k: v for k, v in (("wake", wake), ("reason", reason)) if v is not None})

    async def resume(self) -> "Sandbox":
        """Lets it go on; one that a :meth:`DSecClient.pause_all` holds back begins."""
        return await self._change("POST", "/resume", {})

    async def set_labels(self, labels: Mapping[str, str]) -> "Sandbox":
        """Replaces the labels."""
        return await self._change("PATCH", "", {"labels": dict(labels)})

    async def set_lifetime(
        self, *, idle_seconds: Optional[int] = None, max_seconds: Optional[int] = None, on_timeout: Optional[str] = None
    ) -> "Sandbox":
        """Changes the idle time, the maximum lifetime (seconds from now; 0 = none), or what their end does: "stop" or "pause"."""
        fields = (("idle_seconds", idle_seconds), ("max_seconds", max_seconds), ("on_timeout", on_timeout))
        lifetime = {k: v for k, v in fields if v is not None}
        return await self._change("PATCH", "", {"lifetime": lifetime})

    async def set_network(
        self,
        rules: Optional[Mapping[str, bool]] = None,
        *,
        allow: Sequence[NetworkRule] = (),
        mode: Optional[str] = None,
    ) -> "Sandbox":
        """Replaces what the sandbox may reach, at once; for the stages of a rollout.

        The mode is fixed at creation: a sandbox that was made with any
        ``network_rules``, even ones that allow nothing, can be opened later.
        """
        network = {"services": [], "rules": [], **network_json(rules or {}, allow, mode)}
        if mode is None:
            del network["mode"]
        return await self._change("PATCH", "", {"network": network})

    async def _change(self, method: str, tail: str, body: Mapping[str, Any]) -> "Sandbox":
        answer = await self._client._transport.json(method, self._path(tail), body)
        if isinstance(answer, dict) and "id" in answer:
            self.info = dict(answer)
        return self

    async def pack_diff(
        self,
        name: str,
        *,
        kind: str = "diff",
        remove: Sequence[str] = (),
        allow: Sequence[str] = (),
        canaries: Optional[Mapping[str, str]] = None,
        progress: Optional[ProgressCallback] = None,
    ) -> Layer:
        """Makes a layer of what the sandbox has written, and returns it; the sandbox runs on.

        Its processes stand still while its files are read. ``name`` is in quarantine
        until ``client.layers.promote``; a new sandbox gets the layer by ``diffs=[name]``
        over the same layers. ``remove``: patterns of paths that are left out (one
        without a slash is matched with names). ``canaries``: texts, by name, that must
        not be in it, beside those of the operator; Conflict names the paths where one
        is, unless ``allow`` matches them. For keys of builders.
        """
        body: Dict[str, Any] = {"name": name, "kind": kind, "remove": list(remove), "allow": list(allow)}
        if canaries:
            body["canaries"] = [{"name": key, "text": text} for key, text in canaries.items()]
        answer = await self._client._transport.json("POST", self._path("/pack"), body)
        return Layer.from_json(await finish_operation(self._client, answer, progress))

    async def checkpoint(self, *, expires: Optional[int] = None) -> "Checkpoint":
        """Keeps what the sandbox's files are now, to go back to by :meth:`rollback`; it runs on.

        Its processes stand still while the state is taken. Files only: processes,
        sessions and memory are not in it. ``expires``: seconds (a day; 0 = never).
        """
        body = {} if expires is None else {"expires_seconds": expires}
        return Checkpoint.from_json(await self._client._transport.json("POST", self._path("/checkpoints"), body))

    async def checkpoints(self) -> List["Checkpoint"]:
        """Those of this sandbox, oldest first."""
        body = await self._client._transport.json("GET", self._path("/checkpoints"))
        return [Checkpoint.from_json(item) for item in body["items"]]

    async def snapshot(self, name: str, *, expires: Optional[int] = None) -> "Checkpoint":
        """A checkpoint with a name: ``DSecContainerRunArgs(snapshot=name)`` makes sandboxes of it. Stays unless it expires."""
        body: Dict[str, Any] = {"name": name}
        if expires is not None:
            body["expires_seconds"] = expires
        return Checkpoint.from_json(await self._client._transport.json("POST", self._path("/snapshot"), body))

    async def rollback(self, checkpoint: Union["Checkpoint", str]) -> "Sandbox":
        """Takes the files back to a checkpoint. Commands and sessions end; id, name, clocks and rules stay."""
        wanted = checkpoint if isinstance(checkpoint, str) else checkpoint.id
        return await self._change("POST", "/rollback", {"checkpoint_id": wanted})

    async def fork(
        self,
        count: int = 1,
        *,
        names: Sequence[str] = (),
        labels: Optional[Mapping[str, str]] = None,
        idempotency_key: Optional[str] = None,
    ) -> List[Union["Sandbox", DSecError]]:
        """New sandboxes that begin with this one's files; for each the sandbox, or why there is none.

        They are asked for as this one was, under its rules of now; ``labels`` replace its labels.
        The same ``idempotency_key`` gives the same children; one is made up for each call.
        """
        body: Dict[str, Any] = {"count": count}
        if names:
            body["names"] = list(names)
        if labels is not None:
            body["labels"] = dict(labels)
        headers = {"Idempotency-Key": idempotency_key or f"py-{uuid.uuid4().hex}"}
        answer = await self._client._transport.json("POST", self._path("/fork"), body, headers=headers)
        return [
            Sandbox(self._client, child["sandbox"]) if "sandbox" in child else error_from_response(0, child)
            for child in answer["sandboxes"]
        ]

    async def stats(self) -> Dict[str, Any]:
        """Use of CPU, memory and processes, measured outside the sandbox."""
        return dict(await self._client._transport.json("GET", self._path("/stats")))

    async def events(self) -> List[Dict[str, Any]]:
        """What happened to the sandbox, oldest first."""
        body = await self._client._transport.json("GET", self._path("/events"))
        return list(body.get("items", body.get("events", [])) if isinstance(body, dict) else body)

    # Commands -------------------------------------------------------------

    async def run_shell(
        self,
        command: str,
        *,
        timeout: Optional[float] = None,
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
        stdin: Union[str, bytes, None] = None,
        output_limit_bytes: Optional[int] = None,
        session: Optional[str] = None,
        key: Optional[str] = None,
    ) -> CommandResult:
        """Runs a shell command line and waits for its end.

        ``timeout`` is in seconds of the command's own un-frozen time: its whole
        process tree is killed then, and the result, with what was printed until
        then, has ``timed_out``. A command that fails raises nothing: look at
        ``exit_code`` or call ``.check()``.

        ``key`` makes the call repeatable: the same key never runs twice and
        returns the recorded result. One is made up for each call, so that a lost
        connection is survived; pass your own to survive your own restart.
        """
        return await self._run({"shell": command}, timeout=timeout, cwd=cwd, env=env, user=user, stdin=stdin,
                               output_limit_bytes=output_limit_bytes, session=session, key=key)

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout: Optional[float] = None,
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
        stdin: Union[str, bytes, None] = None,
        output_limit_bytes: Optional[int] = None,
        key: Optional[str] = None,
    ) -> CommandResult:
        """Runs a program with arguments, without a shell. Otherwise as :meth:`run_shell`.

        ``exit_code`` 127: there is no such program; 126: it cannot be executed.
        """
        return await self._run({"argv": list(argv)}, timeout=timeout, cwd=cwd, env=env, user=user, stdin=stdin,
                               output_limit_bytes=output_limit_bytes, session=None, key=key)

    async def _run(self, what: Dict[str, Any], **options: Any) -> CommandResult:
        timeout = options["timeout"]
        body = command_json(what, **options)
        body["key"] = options["key"] or f"py-{uuid.uuid4().hex}"
        body["wait_ms"] = _WAIT_MS
        loop = asyncio.get_running_loop()
        # The server ends the command; this deadline is for a server that does not answer.
        deadline = None if timeout is None else loop.time() + timeout + _GRACE_S
        answer = await self._client._transport.json(
            "POST", self._path("/exec"), body, repeatable=True,
            timeout=None if timeout is None else timeout + _GRACE_S)
        while is_running(answer):
            if deadline is not None and loop.time() >= deadline:
                raise DeadlineExceeded(f"no result of {answer.get('exec_id')} within {timeout:g} s and {_GRACE_S:g} s of grace",
                                       retryable=True, retry="same_key")
            answer = await self._client._transport.json(
                "GET", self._path(f"/exec/{segment(answer['exec_id'])}"), query={"wait_ms": _WAIT_MS})
        return CommandResult.from_json(answer)

    async def spawn(
        self,
        command: Union[str, Sequence[str]],
        *,
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
        stdin: bool = False,
        timeout: Optional[float] = None,
        session: Optional[str] = None,
        key: Optional[str] = None,
    ) -> Process:
        """Starts a command (a shell line, or a list of arguments) and returns at once.

        The handle streams its output, sends it input and waits for it. ``stdin``:
        keep standard input open for :meth:`Process.write_stdin`.
        """
        what: Dict[str, Any] = {"shell": command} if isinstance(command, str) else {"argv": list(command)}
        body = command_json(what, cwd=cwd, env=env, user=user, timeout=timeout, session=session)
        body["background"] = True
        if stdin:
            body["open_stdin"] = True
        body["key"] = key or f"py-{uuid.uuid4().hex}"
        answer = await self._client._transport.json("POST", self._path("/exec"), body, repeatable=True)
        return Process(self, str(answer["exec_id"]))

    async def process(self, exec_id: str) -> Process:
        """A command by its id, from any process, minutes or hours later. NotFound when there is none."""
        await self._client._transport.json("GET", self._path(f"/exec/{segment(exec_id)}"))
        return Process(self, exec_id)

    async def processes(self) -> List[ExecInfo]:
        """The commands that the server knows of this sandbox."""
        body = await self._client._transport.json("GET", self._path("/exec"))
        items = body.get("items", []) if isinstance(body, dict) else body
        return [ExecInfo(str(i.get("exec_id", "")), str(i.get("state", "")), i) for i in items]

    def session(self, name: Optional[str] = None) -> "Session":
        """A shell session: its commands share working directory and variables, and functions where there is bash.

        As an async context manager it ends the session's shell at the end of the
        block. ``name`` finds a session again from another process.
        """
        return Session(self, name or f"s-{uuid.uuid4().hex[:12]}")

    async def pty(
        self,
        command: Union[str, Sequence[str], None] = None,
        *,
        rows: int = 24,
        columns: int = 80,
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
    ) -> Pty:
        """Opens a terminal; without a command, a login shell."""
        what: Dict[str, Any]
        if command is None:
            what = {"shell": "exec ${SHELL:-/bin/bash} -l 2>/dev/null || exec /bin/sh -l"}
        else:
            what = {"shell": command} if isinstance(command, str) else {"argv": list(command)}
        body = command_json(what, cwd=cwd, env={"TERM": "xterm-256color", **(env or {})}, user=user)
        return await Pty.start(self, body, rows, columns)

    def expose(self, port: int) -> "Port":
        """An HTTP server inside, by its port on the sandbox's 127.0.0.1."""
        return Port(self, port)


class Session:
    """A shell session. See :meth:`Sandbox.session`."""

    def __init__(self, sandbox: Sandbox, name: str) -> None:
        self._sandbox = sandbox
        self.name = name

    async def __aenter__(self) -> "Session":
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        await asyncio.shield(self.close())

    async def run_shell(self, command: str, **options: Any) -> CommandResult:
        """As :meth:`Sandbox.run_shell`, in this session. One command at a time."""
        return await self._sandbox.run_shell(command, session=self.name, **options)

    async def close(self) -> None:
        """Ends the session's shell. A session that is gone already is no error."""
        try:
            await self._sandbox._client._transport.bytes("DELETE", self._sandbox._path(f"/sessions/{segment(self.name)}"))
        except DSecError as failure:
            if failure.code not in ("not_found", "conflict"):
                raise


class Port:
    """An HTTP port of a sandbox."""

    def __init__(self, sandbox: Sandbox, port: int) -> None:
        self._sandbox = sandbox
        self.port = port

    @property
    def url(self) -> str:
        """The address for programs; requests to it need the API key in ``headers``."""
        return f"{self._sandbox._client.url}{self._sandbox._path(f'/ports/{self.port}')}"

    @property
    def headers(self) -> Dict[str, str]:
        """What a request to ``url`` must carry. Never reaches the sandbox."""
        key = self._sandbox._client._transport.endpoint.api_key
        return {"Authorization": f"Bearer {key}"} if key else {}

    async def request(
        self, method: str, path: str = "/", *, data: Optional[bytes] = None, headers: Optional[Mapping[str, str]] = None
    ) -> "PortResponse":
        """One request to the server inside; any status is an answer."""
        transport = self._sandbox._client._transport
        target = self._sandbox._path(f"/ports/{self.port}") + (path if path.startswith("/") else "/" + path)
        async with transport.session.request(method, transport.url(target), data=data, headers=dict(headers or {}),
                                             allow_redirects=False) as response:
            return PortResponse(response.status, dict(response.headers), await response.read())

    async def get(self, path: str = "/") -> "PortResponse":
        return await self.request("GET", path)


class PortResponse:
    """What a server inside a sandbox answered. Its content is hostile."""

    def __init__(self, status: int, headers: Dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")


def command_json(what: Mapping[str, Any], **options: Any) -> Dict[str, Any]:
    """The body of an exec, without what is unset."""
    body: Dict[str, Any] = dict(what)
    for key in ("cwd", "user", "output_limit_bytes", "session"):
        if options.get(key) is not None:
            body[key] = options[key]
    if options.get("env"):
        body["env"] = dict(options["env"])
    if options.get("timeout") is not None:
        if options["timeout"] <= 0:
            raise ValueError("timeout must be positive")
        body["timeout_ms"] = max(1, int(options["timeout"] * 1000))
    stdin = options.get("stdin")
    if isinstance(stdin, bytes):
        try:
            stdin = stdin.decode("utf-8")
        except UnicodeDecodeError:
            import base64

            body["stdin_base64"] = base64.b64encode(stdin).decode()
            stdin = None
    if stdin is not None:
        body["stdin"] = stdin
    return body


def ended_error(info: Mapping[str, Any]) -> SandboxEnded:
    """The exception for a sandbox that ended where a running one was wanted."""
    cause = str(info.get("cause") or "unknown")
    detail = str(info.get("end_detail") or info.get("detail") or "")
    infra = bool(info.get("infra", False))
    return SandboxEnded(
        f"sandbox {info.get('id', '')} ended: {cause}" + (f" ({detail})" if detail else ""),
        cause=cause, infra=infra, retryable=infra, retry="new_key" if infra else "never", details=dict(info))
