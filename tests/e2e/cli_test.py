"""The command line: exit codes, listings, imports, copies, terminals, completion."""
import json
import os
import pathlib
import pty
import re
import subprocess
import time

import pytest

from support import images
from support.server import BIN


@pytest.fixture(scope="module")
def dsec(api, tmp_path_factory):
    home = tmp_path_factory.mktemp("home")

    def run(*arguments, stdin=b"", check=False, timeout=90):
        result = subprocess.run([BIN / "dsec", *map(str, arguments)], input=stdin, capture_output=True, timeout=timeout,
                                env={**os.environ, "HOME": str(home), "DSEC_URL": api.url, "DSEC_API_KEY": api.key})
        if check:
            assert result.returncode == 0, result
        return result

    def start(*arguments):
        return subprocess.Popen([BIN / "dsec", *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env={**os.environ, "HOME": str(home), "DSEC_URL": api.url, "DSEC_API_KEY": api.key})
    run.start = start
    return run


@pytest.mark.parametrize("command, code", [
    (["true"], 0), (["sh", "-c", "exit 7"], 7), (["sh", "-c", "kill -9 $$"], 137), (["no-such-program"], 127), (["/etc/passwd"], 126),
])
def test_run_ends_with_the_commands_code(dsec, tiny, command, code):
    assert dsec("run", "--rm", "--image", tiny, "--", *command).returncode == code


def test_run_past_its_timeout_is_124_and_a_refusal_125(dsec, tiny):
    assert dsec("run", "--rm", "--image", tiny, "--timeout", "1s", "--", "sleep", "60").returncode == 124
    assert dsec("run", "--rm", "--image", "no-such:1", "--", "true").returncode == 125


def test_run_streams_both_outputs_and_takes_input(dsec, tiny):
    result = dsec("run", "--rm", "-i", "--image", tiny, "--", "sh", "-c", "cat; echo err >&2", stdin=b"in\n")

    assert (result.stdout, result.stderr) == (b"in\n", b"err\n")


def test_run_rm_leaves_nothing(dsec, tiny, api):
    before = {i["id"] for i in api.list_all(state="all")}

    dsec("run", "--rm", "--image", tiny, "--", "true", check=True)

    assert {i["id"] for i in api.list_all(state="all")} <= before


def test_create_exec_ps_inspect_stop_by_name_and_prefix(dsec, tiny):
    sandbox = dsec("create", "--image", tiny, "--name", "cli-one", "--label", "a=b", check=True).stdout.decode().strip()

    assert dsec("exec", "cli-one", "--", "echo", "by name").stdout == b"by name\n"
    assert dsec("exec", sandbox[:12], "--", "echo", "by prefix").stdout == b"by prefix\n"
    listed = json.loads(dsec("ps", "--json", check=True).stdout)
    listed = listed if isinstance(listed, list) else listed["items"]
    assert any(item["name"] == "cli-one" and item["labels"] == {"a": "b"} for item in listed)
    assert sandbox in dsec("ps", "-q", check=True).stdout.decode() or "cli-one" in dsec("ps", "-q").stdout.decode()
    inspected = json.loads(dsec("inspect", "cli-one", check=True).stdout)
    assert (inspected[0] if isinstance(inspected, list) else inspected)["id"] == sandbox
    assert dsec("stop", "cli-one").returncode == 0
    assert dsec("exec", "cli-one", "--", "true").returncode == 125


def test_stop_keeps_and_rm_forgets(dsec, tiny):
    kept = dsec("create", "--image", tiny, "--label", "end=kept", check=True).stdout.decode().strip()
    gone = dsec("create", "--image", tiny, "--label", "end=gone", check=True).stdout.decode().strip()
    waiting = dsec.start("wait", kept)

    dsec("stop", kept, check=True)
    dsec("rm", "--selector", "end=gone", check=True)

    assert waiting.communicate(timeout=30)[0] == b"user\n"
    assert json.loads(dsec("inspect", kept, check=True).stdout)["state"] == "ended"
    listed = dsec("ps", "--all", "-q", check=True).stdout.decode().split()
    assert kept in listed and gone not in listed and kept not in dsec("ps", "-q", check=True).stdout.decode().split()
    missing = dsec("inspect", gone)
    assert missing.returncode == 1 and b"there is no sandbox" in missing.stderr
    dsec("rm", kept, check=True)
    assert dsec("rm", kept).returncode == 1


def test_cp_goes_both_ways(dsec, tiny, tmp_path):
    dsec("create", "--image", tiny, "--name", "cli-cp", check=True)
    (tmp_path / "a").write_bytes(b"\x00\x01" * 5000)

    dsec("cp", tmp_path / "a", "cli-cp:/tmp/a", check=True)
    dsec("cp", "cli-cp:/tmp/a", tmp_path / "b", check=True)
    listed = dsec("fs", "ls", "cli-cp", "/tmp", check=True).stdout.decode()
    dsec("rm", "cli-cp", check=True)

    assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()
    assert "a" in listed


def test_an_image_and_a_layer_are_imported_listed_and_removed(dsec, tmp_path):
    tar = tmp_path / "tiny.tar"
    tar.write_bytes(images.tiny_tar())
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool" / "run-me").write_text("#!/bin/sh\necho tool\n")
    (tmp_path / "tool" / "run-me").chmod(0o755)

    dsec("image", "import", "cli-tiny:1", tar, check=True)
    dsec("layer", "import", "--kind", "toolkit", "--at", "/opt/tool", "cli-tool:1", tmp_path / "tool", check=True)
    result = dsec("run", "--rm", "--base", "cli-tiny:1", "--toolkit", "cli-tool:1", "--", "/opt/tool/run-me")

    assert "cli-tiny" in dsec("image", "ls", check=True).stdout.decode()
    assert result.stdout == b"tool\n", result
    assert dsec("layer", "rm", "cli-tool:1").returncode == 0


def test_imports_show_progress_on_a_terminal_and_plain_lines_elsewhere(dsec, tmp_path, api):
    tar = tmp_path / "tiny.tar"
    tar.write_bytes(images.tiny_tar())

    plain = dsec("image", "import", "cli-progress:1", tar, check=True)

    assert b"\x1b" not in plain.stderr and b"\r" not in plain.stderr


def test_shell_is_interactive_in_a_terminal(api, tiny, dsec):
    dsec("create", "--image", tiny, "--name", "cli-shell", check=True)
    pid, fd = pty.fork()
    if pid == 0:
        os.execve(BIN / "dsec", ["dsec", "shell", "cli-shell"], {**os.environ, "DSEC_URL": api.url, "DSEC_API_KEY": api.key, "TERM": "xterm"})
    os.write(fd, b"echo mark$((40+2)); exit\n")
    seen, deadline = b"", time.monotonic() + 20
    try:
        while b"mark42" not in seen and time.monotonic() < deadline:
            seen += os.read(fd, 4096)
    except OSError:
        pass
    os.close(fd)
    _, status = os.waitpid(pid, 0)
    dsec("rm", "cli-shell")

    assert b"mark42" in seen
    assert os.waitstatus_to_exitcode(status) in (0, 1, 129, -1)


def test_wrong_use_is_2_and_says_how(dsec):
    assert dsec("nonsense").returncode == 2
    assert dsec("run", "--no-such-flag").returncode == 2
    assert b"--help" in dsec("nonsense").stderr


def test_doctor_tells_what_the_host_can_do(dsec):
    text = dsec("doctor")
    data = json.loads(dsec("doctor", "--json").stdout)

    assert text.returncode in (0, 1)
    assert data
    assert b"erofs" in text.stdout.lower()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_printed(dsec, shell):
    result = dsec("completion", shell)

    assert result.returncode == 0 and b"dsec" in result.stdout
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=result.stdout, check=True)


