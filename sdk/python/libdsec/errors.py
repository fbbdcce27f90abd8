"""What can go wrong, as types.

Every exception of this library is a :class:`DSecError` and carries what the
server said: ``code`` (one of a closed list), ``retryable``, ``infra`` (the
platform's fault: a trainer masks the rollout instead of scoring it 0),
``retry`` (``same_key``, ``new_key``, ``never``, ``after``), ``details`` and the
HTTP ``status``. Branch on the type or on ``code``, never on the text.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Type


class DSecError(Exception):
    """The root of all errors of this library."""

    code = "internal"

    def __init__(
        self,
        message: str,
        *,
        code: Optional[str] = None,
        retryable: bool = False,
        infra: bool = False,
        retry: str = "never",
        status: int = 0,
        details: Optional[Mapping[str, Any]] = None,
        retry_after: Optional[float] = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        #: The error code of the contract, for example ``not_found``.
        self.code = code or type(self).code
        #: The same call may go through later.
        self.retryable = retryable
        #: The platform's fault, not the caller's and not the agent's.
        self.infra = infra
        #: How to try again: same_key, new_key, never or after.
        self.retry = retry
        #: The HTTP status, 0 when no answer came.
        self.status = status
        self.details: Dict[str, Any] = dict(details or {})
        #: Seconds to wait before the next try, when the server said so.
        self.retry_after = retry_after

    @property
    def trainable(self) -> bool:
        """True when the failure says something about the agent, so that a trainer may score it."""
        return not self.infra

    def __str__(self) -> str:
        return f"{self.message} ({self.code})"


class InvalidArgument(DSecError):
    """The request cannot be right (400); the message names the field."""

    code = "invalid_argument"


class Unauthenticated(DSecError):
    """No API key, or one that the server does not know (401)."""

    code = "unauthenticated"


class PermissionDenied(DSecError):
    """The key may not do this (403)."""

    code = "permission_denied"


class NotFound(DSecError):
    """No such sandbox, image, layer, command or file (404)."""

    code = "not_found"


class Conflict(DSecError):
    """Exists already, or is in another state than the call needs (409)."""

    code = "conflict"


class TooLarge(DSecError):
    """A body, an output or a file is past its limit (413)."""

    code = "too_large"


class Exhausted(DSecError):
    """Quota, capacity or a full queue (429). ``retry_after`` says when to try again."""

    code = "exhausted"


class Cancelled(DSecError):
    """The call was cancelled (499)."""

    code = "cancelled"


class InternalError(DSecError):
    """The server's fault (500)."""

    code = "internal"


class DataFault(DSecError):
    """Stored bytes are missing or wrong (500)."""

    code = "data_fault"


class Unsupported(DSecError):
    """This host or backend cannot do it (501)."""

    code = "unsupported"


class Unavailable(DSecError):
    """The server, or a part of it, is not there now (503, or no connection)."""

    code = "unavailable"


class DeadlineExceeded(DSecError):
    """The call's time has passed (504, or the client's own timeout)."""

    code = "deadline_exceeded"


class SandboxEnded(DSecError):
    """The sandbox is over. ``cause`` and ``infra`` say why and whose fault it was."""

    code = "conflict"

    def __init__(self, message: str, *, cause: str = "", **rest: Any) -> None:
        super().__init__(message, **rest)
        #: The end cause of the contract: user, ttl, idle, oom, exit, env_destroyed, …
        self.cause = cause


class CommandFailed(DSecError):
    """Raised by :meth:`CommandResult.check`: the command ran and did not end with 0."""

    code = "command_failed"

    def __init__(self, message: str, result: Any) -> None:
        super().__init__(message, infra=bool(getattr(result, "infra", False)))
        #: The :class:`~libdsec.CommandResult`.
        self.result = result


_BY_CODE: Dict[str, Type[DSecError]] = {
    kind.code: kind
    for kind in (
        InvalidArgument,
        Unauthenticated,
        PermissionDenied,
        NotFound,
        Conflict,
        TooLarge,
        Exhausted,
        Cancelled,
        InternalError,
        DataFault,
        Unsupported,
        Unavailable,
        DeadlineExceeded,
    )
}
_BY_STATUS: Dict[int, str] = {
    400: "invalid_argument",
    401: "unauthenticated",
    403: "permission_denied",
    404: "not_found",
    408: "deadline_exceeded",
    409: "conflict",
    413: "too_large",
    429: "exhausted",
    501: "unsupported",
    502: "unavailable",
    503: "unavailable",
    504: "deadline_exceeded",
}


def error_from_response(status: int, body: Any, retry_after: Optional[str] = None) -> DSecError:
    """The exception for an HTTP answer outside 2xx.

    ``body`` is the decoded JSON (or text, when it was none) of the answer.
    """
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        error = {"message": f"HTTP {status}: {str(body)[:300]}" if body else f"HTTP {status}"}
    code = str(error.get("code") or _BY_STATUS.get(status, "internal"))
    kind = _BY_CODE.get(code, DSecError)
    seconds: Optional[float] = None
    if retry_after is not None:
        try:
            seconds = float(retry_after)
        except ValueError:
            pass
    details = error.get("details")
    return kind(
        str(error.get("message") or code),
        code=code,
        retryable=bool(error.get("retryable", status in (429, 502, 503, 504))),
        infra=bool(error.get("infra", False)),
        retry=str(error.get("retry", "never")),
        status=status,
        details=details if isinstance(details, dict) else None,
        retry_after=seconds,
    )
