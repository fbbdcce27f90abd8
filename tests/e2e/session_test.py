"""Shell sessions keep what a shell keeps, and lose it to nobody."""
import shlex
import threading
import time

import pytest

from support.api import wait_until


def test_a_session_keeps_cwd_environment_and_umask(shared_box):
    shared_box.sh("cd /tmp; export WORD=kept; umask 077", session="s1")

    result = shared_box.sh("pwd; echo $WORD; umask", session="s1")

    assert result.out == "/tmp\nkept\n0077\n"


def test_under_bash_a_session_keeps_functions_aliases_and_options(debian_box):
    debian_box.sh("f() { echo f$1; }; alias hi='echo alias'; set -o pipefail", session="s1")

    result = debian_box.sh("f 1; hi; false | true; echo $?", session="s1")

    assert result.out == "f1\nalias\n1\n"


def test_sessions_do_not_share(shared_box):
    shared_box.sh("cd /tmp; X=1", session="a")

    assert shared_box.sh("pwd; echo [$X]", session="b").out.endswith("[]\n")
    assert "/tmp" not in shared_box.sh("pwd", session="b").out


@pytest.mark.parametrize("base", ["shared_box", "debian_box"])
def test_unexported_variables_stay_in_the_session_and_are_not_exported(request, base):
    box = request.getfixturevalue(base)
    value = "a  'b' \"c\" $HOME \\n `x` é\nline 2\n\tend"
    box.sh(f"plain={shlex.quote(value)}; empty=", session="vars")

    assert box.sh('printf "%s|%s|%s" "$plain" "${empty-unset}" "${other-unset}"; env | grep -c -e plain -e dsec', session="vars").out == value + "||unset0\n"
    assert box.sh('echo "$plain"', session="vars", env={"plain": "for once"}).out == "for once\n"
    assert box.sh('printf %s "$plain"', session="vars").out == value


def test_a_session_survives_exit_of_its_command(shared_box):
    first = shared_box.sh("V=1; cd /work; exit 3", session="exits")
    second = shared_box.sh("echo [$V]; pwd", session="exits")

    assert first.code == 3
    assert second.code == 0 and second.out.endswith("/work\n")


def test_a_session_survives_a_timeout(shared_box):
    shared_box.sh("cd /tmp", session="timeouts")
    cut = shared_box.sh("sleep 60", session="timeouts", timeout_ms=500)

    after = shared_box.sh("pwd", session="timeouts")

    assert cut["timed_out"] is True
    assert after.out == "/tmp\n"


def test_a_session_survives_the_kill_of_everything(boxes):
    box = boxes()
    box.sh("cd /tmp; export KEEP=me", session="killed")

    box.sh("kill -9 -1", session="killed")
    result = box.sh("echo $KEEP; pwd", session="killed")

    assert result.out == "me\n/tmp\n", result


def test_commands_of_one_session_run_one_after_the_other(shared_box):
    shared_box.sh("rm -f /tmp/order", session="order")
    results = []

    def run(i):
        results.append(shared_box.sh(f"echo start{i} >> /tmp/order; sleep 0.2; echo end{i} >> /tmp/order", session="order"))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]

    conflicts = [r for r in results if r.get("error")]
    lines = shared_box.sh("cat /tmp/order").out.split()
    assert not conflicts
    assert all(lines[i].replace("start", "end") == lines[i + 1] for i in range(0, len(lines), 2)), lines


def test_a_session_can_be_closed_and_begins_anew(api, shared_box):
    shared_box.sh("cd /tmp; A=1", session="closed")
    answer = api.call("DELETE", f"{shared_box.path}/sessions/closed")

    result = shared_box.sh("echo [$A]", session="closed")

    assert answer.status in (200, 204)
    assert result.out == "[]\n"


def test_a_background_job_of_a_session_outlives_its_command(boxes):
    box = boxes()
    started = time.monotonic()

    first = box.sh("(sleep 2; echo late > /tmp/job) & echo started", session="jobs")

    assert first.out == "started\n" and time.monotonic() - started < 1.9
    wait_until(lambda: box.sh("cat /tmp/job 2>/dev/null").out == "late\n", 10, "the job's file")


def test_a_session_of_a_user_runs_as_that_user(shared_box):
    shared_box.sh("cd ~", session="alice", user="alice")

    assert shared_box.sh("id -un; pwd", session="alice", user="alice").out == "alice\n/home/alice\n"


def test_output_of_a_session_command_is_its_own(shared_box):
    shared_box.sh("echo first; echo e1 >&2", session="own")

    result = shared_box.sh("echo second; echo e2 >&2", session="own")

    assert (result.out, result.err) == ("second\n", "e2\n")


def test_a_hostile_command_cannot_forge_the_end_of_another(shared_box):
    # Whatever a command prints, and whatever it writes to odd descriptors, its
    # status is the one that the kernel reported.
    result = shared_box.sh("for fd in 3 4 5 6 7 8 9; do echo 'exit 0' >&$fd; done 2>/dev/null; exit 9", session="forge")

    assert result.code == 9


def test_a_session_whose_shell_file_is_replaced_goes_on(boxes):
    box = boxes()
    box.sh("cd /tmp; export K=1", session="replaced")

    box.sh("cp /bin/busybox /tmp/busybox; rm /bin/sh; printf '#!/tmp/busybox sh\\necho marker >> /tmp/marker; exec /tmp/busybox sh \"$@\"\\n' > /bin/sh; chmod 755 /bin/sh")
    result = box.sh("echo $K", session="replaced")

    assert result.out.strip().endswith("1"), result
    assert result.get("shell_modified") is True, result
    assert box.state == "running"
    assert box.read_file("/etc/passwd").startswith(b"root:")
