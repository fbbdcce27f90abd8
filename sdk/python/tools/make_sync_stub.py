#!/usr/bin/python3
"""Writes libdsec/sync.pyi, the types of the blocking mirror, from the asynchronous sources.

    python3 sdk/python/tools/make_sync_stub.py            writes it
    python3 sdk/python/tools/make_sync_stub.py --check    fails when it is not what it would write
"""
import ast
import pathlib
import sys

PACKAGE = pathlib.Path(__file__).resolve().parents[1] / "libdsec"
MIRRORED = {
    "client": ["Group", "DSecClient"], "sandbox": ["Sandbox", "Session", "Port"], "process": ["OutputReader", "Process"], "pty": ["Pty"],
    "files": ["Files"], "images": ["Images", "Layers"],
}
HEAD = '''# Made by tools/make_sync_stub.py from the asynchronous sources.
from __future__ import annotations

import os
from types import TracebackType
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Type, Union

from .args import DSecContainerRunArgs as DSecContainerRunArgs, DSecFullVMRunArgs as DSecFullVMRunArgs
from .args import DSecMicroVMRunArgs as DSecMicroVMRunArgs, DSecRunArgs as DSecRunArgs, NetworkRule as NetworkRule
from .errors import *
from .images import ImportProgress as ImportProgress, ProgressCallback, Source
from .results import BulkResult as BulkResult, CommandResult as CommandResult, ExecInfo as ExecInfo, FileInfo as FileInfo, Layer as Layer, WatchEvent as WatchEvent
from .sandbox import PortResponse as PortResponse
'''


class Blocking(ast.NodeTransformer):
    """Signatures only: coroutines return their value, async iterators are plain ones."""

    def visit_Name(self, node):
        node.id = {"AsyncIterator": "Iterator"}.get(node.id, node.id)
        return node

    def visit_Constant(self, node):
        return node


def signature(function):
    out = ast.FunctionDef(name={"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__"}.get(function.name, function.name),
                          args=function.args, body=[ast.Expr(ast.Constant(...))], decorator_list=function.decorator_list, returns=function.returns,
                          type_comment=None, lineno=0, col_offset=0)
    return Blocking().visit(out)


def class_stub(tree, name):
    found = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    bodies = [found]
    for base in found.bases:  # the catalogue's shared verbs
        bodies += [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == getattr(base, "id", "")]
    lines, attributes = [f"class {name}:"], {}
    for body in bodies:
        for node in body.body:
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            if node.name == "__init__":
                for statement in ast.walk(node):
                    target = statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0] if isinstance(statement, ast.Assign) else None
                    if isinstance(target, ast.Attribute) and not target.attr.startswith("_"):
                        value = statement.value
                        kind = ast.unparse(statement.annotation) if isinstance(statement, ast.AnnAssign) else (
                            value.func.id if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) else
                            next((ast.unparse(a.annotation) for a in node.args.args if isinstance(value, ast.Name) and a.arg == value.id and a.annotation), "int"))
                        attributes[target.attr] = kind
            elif node.name.startswith("_") and not node.name.startswith("__"):
                continue
            text = ast.unparse(ast.fix_missing_locations(signature(node))).replace("\n    ...", " ...")
            lines += ["    " + line for line in text.splitlines()]
    return "\n".join([lines[0]] + [f"    {key}: {kind}" for key, kind in attributes.items()] + lines[1:])


def stub():
    parts = [HEAD]
    for module, names in MIRRORED.items():
        tree = ast.parse((PACKAGE / f"{module}.py").read_text())
        parts += [class_stub(tree, name) + "\n" for name in names]
    parts.append("def sandbox_from_string(client: DSecClient, handle: str) -> Sandbox: ...\n")
    return "\n".join(parts)


if __name__ == "__main__":
    target = PACKAGE / "sync.pyi"
    if "--check" in sys.argv:
        sys.exit(0 if target.exists() and target.read_text() == stub() else f"{target} is stale: run {sys.argv[0]}")
    target.write_text(stub())
