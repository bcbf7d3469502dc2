#!/usr/bin/env python3
"""Runs the Rust tests of the workspace, one line for each crate, the total last.

    scripts/rust-tests.py [--limit SECONDS] [CRATE…]

Everything is built once, with the packages and features that every other build of the workspace
selects; the test programs are then run one by one, each in the folder of its crate and each with a
limit of time, so that a test that hangs is a failure with a name. What a program prints is shown
only if it failed; all of it is kept in the log folder.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LOGS = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "logs"
SELECTION = ["--workspace", "--all-features", "--locked"]
RESULT = re.compile(
    r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", re.MULTILINE
)


class Suite:
    """What the tests of one crate came to."""

    def __init__(self, name):
        self.name = name
        self.passed = self.failed = self.skipped = 0

    def add(self, what, output, status):
        """Counts one test program; one that broke off without a count is one failure."""
        results = RESULT.findall(output)
        failed = 0
        for passed, lost, ignored in results:
            self.passed += int(passed)
            failed += int(lost)
            self.skipped += int(ignored)
        if status != 0 and failed == 0:
            failed = 1
        if status == 0 and not results:
            output += f"\n{what}: ended without a test result\n"
            failed = 1
        self.failed += failed
        with open(LOGS / f"rust-{self.name}.log", "a", encoding="utf-8") as log:
            log.write(f"== {what} (status {status})\n{output}\n")
        if failed:
            print(f"== {self.name}: {what} (status {status})\n{output}", file=sys.stderr)

    def line(self):
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def members():
    """package id → (name, folder) of each crate of the workspace."""
    done = subprocess.run(
        ["cargo", "metadata", "--no-deps", "--format-version", "1", "--locked"],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True,
    )
    packages = {one["id"]: one for one in json.loads(done.stdout)["packages"]}
    return {
        identity: (one["name"], pathlib.Path(one["manifest_path"]).parent)
        for identity, one in packages.items()
    }


def build():
    """Builds every test program: (package id, name, path) of each, or None if it did not compile."""
    done = subprocess.run(
        ["cargo", "test", *SELECTION, "--no-run", "--message-format", "json-render-diagnostics"],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )
    if done.returncode != 0:
        return None
    programs = []
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message["reason"] != "compiler-artifact" or not message["profile"]["test"]:
            continue
        if message["executable"]:
            target = message["target"]
            name = f"{target['kind'][0]} {target['name']}"
            programs.append((message["package_id"], name, message["executable"]))
    return programs


def run(command, folder, limit, **variables):
    """(output, status); past its limit a program is ended, with everything that it started."""
    environment = dict(os.environ, **variables)
    program = subprocess.Popen(
        command, cwd=folder, env=environment, start_new_session=True, text=True, errors="replace",
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )
    try:
        output, _ = program.communicate(timeout=limit)
        return output, program.returncode
    except subprocess.TimeoutExpired:
        os.killpg(program.pid, signal.SIGKILL)
        output, _ = program.communicate()
        return f"{output}\nnot done after {limit} s: ended", 124


def doctests(limit):
    """crate → (output, status) of the examples in its documentation, which one run of cargo tests."""
    command = ["cargo", "test", *SELECTION, "--doc", "--no-fail-fast"]
    output, status = run(command, ROOT, limit)
    parts = re.split(r"^ *Doc-tests (\S+)$", output, flags=re.MULTILINE)
    found = {}
    for name, text in zip(parts[1::2], parts[2::2]):
        # rustdoc names the library, whose dashes are underscores.
        results = RESULT.findall(text)
        broken = not results or any(int(failed) for _, failed, _ in results)
        found[name.replace("_", "-")] = (text, 1 if broken else 0)
    if status != 0 and not any(code for _, code in found.values()):
        sys.exit(f"rust: 0 passed, 1 failed, 0 skipped (documentation tests broke off)\n{output}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--limit", type=int, default=600, help="seconds for one test program")
    parser.add_argument("crates", nargs="*", help="only these crates")
    options = parser.parse_args()

    LOGS.mkdir(parents=True, exist_ok=True)
    crates = members()
    names = [name for name, _ in crates.values()]
    for unknown in set(options.crates) - set(names):
        sys.exit(f"no crate {unknown}: there are {' '.join(names)}")
    wanted = options.crates or names

    programs = build()
    if programs is None:
        print("rust: 0 passed, 1 failed, 0 skipped (the tests do not compile)")
        return 1

    examples = doctests(options.limit)
    total = Suite("all")
    for identity, (name, folder) in crates.items():
        if name not in wanted:
            continue
        suite = Suite(name)
        (LOGS / f"rust-{name}.log").unlink(missing_ok=True)
        for owner, what, path in programs:
            if owner == identity:
                place = {"CARGO_MANIFEST_DIR": str(folder)}
                suite.add(what, *run([path], folder, options.limit, **place))
        if name in examples:
            suite.add("examples in the documentation", *examples[name])
        print(f"rust {name}: {suite.line()}", flush=True)
        total.passed += suite.passed
        total.failed += suite.failed
        total.skipped += suite.skipped
    print(f"rust: {total.line()}")
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
