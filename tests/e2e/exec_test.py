"""Commands: arguments, output, stdin, time, background, keys."""
import base64
import hashlib
import re
import threading
import time
import uuid

import pytest

from support.api import ApiError, pause_or_skip, wait_until


def test_argv_is_run_without_a_shell(shared_box):
    result = shared_box.run("echo", "$HOME", "a b", "*")

    assert result.out == "$HOME a b *\n"
    assert result.code == 0
    assert result["state"] in ("exited", "done", "ended")


def test_shell_is_run_by_a_shell(shared_box):
    assert shared_box.sh("echo $((6 * 7)) | cat; exit 5").out == "42\n"
    assert shared_box.sh("exit 5").code == 5


def test_stdout_and_stderr_are_kept_apart(shared_box):
    result = shared_box.sh("echo out; echo err >&2")

    assert (result.out, result.err) == ("out\n", "err\n")


def test_a_signal_is_told_apart_from_an_exit_code(shared_box):
    result = shared_box.sh("kill -9 $$")

    assert result.get("signal") in (9, "SIGKILL", "KILL"), result
    assert result.code is None


def test_a_missing_program_is_127_and_one_that_cannot_run_126(shared_box):
    assert shared_box.run("no-such-program").code == 127
    assert shared_box.run("/etc/passwd").code == 126


def test_cwd_env_and_user_are_those_asked_for(shared_box):
    result = shared_box.sh("pwd; echo $GREETING; id -u; id -g; echo $HOME", cwd="/home/alice", env={"GREETING": "hi"}, user="alice")

    assert result.out == "/home/alice\nhi\n1000\n1000\n/home/alice\n"


def test_a_numeric_user_and_group_are_taken(shared_box):
    assert shared_box.sh("id -u; id -g", user="1234:4321").out == "1234\n4321\n"


@pytest.mark.parametrize("options, word", [({"cwd": "/no/such"}, "cwd"), ({"user": "nobody-at-all"}, "user"),
                                           ({"cwd": "/etc/passwd"}, "cwd")])
def test_what_cannot_start_says_why_and_nothing_ran(api, shared_box, options, word):
    answer = api.call("POST", shared_box.path + "/exec", {"shell": "touch /tmp/ran", "wait_ms": 10000, **options})

    assert answer.status in (200, 400, 404)
    if answer.status == 200:
        assert answer.json.get("exit_code") in (125, 126, 127)
    else:
        assert answer.error["infra"] is False
    assert shared_box.sh("ls /tmp/ran").code != 0


@pytest.mark.parametrize("body", [
    {}, {"argv": []}, {"argv": ["a"], "shell": "b"}, {"argv": "true"}, {"argv": [1]}, {"shell": "x", "timeout_ms": -1},
    {"shell": "x", "envv": {}}, {"shell": "x", "env": {"a=b": "c"}}, {"argv": ["a\0b"]}, {"shell": "x", "output_limit_bytes": -1},
])
def test_a_wrong_exec_request_is_a_400(api, shared_box, body):
    answer = api.call("POST", shared_box.path + "/exec", body)

    assert answer.status == 400, answer
    assert answer.error["code"] == "invalid_argument"


def test_stdin_is_given_whole_and_closed(shared_box):
    data = "line\n" * 20000

    result = shared_box.run("wc", "-c", stdin=data)

    assert result.out.strip() == str(len(data))


def test_without_stdin_a_reader_sees_its_end_at_once(shared_box):
    started = time.monotonic()

    result = shared_box.run("cat")

    assert result.code == 0 and time.monotonic() - started < 5


def test_a_command_that_never_reads_its_stdin_ends_all_the_same(shared_box):
    result = shared_box.run("true", stdin="x" * 1000000, timeout=15)

    assert result.code == 0


def test_stdin_can_be_written_piece_by_piece(api, shared_box):
    exec_id = shared_box.start(argv=["cat"], open_stdin=True)

    api.must("POST", f"{shared_box.path}/exec/{exec_id}/stdin", {"data": "one\n"})
    shared_box.until_output(exec_id, b"one\n")
    api.must("POST", f"{shared_box.path}/exec/{exec_id}/stdin", {"data": "two\n", "end": True})

    assert shared_box.wait(exec_id).code == 0
    assert shared_box.read_all(exec_id) == b"one\ntwo\n"


