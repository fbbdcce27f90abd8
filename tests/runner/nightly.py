"""The stages of --nightly."""
import os
import shutil

from runner.counts import Counts

FUZZ_SECONDS = int(os.environ.get("DSEC_FUZZ_SECONDS", "180"))


def _sanitized(context, preset, variables):
    if context.call(["cmake", "--preset", preset], timeout=300, quiet=True) != 0 or \
            context.call(["cmake", "--build", "--preset", preset], timeout=7200, quiet=True) != 0:
        context.failures.append(f"{preset}: build")
        return Counts(failed=1)
    environment = dict(context.environment, **variables)
    counts = Counts(passed=1)
    for label in ("unit", "contract"):
        counts += context.ctest(f"{preset}.{label}", f"build/{preset}", label, environment)
    return counts


def asan(context):
    return _sanitized(context, "asan", {"ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1",
                                        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1"})


def tsan(context):
    return _sanitized(context, "tsan", {"TSAN_OPTIONS": "halt_on_error=0:exitcode=66:second_deadlock_stack=1"})


def fuzz(context):
    """Every target for FUZZ_SECONDS, from its corpus; a crash keeps its input in build/test-reports."""
    if context.call(["cmake", "--preset", "fuzz"], timeout=300, quiet=True) != 0 or \
            context.call(["cmake", "--build", "--preset", "fuzz", "--target", "fuzz_targets"], timeout=7200, quiet=True) != 0:
        context.failures.append("fuzz: build")
        return Counts(failed=1)
    targets = sorted(p for p in (context.root / "build/fuzz/bin").glob("fuzz_*") if os.access(p, os.X_OK))
    if not targets:
        return context.skip("fuzz", "no fuzz target yet")
    counts = Counts()
    for target in targets:
        folder, _, name = target.name.removeprefix("fuzz_").partition("_")
        work = context.reports / f"corpus-{target.name}"
        work.mkdir()
        seeds = context.root / "tests" / "fuzz" / folder / "corpus" / name
        status = context.call([target, f"-max_total_time={FUZZ_SECONDS}", "-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1",
                               "-verbosity=0", f"-artifact_prefix={context.reports}/{target.name}-", work,
                               *([seeds] if seeds.exists() else [])], timeout=FUZZ_SECONDS + 120)
        if status == 0:
            counts.passed += 1
        else:
            counts.failed += 1
            context.failures.append(f"fuzz: {target.name}")
    return counts


def _pytest_with(context, variables, stage, files, **options):
    saved, context.environment = context.environment, dict(context.environment, **variables)
    try:
        return context.pytest(stage, files, **options)
    finally:
        context.environment = saved


def kills(context):
    return _pytest_with(context, {"DSEC_KILLS": "1000"}, "kills", ["tests/e2e/crash_test.py"], timeout=7200, extra=["-k", "random_kills"])


def days(context):
    return _pytest_with(context, {"DSEC_MODEL_DAYS": "20"}, "days", ["tests/e2e/model_test.py"], timeout=7200)


def stored_kills(context):
    """Readers and servers of data on demand are killed by the thousand; every byte is compared."""
    environment = dict(context.environment, DSEC_STORED_READER_KILLS="10000", DSEC_STORED_SERVER_KILLS="100")
    status = context.call([context.bin / "dsec_root_stored_test", "--gtest_filter=*Kill*:*kill*:*NoRead*"], timeout=3600, environment=environment)
    if status != 0:
        context.failures.append("stored-kills")
    return Counts(passed=int(status == 0), failed=int(status != 0))


def ceph(context):
    """The shared store on a CephFS and a radosgw of this machine's own."""
    return _pytest_with(context, {"DSEC_CEPH": "1"}, "ceph", ["tests/e2e/ceph_test.py"], timeout=3600)


def minimal_tree(context):
    """The package list is complete: install and release build pass in a minimal bookworm, and the .deb installs there."""
    if shutil.which("mmdebstrap") is None:
        return context.skip("minimal-tree", "mmdebstrap is not installed")
    script = context.root / "tests" / "runner" / "minimal_tree.sh"
    status = context.call([script], timeout=7200)
    if status == 0:
        return Counts(passed=3)
    if status == 77:
        return context.skip("minimal-tree", "the machine refused a chroot of its own; see above")
    context.failures.append("minimal-tree")
    return Counts(failed=1)
