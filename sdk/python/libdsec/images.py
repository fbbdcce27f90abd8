"""Images and layers: what sandboxes are made of."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable, Dict, List, Mapping, Optional, Union

from .dockerignore import DockerIgnore
from .errors import DSecError, error_from_response
from .results import Layer
from .tar_stream import tar_stream
from .transport import segment

if TYPE_CHECKING:
    from .client import DSecClient

Source = Union[str, "os.PathLike[str]"]


@dataclass(frozen=True)
class ImportProgress:
    """How far an import is. ``stage``: send, receive, unpack, read, build or publish. Bytes; total 0 = unknown."""

    stage: str
    done_bytes: int
    total_bytes: int = 0


ProgressCallback = Callable[[ImportProgress], None]


class _Catalogue:
    _what = ""

    def __init__(self, client: "DSecClient") -> None:
        self._client = client

    async def list(self) -> List[Dict[str, Any]]:
        """All of them, as the contract's objects."""
        items: List[Dict[str, Any]] = []
        cursor = None
        while True:
            body = await self._client._transport.json("GET", f"/v1/{self._what}", query={"cursor": cursor})
            items.extend(body.get("items", []))
            cursor = body.get("next_cursor") or None
            if cursor is None:
                return items

    async def get(self, ref: str) -> Dict[str, Any]:
        """One by name or digest. NotFound when there is none."""
        return dict(await self._client._transport.json("GET", f"/v1/{self._what}/{segment(ref)}"))

    async def remove(self, ref: str) -> None:
        """Conflict while a sandbox uses it."""
        await self._client._transport.bytes("DELETE", f"/v1/{self._what}/{segment(ref)}")

    async def _import(
        self, name: str, source: Source, query: Mapping[str, Any], owner: Optional[str], progress: Optional[ProgressCallback],
        authfile: Optional[Union[str, "os.PathLike[str]"]] = None,
    ) -> Layer:
        text = os.fspath(source)
        if authfile is not None and not text.startswith("docker://"):
            raise ValueError("authfile goes with docker://")
        transport = self._client._transport
        query = {"name": name, **query}
        data: Any = None
        headers: Dict[str, str] = {}
        if authfile is not None:
            query["source"] = text
            data = _one_part(Path(authfile).read_bytes())
            headers["Content-Type"] = "application/json"
        elif text.startswith(("debian:", "docker://")):
            query["source"] = text
        else:
            data = _source_stream(text, query, owner, progress)
            headers["Content-Type"] = "application/x-tar"
        answer = await transport.json("POST", f"/v1/{self._what}", None, query=query, headers=headers) if data is None else \
            await self._send(query, data, headers)
        return Layer.from_json(await finish_operation(self._client, answer, progress))

    async def _send(self, query: Mapping[str, Any], data: AsyncIterator[bytes], headers: Mapping[str, str]) -> Any:
        answer = await self._client._transport.bytes(
            "POST", f"/v1/{self._what}", data, query=query, headers=headers, repeatable=False)
        return json.loads(answer) if answer else {}


async def finish_operation(client: "DSecClient", answer: Any, progress: Optional[ProgressCallback]) -> Mapping[str, Any]:
    """Follows an operation to its end, when the answer is one."""
    if not isinstance(answer, dict):
        return {}
    operation = answer.get("operation_id") or (answer.get("operation") or {}).get("id")
    pause = 0.1
    while operation:
        body = await client._transport.json("GET", f"/v1/operations/{segment(str(operation))}", query={"wait_ms": 10_000})
        state = str(body.get("state", ""))
        if progress is not None and isinstance(body.get("progress"), dict):
            p = body["progress"]
            progress(ImportProgress(str(p.get("stage", "")), int(p.get("done_bytes", 0)), int(p.get("total_bytes", 0))))
        if state in ("succeeded", "done"):
            result = body.get("result")
            return result if isinstance(result, dict) else body
        if state in ("failed", "cancelled"):
            raise error_from_response(int((body.get("error") or {}).get("status", 500)), body)
        await asyncio.sleep(pause)
        pause = min(1.0, pause * 1.5)
    if "error" in answer:
        raise error_from_response(500, answer)
    return answer


async def _one_part(data: bytes) -> AsyncIterator[bytes]:
    yield data


