"""What a new sandbox should be: the run arguments of each backend."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Dict, List, Mapping, Optional, Sequence, Union

__all__ = ["DSecContainerRunArgs", "DSecMicroVMRunArgs", "DSecFullVMRunArgs", "NetworkRule"]


@dataclass(frozen=True)
class NetworkRule:
    """One destination that may be reached. Exactly one of ``domain`` and ``cidr``."""

    domain: Optional[str] = None  #: "example.org" or "*.example.org"
    cidr: Optional[str] = None  #: "10.0.0.0/8"
    port: int = 0  #: 0 = any

    def to_json(self) -> Dict[str, Any]:
        if bool(self.domain) == bool(self.cidr):
            raise ValueError("a NetworkRule has either domain or cidr")
        body: Dict[str, Any] = {"domain": self.domain} if self.domain else {"cidr": self.cidr}
        if self.port:
            body["port"] = self.port
        return body


@dataclass
class DSecRunArgs:
    """The fields that every backend shares.

    Either ``container_image`` (a ref such as ``"debian:12"``) or ``base`` names
    the root file system; ``workspace``, ``toolkits`` and ``diffs`` are layers put on
    top, in that order. Omitted limits are the server's defaults.
    """

    container_image: Optional[str] = None
    memory_limit_mb: Optional[int] = None  #: MiB, hard limit
    cpu_cores_limit: Optional[float] = None  #: cores; 0.5 is half of one
    ttl_running_stop: Optional[int] = None  #: seconds without any request until the sandbox is stopped; None or 0 = never
    #: Service name -> may be reached. ``None`` means no network at all. Services
    #: are named by the operator (``dsec service ls``); everything else is denied.
    network_rules: Optional[Mapping[str, bool]] = None
    init_user: Optional[str] = None  #: default user of commands; None = the image's
    workspace: Optional[str] = None  #: layer ref
    toolkits: Sequence[str] = ()  #: layer refs, lowest first
    diffs: Sequence[str] = ()  #: refs of layers packed from sandboxes, lowest first, above all the others
    base: Optional[str] = None  #: base layer ref, instead of container_image
    snapshot: Optional[str] = None  #: snapshot's name or checkpoint's id, instead of container_image and layers
    labels: Mapping[str, str] = field(default_factory=dict)
    name: Optional[str] = None  #: unique among the project's live sandboxes
    env: Mapping[str, str] = field(default_factory=dict)
    disk_limit_mb: Optional[int] = None  #: MiB of the writable layer
    max_processes: Optional[int] = None
    max_lifetime: Optional[int] = None  #: seconds until the sandbox ends, whatever it does; 0 = never
    on_timeout: Optional[str] = None  #: "stop" or "pause"
    #: Destinations beside the services of ``network_rules``.
    network_allow: Sequence[NetworkRule] = ()
    network_mode: Optional[str] = None  #: "none", "proxy" or "device"; None = by the rules
    hostname: Optional[str] = None
    priority: Optional[str] = None  #: "latency" or "batch"
    start: Optional[Sequence[str]] = None  #: argv of a command started with the sandbox
    start_env: Mapping[str, str] = field(default_factory=dict)
    ready: Optional[Union[int, str]] = None  #: port or shell command that says that `start` is ready
    no_new_privs: bool = False  #: setuid programs gain nothing

    backend: ClassVar[str] = ""

    def to_json(self) -> Dict[str, Any]:
        """The body of ``POST /v1/sandboxes``. Raises ValueError for what contradicts itself."""
        body: Dict[str, Any] = {"backend": self.backend}
        if self.container_image and self.base:
            raise ValueError("container_image and base exclude one another")
        if self.snapshot and (self.container_image or self.base or self.workspace or self.toolkits or self.diffs):
            raise ValueError("snapshot excludes container_image, base, workspace, toolkits and diffs")
        if not (self.container_image or self.base or self.snapshot):
            raise ValueError("container_image (or base) is needed: the ref of an imported image, as in `dsec image ls`")
        environment: Dict[str, Any] = {}
        if self.snapshot:
            body["snapshot"] = self.snapshot
        if self.base:
            environment["base"] = self.base
        elif self.container_image:
            body["image"] = self.container_image
        if self.workspace:
            environment["workspace"] = self.workspace
        if self.toolkits:
            environment["toolkits"] = [self.toolkits] if isinstance(self.toolkits, str) else list(self.toolkits)
        if self.diffs:
            environment["diffs"] = [self.diffs] if isinstance(self.diffs, str) else list(self.diffs)
        resources = _present(
            cpu_cores=self.cpu_cores_limit,
            memory_mb=self.memory_limit_mb,
            disk_mb=self.disk_limit_mb,
            max_processes=self.max_processes,
        )
        lifetime = _present(idle_seconds=self.ttl_running_stop, max_seconds=self.max_lifetime, on_timeout=self.on_timeout)
        for key, value in (
            ("environment", environment),
            ("resources", resources),
            ("lifetime", lifetime),
            ("network", network_json(self.network_rules, self.network_allow, self.network_mode)),
            ("labels", dict(self.labels)),
            ("env", dict(self.env)),
        ):
            if value:
                body[key] = value
        body.update(_present(name=self.name, user=self.init_user, hostname=self.hostname, priority=self.priority))
        if self.start:
            start: Dict[str, Any] = {"argv": list(self.start)}
            if self.start_env:
                start["env"] = dict(self.start_env)
            if self.ready is not None:
                start["ready"] = {"port": self.ready} if isinstance(self.ready, int) else {"command": self.ready}
            body["start"] = start
        if self.no_new_privs:
            body["no_new_privs"] = True
        return body


@dataclass
class DSecContainerRunArgs(DSecRunArgs):
    """A container: the default backend."""

    backend: ClassVar[str] = "container"


@dataclass
class DSecMicroVMRunArgs(DSecRunArgs):
    """A microVM. The server says ``unsupported`` where it has none."""

    backend: ClassVar[str] = "microvm"


@dataclass
class DSecFullVMRunArgs(DSecRunArgs):
    """A full virtual machine. The server says ``unsupported`` where it has none."""

    backend: ClassVar[str] = "fullvm"


def network_json(
    services: Optional[Mapping[str, bool]],
    allow: Sequence[NetworkRule] = (),
    mode: Optional[str] = None,
) -> Dict[str, Any]:
    """The ``network`` object of a create or patch; empty when nothing was said.

    Rules that allow nothing still mean mode ``proxy``: everything is denied, and
    a later :meth:`Sandbox.set_network` can open it.
    """
    if services is None and not allow and mode is None:
        return {}
    allowed: List[str] = sorted(name for name, wanted in (services or {}).items() if wanted)
    body: Dict[str, Any] = {"mode": mode or "proxy"}
    if allowed:
        body["services"] = allowed
    if allow:
        body["rules"] = [rule.to_json() for rule in allow]
    return body


def _present(**values: Any) -> Dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
