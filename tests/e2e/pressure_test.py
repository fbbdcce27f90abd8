"""Back-pressure and many at once: a slow reader grows no memory and stalls nobody."""
import os
import pathlib
import socket
import threading
import time

import pytest

from support.api import wait_until


def rss(server):
    status = pathlib.Path(f"/proc/{server.child.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) << 10


def test_readers_that_never_read_grow_no_memory(server, boxes):
    box = boxes(resources={"memory_mb": 256, "disk_mb": 256, "max_processes": 64})
    box.sh("/probe fill /big 100", timeout=60)
    before = rss(server)
    stuck = []
    for _ in range(30):
        connection = socket.create_connection((server.api.host, server.api.port))
        connection.sendall(f"GET {box.path}/files?path=/big HTTP/1.1\r\nHost: 127.0.0.1:{server.api.port}\r\nAuthorization: Bearer {server.api.key}\r\n\r\n".encode())
        stuck.append(connection)
    time.sleep(2)

    grown = rss(server) - before
    started = time.monotonic()
    answered = box.sh("echo yes").out
    took = time.monotonic() - started
    [c.close() for c in stuck]

    assert grown < 100 << 20, f"{grown >> 20} MiB for 30 stalled readers of 100 MiB"
    assert answered == "yes\n" and took < 3


def test_an_output_that_nobody_reads_does_not_stop_the_next_exec(boxes):
    box = boxes()
    exec_id = box.start(argv=["yes"])

    for _ in range(5):
        assert box.sh("echo yes").out == "yes\n"
    box.signal(exec_id, 9)


def test_fifty_creates_at_once_all_come(api, tiny):
    made, failed = [], []

    def create():
        answer = api.call("POST", "/v1/sandboxes", {"image": tiny, "resources": {"memory_mb": 64}})
        (made if answer.status == 201 else failed).append(answer)

    threads = [threading.Thread(target=create) for _ in range(50)]
    started = time.monotonic()
    [t.start() for t in threads]
    [t.join() for t in threads]
    took = time.monotonic() - started
    for answer in made:
        api.call("DELETE", f"/v1/sandboxes/{answer.json['id']}")

    assert not failed, failed[0]
    print(f"50 creates in {took * 1000:.0f} ms")


def test_a_thousand_create_exec_delete_cycles_leak_nothing(server, api, tiny):
    def cycle():
        box = api.create(tiny, resources={"memory_mb": 64})
        assert box.run("true").code == 0
        assert box.delete().status in (200, 202, 204)

    for _ in range(50):
        cycle()
    fds, memory = len(os.listdir(f"/proc/{server.child.pid}/fd")), rss(server)
    for _ in range(300):
        cycle()

    assert len(os.listdir(f"/proc/{server.child.pid}/fd")) <= fds + 20
    assert rss(server) - memory < 40 << 20


def test_three_hundred_idle_connections_do_not_stop_the_server(api):
    idle = [socket.create_connection((api.host, api.port)) for _ in range(300)]

    assert api.raw("GET", "/healthz", keyed=False).status == 200
    [c.close() for c in idle]


def test_a_refusal_for_capacity_is_429_with_retry_after_and_quick(api, tiny):
    made, refused = [], []
    memory_mb = int(pathlib.Path("/proc/meminfo").read_text().split()[1]) // 1024
    for _ in range(40):
        started = time.monotonic()
        answer = api.call("POST", "/v1/sandboxes", {"image": tiny, "resources": {"memory_mb": max(64, memory_mb // 4)}})
        if answer.status == 201:
            made.append(answer.json["id"])
        else:
            refused.append((answer, time.monotonic() - started))
            break
    for sandbox in made:
        api.call("DELETE", f"/v1/sandboxes/{sandbox}")

    if not refused:
        pytest.skip("this node's admission lets ten times its memory in")
    answer, took = refused[0]
    assert answer.status == 429, answer
    assert took < 1
    assert answer.error["retryable"] is True and answer.error["infra"] is False
    assert float(answer.headers["Retry-After"]) >= 0