def test_bytes_that_are_no_utf8_come_exactly(shared_box):
    result = shared_box.sh(r"printf 'a\377\376\000b'")

    assert "�" in result.out
    assert base64.b64decode(result["stdout_base64"]) == b"a\xff\xfe\x00b"


def test_text_that_is_utf8_carries_no_base64(shared_box):
    result = shared_box.sh("printf 'gr\\303\\274n'")

    assert result.out == "grün"
    assert result.get("stdout_base64") is None


def test_output_is_byte_exact_over_many_megabytes(shared_box):
    exec_id = shared_box.start(shell="seq 1 1000000")

    data = shared_box.read_all(exec_id, seconds=120)

    expected = b"".join(b"%d\n" % i for i in range(1, 1000001))
    assert len(data) == len(expected)
    assert hashlib.sha256(data).digest() == hashlib.sha256(expected).digest()


def test_both_streams_at_once_do_not_block_each_other(shared_box):
    exec_id = shared_box.start(shell="(seq 1 100000) & (seq 1 100000 >&2) & wait")

    err = shared_box.read_all(exec_id, "stderr")
    out = shared_box.read_all(exec_id, "stdout")

    assert out == err and out.endswith(b"100000\n")


def test_output_past_the_limit_is_cut_flagged_and_counted(shared_box):
    result = shared_box.sh("head -c 1000000 /dev/zero | tr '\\0' x", output_limit_bytes=1000)

    assert result["truncated"] is True
    assert 0 < len(result.bytes_of("stdout")) <= 1000
    assert result.code == 0


def test_output_within_the_limit_is_not_flagged(shared_box):
    result = shared_box.sh("printf 12345", output_limit_bytes=5)

    assert result["truncated"] is False and result.out == "12345"


def test_yes_is_stored_up_to_its_cap_and_no_further(server, boxes):
    box = boxes()
    exec_id = box.start(argv=["yes"])
    time.sleep(3)

    stored = sum(f.stat().st_size for f in server.data.rglob("*") if f.is_file() and box.id in str(f))
    box.signal(exec_id, 9)
    box.wait(exec_id)

    assert stored < 200 << 20, f"{stored} bytes of `yes` stored"


def test_a_timeout_kills_the_command_and_returns_what_was_printed(shared_box):
    started = time.monotonic()

    result = shared_box.sh("echo before; sleep 100; echo after", timeout_ms=700)

    assert result["timed_out"] is True
    assert result.out == "before\n"
    assert time.monotonic() - started < 8


@pytest.mark.parametrize("how", ["", "s", "d", "sd", "sdc", "sdn", "sdcn"])
def test_a_timeout_kills_whatever_the_command_left_behind(boxes, how):
    box = boxes()

    result = box.sh(f"/probe escape {how or 'x'} 60 & echo started; wait; sleep 60", timeout_ms=700)

    assert result["timed_out"] is True
    wait_until(lambda: "escape" not in box.sh("ps -o args").out, 5, "every escaped process killed")


def test_a_signal_ends_the_command(api, shared_box):
    exec_id = shared_box.start(shell="trap 'echo got; exit 7' TERM; echo ready; while :; do sleep 0.05; done")
    shared_box.until_output(exec_id, b"ready")

    shared_box.signal(exec_id, 15)

    assert shared_box.wait(exec_id).code == 7
    assert b"got" in shared_box.read_all(exec_id)


def test_a_grandchild_that_holds_the_pipe_does_not_delay_the_result(shared_box):
    started = time.monotonic()

    result = shared_box.sh("sleep 30 & echo hi")

    assert result.out == "hi\n"
    assert time.monotonic() - started < 3


def test_a_background_command_is_found_again_by_id(api, shared_box):
    exec_id = shared_box.start(shell="echo a; sleep 1; echo b; exit 4")

    listed = [e["exec_id"] for e in api.must("GET", shared_box.path + "/exec")["items"]]
    result = shared_box.wait(exec_id)

    assert exec_id in listed
    assert result.code == 4
    assert shared_box.read_all(exec_id) == b"a\nb\n"
    assert shared_box.read_all(exec_id, offset=2) == b"b\n"


