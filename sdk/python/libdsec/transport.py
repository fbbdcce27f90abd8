"""HTTP to the server: one connection pool, typed errors, and retries where they are safe.

A call is tried again only when doing it twice is the same as doing it once:
reads and deletions, calls that carry a key which the server remembers (creates,
commands), and anything for which no connection came about. ``429`` waits as
long as ``Retry-After`` says.
"""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any, AsyncIterator, Callable, Dict, Mapping, Optional, Union
from urllib.parse import quote

import aiohttp

from .config import Endpoint
from .errors import DeadlineExceeded, DSecError, Unavailable, error_from_response

Body = Union[bytes, bytearray, memoryview, AsyncIterator[bytes], Any]

_ATTEMPTS = 5


def segment(text: str) -> str:
    """One path segment, percent-encoded."""
    return quote(text, safe="")


class Transport:
    """The connection to one server. Used by one event loop."""

    def __init__(self, endpoint: Endpoint, *, max_connections: int, connect_timeout: float, fence: Optional[int] = None) -> None:
        self.endpoint = endpoint
        self._fence = fence
        self._max_connections = max_connections
        self._connect_timeout = connect_timeout
        self._session: Optional[aiohttp.ClientSession] = None

    async def open(self) -> None:
        if self._session is not None and not self._session.closed:
            return
        # Below the server's idle timeout of 75 s, so that it never closes under a request.
        connector = aiohttp.TCPConnector(limit=self._max_connections, keepalive_timeout=45, ttl_dns_cache=60)
        headers = {"User-Agent": "libdsec/0.1"}
        if self.endpoint.api_key:
            headers["Authorization"] = f"Bearer {self.endpoint.api_key}"
        if self._fence is not None:
            headers["X-Dsec-Fence"] = str(self._fence)
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=self._connect_timeout),
            auto_decompress=False,
            read_bufsize=1 << 18,
        )

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @property
    def session(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            raise Unavailable("the client is not open: `await client.open()` first, or use `async with DSecClient() as client`")
        return self._session

    def url(self, path: str) -> Any:
        # Encoded here: yarl must not decode what was quoted on purpose.
        from yarl import URL

        return URL(self.endpoint.url + path, encoded=True)

    async def json(
        self,
        method: str,
        path: str,
        body: Optional[Mapping[str, Any]] = None,
        *,
        query: Optional[Mapping[str, Any]] = None,
        headers: Optional[Mapping[str, str]] = None,
        timeout: Optional[float] = None,
        repeatable: Optional[bool] = None,
    ) -> Any:
        """One call with JSON both ways. Returns the decoded answer, None for an empty one.

        ``timeout`` is in seconds and for the whole call with its retries.
        ``repeatable`` overrides whether the call may be sent twice.
        """
        data = None if body is None else json.dumps(body).encode()
        answer = await self.bytes(
            method, path, data, query=query, timeout=timeout, repeatable=repeatable,
            headers={**({"Content-Type": "application/json"} if data is not None else {}), **(headers or {})},
        )
        if not answer:
            return None
        try:
            return json.loads(answer)
        except ValueError:
            raise DSecError(f"{method} {path}: the answer is no JSON: {answer[:200]!r}") from None

    async def bytes(
        self,
        method: str,
        path: str,
        data: Optional[Body] = None,
        *,
        query: Optional[Mapping[str, Any]] = None,
        headers: Optional[Mapping[str, str]] = None,
        timeout: Optional[float] = None,
        repeatable: Optional[bool] = None,
        response_headers: Optional[Callable[[Mapping[str, str]], None]] = None,
    ) -> bytes:
        """Like :meth:`json`, with bytes both ways."""
        if repeatable is None:
            repeatable = method in ("GET", "HEAD", "DELETE", "PUT") and (data is None or isinstance(data, bytes))
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        attempt = 0
        while True:
            attempt += 1
            left = None if deadline is None else deadline - loop.time()
            if left is not None and left <= 0:
                raise DeadlineExceeded(f"{method} {path}: no answer within {timeout:g} s", retryable=True, retry="same_key")
            try:
                async with self.session.request(
                    method,
                    self.url(path),
                    params=None if query is None else encode_query(query),
                    data=data,
                    headers=headers,
                    timeout=aiohttp.ClientTimeout(total=left, sock_connect=self._connect_timeout),
                ) as response:
                    answer = await response.read()
                    if 200 <= response.status < 300:
                        if response_headers is not None:
                            response_headers(response.headers)
                        return answer
                    error = error_from_response(response.status, _decode(answer), response.headers.get("Retry-After"))
                    # Nothing happened on the server when it refuses for capacity.
                    again = response.status == 429 or (repeatable and error.retry == "same_key" and response.status == 503)
            except asyncio.TimeoutError:
                raise DeadlineExceeded(f"{method} {path}: no answer within {timeout:g} s" if timeout is not None else
                                       f"{method} {self.endpoint.url}: cannot connect within {self._connect_timeout:g} s",
                                       retryable=True, retry="same_key") from None
            except aiohttp.ClientConnectorError as failure:
                error = Unavailable(
                    f"cannot reach {self.endpoint.url}: {failure.os_error.strerror or failure}; is `dsec serve` running, and is DSEC_URL right?",
                    retryable=True, infra=True, retry="same_key")
                again = attempt < 3
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as failure:
                error = Unavailable(f"{method} {path}: the connection was lost: {failure}", retryable=True, infra=True, retry="same_key")
                again = repeatable
            if not again or attempt >= _ATTEMPTS:
                raise error
            pause = error.retry_after if error.retry_after is not None else 0.05 * 2**attempt
            pause *= random.uniform(0.8, 1.4)
            if deadline is not None and loop.time() + pause >= deadline:
                raise error
            await asyncio.sleep(pause)

    async def stream(
        self, method: str, path: str, *, query: Optional[Mapping[str, Any]] = None, chunk: int = 1 << 16
    ) -> AsyncIterator[bytes]:
        """The body of the answer, part by part. Never repeated."""
        try:
            async with self.session.request(
                method, self.url(path), params=None if query is None else encode_query(query)
            ) as response:
                if not 200 <= response.status < 300:
                    raise error_from_response(
                        response.status, _decode(await response.read()), response.headers.get("Retry-After"))
                async for part in response.content.iter_chunked(chunk):
                    yield part
        except aiohttp.ClientError as failure:
            raise Unavailable(f"{method} {path}: {failure}", retryable=True, infra=True) from None

    async def websocket(
        self, path: str, *, query: Optional[Mapping[str, Any]] = None, heartbeat: Optional[float] = 30
    ) -> aiohttp.ClientWebSocketResponse:
        try:
            return await self.session.ws_connect(
                self.url(path), params=None if query is None else encode_query(query),
                heartbeat=heartbeat, max_msg_size=8 << 20, autoclose=True)
        except aiohttp.WSServerHandshakeError as failure:
            raise error_from_response(failure.status, failure.message) from None
        except aiohttp.ClientError as failure:
            raise Unavailable(f"cannot open a stream to {self.endpoint.url}: {failure}", retryable=True, infra=True) from None


def encode_query(query: Mapping[str, Any]) -> Dict[str, str]:
    """Drops None, writes booleans as the contract does."""
    return {
        key: ("true" if value else "false") if isinstance(value, bool) else str(value)
        for key, value in query.items()
        if value is not None
    }


def _decode(answer: bytes) -> Any:
    try:
        return json.loads(answer)
    except ValueError:
        return answer.decode("utf-8", "replace")
