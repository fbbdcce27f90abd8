"""What the server answers, as types."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any, Mapping, Optional

from .errors import CommandFailed


@dataclass(frozen=True)
class BulkResult:
    """What became of one sandbox in a call for many; ``error_code`` is empty where it went well."""

    id: str
    name: str
    state: str
    error_code: str = ""
    error_message: str = ""

    @property
    def ok(self) -> bool:
        return not self.error_code

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> "BulkResult":
        error = body.get("error") or {}
        return cls(
            id=str(body["id"]), name=str(body.get("name", "")), state=str(body["state"]),
            error_code=str(error.get("code", "")), error_message=str(error.get("message", "")))


@dataclass(frozen=True)
class CommandResult:
    """How a command ended, and what it printed.

    ``stdout`` and ``stderr`` are text (UTF-8, U+FFFD for bad bytes);
    ``stdout_bytes`` and ``stderr_bytes`` are exact. ``truncated`` says that output
    passed its limit. A command that a signal ended has ``exit_code`` 128 + number,
    as in a shell, and the name in ``signal``; one that ran out of time has
    ``timed_out`` and 124. Times are in milliseconds.
    """

    exec_id: str
    status: str
    exit_code: int
    stdout: str
    stderr: str
    signal: Optional[str] = None
    truncated: bool = False
    timed_out: bool = False
    duration_ms: float = 0.0
    #: True when the platform, not the command, is to blame; a trainer masks it.
    infra: bool = False
    stdout_bytes: bytes = b""
    stderr_bytes: bytes = b""
    #: The whole answer, with the server's further measurements.
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def ok(self) -> bool:
        """The command ended by itself with 0."""
        return self.exit_code == 0 and not self.timed_out and self.signal is None

    @property
    def trainable(self) -> bool:
        """The outcome is the agent's own and may be scored."""
        return not self.infra

    def check(self) -> "CommandResult":
        """Returns self, or raises :class:`~libdsec.CommandFailed` when the command did not end with 0."""
        if self.ok:
            return self
        how = "ran out of time" if self.timed_out else f"was ended by {self.signal}" if self.signal else f"ended with {self.exit_code}"
        tail = str(self.raw.get("error") or (self.stderr or self.stdout).strip()[-500:])
        raise CommandFailed(f"the command {how}" + (f": {tail}" if tail else ""), self)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> "CommandResult":
        stdout, stdout_bytes = _output(body, "stdout")
        stderr, stderr_bytes = _output(body, "stderr")
        timed_out = bool(body.get("timed_out", False))
        number, name = _signal(body.get("signal"))
        exit_code = body.get("exit_code")
        if timed_out:
            exit_code = 124
        elif exit_code is None:
            exit_code = 128 + number if name else 125
        return cls(
            exec_id=str(body.get("exec_id", "")),
            status=str(body.get("status") or body.get("state") or ""),
            exit_code=int(exit_code),
            stdout=stdout,
            stderr=stderr,
            signal=name,
            truncated=bool(body.get("truncated", False)),
            timed_out=timed_out,
            duration_ms=float(body.get("duration_ms") or 0),
            infra=bool(body.get("infra", False)),
            stdout_bytes=stdout_bytes,
            stderr_bytes=stderr_bytes,
            raw=dict(body),
        )


@dataclass(frozen=True)
class FileInfo:
    """One file inside a sandbox."""

    path: str
    type: str  #: file, directory, symlink, device, fifo or socket
    size: int  #: bytes
    mode: int  #: permission bits
    uid: int = 0
    gid: int = 0
    user: str = ""
    group: str = ""
    mtime: float = 0.0  #: Unix time in seconds
    target: str = ""  #: of a symlink

    @property
    def name(self) -> str:
        return self.path.rstrip("/").rsplit("/", 1)[-1]

    @property
    def is_dir(self) -> bool:
        return self.type == "directory"

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> "FileInfo":
        mode = body.get("mode", 0)
        mtime = float(body["mtime_ms"]) / 1e3 if "mtime_ms" in body else float(body.get("mtime_ns", 0)) / 1e9
        return cls(
            path=exact_name(body, "path") or exact_name(body, "name"),
            type=str(body.get("type", "file")),
            size=int(body.get("size", body.get("size_bytes", 0))),
            mode=int(mode, 8) if isinstance(mode, str) else int(mode),
            uid=int(body.get("uid", 0)),
            gid=int(body.get("gid", 0)),
            user=str(body.get("user", "")),
            group=str(body.get("group", "")),
            mtime=mtime,
            target=str(body.get("target", "")),
        )


@dataclass(frozen=True)
class WatchEvent:
    """Something happened to a file. ``overflow`` means that events were lost: look again."""

    kind: str  #: create, write, remove, rename, chmod or overflow
    path: str


@dataclass(frozen=True)
class Layer:
    """One imported, immutable layer."""

    digest: str
    kind: str
    size_bytes: int = 0
    content_bytes: int = 0
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> "Layer":
        record = body.get("layer") if isinstance(body.get("layer"), dict) else body
        return cls(
            digest=str(record.get("digest", "")),
            kind=str(record.get("kind", "")),
            size_bytes=int(record.get("size_bytes", 0)),
            content_bytes=int(record.get("content_bytes", 0)),
            raw=dict(body),
        )


@dataclass(frozen=True)
class Checkpoint:
    """A sandbox's files at one moment; with a ``name`` it is a snapshot. ``bytes`` are those of what was written."""

    id: str
    sandbox: str
    parent: Optional[str] = None  #: id of the checkpoint that these files came from
    name: Optional[str] = None
    bytes: int = 0
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> "Checkpoint":
        return cls(
            id=str(body["checkpoint_id"]),
            sandbox=str(body.get("sandbox", "")),
            parent=body.get("parent"),
            name=body.get("name"),
            bytes=int(body.get("bytes", 0)),
            raw=dict(body),
        )


@dataclass(frozen=True)
class ExecInfo:
    """A command as the server lists it: ``state`` is running, exited, …"""

    exec_id: str
    state: str
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)


def exact_name(body: Mapping[str, Any], key: str) -> str:
    """A file name with its exact bytes (surrogateescape), when the text form lost some."""
    exact = body.get(key + "_base64")
    if exact:
        return base64.b64decode(exact).decode("utf-8", "surrogateescape")
    return str(body.get(key, ""))


def _output(body: Mapping[str, Any], key: str) -> "tuple[str, bytes]":
    exact = body.get(key + "_base64")
    text = body.get(key)
    if exact is not None:
        data = base64.b64decode(exact)
        return (text if isinstance(text, str) else data.decode("utf-8", "replace")), data
    text = text or ""
    return text, text.encode("utf-8")


def _signal(value: Any) -> "tuple[int, Optional[str]]":
    import signal as signals

    if value in (None, "", 0):
        return 0, None
    try:
        if isinstance(value, int):
            return value, signals.Signals(value).name
        name = str(value) if str(value).startswith("SIG") else "SIG" + str(value)
        return int(signals.Signals[name]), name
    except (ValueError, KeyError):
        return (value, f"SIG{value}") if isinstance(value, int) else (0, str(value))


def event_from_json(body: Mapping[str, Any]) -> WatchEvent:
    return WatchEvent(kind=str(body.get("kind", body.get("type", ""))), path=exact_name(body, "path"))


