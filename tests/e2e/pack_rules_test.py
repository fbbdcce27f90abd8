"""Who may pack, promote and see layers, and what may not be left in one."""
import os
import subprocess

import pytest

from support import images
from support.api import Box, end_of, key_of
from support.archives import file, tree
from support.server import BIN, Server

SMALL = {"memory_mb": 256, "disk_mb": 64, "max_processes": 64}
SECRET = "operator-secret-7f3a9c2e"


@pytest.fixture(scope="module")
def guarded():
    """A server whose operator has registered a secret."""
    server = Server(name="rules")
    rules = server.directory / "rules"
    rules.write_text(f"# what must not leave a sandbox\nci-token {SECRET}\n")
    rules.chmod(0o600)
    server.arguments += ["--residue-rules", str(rules)]
    server.start()
    images.import_tar(server.api, "tiny:1", images.tiny_tar())
    yield server
    complaints = server.close()
    assert not complaints, complaints


@pytest.fixture
def box(guarded):
    box = guarded.api.create("tiny:1", resources=SMALL)
    yield box
    box.delete()


def pack(box, name, api=None, **options):
    """The pack's operation at its end."""
    api = api or box.api
    return end_of(api, api.must("POST", box.path + "/pack", {"name": name, **options}, expect=202)["operation_id"])


def project_of(api):
    """A project with a builder's, a runtime and a viewer's key, and an image of its own."""
    name, builder = key_of(api, "builder")
    images.import_tar(builder, "own:1", images.tiny_tar())
    return builder, key_of(api, "runtime", name)[1], key_of(api, "viewer", name)[1]


# --- residue ------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("plant", [
    f"echo token={SECRET} > /root/file", f"dd if=/dev/zero bs=1k count=300 of=/root/file 2>/dev/null; printf {SECRET} >> /root/file",
    f"mkdir -p /root/file/{SECRET}", f"ln -s /{SECRET} /root/file", f"dd if=/dev/zero bs=1 count=1 seek=200000 of=/root/file 2>/dev/null; printf {SECRET} >> /root/file",
    f"head -c 262140 /dev/zero > /root/file; printf {SECRET} >> /root/file; head -c 300000 /dev/zero >> /root/file",
], ids=["content", "behind a lot", "a name", "a link's target", "behind a hole", "across two reads"])
def test_a_secret_of_the_operator_refuses_the_pack_and_is_not_told(guarded, box, plant):
    assert box.sh(plant).code == 0

    ended = pack(box, "residue:1")

    assert ended["state"] == "failed" and ended["error"]["code"] == "conflict", ended
    assert "/root/file" in ended["error"]["message"] and "ci-token" in ended["error"]["message"]
    assert guarded.api.call("GET", "/v1/layers/residue:1").status == 404
    assert SECRET not in str(ended) and SECRET not in str(guarded.api.must("GET", box.path + "/events"))
    assert SECRET not in guarded.log_file.read_text(errors="replace")
    assert pack(box, "negative-control:1", allow=["/root/*", "/root/file/*"])["state"] == "succeeded"


def test_a_canary_of_the_request_is_found_too_and_what_is_removed_is_not_looked_at(box):
    box.sh("mkdir /root/tests; echo CANARY-42-CANARY > /root/tests/test_hidden.py; echo fine > /root/solution.py")
    canaries = [{"name": "hidden-tests", "text": "CANARY-42-CANARY"}]

    refused = pack(box, "canary:1", canaries=canaries)
    accepted = pack(box, "canary:1", canaries=canaries, remove=["tests"])
    also = pack(box, "canary:2", canaries=canaries, remove=["/root/tests/*.py"])

    assert "hidden-tests" in refused["error"]["message"] and "/root/tests/test_hidden.py" in refused["error"]["message"]
    names = [item["path"] for item in box.api.must("GET", "/v1/layers/canary:1/files", query={"recursive": "true"})["items"]]
    assert accepted["state"] == "succeeded" and [name for name in names if name.startswith("/root")] == ["/root", "/root/solution.py"]
    assert also["state"] == "succeeded" and box.api.call("GET", "/v1/layers/canary:2/content", query={"path": "/root/tests/test_hidden.py"}).status == 404


