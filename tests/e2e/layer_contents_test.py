"""What is in a layer, without a mount: files, content, differences, verification, and who may ask."""
import json
import os
import subprocess
import tarfile

import pytest

from support import images
from support.api import key_of
from support.archives import file, special, tree
from support.server import BIN

PAGE = b"<script>fetch('/v1/sandboxes')</script>"
LARGE = bytes(range(256)) * 4096 + os.urandom(1 << 20)


@pytest.fixture(scope="module")
def layer(api):
    images.import_tar(api, "contents:1", tree(
        file("d/page.html", PAGE, mode=0o640, uid=1000, gid=50), file("d/large", LARGE), file("d/empty", b""),
        special("d/link", tarfile.SYMTYPE, "page.html"), special("d/again", tarfile.LNKTYPE, "d/empty"), file("z", b"z")),
        what="layers", kind="toolkit")
    return "/v1/layers/contents:1"


@pytest.fixture
def dsec(api, tmp_path):
    def run(*arguments):
        return subprocess.run([BIN / "dsec", *map(str, arguments)], capture_output=True, timeout=90, stdin=subprocess.DEVNULL,
                              env={**os.environ, "HOME": str(tmp_path), "DSEC_URL": api.url, "DSEC_API_KEY": api.key})
    return run


def names(listing, field="name"):
    return [item[field] for item in listing["items"]]


def test_a_directory_is_listed_with_what_stat_would_say(api, layer):
    listing = api.must("GET", f"{layer}/files", query={"path": "/d"})

    assert names(listing) == ["again", "empty", "large", "link", "page.html"] and listing["next_cursor"] == ""
    page = listing["items"][4]
    assert (page["type"], page["size"], page["mode"], page["uid"], page["gid"], page["path"]) == ("file", len(PAGE), "0640", 1000, 50, "/d/page.html")
    assert listing["items"][3]["target"] == "page.html" and listing["items"][1]["links"] == 2
    assert names(api.must("GET", f"{layer}/files", query={"path": "/d/page.html"}), "path") == ["/d/page.html"]


def test_pages_of_a_listing_are_the_listing(api, layer):
    whole = names(api.must("GET", f"{layer}/files", query={"recursive": "true"}), "path")
    paged, cursor = [], ""
    while True:
        page = api.must("GET", f"{layer}/files", query={"recursive": "true", "limit": 1, **({"cursor": cursor} if cursor else {})})
        paged += names(page, "path")
        cursor = page["next_cursor"]
        if not cursor:
            break

    assert whole == paged and whole[-6:] == ["/d/again", "/d/empty", "/d/large", "/d/link", "/d/page.html", "/z"]


def test_content_comes_as_bytes_and_never_as_a_page(api, layer):
    page = api.raw("GET", f"{layer}/content", query={"path": "/d/page.html"})

    assert page.body == PAGE and api.raw("GET", f"{layer}/content", query={"path": "/d/large"}).body == LARGE
    assert api.raw("GET", f"{layer}/content", query={"path": "/d/empty"}).body == b""
    headers = {name.lower(): value for name, value in dict(page.headers).items()}
    assert headers["content-type"] == "application/octet-stream" and headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("tail, query, status", [
    ("content", {"path": "/d/link"}, 400), ("content", {"path": "/d"}, 400), ("content", {"path": "/nothing"}, 404),
    ("content", {"path": "../../etc/passwd"}, 400), ("content", {"path": "/d/../z"}, 400), ("files", {"path": "/nothing"}, 404),
    ("files", {"limit": 0}, 400), ("files", {"cursor": "!"}, 400), ("files", {"nonsense": 1}, 400), ("diff", {}, 400), ("diff", {"against": "no:1"}, 404),
])
def test_what_is_not_there_or_makes_no_sense_is_said(api, layer, tail, query, status):
    assert api.call("GET", f"{layer}/{tail}", query=query).status == status


def test_names_that_are_no_text_come_with_their_bytes(api):
    images.import_tar(api, "odd-names:1", tree(file("odd\udcff\udcfename", b"odd")), what="layers", kind="toolkit")

    item = next(item for item in api.must("GET", "/v1/layers/odd-names:1/files")["items"] if "name_base64" in item)

    assert item["name"] == "odd\ufffd\ufffdname" and item["path_base64"]


