"""What the documents promise is there: files, links, commands, records."""
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENTS = sorted(p for p in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "api").glob("*.md")])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file(document):
    broken = []
    for target in re.findall(r"\]\(([^)#\s]+)", document.read_text()):
        if "://" not in target and not (document.parent / target).exists():
            broken.append(target)
    assert not broken, broken


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "LICENSE", "docs/architecture.md", "docs/security.md", "docs/operations.md",
                                  "docs/benchmarks.md", "api/openapi.yaml", "packages.txt", "quickstart.sh", "test.sh", ".ci/run"])
def test_a_document_of_the_tree_is_there(name):
    assert (ROOT / name).exists()


def test_decision_records_have_their_four_parts_and_fit_a_page():
    records = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
    assert len(records) >= 5
    numbers = [record.name[:4] for record in records]
    assert len(numbers) == len(set(numbers)), "each number once"
    for record in records:
        text = record.read_text()
        for part in ("Context", "Decision", "Alternatives", "Consequences"):
            assert re.search(rf"^#+ {part}", text, re.M), f"{record.name}: no {part}"
        assert len(text.splitlines()) <= 80, record.name


def test_every_folder_of_src_is_in_the_folder_table():
    table = (ROOT / "docs" / "architecture.md").read_text()
    folders = re.findall(r"^dsec_folder\((\S+)", (ROOT / "src" / "CMakeLists.txt").read_text(), re.M)
    missing = [f for f in folders if f"`{f}`" not in table]
    assert not missing, missing


def test_no_address_of_a_package_registry_stands_in_the_tree():
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    hosts = re.compile(r"(deb\.deb" r"ian\.org|pypi\.o" r"rg|pythonhosted|registry\.npmjs|crates\.i" r"o|proxy\.golang|repo\.maven|security\.deb" r"ian|docker\.i" r"o|ghcr\.i" r"o|quay\.i" r"o)")
    found = []
    for name in files:
        path = ROOT / name
        if name and path.is_file() and name != "tests/docs_test.py":
            # The Debian package of dockerd has the name of a host.
            text = re.sub(r"\bdocker\.i" r"o\b(?!/)", "", path.read_text(errors="replace")) if name.startswith("bench/") else path.read_text(errors="replace")
            match = hosts.search(text)
            if match:
                found.append(f"{name}: {match.group(0)}")
    assert not found, found


def test_scripts_parse():
    for script in [ROOT / "test.sh", ROOT / ".ci" / "run", *(ROOT / "scripts").glob("*.sh"), *(ROOT / "tests").rglob("*.sh"), *ROOT.glob("quickstart.sh")]:
        subprocess.run(["bash", "-n", script], check=True)


def test_no_program_writes_python_by_another_name():
    """Scripts call /usr/bin/python3: the one whose packages packages.txt installs."""
    wrong = []
    for script in [ROOT / "test.sh", ROOT / ".ci" / "run", *(ROOT / "scripts").glob("*.sh"), *ROOT.glob("quickstart.sh")]:
        for number, line in enumerate(script.read_text().splitlines(), 1):
            if re.search(r"(?<![/\w-])python3?\s+-?\w", line.split("#")[0]) and "/usr/bin/python3" not in line:
                wrong.append(f"{script.name}:{number}")
    assert not wrong, wrong


CONSOLE = re.compile(r"```console\n(.*?)```", re.S)


def documented_commands():
    commands = set()
    for document in DOCUMENTS:
        for block in CONSOLE.findall(document.read_text()):
            for line in block.splitlines():
                line = line.split("#")[0].strip()
                match = re.match(r"(?:\$ )?dsec ([a-z-]+)(?: ([a-z-]+))?", line)
                if match:
                    commands.add((match.group(1), match.group(2) if match.group(1) in ("image", "layer", "service", "key", "node", "fs") else None))
    return sorted(commands, key=str)


@pytest.mark.parametrize("verb", documented_commands(), ids=lambda v: " ".join(filter(None, v)))
def test_a_documented_command_exists(verb):
    program = ROOT / "build" / "release" / "bin" / "dsec"
    if not program.exists():
        pytest.skip("dsec is not built")
    result = subprocess.run([program, *filter(None, verb), "--help"], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=20)
    assert result.returncode == 0, result.stderr[-300:]


def test_every_end_to_end_file_is_run_by_a_stage():
    stages = (ROOT / "tests" / "runner" / "stages.py").read_text()
    forgotten = [path.name for path in sorted((ROOT / "tests" / "e2e").glob("*_test.py")) if f"tests/e2e/{path.name}" not in stages]
    assert not forgotten