def test_a_file_that_is_hidden_by_a_whiteout_is_not_in_the_layer(guarded):
    api = guarded.api
    answer = os.urandom(16).hex().encode()
    images.import_tar(api, "answers:1", tree(file("answers/solution", answer * 100)), what="layers", kind="workspace", at="/work")
    box = Box(api, api.must("POST", "/v1/sandboxes", {"environment": {"base": "tiny:1", "workspace": "answers:1"}, "resources": SMALL}))
    box.sh("cp -r /work/answers /root/copy; rm -r /work/answers /root/copy; echo done > /root/done")

    packed = pack(box, "hidden:1")["result"]
    box.delete()

    stored = [path for path in (guarded.data / "layers").glob("*.meta") if packed["digest"].endswith(path.stem)]
    everything = b"".join(path.read_bytes() for path in stored)
    assert stored and b"done" in everything, "negative control"
    assert answer not in everything and packed["content_bytes"] == 5
    assert [item["type"] for item in api.must("GET", "/v1/layers/hidden:1/files", query={"path": "/work"})["items"]] == ["whiteout"]


@pytest.mark.parametrize("text, mode", [("short x\n", 0o600), ("only-a-name\n", 0o600), ("bad/name 12345678\n", 0o600), (f"ci {SECRET}\n", 0o644)],
                         ids=["too short", "no text", "a name that is none", "readable by others"])
def test_rules_that_mean_nothing_stop_the_start(tmp_path, text, mode):
    rules = tmp_path / "rules"
    rules.write_text(text)
    rules.chmod(mode)
    server = Server(["--residue-rules", str(rules)], name="badrules").start(wait=False)

    assert server.child.wait(timeout=30) == 1
    tail = server.log_tail()
    server.close()
    assert "cannot start" in tail and SECRET not in tail


# --- permissions ----------------------------------------------------------------------------------------------------------------

def test_a_runtime_key_makes_sandboxes_and_decides_nothing_about_layers(guarded):
    builder, runtime, viewer = project_of(guarded.api)
    box = runtime.create("own:1", resources=SMALL)
    box.sh("echo x > /root/x")
    packed = pack(box, "mine:1", builder)

    for key in (runtime, viewer):
        assert key.call("POST", box.path + "/pack", {"name": "other:1"}).status == 403
        assert key.raw("POST", "/v1/images", images.tiny_tar(), query={"name": "own:2"}, headers={"Content-Type": "application/x-tar"}).status == 403
        assert key.raw("POST", "/v1/layers", tree(file("f")), query={"name": "kit:1", "kind": "toolkit"}).status == 403
        for method, path in (("DELETE", "/v1/images/own:1"), ("DELETE", "/v1/layers/own:1"), ("POST", "/v1/layers/mine:1/promote"), ("POST", "/v1/layers/own:1/sync")):
            assert key.call(method, path, {} if method == "POST" else None).status == 403, path
    box.delete()
    assert packed["state"] == "succeeded", packed


