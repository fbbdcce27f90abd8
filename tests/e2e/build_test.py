"""dsec build: steps in sandboxes, a cache that never crosses projects, secrets in no layer."""
import base64
import functools
import hashlib
import http.server
import io
import json
import os
import signal
import subprocess
import tarfile
import threading

import pytest

from support import images
from support.api import end_of, key_of
from support.api import wait_until as wait_for
from support.archives import file, special, tree
from support.server import BIN, Server

def wait_until(condition, seconds=30, what="a build comes to its step, or to its end"):
    return wait_for(condition, seconds, what)


SMALL = {"memory_mb": 512, "disk_mb": 256, "max_processes": 128}


def context_of(api, *entries, expect=201):
    """The id of an uploaded context, or the error."""
    answer = api.raw("POST", "/v1/builds/contexts", tree(*entries), headers={"Content-Type": "application/x-tar"})
    assert answer.status == expect, answer
    return answer.json["context"] if expect == 201 else answer.error


def start(api, dockerfile, *entries, name="built:1", expect=202, **body):
    if entries:
        body["context"] = context_of(api, *entries)
    body.setdefault("resources", SMALL)
    answer = api.call("POST", "/v1/builds", {"name": name, "dockerfile": dockerfile, **body})
    assert answer.status == expect, answer
    return answer.json["operation_id"] if expect == 202 else answer.error


def build(api, dockerfile, *entries, **options):
    """The operation of a build at its end."""
    return end_of(api, start(api, dockerfile, *entries, **options))


def built(api, dockerfile, *entries, **options):
    ended = build(api, dockerfile, *entries, **options)
    assert ended["state"] == "succeeded", ended
    return ended


def states(ended):
    return [step["state"] for step in ended.get("build", {}).get("steps", [])]


def output_of(api, operation):
    answer = api.raw("GET", f"/v1/operations/{operation}/events", timeout=120)
    events = [json.loads(line[5:]) for line in answer.body.decode().splitlines() if line.startswith("data:")]
    return "".join(event["text"] for event in events if "offset" in event)


@pytest.fixture
def boxes(api, tiny):
    made = []

    def make(image="built:1", **spec):
        spec.setdefault("resources", SMALL)
        made.append(api.create(image, **spec))
        return made[-1]
    yield make
    for box in made:
        box.delete()


def build_sandboxes(api):
    return [item for item in api.list_all() if "dsec.build" in item["labels"]]


# --- from a Dockerfile to a sandbox -------------------------------------------------------------------------------------------

def test_a_dockerfile_becomes_an_image_that_runs(api, tiny, boxes):
    dockerfile = """# a comment
ARG WHO=nobody
FROM tiny:1 AS base
ARG WHO
ARG UNSET=${NOTHING:-fallback}
ENV GREETING="hello $WHO" \\
    PLACE=/srv/app
LABEL org.example.kind=test maintainer="a b"
EXPOSE 8080 9000-9001/udp
WORKDIR $PLACE
COPY --chmod=0755 run.sh ./
COPY --chown=alice data /srv/data/
RUN echo "$GREETING $UNSET" > made && id -u > who && pwd > where
USER alice
RUN id -u > /tmp/who2
CMD ["./run.sh"]
"""
    ended = built(api, dockerfile, file("run.sh", b"#!/bin/sh\ncat made\n"), file("data/deep/x", b"data\n"), name="built:1", args={"WHO": "world", "MISSPELT": "1"})

    assert set(states(ended)) == {"done"}
    assert ended["result"]["warnings"] == ["the build argument MISSPELT is used by no ARG"]
    record = api.must("GET", "/v1/images/built:1")
    config = record["config"]
    assert config["env"]["GREETING"] == "hello world" and config["cwd"] == "/srv/app" and config["user"] == "alice"
    assert config["command"] == ["./run.sh"] and config["labels"] == {"org.example.kind": "test", "maintainer": "a b"}
    assert config["exposed_ports"] == ["8080/tcp", "9000/udp", "9001/udp"]
    made_by = record["build"]
    assert made_by["dockerfile"].startswith("sha256:") and len(made_by["sandboxes"]) == 2 and made_by["services"] == []
    assert "RUN id -u > /tmp/who2" in made_by["steps"] and made_by["bases"] == [api.must("GET", "/v1/images/tiny:1")["digest"]]
    box = boxes()
    assert box.sh("./run.sh").out == "hello world fallback\n"
    assert box.sh("cat who where /tmp/who2").out == "0\n/srv/app\n1000\n"
    assert box.sh("stat -c '%u:%g %a' /srv/data/deep/x run.sh /srv/data").out == "1000:1000 644\n0:0 755\n1000:1000 755\n"
    assert box.sh("id -un").out == "alice\n"
    assert build_sandboxes(api) == []


