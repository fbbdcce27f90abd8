"""libdsec: the Python client of DSec, a platform of sandboxes for agents.

    from libdsec import DSecClient, DSecContainerRunArgs

    async with DSecClient() as client:
        args = DSecContainerRunArgs(container_image="debian:12", memory_limit_mb=512)
        async with await client.run_container(args, timeout=120) as sandbox:
            result = await sandbox.run_shell("echo hello")
            print(result.stdout)

Everything is asynchronous; :mod:`libdsec.sync` is the same, blocking.
"""

from .args import DSecContainerRunArgs, DSecFullVMRunArgs, DSecMicroVMRunArgs, DSecRunArgs, NetworkRule
from .client import DSecClient, Group, sandbox_from_string
from .errors import (
    Cancelled,
    CommandFailed,
    Conflict,
    DataFault,
    DeadlineExceeded,
    DSecError,
    Exhausted,
    InternalError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    SandboxEnded,
    TooLarge,
    Unauthenticated,
    Unavailable,
    Unsupported,
)
from .files import Files
from .images import ImportProgress
from .process import OutputReader, Process
from .pty import Pty
from .results import BulkResult, Checkpoint, CommandResult, ExecInfo, FileInfo, Layer, WatchEvent
from .sandbox import Port, PortResponse, Sandbox, Session

__version__ = "0.1.0"

__all__ = [
    "BulkResult",
    "Cancelled",
    "Checkpoint",
    "CommandFailed",
    "CommandResult",
    "Conflict",
    "DSecClient",
    "DSecContainerRunArgs",
    "DSecError",
    "DSecFullVMRunArgs",
    "DSecMicroVMRunArgs",
    "DSecRunArgs",
    "DataFault",
    "DeadlineExceeded",
    "ExecInfo",
    "Exhausted",
    "FileInfo",
    "Files",
    "Group",
    "ImportProgress",
    "InternalError",
    "InvalidArgument",
    "Layer",
    "NetworkRule",
    "NotFound",
    "OutputReader",
    "PermissionDenied",
    "Port",
    "PortResponse",
    "Process",
    "Pty",
    "Sandbox",
    "SandboxEnded",
    "Session",
    "TooLarge",
    "Unauthenticated",
    "Unavailable",
    "Unsupported",
    "WatchEvent",
    "sandbox_from_string",
]
