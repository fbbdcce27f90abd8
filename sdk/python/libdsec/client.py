"""DSecClient: the way in."""

from __future__ import annotations

import asyncio
import json
import uuid
from types import TracebackType
from typing import Any, AsyncIterator, Dict, List, Mapping, Optional, Sequence, Type, Union

from .args import DSecContainerRunArgs, DSecFullVMRunArgs, DSecMicroVMRunArgs, DSecRunArgs
from .config import resolve_endpoint
from .errors import DeadlineExceeded, DSecError
from .images import Images, Layers
from .results import BulkResult, Checkpoint
from .sandbox import Sandbox, ended_error
from .transport import Transport, segment

_ALIVE = ("queued", "placing", "starting", "resuming", "pausing")


class Group:
    """The outcome of :meth:`DSecClient.create_group`: what runs, and what went wrong."""

    def __init__(self, sandboxes: Sequence[Sandbox], errors: Mapping[int, DSecError]) -> None:
        #: The running ones, in the order of their arguments.
        self.sandboxes: List[Sandbox] = list(sandboxes)
        #: Position of the arguments -> why there is no sandbox.
        self.errors: Dict[int, DSecError] = dict(errors)

    def __len__(self) -> int:
        return len(self.sandboxes)

    def __iter__(self) -> Any:
        return iter(self.sandboxes)

    async def __aenter__(self) -> "Group":
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await asyncio.shield(self.stop())

    async def stop(self) -> None:
        """Stops all of them; the first failure is raised after all were tried."""
        outcomes = await asyncio.gather(*(s.stop() for s in self.sandboxes), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome


class DSecClient:
    """A client of one server. Used by one event loop; :mod:`libdsec.sync` has the blocking twin.

    Without arguments it finds the server and the key by ``DSEC_URL`` and
    ``DSEC_API_KEY``, then by the context that ``dsec login`` wrote, then a server
    on this machine. ``max_connections`` bounds the sockets; every waiting command
    holds one, so it bounds how many commands run at once from this process.
    """

    def __init__(
        self,
        url: Optional[str] = None,
        api_key: Optional[str] = None,
        *,
        max_connections: int = 1024,
        connect_timeout: float = 10.0,
        fence: Optional[int] = None,
    ) -> None:
        self._transport = Transport(
            resolve_endpoint(url, api_key), max_connections=max_connections, connect_timeout=connect_timeout, fence=fence)
        self.images = Images(self)
        self.layers = Layers(self)

    @property
    def url(self) -> str:
        return self._transport.endpoint.url

    async def open(self) -> "DSecClient":
        """Opens the connection pool. Nothing is sent."""
        await self._transport.open()
        return self

    async def close(self) -> None:
        await self._transport.close()

    async def __aenter__(self) -> "DSecClient":
        return await self.open()

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.close()

    # Create ---------------------------------------------------------------

    async def run_container(
        self, args: DSecContainerRunArgs, timeout: float = 120, *, idempotency_key: Optional[str] = None
    ) -> Sandbox:
        """Creates a container and returns when it runs.

        ``timeout`` is in seconds. When it passes, DeadlineExceeded is raised and
        what was begun is removed. ``idempotency_key``: the same key gives the same
        sandbox for 24 h, so that a create whose answer was lost is not done twice;
        one is made up for each call.

        Errors: NotFound (no such image or layer), Exhausted (no room now),
        InvalidArgument, SandboxEnded (it started and ended; ``cause`` says why).
        """
        return await self.create(args, timeout, idempotency_key=idempotency_key)

    async def run_microvm(
        self, args: DSecMicroVMRunArgs, timeout: float = 120, *, idempotency_key: Optional[str] = None
    ) -> Sandbox:
        """As :meth:`run_container`, as a microVM. Unsupported where the server has none."""
        return await self.create(args, timeout, idempotency_key=idempotency_key)

    async def run_fullvm(
        self, args: DSecFullVMRunArgs, timeout: float = 300, *, idempotency_key: Optional[str] = None
    ) -> Sandbox:
        """As :meth:`run_container`, as a full VM. Unsupported where the server has none."""
        return await self.create(args, timeout, idempotency_key=idempotency_key)

    async def create(
        self, args: DSecRunArgs, timeout: float = 120, *, idempotency_key: Optional[str] = None
    ) -> Sandbox:
        """Creates a sandbox of the arguments' backend. See :meth:`run_container`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        key = idempotency_key or f"py-{uuid.uuid4().hex}"
        body = args.to_json()
        info: Dict[str, Any] = {}
        try:
            while True:
                left = max(0.0, deadline - loop.time())
                body["wait_ms"] = int(min(30.0, left) * 1000)
                # The same key waits on for the same sandbox.
                info = dict(await self._transport.json(
                    "POST", "/v1/sandboxes", body, headers={"Idempotency-Key": key}, repeatable=True, timeout=left + 2))
                state = info.get("state")
                if state == "ended":
                    raise ended_error(info)
                if state not in _ALIVE:
                    return Sandbox(self, info)
                if loop.time() >= deadline:
                    raise DeadlineExceeded(
                        f"sandbox {info.get('id')} is still {state} after {timeout:g} s", retryable=True, retry="new_key")
        except (DeadlineExceeded, asyncio.CancelledError):
            if info.get("id") and info.get("state") != "ended":
                await asyncio.shield(Sandbox(self, info).stop())
            raise

    async def create_group(
        self,
        args: Union[DSecRunArgs, Sequence[DSecRunArgs]],
        count: Optional[int] = None,
        *,
        timeout: float = 120,
        min_ready: Optional[int] = None,
        concurrency: int = 64,
    ) -> Group:
        """Creates many at once: ``count`` of one kind, or one for each of a list.

        Returns when each runs or has failed. When fewer than ``min_ready``
        (default: all) run, those that do are stopped and the first error is
        raised; otherwise the group has both, sandboxes and errors.
        """
        wanted = [args] * (1 if count is None else count) if isinstance(args, DSecRunArgs) else list(args)
        gate = asyncio.Semaphore(concurrency)

        async def one(each: DSecRunArgs) -> Sandbox:
            async with gate:
                return await self.create(each, timeout)

        tasks = [asyncio.ensure_future(one(each)) for each in wanted]
        try:
            await asyncio.wait(tasks) if tasks else None
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(*(o.stop() for o in outcomes if isinstance(o, Sandbox)), return_exceptions=True)
            raise
        sandboxes: List[Sandbox] = []
        errors: Dict[int, DSecError] = {}
        for position, task in enumerate(tasks):
            failure = task.exception()
            if failure is None:
                sandboxes.append(task.result())
            elif isinstance(failure, DSecError):
                errors[position] = failure
            else:
                errors[position] = DSecError(f"{type(failure).__name__}: {failure}")
        group = Group(sandboxes, errors)
        if len(sandboxes) < (len(wanted) if min_ready is None else min_ready):
            await group.stop()
            raise next(iter(errors.values()))
        return group

    # Find -----------------------------------------------------------------

    async def get(self, ref: str) -> Sandbox:
        """A sandbox by id, unique id prefix or name. NotFound when there is none."""
        return Sandbox(self, await self._transport.json("GET", f"/v1/sandboxes/{segment(ref)}"))

    async def attach(self, handle: str) -> Sandbox:
        """A sandbox by what :meth:`Sandbox.to_string` gave, in any process; also by id or name."""
        handle = handle.strip()
        if handle.startswith("{"):
            handle = str(json.loads(handle)["id"])
        return await self.get(handle)

    async def snapshots(self, *, sandbox: Optional[str] = None, named: bool = False) -> List[Checkpoint]:
        """Checkpoints and snapshots of the project, oldest first; those of one sandbox, or with a name, alone."""
        found: List[Checkpoint] = []
        cursor = ""
        while True:
            query: Dict[str, Any] = {"limit": 1000, **({"sandbox": sandbox} if sandbox else {}), **({"named": "true"} if named else {})}
            if cursor:
                query["cursor"] = cursor
            page = await self._transport.json("GET", "/v1/snapshots", query=query)
            found += [Checkpoint.from_json(item) for item in page["items"]]
            cursor = page.get("next_cursor") or ""
            if not cursor:
                return found

    async def remove_snapshot(self, ref: str) -> None:
        """Removes a checkpoint (by id) or a snapshot (by name or id); what was made of it runs on."""
        await self._transport.json("DELETE", f"/v1/snapshots/{segment(ref)}")

    async def list(
        self, *, selector: Optional[str] = None, state: Optional[str] = None, limit: Optional[int] = None
    ) -> List[Sandbox]:
        """The project's sandboxes, all pages of them, at most ``limit``.

        ``selector`` as kubectl's ("job=j1,stage!=eval"); ``state``: one state, or
        "all"; without it, all that have not ended.
        """
        found: List[Sandbox] = []
        async for sandbox in self.iterate(selector=selector, state=state):
            found.append(sandbox)
            if limit is not None and len(found) >= limit:
                break
        return found

    async def iterate(self, *, selector: Optional[str] = None, state: Optional[str] = None) -> AsyncIterator[Sandbox]:
        """As :meth:`list`, page by page."""
        cursor: Optional[str] = None
        while True:
            page = await self._transport.json(
                "GET", "/v1/sandboxes", query={"selector": selector, "state": state, "limit": 500, "cursor": cursor})
            for item in page.get("items", []):
                yield Sandbox(self, item)
            cursor = page.get("next_cursor") or None
            if not cursor:
                return

    # Many at once ---------------------------------------------------------

    async def pause_all(
        self,
        selector: Optional[str] = None,
        *,
        all: bool = False,
        deadline: float = 30,
        wake: Optional[str] = None,
        reason: Optional[str] = None,
    ) -> List[BulkResult]:
        """Pauses every sandbox that ``selector`` names, or ``all`` of the project.

        Sandboxes that match and are created later stay queued until :meth:`resume_all`
        with the same selector. Harmless to repeat. After ``deadline`` seconds the
        answer says how far each came; what was begun goes on.
        """
        return await self._bulk("pause", selector, all, deadline, wake=wake, reason=reason)

    async def resume_all(
        self, selector: Optional[str] = None, *, all: bool = False, deadline: float = 30, reason: Optional[str] = None
    ) -> List[BulkResult]:
        """Resumes them, as many at once as the node's memory has room for, and lets those that were held begin."""
        return await self._bulk("resume", selector, all, deadline, reason=reason)

    async def stop_all(
        self, selector: Optional[str] = None, *, all: bool = False, deadline: float = 30, reason: Optional[str] = None
    ) -> List[BulkResult]:
        """Ends them."""
        return await self._bulk("stop", selector, all, deadline, reason=reason)

    async def _bulk(
        self, verb: str, selector: Optional[str], all: bool, deadline: float, **fields: Optional[str]
    ) -> List[BulkResult]:
        body: Dict[str, Any] = {k: v for k, v in fields.items() if v is not None}
        if selector is not None:
            body["selector"] = selector
        if all:
            body["all"] = True
        body["deadline_ms"] = int(deadline * 1000)
        answer = await self._transport.json("POST", f"/v1/sandboxes:{verb}", body, repeatable=True, timeout=deadline + 30)
        return [BulkResult.from_json(item) for item in answer["results"]]

    async def whoami(self) -> Dict[str, Any]:
        """Project and role of the key in use."""
        return dict(await self._transport.json("GET", "/v1/whoami"))

    async def nodes(self) -> List[Dict[str, Any]]:
        body = await self._transport.json("GET", "/v1/nodes")
        return list(body.get("items", []))


def sandbox_from_string(client: DSecClient, handle: str) -> Sandbox:
    """A handle from its text without asking the server; ``refresh()`` fills in the rest."""
    body = json.loads(handle)
    return Sandbox(client, {"id": body["id"]})