def test_changes_of_the_base_are_as_they_were_made(api, tiny, boxes):
    built(api, "FROM tiny:1\nRUN mkdir -p /d/old && echo 1 > /d/old/a && echo 2 > /d/b && ln /d/b /d/c && ln -s b /d/l && chmod 2755 /d/old\n", name="lower:1")
    dockerfile = """FROM lower:1
RUN rm /canary && rm -rf /d/old && mkdir /d/old && echo new > /d/old/n
RUN ln /d/b /d/e && mv /d/l /d/m && chown alice /d/b
RUN test ! -e /canary && test ! -e /d/old/a && test "$(ls /d/old)" = n
COPY canary2 /canary
"""
    built(api, dockerfile, file("canary2", b"again\n"), name="built:1")

    box = boxes()
    assert box.sh("cat /canary; ls /d /d/old; readlink /d/m; stat -c %u:%h /d/b /d/e").out == "again\n/d:\nb\nc\ne\nm\nold\n\n/d/old:\nn\nb\n1000:2\n1000:2\n"
    assert api.must("POST", "/v1/layers/" + api.must("GET", "/v1/images/built:1")["digest"] + "/verify", {})


def test_stages_a_compiled_program_into_scratch(api, tiny, boxes):
    probe = images.build_probe().read_bytes()
    dockerfile = """FROM tiny:1 AS builder
WORKDIR /src
COPY program .
RUN chmod 755 program && mkdir -p /out/bin && cp program /out/bin/probe && echo note > /out/note
FROM tiny:1 AS unused
RUN exit 7
FROM scratch
COPY --from=builder /out/ /
COPY --from=0 /etc/passwd /etc/
COPY --from=tiny:1 /canary /from-image
RUN ["/bin/probe", "families"]
ENTRYPOINT ["/bin/probe"]
"""
    ended = built(api, dockerfile, file("program", probe), name="built:1")

    texts = [step["text"] for step in ended["build"]["steps"]]
    assert "RUN exit 7" not in texts, "a stage that the target does not need is not built"
    files = {item["path"] for item in api.must("GET", "/v1/layers/built:1/files", query={"recursive": "true", "kind": "base"})["items"]}
    assert {"/bin/probe", "/note", "/etc/passwd", "/from-image"} <= files and "/bin/busybox" not in files
    box = boxes()
    assert box.run("/bin/probe", "families").code == 0
    target = built(api, dockerfile, file("program", probe), name="target:1", target="builder")
    assert target["build"]["steps"][-1]["stage"] == "builder" and target["build"]["steps"][-1]["state"] == "cached"


