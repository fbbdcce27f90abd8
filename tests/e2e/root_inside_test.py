"""What root inside a sandbox can do: everything that an agent's work on Debian needs."""
import io
import pathlib
import subprocess
import tarfile

import pytest

from support import images
from support.api import Box


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A tar of a local package repository: two packages, one needing the other, with a setgid file and a service user."""
    top = tmp_path_factory.mktemp("repository")
    pool = top / "pool"
    pool.mkdir()

    def package(name, depends, files, postinst):
        tree = top / name
        (tree / "DEBIAN").mkdir(parents=True)
        (tree / "DEBIAN" / "control").write_text(
            f"Package: {name}\nVersion: 1.0\nArchitecture: all\nMaintainer: t <t@localhost>\n"
            + (f"Depends: {depends}\n" if depends else "") + "Description: test\n")
        if postinst:
            (tree / "DEBIAN" / "postinst").write_text("#!/bin/sh\nset -e\n" + postinst)
            (tree / "DEBIAN" / "postinst").chmod(0o755)
        for path, (text, mode) in files.items():
            target = tree / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
            target.chmod(mode)
        subprocess.run(["dpkg-deb", "--root-owner-group", "-b", tree, pool / f"{name}.deb"], check=True, stdout=subprocess.DEVNULL)

    package("dsec-low", "", {"usr/bin/dsec-low": ("#!/bin/sh\necho low\n", 0o755)}, "")
    package("dsec-high", "dsec-low", {"usr/bin/dsec-high": ("#!/bin/sh\ndsec-low\necho high\n", 0o2755)},
            "useradd --system dsechigh\nchown dsechigh:staff /usr/bin/dsec-high\nupdate-alternatives --install /usr/bin/dsec-alt dsec-alt /usr/bin/dsec-low 10\n")
    index = subprocess.run(["dpkg-scanpackages", "-m", "pool"], cwd=top, check=True, capture_output=True).stdout
    (top / "Packages").write_bytes(index)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.add(pool, "pool")
        archive.add(top / "Packages", "Packages")
    return out.getvalue()


def test_apt_get_installs_from_a_local_repository(debian_box, repository):
    answer = debian_box.api.raw("PUT", debian_box.path + "/files/archive", repository, query={"path": "/repo"},
                                headers={"Content-Type": "application/x-tar"})
    assert answer.status in (200, 201, 204), answer
    debian_box.sh("rm -f /etc/apt/sources.list.d/* ; echo 'deb [trusted=yes] file:/repo ./' > /etc/apt/sources.list")

    update = debian_box.sh("apt-get update", timeout=120)
    install = debian_box.sh("DEBIAN_FRONTEND=noninteractive apt-get install -y dsec-high", timeout=120)

    assert update.code == 0, update
    assert install.code == 0, install
    assert debian_box.sh("dsec-high; dsec-alt").out == "low\nhigh\nlow\n"
    assert debian_box.sh("stat -c '%U %G %a' /usr/bin/dsec-high").out.split()[:2] == ["dsechigh", "staff"]


def test_chown_to_every_id_of_the_image(debian_box):
    result = debian_box.sh("touch /tmp/c; for id in 0 1 1000 65534; do chown $id:$id /tmp/c && stat -c %u:%g /tmp/c; done; chown _apt /tmp/c && stat -c %U /tmp/c")

    assert result.out == "0:0\n1:1\n1000:1000\n65534:65534\n_apt\n"


def test_su_and_sudo_switch_users(debian_box):
    debian_box.sh("id bob >/dev/null 2>&1 || useradd -m -s /bin/bash bob; echo 'bob ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/bob; chmod 440 /etc/sudoers.d/bob")

    assert debian_box.sh("su bob -c 'id -un'").out == "bob\n"
    assert debian_box.sh("sudo -u bob id -un").out == "bob\n"
    assert debian_box.sh("sudo id -un", user="bob").out == "root\n"


def test_with_no_new_privs_sudo_gains_nothing(api, debian):
    box = api.create(debian, no_new_privs=True)
    try:
        box.sh("useradd -m bob; echo 'bob ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/bob; chmod 440 /etc/sudoers.d/bob")

        refused = box.sh("sudo -n id -un", user="bob")
        status = box.sh("grep NoNewPrivs /proc/self/status").out

        assert refused.out != "root\n" and refused.code != 0
        assert status.split() == ["NoNewPrivs:", "1"]
    finally:
        box.delete()


def test_root_binds_port_80_and_serves(debian_box):
    exec_id = debian_box.start(shell="cd /tmp && echo served > index.html && exec python3 -m http.server 80 --bind 127.0.0.1")

    result = debian_box.sh("for i in $(seq 100); do python3 -c 'import urllib.request as u; print(u.urlopen(\"http://127.0.0.1/index.html\").read().decode(), end=\"\")' 2>/dev/null && break; sleep 0.1; done")

    debian_box.signal(exec_id, 9)
    assert result.out == "served\n"


def test_gdb_debugs_a_child_and_attaches_to_an_own_process(debian_box):
    run = debian_box.sh("gdb -q -batch -ex 'break main' -ex run -ex 'info registers rip' -ex kill /probe 2>&1", timeout=60)
    attach = debian_box.sh("sleep 100 & pid=$!; gdb -q -batch -p $pid -ex 'info registers rip' 2>&1; kill $pid", timeout=60)

    assert "rip" in run.out, run
    assert "rip" in attach.out, attach


def test_capabilities_are_the_fixed_small_set(debian_box):
    status = dict(line.split(":\t") for line in debian_box.sh("cat /proc/self/status").out.splitlines() if ":\t" in line)
    names = {"chown": 0, "dac_override": 1, "fowner": 3, "fsetid": 4, "kill": 5, "setgid": 6, "setuid": 7, "setpcap": 8,
             "net_bind_service": 10, "sys_chroot": 18, "audit_write": 29, "setfcap": 31}
    wanted = sum(1 << bit for bit in names.values())

    assert int(status["CapBnd"], 16) == wanted
    assert int(status["CapEff"], 16) == wanted
    assert int(status["CapAmb"], 16) == 0
    assert status["Seccomp"].strip() == "2"
    assert status["NoNewPrivs"].strip() == "0"


def test_git_works_on_a_fresh_repository(debian_box):
    result = debian_box.sh("cd /tmp && rm -rf g && git init -q g && cd g && git -c user.email=a@b -c user.name=a commit -q --allow-empty -m x && git log --oneline | wc -l")

    assert result.out == "1\n", result


def test_a_chroot_works(debian_box):
    result = debian_box.sh("mkdir -p /tmp/root && cp /probe /tmp/root/ && for f in /probe /etc/passwd; do chroot /tmp/root /probe read $f; done")

    assert [line.split()[1] for line in result.out.splitlines()] == ["0", "ENOENT"], result


def test_a_file_capability_gives_its_right_and_no_other(debian_box):
    # cap_chown, effective and permitted: VFS_CAP_REVISION_2, then two pairs of permitted and inheritable bits.
    debian_box.sh("id bob >/dev/null 2>&1 || useradd -m -s /bin/bash bob; touch /tmp/owned; chown root /tmp/owned; cp $(readlink -f /usr/bin/python3) /usr/local/bin/capable")
    given = debian_box.run("python3", "-c", "import os, struct; "
                           "os.setxattr('/usr/local/bin/capable', 'security.capability', struct.pack('<5I', 0x02000001, 1, 0, 0, 0))")

    plain = debian_box.run("python3", "-c", "import os; os.chown('/tmp/owned', 1, 1)", user="bob")
    capable = debian_box.run("/usr/local/bin/capable", "-c", "import os; os.chown('/tmp/owned', 1, 1); print(os.access('/etc/shadow', os.R_OK))", user="bob")

    assert given.code == 0, given
    assert plain.code != 0 and "Operation not permitted" in plain.err, plain
    assert (capable.code, capable.out) == (0, "False\n"), capable
    assert debian_box.sh("stat -c %u:%g /tmp/owned").out == "1:1\n"


def test_the_clock_and_the_time_zone_are_sane(debian_box):
    import time
    assert abs(int(debian_box.sh("date +%s").out) - time.time()) < 3


def test_localhost_resolves_and_pings_itself(debian_box):
    assert debian_box.sh("getent hosts localhost").code == 0
    assert debian_box.sh("python3 -c \"import socket; s=socket.create_server(('127.0.0.1',0)); c=socket.create_connection(s.getsockname()); print('ok')\"").out == "ok\n"


def test_multiprocessing_shared_memory_and_semaphores_work(debian_box):
    result = debian_box.sh("python3 -c 'import multiprocessing as m; p=m.Pool(4); print(sum(p.map(abs, range(-100,100)))); q=m.Queue(); q.put(1); print(q.get())'", timeout=60)

    assert result.out == "10000\n1\n", result


def test_a_pty_can_be_opened_inside(debian_box):
    assert debian_box.sh("python3 -c 'import pty,os; print(os.isatty(os.openpty()[1]))'").out == "True\n"