def test_a_difference_is_named_with_what_differs(api, layer):
    images.import_tar(api, "contents:2", tree(
        file("d/page.html", PAGE, mode=0o600, uid=1000, gid=50), file("d/large", LARGE[:-1] + b"\0"), file("d/empty", b""),
        special("d/link", tarfile.SYMTYPE, "elsewhere"), special("d/again", tarfile.LNKTYPE, "d/empty"), file("new", b"z")),
        what="layers", kind="toolkit")

    lines = [json.loads(line) for line in api.raw("GET", "/v1/layers/contents:2/diff", query={"against": "contents:1"}).body.splitlines()]

    assert [(line["path"], line["change"], line.get("what")) for line in lines] == [
        ("/d/large", "changed", ["content"]), ("/d/link", "changed", ["target"]), ("/d/page.html", "changed", ["mode"]),
        ("/new", "added", None), ("/z", "removed", None)]
    assert api.raw("GET", "/v1/layers/contents:2/diff", query={"against": "contents:2"}).body == b""


def test_a_layer_is_verified_and_a_changed_one_refused(api, server, layer):
    verdict = api.must("POST", f"{layer}/verify", {})
    operation = api.must("POST", f"{layer}/verify", {}, query={"background": "true"})
    hexadecimal = verdict["digest"].removeprefix("sha256:")
    stored = sorted(server.data.glob(f"**/{hexadecimal}.*"))
    metadata = next(path for path in stored if path.suffix != ".json")
    good = metadata.read_bytes()

    assert verdict["verified"] and not verdict["signed"] and verdict["content_bytes"] >= len(LARGE)
    assert images.finish_operation(api, operation)["digest"] == verdict["digest"]
    try:
        metadata.chmod(0o644)
        metadata.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        refused = api.call("POST", f"{layer}/verify", {})
    finally:
        metadata.write_bytes(good)
        metadata.chmod(0o444)
    assert refused.status == 500 and refused.error["code"] == "data_fault", refused
    assert api.must("POST", f"{layer}/verify", {})["verified"]


def test_another_project_sees_nothing_of_it(api, layer):
    images.import_tar(api, "mine:1", tree(file("f", b"mine")), what="layers", kind="toolkit")
    digest = api.must("GET", "/v1/layers/mine:1")["digest"]
    project, owner = key_of(api)
    images.import_tar(owner, "theirs:1", tree(file("f", b"theirs " + os.urandom(8).hex().encode())), what="layers", kind="toolkit")
    theirs = owner.must("GET", "/v1/layers/theirs:1")["digest"]
    _, stranger = key_of(api)

    for reference in ("theirs:1", theirs):
        for method, tail in (("GET", "files"), ("GET", "content?path=/f"), ("GET", "diff?against=contents:1"), ("POST", "verify")):
            answer = stranger.call(method, f"/v1/layers/{reference}/{tail}", {} if method == "POST" else None)
            assert answer.status == 404, (reference, tail, answer)
        assert stranger.call("GET", f"{layer}/diff", query={"against": reference}).status == 404
        assert owner.call("GET", f"/v1/layers/{reference}/files").status == 200, "negative control"
    assert stranger.call("GET", f"/v1/layers/{digest}/files").status == 200, "the default project's layers are everybody's"


def key_pair(directory, name):
    secret, public = directory / f"{name}.key", directory / f"{name}.pub"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", secret], check=True, capture_output=True)
    subprocess.run(["openssl", "pkey", "-in", secret, "-pubout", "-out", public], check=True, capture_output=True)
    return secret, public


def test_the_command_line_lists_prints_compares_and_verifies(dsec, layer, tmp_path):
    secret, public = key_pair(tmp_path, "builder")
    _, other = key_pair(tmp_path, "other")
    signature = tmp_path / "signature"
    signature.write_bytes(dsec("layer", "sign", "contents:1", "--key", secret).stdout)

    assert dsec("layer", "ls", "-q", "contents:1", "/d").stdout.split() == [b"again", b"empty", b"large", b"link", b"page.html"]
    assert b"/d/link -> page.html" in dsec("layer", "ls", "-R", "contents:1").stdout
    assert dsec("layer", "cat", "contents:1", "/d/page.html").stdout == PAGE
    assert dsec("layer", "cat", "contents:1", "/nothing").returncode == 1
    assert (dsec("layer", "diff", "contents:1", "contents:1").returncode, dsec("layer", "diff", "contents:1", "no:1").returncode) == (0, 2)
    different = dsec("layer", "diff", "contents:1", "contents:2")
    assert different.returncode == 1 and b"! /d/page.html  mode\n" in different.stdout and b"+ /new\n" in different.stdout
    assert dsec("layer", "verify", "--all").returncode == 0
    assert b"signed by that key" in dsec("layer", "verify", "contents:1", "--key", public, "--signature", signature).stdout
    assert dsec("layer", "verify", "contents:2", "--key", public, "--signature", signature).returncode == 1
    assert dsec("layer", "verify", "contents:1", "--key", other, "--signature", signature).returncode == 1