def test_heredocs_add_and_dockers_own_corners(api, tiny, boxes):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as out:
        images.add_file(out, "inside/file", b"unpacked\n", 0o640, 1000, 50)
    dockerfile = """# escape=`
FROM tiny:1
SHELL ["/bin/sh", "-ec"]
ENV A=1 B='two words'
RUN <<EOF
echo "$A $B" > /first
for i in 1 2; do echo $i >> /first; done
EOF
RUN <<"SCRIPT"
#!/bin/awk -f
BEGIN { print "awk" > "/second" }
SCRIPT
RUN cat <<X > /third && echo more >> /third
$A
X
COPY <<one <<"two" /h/
a=$A "quoted" \\n
one
$A
two
ADD pack.tgz notes.txt /added/
ADD --chown=1000:50 notes.txt /
COPY src/*.c link /globbed/
RUN echo `
    joined `
# a comment between
    lines > /fourth
"""
    entries = [file("pack.tgz", archive.getvalue()), file("notes.txt", b"plain\n"), file("src/a.c"), file("src/b.c"), file("src/c.h"), special("link", tarfile.SYMTYPE, "src/c.h")]
    built(api, dockerfile, *entries, name="built:1")

    box = boxes()
    assert box.sh("cat /first /second /third /h/one /h/two /fourth").out == '1 two words\n1\n2\nawk\n1\nmore\na=1 "quoted" \\n\n$A\njoined lines\n'
    assert box.sh("cat /added/inside/file /added/notes.txt; stat -c '%u:%g %a' /added/inside/file /notes.txt").out == "unpacked\nplain\n1000:50 640\n1000:50 644\n"
    assert box.sh("ls /globbed; test -L /globbed/link || cat /globbed/link").out == "a.c\nb.c\nlink\nx\n"


@pytest.mark.parametrize("dockerfile, words", [
    ("RUN x\n", ["line 1", "before the first FROM"]),
    ("FROM tiny:1\n\nRUNN x\n", ["line 3", "unknown instruction", "RUNN"]),
    ("FROM tiny:1\nONBUILD RUN x\n", ["line 2", "ONBUILD"]),
    ("FROM tiny:1\nHEALTHCHECK CMD true\n", ["line 2", "HEALTHCHECK"]),
    ("FROM tiny:1\nCOPY --parents a b\n", ["line 2", "--parents"]),
    ("FROM tiny:1\nRUN --security=insecure x\n", ["line 2", "--security"]),
    ("FROM tiny:1\nRUN <<EOF\nx\n", ["line 2", "EOF", "no end"]),
    ("", ["no FROM"]),
])
def test_what_cannot_be_meant_is_refused_at_once_with_its_line(api, tiny, dockerfile, words):
    answer = api.call("POST", "/v1/builds", {"name": "refused:1", "dockerfile": dockerfile})

    assert answer.status in (400, 501) and answer.error["code"] in ("invalid_argument", "unsupported"), answer
    assert all(word in answer.error["message"] for word in words), answer


@pytest.mark.parametrize("instructions, words", [
    ("ADD https://example.org/x /", ["line 2", "ADD of an address"]),
    ("RUN --mount=type=bind,target=/x true", ["line 2", "type=bind"]),
    ("RUN --mount=type=secret,id=k,env=K true", ["line 2", "env="]),
    ("RUN --mount=type=secret,id=k,required=true true", ["line 2", "secret k is required"]),
    ("RUN --network=host true", ["line 2", "--network=host"]),
    ("COPY missing /x", ["line 2", "there is no missing"]),
    ("COPY ../../etc/passwd /x", ["line 2", "upwards"]),
    ("COPY --from=9 /x /y", ["line 2", "no stage 9"]),
    ("COPY --from=nobody/nothing:1 /x /y", ["line 2", "no image is called nobody/nothing:1"]),
    ("COPY --chown=nobodyhere present /x", ["line 2", "nobodyhere"]),
    ("COPY present /canary/below/", ["line 2"]),
    ('ENV A="${A:?must be given}"', ["line 2", "must be given"]),
    ("USER nosuchuser\nRUN true", ["line 3"]),
    ("EXPOSE 99999", ["line 2", "EXPOSE"]),
])
def test_what_goes_wrong_in_a_step_names_its_line_and_leaves_nothing(api, tiny, instructions, words):
    ended = build(api, f"FROM tiny:1\n{instructions}\n", file("present"), name="refused:1")

    assert ended["state"] == "failed" and all(word in ended["error"]["message"] for word in words), ended
    assert states(ended)[1:].count("failed") == (0 if "no stage 9" in words else 1) and not ended["error"]["infra"]
    assert api.call("GET", "/v1/images/refused:1").status == 404
    assert build_sandboxes(api) == []


