"""What a run consists of: one function a stage, in the order of the list at the end."""
import dataclasses
import pathlib
from typing import Callable

from runner import nightly, tidy
from runner.counts import Context, Counts


@dataclasses.dataclass(frozen=True)
class Stage:
    name: str
    about: str
    run: Callable[[Context], Counts]
    nightly: bool = False
    leak_check: bool = False
    own_build: bool = False  # does not need the release build


def build(context):
    """Configure and build the release preset."""
    for command in (["cmake", "--preset", "release", "-DDSEC_TESTS=ON", "-DDSEC_BENCH=OFF"], ["cmake", "--build", "--preset", "release"]):
        if context.call(command, timeout=3000, quiet=True) != 0:
            context.failures.append("build: " + " ".join(command))
            return Counts(failed=1)
    programs = [p for p in ("dsec", "dsec-keeper", "dsec-spawner", "dsec-stored", "dsec-agent") if not (context.bin / p).exists()]
    if programs:
        context.failures.append("build: no " + ", ".join(programs))
        return Counts(passed=1, failed=1)
    size = (context.bin / "dsec-agent").stat().st_size
    print(f"dsec-agent: {size} bytes")
    return Counts(passed=2)


def layout(context):
    return context.pytest("layout", ["tests/include_direction_test.py"], timeout=60)


def ctest_label(label):
    return lambda context: context.ctest(label, "build/release", label)


def openapi(context):
    return context.pytest("openapi", ["tests/contract"], timeout=300)


def sdk(context):
    return context.pytest("sdk", ["sdk/python"], timeout=600)


def e2e(*files, timeout=900):
    def run(context):
        present = [f for f in files if (context.root / f).exists()]
        if not present:
            return context.skip("e2e", "no " + ", ".join(files))
        return context.pytest("e2e." + pathlib.Path(present[0]).stem, present, timeout=timeout)
    return run


def docs(context):
    return context.pytest("docs", ["tests/docs_test.py"], timeout=120)


def package(context):
    return context.pytest("package", ["tests/package_test.py"], timeout=300)


