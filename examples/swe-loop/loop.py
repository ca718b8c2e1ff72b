"""Tries patches for a failing test, each in a fork of one sandbox. TIDEBOX_URL names the server."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

from tidebox import Sandbox

REPOSITORY = "/workspace/repository"
FILES = {
    "intervals.py": '''\
def merge(intervals):
    """Merges intervals that overlap or touch."""
    merged = []
    for start, end in sorted(intervals):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged
''',
    "test_intervals.py": """\
import unittest

from intervals import merge


class MergeTest(unittest.TestCase):
    def test_apart(self):
        self.assertEqual(merge([(3, 4), (1, 2)]), [(1, 2), (3, 4)])

    def test_touching(self):
        self.assertEqual(merge([(1, 2), (2, 3)]), [(1, 3)])

    def test_inside(self):
        self.assertEqual(merge([(1, 9), (2, 3)]), [(1, 9)])
""",
}
TESTS = ["test_intervals.py"]

# What a model would propose for the failing tests. For a real one, send it FILES and the output of the
# tests, and ask for unified diffs.
PATCHES = {
    "first": """\
--- a/intervals.py
+++ b/intervals.py
@@ -5 +5 @@
-        if merged and start < merged[-1][1]:
+        if merged and start <= merged[-1][1]:
""",
    "second": """\
--- a/intervals.py
+++ b/intervals.py
@@ -4,6 +4,6 @@
-    for start, end in sorted(intervals):
-        if merged and start < merged[-1][1]:
-            merged[-1] = (merged[-1][0], end)
-        else:
+    intervals = sorted(intervals)
+    while intervals:
+        start, end = intervals[0]
+        if not merged or start > merged[-1][1]:
             merged.append((start, end))
     return merged
""",
    "third": """\
--- a/intervals.py
+++ b/intervals.py
@@ -5 +5 @@
-        if merged and start < merged.last:
+        if merged and start <= merged.last:
""",
    "fourth": """\
--- a/test_intervals.py
+++ b/test_intervals.py
@@ -10,5 +10,0 @@
-    def test_touching(self):
-        self.assertEqual(merge([(1, 2), (2, 3)]), [(1, 3)])
-
-    def test_inside(self):
-        self.assertEqual(merge([(1, 9), (2, 3)]), [(1, 9)])
""",
    "fifth": """\
--- a/intervals.py
+++ b/intervals.py
@@ -5,2 +5,2 @@
-        if merged and start < merged[-1][1]:
-            merged[-1] = (merged[-1][0], end)
+        if merged and start <= merged[-1][1]:
+            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
""",
}


@dataclass
class Attempt:
    """Outcome of one patch."""

    passed: bool
    summary: str
    diff: str = ""


def prepare(sandbox: Sandbox) -> None:
    """Makes the repository."""
    for name, content in FILES.items():
        sandbox.files.write(f"{REPOSITORY}/{name}", content)
    commit = "git init -q && git add . && git -c user.name=user -c user.email=user@localhost commit -qm Begin"
    sandbox.run(commit, cwd=REPOSITORY, check=True)


def run_tests(sandbox: Sandbox) -> Attempt:
    """Runs the tests as they were committed, whatever the patch did to them."""
    sandbox.run(["git", "checkout", "-q", "HEAD", "--", *TESTS], cwd=REPOSITORY, check=True)
    result = sandbox.run(["python3", "-m", "unittest", "-q"], cwd=REPOSITORY, timeout=10)
    if result.timed_out:
        return Attempt(False, "too slow")
    # OK, or FAILED with counts. The patch runs in the same interpreter, so one that wants to can forge it.
    summary = (result.stderr.splitlines() or ["no output"])[-1]
    return Attempt(result.ok and summary == "OK", summary)


def attempt(sandbox: Sandbox, patch: str) -> Attempt:
    """Applies a patch and runs the tests."""
    apply = ["git", "apply", "--unidiff-zero", "-"]
    applied = sandbox.run(apply, cwd=REPOSITORY, stdin=patch)
    if not applied.ok:
        return Attempt(False, applied.stderr.splitlines()[-1])
    outcome = run_tests(sandbox)
    outcome.diff = sandbox.run(["git", "diff"], cwd=REPOSITORY, check=True).stdout
    return outcome


with ExitStack() as stack:
    origin = stack.enter_context(Sandbox.create())
    prepare(origin)
    print("before:", run_tests(origin).summary)
    forks = [stack.enter_context(fork) for fork in origin.fork(len(PATCHES))]
    with ThreadPoolExecutor(len(forks)) as pool:
        attempts = list(pool.map(attempt, forks, PATCHES.values()))

for name, outcome in zip(PATCHES, attempts, strict=True):
    print(f"{name}: {outcome.summary}")
accepted = next((outcome for outcome in attempts if outcome.passed), None)
print(accepted.diff if accepted else "no patch passes", end="")