def test_a_late_reader_gets_what_an_early_one_got(shared_box):
    exec_id = shared_box.start(shell="seq 1 2000")
    shared_box.wait(exec_id)

    assert shared_box.read_all(exec_id) == shared_box.read_all(exec_id)


def test_waiting_for_output_answers_when_there_is_some(shared_box):
    exec_id = shared_box.start(shell="sleep 0.5; echo now; sleep 2")
    started = time.monotonic()

    data, _, _ = shared_box.output(exec_id, wait_ms=10000)

    assert data == b"now\n"
    assert time.monotonic() - started < 2


def test_the_same_key_never_runs_twice(shared_box):
    key = uuid.uuid4().hex

    first = shared_box.sh("echo x >> /tmp/count; wc -l < /tmp/count", key=key)
    again = shared_box.sh("echo x >> /tmp/count; wc -l < /tmp/count", key=key)

    assert first["exec_id"] == again["exec_id"]
    assert first.out == again.out
    assert shared_box.sh("wc -l < /tmp/count; rm /tmp/count").out.strip() == "1"


def test_twenty_concurrent_calls_with_one_key_run_once(shared_box):
    key, results = uuid.uuid4().hex, []

    def run():
        results.append(shared_box.sh("echo x >> /tmp/concurrent; sleep 0.3; echo done", key=key))

    threads = [threading.Thread(target=run) for _ in range(20)]
    [t.start() for t in threads]
    [t.join() for t in threads]

    assert len(results) == 20
    assert {r.out for r in results} == {"done\n"}
    assert shared_box.sh("wc -l < /tmp/concurrent; rm /tmp/concurrent").out.strip() == "1"


def test_one_key_with_another_command_is_a_conflict(api, shared_box):
    key = uuid.uuid4().hex
    shared_box.sh("echo one", key=key)

    answer = api.call("POST", shared_box.path + "/exec", {"shell": "echo two", "key": key})

    assert answer.status in (409, 422), answer


def test_results_carry_times_and_memory_read_outside(shared_box):
    result = shared_box.sh("i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; sleep 0.2")

    assert result["duration_ms"] >= 200
    assert result.get("wall_ms", result["duration_ms"]) >= 200
    assert result["cpu_ms"] > 0
    assert result["memory_peak_bytes"] > 0
    assert result["frozen_ms"] == 0
    assert result["stalled_ms"] >= 0
    assert result["status"], "a status apart from the exit code"


def test_frozen_time_does_not_count_against_the_timeout(api, boxes):
    box = boxes()
    exec_id = box.start(shell="sleep 1.5; echo finished", timeout_ms=3000)
    time.sleep(0.3)

    pause_or_skip(box)
    time.sleep(4)
    api.must("POST", box.path + "/resume", {})
    result = box.wait(exec_id)

    assert result["timed_out"] is False, result
    assert result["frozen_ms"] >= 3000


def test_a_wall_deadline_counts_frozen_time_too(api, boxes):
    box = boxes()
    answer = api.call("POST", box.path + "/exec", {"shell": "sleep 30", "background": True, "deadline_ms": 1500})

    result = box.wait(answer.json["exec_id"], 15)

    assert result["timed_out"] is True


def test_a_client_that_goes_away_leaves_the_command_running(api, shared_box):
    import http.client
    import json
    connection = api.connection(timeout=1)
    key = uuid.uuid4().hex
    connection.request("POST", shared_box.path + "/exec", json.dumps({"shell": "sleep 2; echo done", "key": key, "wait_ms": 20000}),
                       {"Authorization": "Bearer " + api.key, "Content-Type": "application/json"})
    try:
        connection.getresponse()
    except (TimeoutError, OSError, http.client.HTTPException):
        pass
    connection.close()

    result = shared_box.sh("sleep 2; echo done", key=key)

    assert result.out == "done\n"


