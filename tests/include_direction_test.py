#!/usr/bin/python3
"""Reads every #include under src/ and apps/ and compares it with the arrows of
src/CMakeLists.txt.

One include root would let a wrong arrow compile; this test does not. It also
holds the tree to the rest of the layout rules: depth, names, and that only
apps/ names concrete adapters. File lengths are reported, not judged.
"""
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
APPS = ROOT / "apps"
SOURCES = {".h", ".cc"}
FORBIDDEN_NAMES = {"util", "utils", "common", "helper", "helpers", "misc", "shared", "stuff"}
# Concrete adapters of the ports; whoever is not apps/ (or the adapter's own
# folder, or a test) meets them through the port.
ADAPTER_FOLDERS = ("backend/container/", "backend/fake/")
LONG_FILE_LINES = 500


def parse_folders(cmake_text):
    """{'edge': {'base', …}} from the dsec_folder(… USES …) lines."""
    text = re.sub(r"#.*", "", cmake_text)
    folders = {}
    for body in re.findall(r"dsec_folder\(([^)]*)\)", text):
        words = body.split()
        path, uses, test_uses, into = words[0], set(), set(), None
        for word in words[1:]:
            if word in ("USES", "LIBS", "TEST_USES", "TEST_LIBS"):
                into = word
            elif into == "USES":
                uses.add(word)
            elif into == "TEST_USES":
                test_uses.add(word)
        folders[path] = (uses, test_uses)
    return folders


FOLDERS = parse_folders((SRC / "CMakeLists.txt").read_text())


def folder_of(path):
    """The longest declared folder that holds `path` (relative to src/)."""
    best = None
    for folder in FOLDERS:
        if str(path).startswith(folder + "/") and (best is None or len(folder) > len(best)):
            best = folder
    return best


def source_files(root):
    return sorted(p for p in root.rglob("*") if p.suffix in SOURCES and p.is_file())


def quoted_includes(path):
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        match = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
        if match:
            yield number, match.group(1)


class IncludeDirectionTest(unittest.TestCase):
    def test_every_include_follows_an_arrow(self):
        wrong = []
        for path in source_files(SRC):
            relative = path.relative_to(SRC)
            folder = folder_of(relative)
            if folder is None:
                wrong.append(f"src/{relative}: its folder is not in src/CMakeLists.txt")
                continue
            uses, test_uses = FOLDERS[folder]
            allowed = {folder} | uses | (test_uses if path.name.endswith("_test.cc") else set())
            for number, included in quoted_includes(path):
                if included.startswith("gtest/") or included.startswith("gmock/"):
                    continue
                target = folder_of(included)
                if target is None or not (SRC / included).exists():
                    wrong.append(f'src/{relative}:{number}: "{included}" is not a path from src/')
                elif target not in allowed:
                    wrong.append(f'src/{relative}:{number}: {folder} may not use {target} ("{included}")')
        self.assertEqual([], wrong, "\n" + "\n".join(wrong))

    def test_arrows_have_no_cycle(self):
        state = {}

        def visit(folder, trail):
            if state.get(folder) == "done":
                return
            self.assertNotIn(folder, trail, " -> ".join(trail + [folder]))
            self.assertIn(folder, FOLDERS, f"{trail[-1] if trail else ''} uses an unknown folder")
            for used in FOLDERS[folder][0]:
                visit(used, trail + [folder])
            state[folder] = "done"

        for folder in FOLDERS:
            visit(folder, [])

    def test_programs_never_include_one_another(self):
        programs = {"apiserver", "watcher", "edge", "agent", "cli", "keeper", "spawner"}
        wrong = []
        for folder, (uses, _) in FOLDERS.items():
            if folder in programs:
                wrong += [f"{folder} -> {used}" for used in uses & programs]
        self.assertEqual([], wrong)

    def test_only_apps_name_concrete_adapters(self):
        wrong = []
        for path in source_files(SRC):
            relative = str(path.relative_to(SRC))
            if path.name.endswith("_test.cc") or relative.startswith(ADAPTER_FOLDERS):
                continue
            for number, included in quoted_includes(path):
                if included.startswith(ADAPTER_FOLDERS):
                    wrong.append(f'src/{relative}:{number}: "{included}"')
        self.assertEqual([], wrong)

    def test_every_source_folder_is_declared(self):
        found = {str(p.parent.relative_to(SRC)) for p in source_files(SRC)}
        undeclared = sorted(f for f in found if folder_of(pathlib.PurePath(f) / "x.h") is None)
        self.assertEqual([], undeclared)

    def test_depth_under_src_is_at_most_three(self):
        deep = [str(p.relative_to(SRC)) for p in source_files(SRC) if len(p.relative_to(SRC).parts) > 3]
        self.assertEqual([], deep)

    def test_no_dumping_ground_names(self):
        wrong = []
        for root in (SRC, APPS, ROOT / "tests", ROOT / "bench", ROOT / "sdk"):
            for path in root.rglob("*"):
                if "node_modules" in path.parts or "__pycache__" in path.parts:
                    continue
                words = set(re.split(r"[_.-]", path.name.lower()))
                if words & FORBIDDEN_NAMES:
                    wrong.append(str(path.relative_to(ROOT)))
        self.assertEqual([], sorted(wrong))

    def test_names_are_snake_case(self):
        wrong = [str(p.relative_to(ROOT)) for p in source_files(SRC) if not re.fullmatch(r"[a-z0-9_]+\.(h|cc)", p.name)]
        self.assertEqual([], wrong)

    def test_each_program_is_one_short_main_and_only_dsec_has_wiring_beside_it(self):
        """`dsec serve` names every concrete class: that wiring stands in apps/dsec, each file within a screen or four."""
        long = []
        for path in source_files(APPS):
            lines = len(path.read_text().splitlines())
            limit = 100 if path.name == "main.cc" else 300 if path.parent.name == "dsec" else 0
            if lines >= limit:
                long.append(f"{path.relative_to(ROOT)}: {lines} lines")
        self.assertEqual([], long)

    def test_headers_open_with_pragma_once(self):
        wrong = [str(p.relative_to(ROOT)) for p in source_files(SRC)
                 if p.suffix == ".h" and "#pragma once" not in p.read_text()]
        self.assertEqual([], wrong)


class ParseFoldersTest(unittest.TestCase):
    """The negative control: the reader of arrows must see what it should refuse."""

    def test_reads_uses_and_stops_at_libraries(self):
        folders = parse_folders("# x\ndsec_folder(net USES base sys LIBS ssl)\ndsec_folder(base LIBS fmt)")

        self.assertEqual({"net": ({"base", "sys"}, set()), "base": (set(), set())}, folders)


def report_long_files():
    lengths = sorted(((len(p.read_text(errors="replace").splitlines()), p) for p in source_files(SRC) + source_files(APPS)),
                     reverse=True)
    total = sum(length for length, _ in lengths)
    print(f"source files: {len(lengths)}, lines: {total}, median {lengths[len(lengths) // 2][0] if lengths else 0}")
    for length, path in lengths:
        if length > LONG_FILE_LINES:
            print(f"  long: {length:5d} {path.relative_to(ROOT)}")


if __name__ == "__main__":
    report_long_files()
    unittest.main(argv=[sys.argv[0], "-v"])