def test_a_failing_command_ends_the_build_with_its_code_line_and_last_words(api, tiny):
    ended = build(api, "FROM tiny:1\nRUN echo begin\nRUN echo last words >&2; exit 42\nRUN echo never\n")

    assert ended["state"] == "failed"
    message = ended["error"]["message"]
    assert "line 3" in message and "exit code 42" in message and "last words" in message
    assert states(ended)[-2:] == ["failed", "waiting"] and ended["build"]["steps"][2]["exit_code"] == 42
    assert build_sandboxes(api) == []


def test_output_of_steps_is_streamed_by_offset(api, tiny):
    operation = start(api, "FROM tiny:1\nRUN for i in 1 2 3; do echo line $i; sleep 0.2; done\nRUN printf 'caf\\303\\251'\n", no_cache=True)

    assert output_of(api, operation) == "line 1\nline 2\nline 3\ncaf\u00e9"
    rest = api.raw("GET", f"/v1/operations/{operation}/events", query={"output_from": 14})
    assert b'"offset":0' not in rest.body and b"caf" in rest.body


# --- cache --------------------------------------------------------------------------------------------------------------------

def test_equal_steps_are_found_again_and_changed_ones_are_not(api, tiny):
    dockerfile = "FROM tiny:1\nARG V=1\nCOPY a /a\nRUN echo built > /b; date +%N >> /b\nCOPY c /c\nRUN cat /c > /d\n"
    first = built(api, dockerfile, file("a", b"1"), file("c", b"1"), name="cache:1")
    again = built(api, dockerfile, file("a", b"1"), file("c", b"1"), file("other", b"not copied"), name="cache:2")
    changed = built(api, dockerfile, file("a", b"1"), file("c", b"2"), name="cache:3")
    mode = built(api, dockerfile, file("a", b"1", mode=0o600), file("c", b"1"), name="cache:4")
    arg = built(api, dockerfile, file("a", b"1"), file("c", b"1"), name="cache:5", args={"V": "2"})
    fresh = built(api, dockerfile, file("a", b"1"), file("c", b"1"), name="cache:6", no_cache=True)

    assert states(first) == ["done"] * 6
    assert states(again) == ["done", "done", "cached", "cached", "cached", "cached"] and again["result"]["digest"] == first["result"]["digest"]
    assert again["result"]["cached_steps"] == 4
    assert states(changed) == ["done", "done", "cached", "cached", "done", "done"]
    assert states(mode)[2:4] == ["done", "done"]
    assert states(arg) == ["done", "done", "cached", "done", "done", "done"]
    assert states(fresh) == ["done"] * 6 and fresh["result"]["digest"] != first["result"]["digest"]


def test_the_cache_does_not_cross_projects_I06(api, tiny):
    dockerfile = "FROM tiny:1\nRUN echo mine > /planted\n"
    built(api, dockerfile, name="poison:1")
    _, other = key_of(api, "builder")

    ended = built(other, dockerfile, name="poison:1")

    assert states(ended) == ["done", "done"], "another project's step is not taken"
    assert states(built(other, dockerfile, name="poison:2")) == ["done", "cached"]


def test_two_builds_of_one_dockerfile_at_once(api, tiny):
    dockerfile = "FROM tiny:1\nRUN sleep 0.5; echo both > /b\nRUN echo second > /c\n"
    operations = [start(api, dockerfile, name=f"both:{i}") for i in (1, 2)]

    ended = [end_of(api, operation) for operation in operations]

    assert [one["state"] for one in ended] == ["succeeded"] * 2, ended
    for i in (1, 2):
        assert api.raw("GET", f"/v1/layers/both:{i}/content", query={"path": "/b", "kind": "base"}).body == b"both\n"


# --- secrets ------------------------------------------------------------------------------------------------------------------

SECRET = "hunter2-very-secret-token-5f21"


def with_secret(text=SECRET):
    return {"secrets": {"token": base64.b64encode(text.encode()).decode()}}


