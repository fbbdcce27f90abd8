"""Files inside a sandbox. Paths are resolved there, with the rights of the user given."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, AsyncIterator, List, Optional, Union

from .results import FileInfo, WatchEvent, event_from_json
from .tar_stream import extract_stream, tar_stream

if TYPE_CHECKING:
    from .sandbox import Sandbox

_CHUNK = 1 << 18


class Files:
    """``sandbox.files``. Every call takes ``user``; without it the sandbox's default user acts.

    Errors: :class:`~libdsec.NotFound`, :class:`~libdsec.PermissionDenied`,
    :class:`~libdsec.Conflict` (exists already, not empty) and
    :class:`~libdsec.InvalidArgument` (not a directory, a name too long).
    """

    def __init__(self, sandbox: "Sandbox") -> None:
        self._sandbox = sandbox
        self._transport = sandbox._client._transport

    def _path(self, tail: str = "") -> str:
        return self._sandbox._path("/files" + tail)

    async def read(self, path: str, *, offset: int = 0, length: Optional[int] = None, user: Optional[str] = None) -> bytes:
        """The bytes of a file, all of them or ``length`` from ``offset``."""
        query = {"path": path, "user": user, "offset": offset or None, "length": length}
        return await self._transport.bytes("GET", self._path(), query=query)

    async def read_text(self, path: str, *, encoding: str = "utf-8", user: Optional[str] = None) -> str:
        """A text file. Raises UnicodeDecodeError when it is none."""
        return (await self.read(path, user=user)).decode(encoding)

    async def read_stream(self, path: str, *, user: Optional[str] = None) -> AsyncIterator[bytes]:
        """A file of any size, part by part."""
        async for part in self._transport.stream("GET", self._path(), query={"path": path, "user": user}):
            yield part

    async def write(
        self,
        path: str,
        data: Union[str, bytes, AsyncIterator[bytes]],
        *,
        mode: Optional[int] = None,
        user: Optional[str] = None,
    ) -> None:
        """Writes a file as a whole; makes missing parent directories. ``mode`` are permission bits, as 0o644."""
        body: Any = data.encode() if isinstance(data, str) else data
        query = {"path": path, "user": user, "mode": None if mode is None else f"{mode:o}", "parents": True}
        await self._transport.bytes("PUT", self._path(), body, query=query, headers={"Content-Type": "application/octet-stream"})

    async def stat(self, path: str, *, user: Optional[str] = None) -> FileInfo:
        """What stands at ``path``; a symlink is not followed."""
        body = await self._transport.json("GET", self._path("/stat"), query={"path": path, "user": user})
        return FileInfo.from_json(body)

    async def exists(self, path: str, *, user: Optional[str] = None) -> bool:
        from .errors import NotFound

        try:
            await self.stat(path, user=user)
            return True
        except NotFound:
            return False

    async def list(
        self, path: str = "/", *, recursive: bool = False, limit: Optional[int] = None, user: Optional[str] = None
    ) -> List[FileInfo]:
        """The entries of a directory, by name. The server stops at ``limit`` (default 10,000)."""
        query = {"path": path, "recursive": recursive or None, "limit": limit, "user": user}
        body = await self._transport.json("GET", self._path("/list"), query=query)
        items = body.get("entries", body.get("items", [])) if isinstance(body, dict) else body
        return [FileInfo.from_json(item) for item in items]

    async def mkdir(self, path: str, *, parents: bool = True, mode: Optional[int] = None, user: Optional[str] = None) -> None:
        """Makes a directory. With ``parents`` it may exist already."""
        body = {"path": path, "parents": parents}
        if mode is not None:
            body["mode"] = f"{mode:o}"
        if user is not None:
            body["user"] = user
        await self._transport.json("POST", self._path("/mkdir"), body)

    async def move(self, path: str, target: str, *, user: Optional[str] = None) -> None:
        """Renames. Both names on one file system of the sandbox."""
        body = {"path": path, "target": target}
        if user is not None:
            body["user"] = user
        await self._transport.json("POST", self._path("/move"), body)

    async def remove(self, path: str, *, recursive: bool = False, user: Optional[str] = None) -> None:
        """Removes a file, or a directory: an empty one, or with ``recursive`` any."""
        await self._transport.bytes("DELETE", self._path(), query={"path": path, "recursive": recursive or None, "user": user})

    async def upload(
        self, local: Union[str, "os.PathLike[str]"], path: str, *, user: Optional[str] = None, owner: Optional[str] = "0:0"
    ) -> None:
        """Copies a local file or directory tree to ``path`` inside.

        A directory's content lands in ``path``, which is made. Modes are kept;
        files belong to ``owner`` ("uid:gid"; None keeps the local numbers).
        """
        source = Path(local)
        if source.is_dir():
            await self.mkdir(path, user=user)
            await self._transport.bytes(
                "PUT", self._path("/archive"), tar_stream(source, owner=owner),
                query={"path": path, "user": user}, headers={"Content-Type": "application/x-tar"})
            return
        mode = source.stat().st_mode & 0o7777
        await self.write(path, _read_local(source), mode=mode, user=user)

    async def download(self, path: str, local: Union[str, "os.PathLike[str]"], *, user: Optional[str] = None) -> None:
        """Copies a file or directory tree from inside to ``local``.

        The content of a directory lands in ``local``, which is made. What comes
        out of a sandbox is hostile: names that lead out of ``local``, links out of
        it and devices are refused or left out, and owners are not taken over.
        """
        info = await self.stat(path, user=user)
        target = Path(local)
        if info.is_dir:
            target.mkdir(parents=True, exist_ok=True)
            await extract_stream(
                self._transport.stream("GET", self._path("/archive"), query={"path": path, "user": user}), target)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(target.name + ".partial")
        try:
            with open(partial, "wb") as out:
                async for part in self.read_stream(path, user=user):
                    out.write(part)
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)

    async def watch(self, path: str, *, recursive: bool = False, user: Optional[str] = None) -> AsyncIterator[WatchEvent]:
        """Events below ``path``, as they happen. Leave the loop to stop watching."""
        query = {"path": path, "recursive": recursive or None, "user": user}
        rest = b""
        async for part in self._transport.stream("GET", self._path("/watch"), query=query):
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                line = line[5:].strip() if line.startswith(b"data:") else line.strip()
                if line and line.startswith(b"{"):
                    body = json.loads(line)
                    for event in body.get("events", [body]):
                        if event.get("path") or event.get("kind") == "overflow":
                            yield event_from_json(event)


async def _read_local(source: Path) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    with open(source, "rb") as stream:
        while True:
            part = await loop.run_in_executor(None, stream.read, _CHUNK)
            if not part:
                return
            yield part
