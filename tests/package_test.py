"""Install rules and the .deb: the right files, with the right modes, in the right places."""
import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "release"

pytestmark = pytest.mark.skipif(not (BUILD / "bin" / "dsec").exists(), reason="the release preset is not built")


def test_install_puts_every_program_in_its_place(tmp_path):
    subprocess.run(["cmake", "--install", BUILD, "--prefix", tmp_path / "usr"], check=True, stdout=subprocess.DEVNULL)

    usr = tmp_path / "usr"
    assert os.access(usr / "bin" / "dsec", os.X_OK)
    for program in ("dsec-keeper", "dsec-spawner", "dsec-stored", "dsec-agent"):
        assert (usr / "libexec" / "dsec" / program).exists(), program
    assert (usr / "libexec" / "dsec" / "dsec-agent").stat().st_mode & 0o777 == 0o111
    assert (usr / "lib" / "systemd" / "system" / "dsec.service").exists()
    assert (usr / "lib" / "python3" / "dist-packages" / "libdsec" / "__init__.py").exists()


def test_an_installed_dsec_finds_its_programs_and_serves(tmp_path):
    subprocess.run(["cmake", "--install", BUILD, "--prefix", tmp_path / "usr"], check=True, stdout=subprocess.DEVNULL)
    from support import images, server as server_module
    saved, server_module.BIN = server_module.BIN, tmp_path / "usr" / "bin"
    try:
        server = server_module.Server(name="installed").start()
        try:
            images.import_tar(server.api, "tiny:1", images.tiny_tar())
            assert server.api.create("tiny:1").sh("echo installed").out == "installed\n"
        finally:
            complaints = server.close()
    finally:
        server_module.BIN = saved
    assert not complaints, complaints


def test_the_deb_holds_what_install_puts_and_names_its_dependencies(tmp_path):
    if shutil.which("dpkg-deb") is None:
        pytest.skip("dpkg-dev is not installed")
    subprocess.run(["cpack", "-G", "DEB", "-B", tmp_path, "--config", BUILD / "CPackConfig.cmake"], check=True, cwd=BUILD,
                   stdout=subprocess.DEVNULL)
    deb = next(tmp_path.glob("dsec_*.deb"))

    contents = subprocess.run(["dpkg-deb", "-c", deb], check=True, capture_output=True, text=True).stdout
    depends = subprocess.run(["dpkg-deb", "-f", deb, "Depends"], check=True, capture_output=True, text=True).stdout

    for path in ("./usr/bin/dsec", "./usr/libexec/dsec/dsec-keeper", "./usr/libexec/dsec/dsec-spawner", "./usr/libexec/dsec/dsec-stored", "./usr/libexec/dsec/dsec-agent",
                 "./lib/systemd/system/dsec.service", "./usr/lib/systemd/system/dsec.service"):
        if "systemd" not in path:
            assert path in contents, path
    assert "dsec.service" in contents
    agent = next(line for line in contents.splitlines() if line.endswith("libexec/dsec/dsec-agent"))
    assert agent.startswith("---x--x--x"), agent
    assert "root/root" in agent
    for needed in ("libc6", "libsqlite3-0", "liblz4-1", "python3-aiohttp"):
        assert needed in depends, depends


def test_the_agent_is_static_and_below_a_megabyte(tmp_path):
    agent = BUILD / "bin" / "dsec-agent"
    stripped = tmp_path / "stripped"  # strip replaces what it writes to: never a device
    subprocess.run(["strip", "-o", stripped, agent], check=True)
    size = stripped.stat().st_size

    description = subprocess.run(["file", "-b", agent], capture_output=True, text=True).stdout
    assert "statically linked" in description, description
    assert size < 1 << 20, size