def test_kill_on_disconnect_ends_the_command_when_asked(api, boxes):
    import json
    box = boxes()
    connection = api.connection(timeout=5)
    connection.request("POST", box.path + "/exec", json.dumps({"shell": "sleep 61", "kill_on_disconnect": True, "wait_ms": 60000}),
                       {"Authorization": "Bearer " + api.key, "Content-Type": "application/json"})
    wait_until(lambda: "sleep 61" in box.sh("ps -o args | grep -v grep").out, 10, "the command runs")

    connection.close()

    wait_until(lambda: "sleep 61" not in box.sh("ps -o args | grep '[s]leep 61'").out, 10, "the command is killed")


def test_fifty_commands_at_once_all_come_back(shared_box):
    results = {}

    def run(i):
        results[i] = shared_box.sh(f"echo {i}")

    threads = [threading.Thread(target=run, args=(i,)) for i in range(50)]
    [t.start() for t in threads]
    [t.join() for t in threads]

    assert {i: r.out for i, r in results.items()} == {i: f"{i}\n" for i in range(50)}


def test_five_hundred_commands_leave_no_process_and_no_descriptor(server, shared_box):
    import os
    shared_box.sh("true")
    before = len(os.listdir(f"/proc/{server.child.pid}/fd"))

    for _ in range(500):
        assert shared_box.run("true").code == 0

    after = len(os.listdir(f"/proc/{server.child.pid}/fd"))
    assert after <= before + 10
    assert len(shared_box.sh("ps -o pid").out.splitlines()) < 10


def test_ten_thousand_short_children_leave_no_zombie(boxes):
    box = boxes()

    result = box.sh("/probe zombies 5000", timeout=120)

    assert result.values()["made"] == "5000", result
    assert " Z " not in box.sh("ps -o pid,stat,args").out


def test_an_exec_in_an_ended_sandbox_is_a_typed_error(api, boxes):
    box = boxes()
    box.delete()

    answer = api.call("POST", box.path + "/exec", {"shell": "true"})

    assert answer.status in (404, 409, 410)
    assert answer.error["code"] in ("not_found", "conflict")


def test_a_mebibyte_of_arguments_arrives_whole(shared_box):
    parts = [chr(97 + i) * 120_000 for i in range(8)]

    by_argv = shared_box.run("sh", "-c", 'for a; do echo "${#a}"; done; printf %s "$8" | tail -c 3', "sh", *parts)
    by_shell = shared_box.sh("# " + "x" * 120_000 + "\necho end")

    assert by_argv.out == "120000\n" * 8 + "hhh", by_argv
    assert by_shell.out == "end\n", by_shell


@pytest.mark.parametrize("body", [
    {"argv": ["true"] + ["x" * 100_000] * 11}, {"argv": ["true", "x" * (128 << 10)]}, {"shell": "# " + "x" * (128 << 10)},
    {"argv": ["true"], "env": {"A": "x" * (128 << 10)}},
], ids=["all", "argument", "shell", "variable"])
def test_arguments_that_no_kernel_takes_are_refused_by_name(api, shared_box, body):
    answer = api.call("POST", shared_box.path + "/exec", body)

    assert answer.status == 413, answer
    assert answer.error["code"] == "too_large"
    assert "write a file, or use stdin" in answer.error["message"]


def test_numbers_of_an_answer_are_plain_decimals(api, shared_box):
    answer = api.call("POST", shared_box.path + "/exec", {"argv": ["sleep", "0.05"]})

    for field in ("duration_ms", "active_ms", "frozen_ms", "cpu_ms", "stalled_ms"):
        assert re.search(rb'"%s":[0-9]+(\.[0-9]+)?[,}]' % field.encode(), answer.body), answer.body


def test_a_first_process_has_three_descriptors_and_no_signal_blocked(shared_box):
    fds = shared_box.run("/probe", "fds")
    # Not by a shell, which ignores SIGQUIT for what it runs.
    status = shared_box.run("cat", "/proc/self/status").out

    assert [line.split()[0] for line in fds.out.splitlines()] == ["0", "1", "2"], fds.out
    assert "SigBlk:\t0000000000000000" in status
    assert "SigIgn:\t0000000000000000" in status