ALL = [
    Stage("build", "the release preset, from nothing or from where the last run stopped", build),
    Stage("layout", "include directions, depth, names", layout),
    Stage("docs", "what the documents promise: files, commands, error table", docs),
    Stage("unit", "unit tests of every folder; fuzz corpora replayed", ctest_label("unit"), leak_check=True),
    Stage("contract", "one suite a port, run on every adapter", ctest_label("contract"), leak_check=True),
    Stage("root", "tests of single folders that need root and this kernel", ctest_label("root"), leak_check=True),
    Stage("openapi", "api/openapi.yaml against the served one and the error table", openapi, leak_check=True),
    Stage("sdk", "libdsec's own tests", sdk, leak_check=True),
    Stage("lifecycle", "states, names, labels, paging, idempotency, errors", e2e("tests/e2e/lifecycle_test.py"), leak_check=True),
    Stage("exec", "commands: output, stdin, timeouts, background, keys", e2e("tests/e2e/exec_test.py"), leak_check=True),
    Stage("sessions", "shell sessions and terminals", e2e("tests/e2e/session_test.py", "tests/e2e/pty_test.py"), leak_check=True),
    Stage("files", "files in and out, tar, watch, hostile paths", e2e("tests/e2e/files_test.py"), leak_check=True),
    Stage("layers", "imports, composition, refs; what is in a layer", e2e("tests/e2e/layers_test.py", "tests/e2e/layer_contents_test.py"), leak_check=True),
    Stage("images", "images of several layers, from archives and from a registry", e2e("tests/e2e/oci_images_test.py", "tests/e2e/registry_test.py"), leak_check=True),
    Stage("garbage", "which layers go and what keeps them", e2e("tests/e2e/garbage_test.py"), leak_check=True),
    Stage("pause", "pause and resume: cycles, crashes, clocks, fences, many at once", e2e("tests/e2e/pause_test.py"), leak_check=True),
    Stage("pack", "what a sandbox wrote becomes a layer; residue, roles, promotion", e2e("tests/e2e/pack_test.py", "tests/e2e/pack_rules_test.py"), leak_check=True),
    Stage("builds", "Dockerfiles become images; cache, secrets, ends", e2e("tests/e2e/build_test.py"), leak_check=True),
    Stage("memory", "what a pause gives back, and swap of the node's own", e2e("tests/e2e/reclaim_test.py"), leak_check=True),
    Stage("brake", "a node whose memory runs short, step by step", e2e("tests/e2e/brake_test.py"), leak_check=True),
    Stage("checkpoint", "checkpoints, snapshots, rollback and fork", e2e("tests/e2e/checkpoint_test.py"), leak_check=True),
    Stage("libdsec", "the SDK against a real server", e2e("tests/e2e/sdk_test.py"), leak_check=True),
    Stage("cli", "the command line against a real server", e2e("tests/e2e/cli_test.py"), leak_check=True),
    Stage("limits", "memory, processes, disk, CPU", e2e("tests/e2e/limits_test.py"), leak_check=True),
    Stage("inside", "what root inside can do", e2e("tests/e2e/root_inside_test.py"), leak_check=True),
    Stage("attacks", "rows of the abuse catalogue, with negative controls", e2e("tests/e2e/attack_test.py"), leak_check=True),
    Stage("infra", "no act of root inside earns an infra ending", e2e("tests/e2e/infra_honesty_test.py"), leak_check=True),
    Stage("ports", "hostile servers behind ports", e2e("tests/e2e/ports_test.py"), leak_check=True),
    Stage("keys", "keys, roles and projects", e2e("tests/e2e/keys_test.py"), leak_check=True),
    Stage("egress", "the proxy of network mode proxy", e2e("tests/e2e/egress_test.py"), leak_check=True),
    Stage("pressure", "slow readers, many at once, capacity", e2e("tests/e2e/pressure_test.py"), leak_check=True),
    Stage("crash", "fail points and random kills; re-adoption", e2e("tests/e2e/crash_test.py", timeout=1200), leak_check=True),
    Stage("exchange", "two nodes and the store between them", e2e("tests/e2e/two_nodes_test.py"), leak_check=True),
    Stage("stores", "the shared store on real engines", e2e("tests/e2e/store_engines_test.py", "tests/e2e/store_killed_test.py", timeout=1800), leak_check=True),
    Stage("tls", "stores and registries behind TLS with an authority of the operator's own", e2e("tests/e2e/tls_test.py"), leak_check=True),
    Stage("on-demand", "layers read from a shared store when they are touched", e2e("tests/e2e/on_demand_test.py", "tests/e2e/at_rest_test.py", "tests/e2e/optimize_test.py"), leak_check=True),
    Stage("peers", "nodes read from one another before they ask the store", e2e("tests/e2e/peers_test.py"), leak_check=True),
    Stage("package", "install rules and the .deb", package),
    Stage("tidy", "clang-tidy over the product's sources", tidy.tidy, nightly=True, own_build=True),
    Stage("asan", "unit and contract suites under ASan and UBSan", nightly.asan, nightly=True, own_build=True),
    Stage("tsan", "unit and contract suites under TSan", nightly.tsan, nightly=True, own_build=True),
    Stage("fuzz", "every fuzz target for minutes", nightly.fuzz, nightly=True, own_build=True),
    Stage("kills", "a thousand random kills under fifty concurrent creates", nightly.kills, nightly=True, leak_check=True),
    # tests/e2e/model_test.py, with more days than one.
    Stage("days", "twenty days of random use, crashes and hours that pass, beside a model", nightly.days, nightly=True, leak_check=True),
    Stage("recorded-trace", "a layer laid out anew by what a node left of its first two minutes", e2e("tests/e2e/recorded_trace_test.py"), nightly=True, leak_check=True),
    Stage("stored-kills", "ten thousand readers and a hundred servers of data on demand are killed", nightly.stored_kills, nightly=True, leak_check=True),
    # tests/e2e/ceph_test.py
    Stage("ceph", "the shared store on CephFS and radosgw, one node with two OSDs", nightly.ceph, nightly=True, leak_check=True),
    Stage("minimal-tree", "packages and release build from nothing in a minimal bookworm", nightly.minimal_tree, nightly=True, own_build=True),
]
