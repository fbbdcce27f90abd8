"""Directory trees as tar streams, in constant memory, both ways."""

from __future__ import annotations

import asyncio
import io
import os
import queue
import tarfile
import threading
from pathlib import Path
from typing import AsyncIterator, BinaryIO, Callable, List, Optional

_CHUNK = 1 << 18


class _Pieces(io.RawIOBase):
    """A write end whose bytes are taken piece by piece."""

    def __init__(self) -> None:
        self.pieces: List[bytes] = []
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.pieces.append(bytes(data))
        self.size += len(data)
        return len(data)

    def take(self) -> bytes:
        data, self.pieces, self.size = b"".join(self.pieces), [], 0
        return data


def tar_members(root: Path) -> "List[str]":
    """Names below ``root`` in a stable order, directories before what is in them."""
    names: List[str] = []
    for directory, subdirectories, files in os.walk(root):
        subdirectories.sort()
        relative = os.path.relpath(directory, root)
        here = "" if relative == "." else relative + "/"
        names.extend(here + name for name in sorted(subdirectories + files))
    return names


async def tar_stream(
    root: Path, *, owner: Optional[str] = None, skip: Optional[Callable[[str], bool]] = None
) -> AsyncIterator[bytes]:
    """The tree below ``root`` as an uncompressed tar, with names relative to it.

    ``owner`` ("uid:gid") replaces the local owners. Sockets are left out, and the
    names that ``skip`` says.
    """
    loop = asyncio.get_running_loop()
    uid_gid = None if owner is None else tuple(int(part) for part in owner.split(":"))

    def adopt(info: tarfile.TarInfo) -> tarfile.TarInfo:
        if uid_gid is not None:
            info.uid, info.gid = uid_gid
        info.uname = info.gname = ""
        return info

    out = _Pieces()
    tar = tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT, bufsize=_CHUNK)  # type: ignore[call-overload]
    for name in await loop.run_in_executor(None, tar_members, root):
        if skip is not None and skip(name):
            continue
        path = root / name
        info = tar.gettarinfo(str(path), arcname=name)
        if info is None:
            continue
        tar.addfile(adopt(info)) if not info.isreg() else None
        if info.isreg():
            with open(path, "rb") as content:
                adopt(info)
                # A header now, the content by hand: a large file is never in memory.
                head = info.tobuf(tar.format, tar.encoding, tar.errors)
                tar.fileobj.write(head)  # type: ignore[union-attr]
                tar.offset += len(head)  # type: ignore[attr-defined]
                left = info.size
                while left:
                    part = await loop.run_in_executor(None, content.read, min(_CHUNK, left))
                    if not part:  # it shrank: the promised length is kept
                        part = b"\0" * min(_CHUNK, left)
                    left -= len(part)
                    tar.fileobj.write(part)  # type: ignore[union-attr]
                    if out.size >= _CHUNK:
                        yield out.take()
                padding = -info.size % tarfile.BLOCKSIZE
                tar.fileobj.write(b"\0" * padding)  # type: ignore[union-attr]
                tar.offset += info.size + padding  # type: ignore[attr-defined]
        if out.size >= _CHUNK:
            yield out.take()
    tar.close()
    yield out.take()


class _QueueReader(io.RawIOBase):
    """Reads what the loop puts into a queue and says so for each part; None is the end."""

    def __init__(self, parts: "queue.SimpleQueue[Optional[bytes]]", taken: Callable[[], None]) -> None:
        self._parts = parts
        self._taken = taken
        self._rest = b""
        self._ended = False

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while not self._ended and (size < 0 or len(self._rest) < size):
            part = self._parts.get()
            if part is None:
                self._ended = True
            else:
                self._rest += part
                self._taken()
        if size < 0:
            size = len(self._rest)
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


def safe_target(root: Path, name: str) -> Path:
    """``root``/``name``, or ValueError when that would stand outside ``root``.

    Links that earlier members made are followed by the check, so that a link
    out of the tree cannot carry a later file there.
    """
    target = root / name
    parent = os.path.realpath(target.parent)
    real_root = os.path.realpath(root)
    if os.path.isabs(name) or ".." in name.split("/") or not (parent + "/").startswith(real_root.rstrip("/") + "/"):
        raise ValueError(f"archive member leads out of the target: {name!r}")
    return target


def extract_tar(stream: BinaryIO, root: Path) -> None:
    """Unpacks a tar of a hostile origin below ``root``: no owners, devices, setuid bits or ways out."""
    directories = []
    with tarfile.open(fileobj=stream, mode="r|*") as tar:
        for member in tar:
            name = member.name.rstrip("/")
            while name.startswith("./"):
                name = name[2:]
            if name in ("", "."):
                continue
            target = safe_target(root, name)
            if member.isdir():
                if target.is_symlink():
                    target.unlink()
                target.mkdir(parents=True, exist_ok=True)
                directories.append((target, member.mode & 0o777))
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.is_symlink() or (target.exists() and not target.is_dir()):
                target.unlink()
            if member.issym():
                os.symlink(member.linkname, target)
            elif member.islnk():
                link = member.linkname[2:] if member.linkname.startswith("./") else member.linkname
                source = safe_target(root, link)
                if source.is_symlink() or not source.is_file():
                    raise ValueError(f"hard link to no regular file: {member.linkname!r}")
                os.link(source, target)
            elif member.isreg():
                content = tar.extractfile(member)
                assert content is not None
                fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
                with open(fd, "wb") as out:
                    while True:
                        part = content.read(_CHUNK)
                        if not part:
                            break
                        out.write(part)
                os.chmod(target, member.mode & 0o777)
    for path, mode in reversed(directories):
        os.chmod(path, mode | 0o700)


async def extract_stream(parts: AsyncIterator[bytes], root: Path) -> None:
    """Unpacks a tar stream below ``root`` as it arrives, in a thread of its own.

    Not in the loop's executor: its few threads would be held by extractions that
    wait for the very parts whose reading needs a thread.
    """
    loop = asyncio.get_running_loop()
    room = asyncio.Semaphore(16)  # parts between the loop and the thread
    handoff: "queue.SimpleQueue[Optional[bytes]]" = queue.SimpleQueue()
    done: "asyncio.Future[None]" = loop.create_future()

    def finish(failure: Optional[BaseException]) -> None:
        room.release()
        if not done.done():
            done.set_result(None) if failure is None else done.set_exception(failure)

    def taken() -> None:
        loop.call_soon_threadsafe(room.release)

    def work() -> None:
        failure: Optional[BaseException] = None
        try:
            extract_tar(_QueueReader(handoff, taken), root)
        except BaseException as error:  # handed over whole to who waits
            failure = error
        try:
            loop.call_soon_threadsafe(finish, failure)
        except RuntimeError:
            pass  # the loop has gone, and with it whoever waited

    threading.Thread(target=work, name="libdsec-extract", daemon=True).start()
    try:
        async for part in parts:
            await room.acquire()
            if done.done():
                break
            handoff.put(part)
    finally:
        handoff.put(None)
    await done
