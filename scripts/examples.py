#!/usr/bin/env python3
"""Runs the programs of examples/ in every language against a service of its own, and looks at what they print; and does
what README.md says to a newcomer.

Usage: examples.py BUILD INSTALLED [PART…], called by examples-test.sh with the Python of INSTALLED; the last line is
`N passed, N failed, N skipped`. BUILD holds the command and the programs in Rust, INSTALLED the packages of the other
languages; a PART of a case's name leaves out the others.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import permutations

import fragments
import guides
import readme

ROOT = pathlib.Path(__file__).resolve().parent.parent
SECONDS = 60
LANGUAGES = ("rust", "python", "node", "c")


class Programs:
    """The examples, and what is around them when they run."""

    def __init__(self, build, installed, environment):
        self.build, self.installed, self.environment = build, installed, environment

    def command(self, language, name):
        """How an example is run, and where: beside its source, which the quickstart asks about."""
        examples = ROOT / "examples"
        return {
            "rust": lambda: ([self.build / "examples" / name], ROOT),
            "python": lambda: ([self.installed / "python/bin/python", f"{name}.py"], examples / "python"),
            "node": lambda: (["node", self.installed / "node" / f"{name}.mjs"], examples / "node"),
            "c": lambda: ([self.installed / "c" / name], examples / "c"),
        }[language]()

    def run(self, language, name, *arguments, **environment):
        """What an example printed on its output and on its error stream, when it has ended well."""
        command, place = self.command(language, name)
        done = subprocess.run(
            [*map(str, command), *arguments], cwd=place, env={**self.environment, **environment},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS,
        )
        if done.returncode != 0:
            raise AssertionError(f"ended with status {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout, done.stderr


def quickstart(programs, language, name, asked):
    """Words and calls come on one stream, the last answer stands alone on the other."""
    out, err = programs.run(language, name)
    file = programs.command(language, name)[1] / asked
    beginning = file.read_text(encoding="utf-8").splitlines()[0]
    assert f'[read_file {{"path":"{asked}"}}]' in err, err
    assert beginning in err, f"the file was not quoted: {err}"
    assert "[2 rounds]" in err, err
    assert out.startswith("I am the scripted model") and "2 and 2" in out, f"the last answer is another: {out!r}"
    assert beginning not in out, out


def approve(programs, language):
    """What was asked for is shown, less is allowed, and only that is done."""
    out, _ = programs.run(language, "approve")
    asked, allowed, *reply = out.splitlines()
    assert asked.startswith("asked: delete_files ") and "old.txt" in asked and "thesis.txt" in asked, out
    assert allowed == "allowed: old.txt", out
    assert "deleted old.txt" in reply and "thesis" not in " ".join(reply), out


def observe(programs, language, scratch):
    """Two runs with one file show the log, every event once and in order, and the second ends with the session."""
    file = scratch / f"cursor-{language}"
    watcher = {"BROCA_CLIENT_KEY": programs.environment["WATCHER_KEY"]}
    with Driver(programs) as driver:
        first, _ = programs.run(language, "observe", driver.session_id, str(file), "3", **watcher)
        assert len(first.splitlines()) == 3, first
        assert file.read_text() == first.splitlines()[-1].split()[0], "the cursor is not that of the last event"
        command, place = programs.command(language, "observe")
        with subprocess.Popen(
            [*map(str, command), driver.session_id, str(file)], cwd=place, env={**programs.environment, **watcher},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        ) as second:
            try:
                # Output to a pipe may come late, but the file tells that it has begun.
                until(lambda: file.read_text() != first.splitlines()[-1].split()[0])
                log = driver.close()
                rest, _ = second.communicate(timeout=SECONDS)
            finally:
                second.kill()
    assert second.returncode == 0, f"ended with status {second.returncode}"
    seen = [tuple(line.split()) for line in (first + rest).splitlines()]
    assert seen == log, f"seen {seen}, logged {log}"


def relay(programs, left_by, taken_by, scratch):
    """A session that a program has left in the middle of a turn goes on in one of another language: with the result that it
    had, the call that was open once more and with the key that it had, and the events that nobody has seen yet."""
    file = scratch / f"relay-{left_by}-{taken_by}.json"

    def leg(language, name):
        command = {
            "rust": [programs.build / "relay"],
            "python": [programs.installed / "python/bin/python", ROOT / "scripts/relay/relay.py"],
            "node": ["node", programs.installed / "node/relay.mjs"],
            "c": [programs.installed / "c/relay"],
        }[language]
        done = subprocess.run(
            [*map(str, command), name, str(file)], env=programs.environment, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=SECONDS,
        )
        # The one in Node ends itself by a signal, which leaves nothing to chance.
        assert done.returncode == 0 or (name == "leave" and done.returncode < 0), done.stdout + done.stderr
        words = [line.split(" ", 1) for line in done.stdout.splitlines() if " " in line]
        return {kind: [rest for word, rest in words if word == kind] for kind in ("event", "call")}, done.stdout

    left, _ = leg(left_by, "leave")
    keys = {call.split()[0]: call.split()[1] for call in left["call"]}
    assert all(call.endswith(" 0") for call in left["call"]) and keys.keys() == {"quick", "slow"}, left
    taken, out = leg(taken_by, "take")
    assert taken["call"] == [f"slow {keys['slow']} 1"], (left, taken)
    assert f"quick by {left_by}" in out and f"slow by {taken_by}" in out, out
    assert taken["event"] and not set(taken["event"]) & set(left["event"]), (left, taken)


def attach(programs, scratch):
    """The second run takes up the turn that the first has left while its tool ran."""
    folder = scratch / "attach"
    folder.mkdir()
    command = [programs.build / "examples/attach"]
    around = {"cwd": folder, "env": programs.environment, "check": True, "capture_output": True, "text": True, "timeout": SECONDS}
    first, second = (subprocess.run(command, **around).stdout for _ in range(2))
    assert first == "left while count_stars runs\n", first
    assert second.startswith("count_stars may have run\n") and "more than 9000" in second, second


def scripts_of_models(programs):
    """The service takes each script that the guide shows."""
    from broca.testing import Server

    shown = [json.loads(code) for _, _, code in fragments.blocks("json")]
    assert len(shown) >= 3, f"the guide shows {len(shown)} scripts"
    for script in shown:
        with Server(script=script, binary=programs.build / "broca"):
            pass


def newcomer(programs, language, scratch, packages):
    """What README.md says leads to a program that runs, from an empty folder beside the checkout."""
    folder = scratch / "newcomer" / f"hello-{language}"
    folder.mkdir(parents=True)
    beside = scratch / "newcomer/broca"
    if not beside.exists():
        beside.symlink_to(ROOT)
    # The packages may have been built elsewhere, and what cargo builds is kept for the next time.
    script = readme.script(language).replace("../broca/target/packages", os.path.relpath(packages, folder))
    environment = {**programs.environment, "CARGO_TARGET_DIR": str(packages.parent / "newcomer")}
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=20 * SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[read_file {" in done.stderr and "[2 rounds]" in done.stderr, done.stderr
    assert "I am the scripted model" in done.stdout, done.stdout


def until(holds):
    """Waits until something holds."""
    end = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


DRIVER = """
import asyncio, broca, json, sys
async def main():
    async with broca.AsyncClient(sys.argv[1], sys.argv[2]) as client:
        session = await client.open()
        await session.ask("hello")
        print(session.id, flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await session.close()
        print(json.dumps([(event.id, event.type) async for event in session.events()]))
asyncio.run(main())
"""


class Driver:
    """A session that somebody else has opened, and what its log holds, read in another way than the examples do."""

    def __init__(self, programs):
        environment = programs.environment
        python = programs.installed / "python/bin/python"
        self.process = subprocess.Popen(
            [python, "-c", DRIVER, environment["BROCA_URL"], environment["BROCA_CLIENT_KEY"]],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )

    def __enter__(self):
        self.session_id = self.process.stdout.readline().strip()
        assert self.session_id, "no session was opened"
        return self

    def close(self):
        """Closes the session and returns its log."""
        out, _ = self.process.communicate("\n", timeout=SECONDS)
        return [tuple(event) for event in json.loads(out)]

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def cases(programs, scratch):
    """What has to hold, as sentences and functions."""
    asked = {"rust": "Cargo.toml", "python": "quickstart.py", "node": "quickstart.mjs", "c": "quickstart.c"}
    for language, file in asked.items():
        yield f"quickstart: {language}", partial(quickstart, programs, language, "quickstart", file)
    synchronous = partial(quickstart, programs, "python", "quickstart_sync", "quickstart_sync.py")
    yield "quickstart: python, synchronous", synchronous
    for language in LANGUAGES:
        yield f"approve: {language}", partial(approve, programs, language)
    for language in LANGUAGES:
        yield f"observe: {language}", partial(observe, programs, language, scratch)
    for left_by, taken_by in permutations(LANGUAGES, 2):
        sentence = f"relay: a turn left by {left_by} is taken up by {taken_by}"
        yield sentence, partial(relay, programs, left_by, taken_by, scratch)
    yield "attach: rust", partial(attach, programs, scratch)
    yield "docs/scripts.md: its scripts are scripts", partial(scripts_of_models, programs)
    packages = programs.installed.parent / "packages"
    for language in readme.QUICKSTARTS:
        yield f"README.md: {language}", partial(newcomer, programs, language, scratch, packages)
    errors = [programs.installed / "python/bin/python", ROOT / "scripts/errors-table.py"]
    yield "docs/errors.md is the table of errors", partial(subprocess.run, errors, check=True, timeout=SECONDS)


def guide_cases(programs):
    """The programs of the guide. Each has a service of its own, and mostly waits."""
    for page in guides.pages():
        for language in LANGUAGES:
            around = programs.build, programs.installed, programs.environment
            yield f"guide: {page}: {language}", partial(guides.play, *around, language, page)


def fault_of(case):
    """Why what has to hold does not, or None."""
    _, hold = case
    try:
        hold()
    except (AssertionError, subprocess.SubprocessError, OSError, ValueError, RuntimeError) as fault:
        return fault
    return None


def main():
    build, installed = map(pathlib.Path, sys.argv[1:3])
    parts = sys.argv[3:]
    passed = failed = 0

    def wanted(some):
        return [case for case in some if not parts or any(part in case[0] for part in parts)]
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("BROCA_", "BAE_"))}
        environment["XDG_STATE_HOME"] = str(scratch)
        broca = build / "broca"
        keys = {}
        for name in ("driver", "watcher"):
            make = [broca, "key", "create", "--dev", name]
            made = subprocess.run(make, env=environment, check=True, stdout=subprocess.PIPE, text=True)
            keys[name] = made.stdout.strip()
        environment.update(BROCA_CLIENT_KEY=keys["driver"], WATCHER_KEY=keys["watcher"])
        service = subprocess.Popen(
            [broca, "serve", "--dev", "--json", "--addr", "127.0.0.1:0", "--end-with-input"],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        try:
            environment["BROCA_URL"] = json.loads(service.stdout.readline())["url"]
            programs = Programs(build, installed, environment)
            alone, together = wanted(cases(programs, scratch)), wanted(guide_cases(programs))
            with ThreadPoolExecutor(len(LANGUAGES)) as pool:
                faults = [*map(fault_of, alone), *pool.map(fault_of, together)]
            for (sentence, _), fault in zip([*alone, *together], faults):
                passed += fault is None
                failed += fault is not None
                if fault is not None:
                    print(f"examples: not so: {sentence}: {fault}", file=sys.stderr)
        finally:
            service.stdin.close()
            service.stdout.close()
            status = service.wait(SECONDS)
    if status != 0:
        failed += 1
        print(f"examples: the service ended with status {status}", file=sys.stderr)
    print(f"examples: {passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
