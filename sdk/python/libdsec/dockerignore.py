"""Which files of a directory are not sent as a build's context: .dockerignore."""

from __future__ import annotations

import re
from typing import List, Tuple


def _expression(pattern: str) -> "re.Pattern[str]":
    out, i = "", 0
    while i < len(pattern):
        if pattern.startswith("**/", i):
            out, i = out + "(?:.*/)?", i + 3
        elif pattern.startswith("**", i):
            out, i = out + ".*", i + 2
        elif pattern[i] == "*":
            out, i = out + "[^/]*", i + 1
        elif pattern[i] == "?":
            out, i = out + "[^/]", i + 1
        elif pattern[i] == "[" and "]" in pattern[i + 2:]:
            end = pattern.index("]", i + 2)
            inside = pattern[i + 1:end]
            negated, inside = inside.startswith("^"), inside.lstrip("^") if inside.startswith("^") else inside
            out += "[" + ("^/" if negated else "") + inside.replace("\\", "\\\\").replace("[", "\\[") + "]"
            i = end + 1
        else:
            if pattern[i] == "\\" and i + 1 < len(pattern):
                i += 1
            out, i = out + re.escape(pattern[i]), i + 1
    return re.compile(out, re.DOTALL)


class DockerIgnore:
    """The last pattern that matches a path, or a directory above it, decides; one that begins with ! takes back."""

    def __init__(self, text: str = "") -> None:
        self._patterns: List[Tuple["re.Pattern[str]", bool]] = []
        for line in text.split("\n"):
            if line.startswith("#"):
                continue
            rest = line.strip()
            keeps = rest.startswith("!")
            pattern = "/".join(part for part in rest[keeps:].strip().split("/") if part not in ("", "."))
            if pattern:
                self._patterns.append((_expression(pattern), keeps))
        self.has_exceptions = any(keeps for _, keeps in self._patterns)

    def ignores(self, path: str) -> bool:
        parts = path.split("/")
        candidates = ["/".join(parts[:n]) for n in range(len(parts), 0, -1)]
        out = False
        for expression, keeps in self._patterns:
            if any(expression.fullmatch(candidate) for candidate in candidates):
                out = not keeps
        return out
