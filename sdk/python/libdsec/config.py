"""Where the server is and which key to use.

First match wins, for each of the two values on its own source:

1. the arguments of :class:`~libdsec.DSecClient`,
2. ``DSEC_URL`` and ``DSEC_API_KEY``,
3. the current context of ``~/.config/dsec/config.json`` (``dsec login`` writes it),
4. a server on this machine: ``http://127.0.0.1:7780`` with
   ``/var/lib/dsec/admin.key``, when that file can be read.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Mapping, Optional

DEFAULT_URL = "http://127.0.0.1:7780"
DEFAULT_KEY_FILE = "/var/lib/dsec/admin.key"


@dataclass(frozen=True)
class Endpoint:
    """A server's address and the key for it (empty when there is none)."""

    url: str
    api_key: str

    def __repr__(self) -> str:  # the key stays out of logs
        return f"Endpoint(url={self.url!r}, api_key={'***' if self.api_key else ''!r})"


def config_path(environment: Mapping[str, str] = os.environ) -> Path:
    base = environment.get("XDG_CONFIG_HOME") or os.path.join(environment.get("HOME") or os.path.expanduser("~"), ".config")
    return Path(base) / "dsec" / "config.json"


def _current_context(environment: Mapping[str, str]) -> Dict[str, Any]:
    try:
        config = json.loads(config_path(environment).read_text())
        name = environment.get("DSEC_CONTEXT") or config.get("current", "")
        context = config.get("contexts", {}).get(name, {})
        return context if isinstance(context, dict) else {}
    except (OSError, ValueError, AttributeError):
        return {}


def _read_key(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def resolve_endpoint(
    url: Optional[str] = None,
    api_key: Optional[str] = None,
    environment: Mapping[str, str] = os.environ,
    key_file: str = DEFAULT_KEY_FILE,
) -> Endpoint:
    """The address and key to use, by the order in this module's docstring."""
    url = url or environment.get("DSEC_URL")
    api_key = api_key or environment.get("DSEC_API_KEY")
    context = _current_context(environment) if not (url and api_key) else {}
    context_url = str(context.get("url", ""))
    # A context's key belongs to its server: it is not sent to another address.
    if not api_key and context_url and (not url or url.rstrip("/") == context_url.rstrip("/")):
        api_key = str(context.get("api_key", ""))
    url = (url or context_url or DEFAULT_URL).rstrip("/")
    if not api_key and url == DEFAULT_URL:
        api_key = _read_key(key_file)
    return Endpoint(url, api_key or "")
