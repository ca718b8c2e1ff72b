"""Python SDK of Tidebox: disposable sandboxes for code nobody has reviewed.

from tidebox import Sandbox

with Sandbox.create() as sandbox:
    print(sandbox.run("echo hello").stdout)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from . import types
    from ._async.client import AsyncAdmin, AsyncClient
    from ._async.connection import AsyncConnection
    from ._async.contexts import AsyncContexts
    from ._async.files import AsyncFiles, AsyncFileStream
    from ._async.forward import AsyncForward
    from ._async.ports import AsyncEgress, AsyncPorts
    from ._async.processes import AsyncProcess, AsyncProcesses
    from ._async.registry import AsyncImage, AsyncKey, AsyncSecret, AsyncSnapshot, AsyncTemplate
    from ._async.sandbox import AsyncSandbox
    from ._async.streams import AsyncCommandStream, AsyncEventStream, AsyncProcessOutput, AsyncStream
    from ._errors import (
        ApiError,
        ApiTimeoutError,
        BadRequestError,
        CodeFailed,
        CommandFailed,
        ConflictError,
        ConnectionFailed,
        ForbiddenError,
        InternalError,
        InvalidArgument,
        NoSpaceError,
        NotFoundError,
        NotSupportedError,
        PayloadTooLargeError,
        ProtocolError,
        ProviderError,
        RequestTimeout,
        ResourceLimitError,
        StreamInterrupted,
        TideboxError,
        UnauthorizedError,
        UnavailableError,
    )
    from ._models import CodeError, CodeResult, Execution, Exit, Gap, Output, Result, SyncResult
    from ._sync.client import Admin, Client
    from ._sync.connection import Connection
    from ._sync.contexts import Contexts
    from ._sync.files import Files, FileStream
    from ._sync.forward import Forward
    from ._sync.ports import Egress, Ports
    from ._sync.processes import Process, Processes
    from ._sync.registry import Image, Key, Secret, Snapshot, Template
    from ._sync.sandbox import Sandbox
    from ._sync.streams import CommandStream, EventStream, ProcessOutput, Stream

# Modules are imported at the first use of a name, so that a program pays for one of the two SDKs only.
_MODULES = {
    "client": "Admin Client",
    "connection": "Connection",
    "contexts": "Contexts",
    "files": "Files FileStream",
    "forward": "Forward",
    "ports": "Egress Ports",
    "processes": "Process Processes",
    "registry": "Image Key Secret Snapshot Template",
    "sandbox": "Sandbox",
    "streams": "CommandStream EventStream ProcessOutput Stream",
}
_WHERE = {}
for _module, _names in _MODULES.items():
    for _name in _names.split():
        _WHERE[_name] = f"._sync.{_module}"
        _WHERE[f"Async{_name}"] = f"._async.{_module}"
for _module, _names in {
    "_errors": (
        "ApiError ApiTimeoutError BadRequestError CodeFailed CommandFailed ConflictError ConnectionFailed "
        "ForbiddenError InternalError InvalidArgument NoSpaceError NotFoundError NotSupportedError "
        "PayloadTooLargeError ProtocolError ProviderError RequestTimeout ResourceLimitError "
        "StreamInterrupted TideboxError UnauthorizedError UnavailableError"
    ),
    "_models": "CodeError CodeResult Execution Exit Gap Output Result SyncResult",
}.items():
    _WHERE.update(dict.fromkeys(_names.split(), f".{_module}"))

__all__ = [
    "Admin",
    "ApiError",
    "ApiTimeoutError",
    "AsyncAdmin",
    "AsyncClient",
    "AsyncCommandStream",
    "AsyncConnection",
    "AsyncContexts",
    "AsyncEgress",
    "AsyncEventStream",
    "AsyncFileStream",
    "AsyncFiles",
    "AsyncForward",
    "AsyncImage",
    "AsyncKey",
    "AsyncPorts",
    "AsyncProcess",
    "AsyncProcessOutput",
    "AsyncProcesses",
    "AsyncSandbox",
    "AsyncSecret",
    "AsyncSnapshot",
    "AsyncStream",
    "AsyncTemplate",
    "BadRequestError",
    "Client",
    "CodeError",
    "CodeFailed",
    "CodeResult",
    "CommandFailed",
    "CommandStream",
    "ConflictError",
    "Connection",
    "ConnectionFailed",
    "Contexts",
    "Egress",
    "EventStream",
    "Execution",
    "Exit",
    "FileStream",
    "Files",
    "ForbiddenError",
    "Forward",
    "Gap",
    "Image",
    "InternalError",
    "InvalidArgument",
    "Key",
    "NoSpaceError",
    "NotFoundError",
    "NotSupportedError",
    "Output",
    "PayloadTooLargeError",
    "Ports",
    "Process",
    "ProcessOutput",
    "Processes",
    "ProtocolError",
    "ProviderError",
    "RequestTimeout",
    "ResourceLimitError",
    "Result",
    "Sandbox",
    "Secret",
    "Snapshot",
    "Stream",
    "StreamInterrupted",
    "SyncResult",
    "Template",
    "TideboxError",
    "UnauthorizedError",
    "UnavailableError",
    "types",
]


def __getattr__(name: str) -> Any:
    if name == "types":
        return importlib.import_module(".types", __name__)
    where = _WHERE.get(name)
    if where is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(where, __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE, "types"])