def test_a_secret_is_seen_by_its_command_and_by_nothing_else(api, server, tiny, boxes):
    dockerfile = """FROM tiny:1
RUN --mount=type=secret,id=token,required=true wc -c < /run/secrets/token > /size && df /run/secrets/token | tail -1 > /where
RUN --mount=type=secret,id=token,target=/etc/deep/conf,mode=0444,uid=1000 stat -L -c '%u %a' /etc/deep/conf > /stat
RUN test ! -e /run/secrets/token && test ! -e /etc/deep/conf && test ! -L /run/secrets/token
RUN --mount=type=secret,id=absent test ! -e /run/secrets/absent
"""
    ended = built(api, dockerfile, name="built:1", **with_secret())

    box = boxes()
    assert box.sh("cat /size /stat").out == f"{len(SECRET)}\n1000 444\n"
    assert "shm" in box.sh("cat /where").out
    assert box.sh("ls /run/secrets /etc/deep 2>&1; find / -xdev -name '.dsec*'").out.count("No such file") == 2
    assert SECRET not in json.dumps(ended) and SECRET not in server.log_file.read_text(errors="replace")
    assert states(built(api, dockerfile, name="other:1", **with_secret("quite-another-secret")))[1:] == ["cached"] * 4, "keyed by the id, not by the content"


@pytest.mark.parametrize("leak", ["cat /run/secrets/token > /kept", "mkdir /x && tar c -f /x/y -h -C /run/secrets token", "ln -s \"$(cat /run/secrets/token)\" /link"])
def test_a_build_that_keeps_a_secret_is_refused(api, server, tiny, leak):
    ended = build(api, f"FROM tiny:1\nRUN --mount=type=secret,id=token {leak}\n", name="leak:1", **with_secret())

    assert ended["state"] == "failed" and ended["error"]["code"] == "conflict", ended
    assert "secret.token" in ended["error"]["message"] and SECRET not in json.dumps(ended)
    assert api.call("GET", "/v1/images/leak:1").status == 404


def test_cache_mounts_are_no_part_of_a_layer(api, tiny, boxes):
    built(api, "FROM tiny:1\nRUN --mount=type=cache,target=/var/cache/x mkdir -p /var/cache/x && echo big > /var/cache/x/file && ls /var/cache/x > /seen\nRUN echo link && ln -s /etc /var/y\n")

    box = boxes()
    assert box.sh("cat /seen; readlink /var/y; test -e /var/cache/x || echo gone").out == "file\n/etc\ngone\n"


# --- ends ---------------------------------------------------------------------------------------------------------------------

def holders_of(api, digest):
    looked = api.must("POST", "/v1/layers:gc", {"dry_run": True})
    return next(layer for layer in looked["layers"] if layer["digest"] == digest)["held_by"]


def test_a_cancelled_build_ends_its_sandbox(api, tiny):
    operation = start(api, "FROM tiny:1\nRUN sleep 1000\n", name="cancel:1", no_cache=True)
    wait_until(lambda: any(item["state"] == "running" for item in build_sandboxes(api)))
    digest = api.must("GET", "/v1/images/tiny:1")["digest"]
    assert "a build that goes on" in holders_of(api, digest)

    api.must("DELETE", f"/v1/operations/{operation}")
    ended = end_of(api, operation)

    assert ended["state"] == "cancelled" and ended["error"]["code"] == "cancelled", ended
    wait_until(lambda: build_sandboxes(api) == [])
    assert api.call("GET", "/v1/images/cancel:1").status == 404
    wait_until(lambda: "a build that goes on" not in holders_of(api, digest))


@pytest.fixture
def own():
    server = Server(name="build").start()
    images.import_tar(server.api, "tiny:1", images.tiny_tar())
    yield server
    complaints = server.close()
    assert not complaints, complaints


def parts_of(server):
    records = [json.loads(path.read_text()) for path in (server.data / "layers").glob("*.json")]
    return [record["diff_id"].split(":")[0] for record in records if record["diff_id"]]