def test_a_packed_layer_is_in_quarantine_until_a_builder_promotes_it(guarded):
    builder, runtime, _ = project_of(guarded.api)
    box = runtime.create("own:1", resources=SMALL)
    box.sh("echo x > /root/x")
    layer = pack(box, "mine:1", builder)["result"]
    box.delete()

    def create(key, ref):
        answer = key.call("POST", "/v1/sandboxes", {"environment": {"base": "own:1", "diffs": [ref]}, "resources": SMALL})
        if answer.status == 201:
            Box(key, answer.json).delete()
        return answer.status
    before = [create(runtime, ref) for ref in ("mine:1", layer["digest"])]
    assert create(builder, "mine:1") == 201, "a builder tries what he is to promote"
    assert runtime.call("GET", "/v1/layers/mine:1").status == 404 and "mine:1" not in str(runtime.must("GET", "/v1/refs"))
    promoted = builder.must("POST", "/v1/layers/mine:1/promote", {}, query={"name": "good:1"})

    assert before == [404, 404] and promoted["ref"] == "good:1" and "quarantined" not in promoted
    assert [create(runtime, ref) for ref in ("good:1", layer["digest"], "mine:1")] == [201, 201, 404]
    assert builder.call("POST", "/v1/layers/good:1/promote", {}).status == 409
    box = builder.create("own:1", resources=SMALL)
    assert builder.call("POST", box.path + "/pack", {"name": "good:1"}).status == 409, "a pack moves no name that others rely on"
    box.delete()


def test_a_pack_of_the_default_project_reaches_no_other_project_before_its_promotion(guarded, box):
    _, stranger = key_of(guarded.api, "builder")
    layer = pack(box, "everybody:1", kind="toolkit")["result"]

    hidden = [stranger.call("GET", f"/v1/layers/{ref}").status for ref in ("everybody:1", layer["digest"])]
    guarded.api.must("POST", "/v1/layers/everybody:1/promote", {})

    assert hidden == [404, 404] and stranger.call("GET", "/v1/layers/everybody:1").status == 200


def test_another_projects_sandbox_cannot_be_packed(guarded, box):
    _, stranger = key_of(guarded.api, "admin")

    assert stranger.call("POST", box.path + "/pack", {"name": "stolen:1"}).status == 404


def test_other_layers_below_than_those_it_was_packed_over_are_warned_of(guarded, box):
    box.sh("rm -r /home/alice; mkdir /home/alice")
    pack(box, "over:1")
    images.import_tar(guarded.api, "more:1", tree(file("home/alice/new")), what="layers", kind="toolkit")

    same = guarded.api.must("POST", "/v1/sandboxes", {"environment": {"base": "tiny:1", "diffs": ["over:1"]}, "resources": SMALL})
    other = guarded.api.must("POST", "/v1/sandboxes", {"environment": {"base": "tiny:1", "toolkits": ["more:1"], "diffs": ["over:1"]}, "resources": SMALL})
    hidden = Box(guarded.api, other).sh("ls -A /home/alice").out
    for made in (same, other):
        Box(guarded.api, made).delete()

    assert "warnings" not in same and len(other["warnings"]) == 1 and "packed over other layers" in other["warnings"][0]
    assert hidden == "", "which is what the warning is about"


# --- verifiers ------------------------------------------------------------------------------------------------------------------

def test_a_verifier_layer_is_for_builders_to_look_at_and_in_no_sandbox(guarded):
    builder, runtime, viewer = project_of(guarded.api)
    layer = images.import_tar(builder, "hidden-tests:1", tree(file("tests/test_it.py", b"assert True\n")), what="layers", kind="verifier")

    assert builder.raw("GET", "/v1/layers/hidden-tests:1/content", query={"path": "/tests/test_it.py"}).body == b"assert True\n"
    assert builder.must("POST", "/v1/layers/hidden-tests:1/verify", {})["verified"]
    for key in (runtime, viewer, key_of(guarded.api, "builder")[1]):
        for ref in ("hidden-tests:1", layer["digest"]):
            for tail in ("", "/files", "/content?path=/tests/test_it.py"):
                assert key.call("GET", f"/v1/layers/{ref}{tail}").status == 404, (ref, tail)
        assert "hidden-tests" not in str(key.must("GET", "/v1/layers")) and "hidden-tests" not in str(key.must("GET", "/v1/refs"))
    for ref in ("hidden-tests:1", layer["digest"]):
        for environment in ({"base": ref}, {"base": "own:1", "workspace": ref}, {"base": "own:1", "toolkits": [ref]}, {"base": "own:1", "diffs": [ref]}):
            for key in (builder, runtime):
                answer = key.call("POST", "/v1/sandboxes", {"environment": environment})
                assert answer.status in (400, 404), (environment, answer)