class Images(_Catalogue):
    """``client.images``: bases, by name."""

    _what = "images"

    async def import_(
        self,
        name: str,
        source: Source,
        *,
        owner: Optional[str] = None,
        profile: Optional[str] = None,
        architecture: Optional[str] = None,
        authfile: Optional[Union[str, "os.PathLike[str]"]] = None,
        progress: Optional[ProgressCallback] = None,
    ) -> Layer:
        """Imports a base under ``name`` ("debian:12").

        ``source`` is read here and streamed: a directory, a tar (plain, gzip,
        zstd, xz), ``oci:PATH`` or ``docker-archive:PATH``. ``debian:SUITE[,package…]``
        is built by the server, ``docker://REGISTRY/NAME:TAG`` pulled by it, with the
        credentials of ``authfile`` (read here, kept nowhere). ``architecture`` chooses
        among the images of one name, as OCI calls it ("arm64"). ``owner`` ("0:0") replaces the owners of a directory.
        ``profile`` is how content is stored: "lz4" (default) or "plain".
        ``progress`` is called now and then, on the event loop.
        """
        return await self._import(name, source, {"profile": profile, "architecture": architecture}, owner, progress, authfile)


    async def build(
        self,
        context: Source,
        name: str,
        *,
        dockerfile: Optional[Union[str, "os.PathLike[str]"]] = None,
        args: Optional[Mapping[str, str]] = None,
        target: Optional[str] = None,
        secrets: Optional[Mapping[str, bytes]] = None,
        services: Optional[List[str]] = None,
        no_cache: bool = False,
        resources: Optional[Mapping[str, Any]] = None,
        timeout_seconds: Optional[int] = None,
        profile: Optional[str] = None,
        on_output: Optional[Callable[[str], None]] = None,
    ) -> Layer:
        """Builds an image from a Dockerfile; its commands run in sandboxes. For keys of builders.

        ``context`` is a directory, sent but for what its ``.dockerignore`` names;
        ``dockerfile`` a path, ``context/Dockerfile`` unless given. ``secrets`` are
        files of ``RUN --mount=type=secret``, by id. ``services`` is what commands may
        reach. ``on_output`` is called with what they print. A failing command is an
        InvalidArgument that names its line, exit code and last output.
        """
        root = Path(os.fspath(context))
        file = Path(os.fspath(dockerfile)) if dockerfile is not None else root / "Dockerfile"
        body: Dict[str, Any] = {"name": name, "dockerfile": file.read_text()}
        ignore = DockerIgnore()
        for path in (Path(str(file) + ".dockerignore"), root / ".dockerignore"):
            if path.is_file():
                ignore = DockerIgnore(path.read_text())
                break
        sent = await self._client._transport.bytes(
            "POST", "/v1/builds/contexts", tar_stream(root, owner="0:0", skip=ignore.ignores),
            headers={"Content-Type": "application/x-tar"}, repeatable=False)
        body["context"] = json.loads(sent)["context"]
        if secrets:
            body["secrets"] = {id: base64.b64encode(text).decode() for id, text in secrets.items()}
        given = {"args": dict(args or {}), "target": target, "services": list(services or []), "no_cache": no_cache,
                 "resources": dict(resources or {}), "timeout_seconds": timeout_seconds, "profile": profile}
        body.update({field: value for field, value in given.items() if value})
        answer = await self._client._transport.json("POST", "/v1/builds", body)
        if on_output is not None:
            await self._print_output(str(answer["operation_id"]), on_output)
        return Layer.from_json(await finish_operation(self._client, answer, None))

    async def _print_output(self, operation: str, on_output: Callable[[str], None]) -> None:
        rest = b""
        async for part in self._client._transport.stream("GET", f"/v1/operations/{segment(operation)}/events"):
            rest += part
            *lines, rest = rest.split(b"\n")
            for line in lines:
                event = json.loads(line[5:]) if line.startswith(b"data:") else {}
                if "offset" in event:
                    on_output(str(event["text"]))


class Layers(_Catalogue):
    """``client.layers``: bases, workspaces, toolkits, diffs and verifiers, by name or digest."""

    _what = "layers"

    async def import_(
        self,
        name: str,
        source: Source,
        *,
        kind: str,
        at: Optional[str] = None,
        owner: Optional[str] = "0:0",
        profile: Optional[str] = None,
        progress: Optional[ProgressCallback] = None,
    ) -> Layer:
        """Imports a layer: ``kind`` is base, workspace, toolkit or verifier, ``at`` where it stands inside ("/work/project")."""
        return await self._import(name, source, {"kind": kind, "at": at, "profile": profile}, owner, progress)

    async def verify(self, ref: str) -> Dict[str, Any]:
        """Reads the whole layer and compares it with its digest. DataFault when it differs."""
        return dict(await self._client._transport.json("POST", f"/v1/layers/{segment(ref)}/verify", {}) or {})

    async def optimize(
        self,
        ref: str,
        *,
        name: Optional[str] = None,
        kind: Optional[str] = None,
        trace: Optional[Union[str, "os.PathLike[str]"]] = None,
        progress: Optional[ProgressCallback] = None,
    ) -> Layer:
        """Rewrites a layer so that what is read of it first lies first, and returns the result.

        By the access traces that nodes have left in the shared store, or by the file
        ``trace``; NotFound when the store has none. ``ref`` then names the result,
        unless ``name`` is given; a digest needs one. ``raw`` of the result has
        ``optimized_from``, ``touched_bytes`` and ``hot_bytes``. For keys of builders.
        """
        body = {} if trace is None else {"trace": base64.b64encode(Path(trace).read_bytes()).decode()}
        answer = await self._client._transport.json(
            "POST", f"/v1/layers/{segment(ref)}/optimize", body, query={"kind": kind, "name": name})
        return Layer.from_json(await finish_operation(self._client, answer, progress))

    async def promote(self, ref: str, *, kind: Optional[str] = None, name: Optional[str] = None) -> Layer:
        """Takes a packed layer out of quarantine; ``name`` is what it is called from then on. For keys of builders."""
        answer = await self._client._transport.json(
            "POST", f"/v1/layers/{segment(ref)}/promote", {}, query={"kind": kind, "name": name})
        return Layer.from_json(answer)


async def _source_stream(
    text: str, query: Mapping[str, Any], owner: Optional[str], progress: Optional[ProgressCallback]
) -> AsyncIterator[bytes]:
    path = text
    if text.startswith(("oci:", "docker-archive:")):
        scheme, path = text.split(":", 1)
        query["format"] = "oci" if scheme == "oci" else "docker"  # type: ignore[index]
    source = Path(path)
    total = source.stat().st_size if source.is_file() else 0
    if source.is_dir():
        parts = tar_stream(source, owner=owner)
    elif source.is_file():
        parts = _file_parts(source)
    else:
        raise DSecError(f"no such file or directory: {path}", code="not_found")
    done = 0
    async for part in parts:
        done += len(part)
        if progress is not None:
            progress(ImportProgress("send", done, total))
        yield part


async def _file_parts(source: Path) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    with open(source, "rb") as stream:
        while True:
            part = await loop.run_in_executor(None, stream.read, 1 << 18)
            if not part:
                return
            yield part