def test_a_server_that_is_killed_ends_its_builds_and_keeps_their_cache(own):
    dockerfile = "FROM tiny:1\nCOPY a /a\nRUN echo kept > /kept\nRUN sleep 1000\n"
    operation = start(own.api, dockerfile, file("a"), name="killed:1")
    wait_until(lambda: own.api.must("GET", f"/v1/operations/{operation}").get("build", {}).get("steps", [{}])[-1].get("sandbox"))

    api = own.restart().api
    ended = api.must("GET", f"/v1/operations/{operation}")

    assert ended["state"] == "failed" and ended["error"]["code"] == "unavailable", ended
    wait_until(lambda: build_sandboxes(api) == [])
    assert set(parts_of(own)) == {"build"}, "contexts and passing states went with the build"
    again = build(api, dockerfile.replace("sleep 1000", "true"), file("a"), name="killed:1")
    assert again["state"] == "succeeded" and states(again) == ["done", "cached", "cached", "done"], again


@pytest.mark.parametrize("point", ["image.build.part", "image.build.publish", "image.publish.record", "edge.pack.frozen", "image.pack.read"])
def test_a_server_that_dies_at_any_step_leaves_no_halves(point):
    server = Server(name="dies").start()
    try:
        images.import_tar(server.api, "tiny:1", images.tiny_tar())
        server.restart(fail_point=f"{point}=kill:1")
        operation = None
        try:
            operation = start(server.api, "FROM tiny:1\nCOPY a /a\nRUN echo x > /x\nRUN echo y > /y\n", file("a"), name="dies:1")
        except (OSError, AssertionError):
            pass  # it died over the context
        server.child.wait(timeout=60)

        api = server.start().api
        wait_until(lambda: build_sandboxes(api) == [])
        if operation:
            assert api.must("GET", f"/v1/operations/{operation}")["state"] == "failed"
        assert set(parts_of(server)) <= {"build"}
        assert build(api, "FROM tiny:1\nCOPY a /a\nRUN echo x > /x\n", file("a"), name="dies:1")["state"] == "succeeded"
    finally:
        complaints = server.close()
    assert not complaints, complaints


# --- who may, and hostile contexts --------------------------------------------------------------------------------------------

def test_builds_are_for_builders_and_contexts_for_their_project(api, tiny):
    project, builder = key_of(api, "builder")
    _, runtime = key_of(api, "runtime", project)
    context = context_of(api, file("a"))

    assert runtime.call("POST", "/v1/builds", {"name": "x:1", "dockerfile": "FROM tiny:1\n"}).status == 403
    assert runtime.raw("POST", "/v1/builds/contexts", tree(file("a"))).status == 403
    refused = builder.call("POST", "/v1/builds", {"name": "x:1", "dockerfile": "FROM tiny:1\nCOPY a /\n", "context": context})
    assert refused.status == 404, refused
    assert builder.call("POST", "/v1/builds", {"name": "x:1", "dockerfile": "FROM tiny:1\n", "services": ["nothing"]}).status == 400
    assert builder.call("POST", "/v1/builds", {"name": "x:1", "dockerfile": "FROM tiny:1\n", "surprise": 1}).status == 400


@pytest.mark.parametrize("entry", [
    file("../../escape"), file("/absolute"), special("link", tarfile.LNKTYPE, "../../etc/shadow"),
], ids=["upwards", "absolute", "a hard link out"])
def test_a_hostile_context_is_refused(api, entry):
    assert context_of(api, entry, expect=400)["code"] == "invalid_argument"


def test_links_of_a_context_lead_to_nothing_of_the_host(api, tiny, boxes):
    entries = [special("out", tarfile.SYMTYPE, "/etc/hostname"), special("up", tarfile.SYMTYPE, "../../../../etc"), special("loop", tarfile.SYMTYPE, "loop"), file("etc/hostname", b"of the context\n")]

    built(api, "FROM tiny:1\nCOPY out /taken\nCOPY up /dir\n", *entries)
    refused = build(api, "FROM tiny:1\nCOPY loop /taken\n", *entries, name="loop:1")

    box = boxes()
    assert box.sh("cat /taken /dir/hostname").out == "of the context\n" * 2, "links lead on inside the context"
    assert refused["state"] == "failed" and "too many symbolic links" in refused["error"]["message"]