def test_what_is_in_a_verifier_layer_refuses_a_pack_wherever_it_lies(guarded):
    builder, runtime, _ = project_of(guarded.api)
    hidden = b"def test_hidden():\n    assert solve(41) == 42\n"
    images.import_tar(builder, "graders/task-1:1", tree(file("tests/test_it.py", hidden), file("tests/empty", b""), file("tests/zeros", b"\0" * 4096)), what="layers",
                      kind="verifier")
    box = runtime.create("own:1", resources=SMALL)
    box.write_file("/root/copied.py", b"# mine\n" + hidden)
    box.sh("head -c 100000 /dev/zero > /root/zeros")

    refused = pack(box, "graded:1", builder)
    accepted = pack(box, "graded:1", builder, remove=["copied.py"])
    box.delete()

    assert "/root/copied.py (verifier.graders.task-1)" in refused["error"]["message"] and "zeros" not in refused["error"]["message"]
    assert accepted["state"] == "succeeded", accepted


def test_a_diff_is_packed_and_never_imported(guarded):
    answer = guarded.api.raw("POST", "/v1/layers", tree(file("f")), query={"name": "x:1", "kind": "diff"}, headers={"Content-Type": "application/x-tar"})

    assert answer.status == 400 and "packed" in answer.error["message"]


# --- clients --------------------------------------------------------------------------------------------------------------------

def test_the_command_line_packs_promotes_and_restores(guarded, box, tmp_path):
    def dsec(*arguments):
        return subprocess.run([BIN / "dsec", *arguments], capture_output=True, text=True, timeout=90, stdin=subprocess.DEVNULL,
                              env={**os.environ, "HOME": str(tmp_path), "DSEC_URL": guarded.api.url, "DSEC_API_KEY": guarded.api.key})
    box.sh(f"echo kept > /root/kept; echo {SECRET} > /root/secret")

    refused = dsec("pack", box.id, "cli:1")
    packed = dsec("pack", box.id, "cli:1", "--remove", "/root/secret")
    promoted = dsec("layer", "promote", "cli:1", "--as", "cli-good:1")
    ran = dsec("run", "--rm", "--base", "tiny:1", "--diff", "cli-good:1", "--memory", "256m", "--disk", "64m", "--", "ls", "-A", "/root")

    assert refused.returncode == 1 and "/root/secret" in refused.stderr, refused
    assert packed.returncode == 0 and packed.stdout.startswith("cli:1  sha256:") and "read" in packed.stderr, packed
    assert promoted.returncode == 0 and promoted.stdout.startswith("cli-good:1  sha256:"), promoted
    assert ran.returncode == 0 and ran.stdout == "kept\n", ran


def test_the_library_packs_in_both_its_forms(guarded):
    from libdsec import Conflict
    from libdsec.sync import DSecClient, DSecContainerRunArgs
    stages = []
    with DSecClient(guarded.api.url, api_key=guarded.api.key) as client:
        arguments = dict(base="tiny:1", memory_limit_mb=256, disk_limit_mb=64)
        with client.run_container(DSecContainerRunArgs(**arguments)) as sandbox:
            sandbox.files.write("/root/kept", b"kept")
            sandbox.files.write("/root/canary", b"keptkept")
            with pytest.raises(Conflict, match="told"):
                sandbox.pack_diff("library:1", canaries={"told": "keptkept"})
            layer = sandbox.pack_diff("library:1", remove=["canary"], progress=lambda p: stages.append(p.stage))
        client.layers.promote("library:1", name="library:good")
        with client.run_container(DSecContainerRunArgs(diffs=["library:good"], **arguments)) as again:
            assert again.files.read("/root/kept") == b"kept" and again.run_shell("ls /root").stdout == "kept\n"
    assert layer.kind == "diff" and layer.digest.startswith("sha256:") and stages
