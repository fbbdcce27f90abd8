"""The blocking mirror of libdsec.

    from libdsec.sync import DSecClient, DSecContainerRunArgs

    with DSecClient() as client:
        with client.run_container(DSecContainerRunArgs(container_image="debian:12")) as sandbox:
            print(sandbox.run_shell("echo hello").stdout)

Each class here wraps the one of the same name; every coroutine method blocks,
every async iterator is a plain one, every async context manager a plain one.
The work runs on one background thread with its own event loop, so any thread
may call. A blocked call can be interrupted (KeyboardInterrupt); its coroutine is
cancelled then.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from typing import Any, Callable, Coroutine, Dict, Iterator, Optional, Type, TypeVar

import libdsec as _async
from libdsec import *  # noqa: F401,F403 - arguments, results and errors are the same objects
from libdsec import __all__ as _names

__all__ = list(_names)
T = TypeVar("T")

_lock = threading.Lock()
_loop: Optional[asyncio.AbstractEventLoop] = None


def _background_loop() -> asyncio.AbstractEventLoop:
    global _loop
    with _lock:
        if _loop is None or _loop.is_closed():
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="libdsec-sync", daemon=True).start()
            _loop = loop
        return _loop


def _wait(coroutine: "Coroutine[Any, Any, T]") -> T:
    if threading.current_thread().name == "libdsec-sync":
        coroutine.close()
        raise RuntimeError("libdsec.sync was called from its own event loop (a progress callback?)")
    future = asyncio.run_coroutine_threadsafe(coroutine, _background_loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


class _Mirror:
    """A blocking face of one asynchronous object."""

    _of: Type[Any]

    def __init__(self, *args: Any, **options: Any) -> None:
        async def make() -> Any:
            return self._of(*args, **options)

        # Made on the loop: some of what it holds belongs to a loop.
        self._target = _wait(make())

    def __repr__(self) -> str:
        return repr(self._target)

    def __enter__(self) -> Any:
        return _wrap(_wait(self._target.__aenter__()))

    def __exit__(self, *failure: Any) -> None:
        _wait(self._target.__aexit__(*failure))

    def __getattr__(self, name: str) -> Any:
        if name == "_target":
            raise AttributeError(name)
        return _wrap(getattr(self._target, name))

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_target":
            object.__setattr__(self, name, value)
        else:
            setattr(self._target, name, value)

    def __iter__(self) -> Iterator[Any]:
        if hasattr(self._target, "__aiter__"):
            return _iterate(self._target.__aiter__())
        return iter([_wrap(item) for item in self._target])

    def __len__(self) -> int:
        return len(self._target)


def _iterate(source: Any) -> Iterator[Any]:
    async def following() -> Any:
        try:
            return True, await source.__anext__()
        except StopAsyncIteration:
            return False, None

    try:
        while True:
            there, item = _wait(following())
            if not there:
                return
            yield _wrap(item)
    finally:
        close = getattr(source, "aclose", None)
        if close is not None:
            _wait(close())


def _unwrap(value: Any) -> Any:
    return value._target if isinstance(value, _Mirror) else value


def _wrap(value: Any) -> Any:
    mirror = _mirrors.get(type(value))
    if mirror is not None:
        twin = mirror.__new__(mirror)
        object.__setattr__(twin, "_target", value)
        return twin
    if isinstance(value, list):
        return [_wrap(item) for item in value]
    if inspect.isasyncgen(value):
        return _iterate(value)
    if inspect.ismethod(value):
        return _blocking(value)
    return value


def _blocking(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        plain = [_unwrap(a) for a in args]
        named = {key: _unwrap(value) for key, value in options.items()}
        if inspect.iscoroutinefunction(method):
            return _wrap(_wait(method(*plain, **named)))
        return _wrap(method(*plain, **named))

    return call


def _mirror_of(kind: Type[Any]) -> Type[_Mirror]:
    members: Dict[str, Any] = {"_of": kind, "__doc__": kind.__doc__, "__module__": __name__}
    for name, member in vars(kind).items():
        # So that help() and completion show them; __getattr__ does the work for the rest.
        if not name.startswith("_") and inspect.isfunction(member):
            members[name] = _method(name, member)
    return type(kind.__name__, (_Mirror,), members)


def _method(name: str, member: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(member)
    def call(self: _Mirror, *args: Any, **options: Any) -> Any:
        return _blocking(getattr(self._target, name))(*args, **options)

    return call


_mirrors: Dict[Type[Any], Type[_Mirror]] = {}
for _kind in (
    _async.DSecClient, _async.Sandbox, _async.Session, _async.Process, _async.OutputReader, _async.Pty,
    _async.Files, _async.Group, _async.Port, _async.client.Images, _async.client.Layers,
):
    _mirrors[_kind] = _mirror_of(_kind)
    globals()[_kind.__name__] = _mirrors[_kind]


def sandbox_from_string(client: Any, handle: str) -> Any:
    """As :func:`libdsec.sandbox_from_string`."""
    return _wrap(_async.sandbox_from_string(_unwrap(client), handle))