def test_a_copy_goes_through_the_links_of_the_image(api, tiny, boxes):
    built(api, "FROM tiny:1\nRUN ln -s /usr /alias\nCOPY tree/ /\nCOPY f /alias/local/f\n", file("tree/alias/share/g", b"g\n"), file("f", b"f\n"))

    box = boxes()
    assert box.sh("readlink /alias; cat /usr/share/g /usr/local/f").out == "/usr\ng\nf\n"


# --- the command line and the library -----------------------------------------------------------------------------------------

def run_cli(api, *arguments, **options):
    environment = {**os.environ, "DSEC_URL": api.url, "DSEC_API_KEY": api.key}
    return subprocess.run([BIN / "dsec", *map(str, arguments)], capture_output=True, text=True, timeout=120, env=environment, stdin=subprocess.DEVNULL, check=False, **options)


def test_the_command_line_builds_a_directory(api, tiny, tmp_path, boxes):
    (tmp_path / "Dockerfile").write_text("FROM tiny:1\nARG A\nCOPY . /app\nRUN --mount=type=secret,id=token echo step says $A && wc -c < /run/secrets/token\n")
    (tmp_path / ".dockerignore").write_text("*.log\n!keep.log\nDockerfile\n.dockerignore\nskipped\n")
    for name in ("a.log", "keep.log", "file", "skipped/x", "kept/y"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path.parent / "token").write_text(SECRET)

    done = run_cli(api, "build", "-t", "built:1", "--build-arg", "A=arg", "--secret", f"id=token,src={tmp_path.parent}/token", tmp_path)
    again = run_cli(api, "build", "-t", "built:1", "--build-arg", "A=arg", "--secret", f"id=token,src={tmp_path.parent}/token", "--json", tmp_path)

    assert done.returncode == 0, done.stderr
    assert "[4/4] RUN" in done.stderr and "| step says arg" in done.stderr and "built:1  sha256:" in done.stdout
    assert [step["state"] for step in json.loads(again.stdout)["build"]["steps"]] == ["done", "done", "cached", "cached"]
    assert boxes().sh("cd /app; find . -type f | sort").out == "./file\n./keep.log\n./kept/y\n"


def test_the_command_line_tells_where_a_build_failed(api, tiny, tmp_path):
    (tmp_path / "Dockerfile").write_text("FROM tiny:1\n\nRUN echo why; exit 3\n")

    done = run_cli(api, "build", "-t", "failing:1", tmp_path)

    assert done.returncode == 1 and "line 3" in done.stderr and "exit code 3" in done.stderr and "why" in done.stderr


def test_an_interrupted_command_line_cancels_its_build(api, tiny, tmp_path):
    (tmp_path / "Dockerfile").write_text("FROM tiny:1\nRUN sleep 1000\n")
    environment = {**os.environ, "DSEC_URL": api.url, "DSEC_API_KEY": api.key}
    child = subprocess.Popen([BIN / "dsec", "build", "--no-cache", "-t", "interrupted:1", tmp_path], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: any(item["state"] == "running" for item in build_sandboxes(api)))

    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=30)

    assert child.returncode == 130 and "cancelled" in errors
    wait_until(lambda: build_sandboxes(api) == [])


def test_the_library_builds(api, tiny, tmp_path):
    from libdsec.sync import DSecClient
    (tmp_path / "Dockerfile").write_text("FROM tiny:1\nCOPY kept /kept\nRUN echo from the library\n")
    (tmp_path / ".dockerignore").write_text("**/dropped\n")
    (tmp_path / "kept").write_text("x")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "dropped").write_text("x")
    printed = []

    with DSecClient(api.url, api_key=api.key) as client:
        image = client.images.build(str(tmp_path), "library:1", on_output=printed.append)

    assert image.digest.startswith("sha256:") and "".join(printed) == "from the library\n"


# --- the network, and a real distribution -------------------------------------------------------------------------------------