def test_escape_sequences_in_names_do_not_reach_the_terminal(dsec, tiny):
    dsec("create", "--image", tiny, "--name", "cli-escape", check=True)
    dsec("exec", "cli-escape", "--", "sh", "-c", "touch \"/tmp/$(printf 'x\\033[31my')\"", check=True)

    listed = dsec("fs", "ls", "cli-escape", "/tmp").stdout
    dsec("rm", "cli-escape")

    assert b"\x1b" not in listed


def test_pause_and_resume_by_id_and_by_selector(dsec, api, boxes):
    box = boxes(labels={"cli": "pause"}, name=f"napper{os.getpid()}")

    assert dsec("pause", box.id, "--reason", "lunch", check=True).stdout.decode() == f"{box.id}\n"
    listed = dsec("ps", check=True).stdout.decode()
    assert re.search(rf"napper{os.getpid()}\s+paused \S", listed), listed
    assert json.loads(dsec("inspect", box.id, check=True).stdout)["pause_reason"] == "lunch"
    dsec("resume", box.id, check=True)
    assert dsec("pause", "--selector", "cli=pause", "--wake", "holder", "--fence", 3, check=True).stdout.decode() == f"{box.id}\n"
    refused = dsec("resume", "--selector", "cli=pause")
    told = dsec("events", box.id, check=True).stdout.decode()
    dsec("resume", "--selector", "cli=pause", "--fence", 3, check=True)

    assert refused.returncode != 0 and b"holder" in refused.stderr
    assert "type=paused" in told and "type=resumed" in told
    assert box.state == "running"
    assert dsec("pause").returncode == 2