@pytest.fixture
def packages(api, tmp_path):
    """A package repository on the node's loopback, which an operator's service `packages` leads to."""
    root = tmp_path / "repository"
    (root / "tool" / "DEBIAN").mkdir(parents=True)
    (root / "tool" / "DEBIAN" / "control").write_text("Package: tool\nVersion: 1\nArchitecture: all\nMaintainer: t <t@example.org>\nDescription: t\n")
    (root / "tool" / "opt").mkdir()
    (root / "tool" / "opt" / "tool").write_text("installed\n")
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", root / "tool", root / "tool.deb"], check=True, capture_output=True)
    data = (root / "tool.deb").read_bytes()
    (root / "Packages").write_text((root / "tool" / "DEBIAN" / "control").read_text() + f"Filename: ./tool.deb\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n")
    server = http.server.ThreadingHTTPServer(("127.0.0.2", 0), functools.partial(Quiet, directory=str(root)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    service = {"name": "packages", "hosts": [{"host": "127.0.0.2", "port": server.server_port}]}
    api.must("POST", "/v1/services", service)
    yield f"http://127.0.0.2:{server.server_port}", service
    api.call("DELETE", "/v1/services/packages")
    server.shutdown()
    server.server_close()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def test_a_command_reaches_the_services_that_are_named_and_nothing_else(api, tiny, packages):
    url, service = packages
    dockerfile = f"FROM tiny:1\nRUN wget -qO /p {url}/Packages\n"

    denied = build(api, dockerfile, name="net:1")
    allowed = built(api, dockerfile, name="net:1", services=["packages"])
    again = built(api, dockerfile, name="net:2", services=["packages"])
    none = build(api, dockerfile.replace("RUN", "RUN --network=none"), name="net:3", services=["packages"])
    api.must("POST", "/v1/services", {**service, "env": {"EXTRA": "1"}})
    redefined = built(api, dockerfile, name="net:4", services=["packages"])

    assert denied["state"] == "failed" and none["state"] == "failed"
    assert states(allowed) == ["done", "done"] and states(again) == ["done", "cached"]
    assert states(redefined) == ["done", "done"], "another service of the same name is another network"
    assert api.must("GET", "/v1/images/net:4")["build"]["services"] == ["packages"]
    paths = {item["path"] for item in api.must("GET", "/v1/layers/net:4/files", query={"recursive": "true", "kind": "base"})["items"]}
    assert "/p" in paths and "/run/dsec" not in paths


def test_a_task_like_dockerfile_over_debian(api, debian, boxes, packages):
    """As the Dockerfiles of a large task set are: a base, packages, a working directory, files."""
    dockerfile = f"""FROM debian-test:12
ENV DEBIAN_FRONTEND=noninteractive LANG=C.UTF-8
RUN echo 'deb [trusted=yes] {packages[0]} ./' > /etc/apt/sources.list && rm -f /etc/apt/sources.list.d/* && \\
    apt-get update && apt-get install -y --no-install-recommends tool && rm -rf /var/lib/apt/lists/*
WORKDIR /app
COPY --chown=nobody:nogroup task /app/
RUN python3 - <<PY
import json, pathlib
pathlib.Path("/app/out.json").write_text(json.dumps(sorted(p.name for p in pathlib.Path("/app").iterdir())))
PY
RUN git init -q repo && useradd -m worker
USER worker
CMD ["bash"]
"""
    ended = built(api, dockerfile, file("task/main.py", b"print(1)\n"), file("task/tests/t.py"), name="built:1", services=["packages"], resources={"memory_mb": 1024, "disk_mb": 2048, "max_processes": 256})

    box = boxes(resources={"memory_mb": 512, "disk_mb": 512, "max_processes": 128})
    assert box.sh("cat out.json; cat /opt/tool; dpkg -s tool | grep Status; id -un; stat -c %U main.py; ls repo/.git/HEAD").out == '["main.py", "tests"]installed\nStatus: install ok installed\nworker\nnobody\nrepo/.git/HEAD\n'
    again = built(api, dockerfile, file("task/main.py", b"print(1)\n"), file("task/tests/t.py"), name="built:2", services=["packages"])
    assert states(again) == ["done", "done", "cached", "cached", "cached", "cached", "cached", "done", "done"]
    assert ended["result"]["entries"] > 1000
