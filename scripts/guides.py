"""Plays the programs of the guide: each page of docs/guide has one in every language, and all of them say the same words.

A page's folder in examples/guide holds `main.rs`, `main.py`, `main.mjs`, `main.c`, what they print in `expected.txt`, and in
`scenario.json` what happens to them. All members are optional:

    model         a script of the built-in model (docs/scripts.md); without it the model follows its own rules
    turn_timeout  seconds that a turn waits for the results of tools
    service       environment variables of the service
    faults        what befalls the network from the start, in order: [{"cut": {"after_lines": 2}}], the methods of
                  testing.Server (docs/testing.md) with their arguments
    newer         what the service says in its first stream that no client of today knows (newer.py): notifications,
                  [{"method": "…", "params": {}}], and events, [{"event_type": "…", "payload": {}}]
    upon          what happens when a program has printed a line: {"LINE": [{"restart": {}}]}
    runs          the programs that follow each other, [{"arguments": ["save"]}]; without it one without arguments. All
                  have one empty folder as their place

Every fault that was planned must have come to pass when the programs have ended.
"""

import json
import os
import pathlib
import subprocess
import tempfile
import threading

import newer

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples/guide"
FILES = {"rust": "main.rs", "python": "main.py", "node": "main.mjs", "c": "main.c"}
MEMBERS = {"model", "turn_timeout", "service", "faults", "newer", "upon", "runs"}
FAULTS = {"cut", "delay", "drop", "duplicate", "heal", "refuse", "reset", "restart", "skip", "stall"}
SECONDS = 60


def pages():
    """The names of the pages that have examples."""
    return sorted(path.parent.name for path in EXAMPLES.glob("*/expected.txt"))


def command(build, installed, language, page):
    """How the program of a page is run."""
    return [str(part) for part in {
        "rust": [build / f"guide-{page}"],
        "python": [installed / "python/bin/python", EXAMPLES / page / "main.py"],
        "node": ["node", installed / "node/guide" / f"{page}.mjs"],
        "c": [installed / "c" / f"guide-{page}"],
    }[language]]


def play(build, installed, environment, language, page):
    """Runs a page's program as its scenario says, and compares what it printed."""
    from broca.testing import Server  # the installed package

    folder = EXAMPLES / page
    scenario = json.loads((folder / "scenario.json").read_text(encoding="utf-8"))
    assert not scenario.keys() - MEMBERS, f"scenario.json has members that nobody reads: {scenario.keys() - MEMBERS}"
    service = {
        "script": scenario.get("model"), "turn_timeout": scenario.get("turn_timeout"), "env": scenario.get("service"),
        "binary": build / "broca",
    }
    printed = ""
    with (
        tempfile.TemporaryDirectory() as place,
        Server(**service) as server,
        newer.before(server.url, scenario.get("newer")) as url,
    ):
        around = {**environment, "BROCA_URL": url, "BROCA_CLIENT_KEY": server.key,
                  "BROCA_WATCH_KEY": server.watch_key, "PYTHONUNBUFFERED": "1"}
        befall(server, scenario.get("faults", []))
        for run in scenario.get("runs", [{}]):
            asked = [*command(build, installed, language, page), *run.get("arguments", [])]
            printed += follow(asked, place, around, server, scenario.get("upon", {}))
        planned = server.status()["planned"]
    expected = (folder / "expected.txt").read_text(encoding="utf-8")
    assert printed == expected, f"printed {printed!r}, expected {expected!r}"
    assert planned == 0, f"{planned} planned faults did not come to pass"


def follow(asked, place, environment, server, upon):
    """Runs a program to its end, does what is to happen upon its lines, and returns what it printed."""
    errors = tempfile.TemporaryFile("w+")
    with errors, subprocess.Popen(
        asked, cwd=place, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
    ) as program:
        watch = threading.Timer(SECONDS, program.kill)
        watch.start()
        try:
            lines = []
            for line in program.stdout:
                lines.append(line)
                befall(server, upon.get(line.rstrip("\n"), []))
            status = program.wait()
        finally:
            watch.cancel()
            program.kill()
        errors.seek(0)
        said = "".join(lines)
        assert status == 0, f"ended with status {status}: {said}{errors.read()}"
    return said


def befall(server, faults):
    """Does to the network or the service what a scenario says."""
    for fault in faults:
        for name, arguments in fault.items():
            assert name in FAULTS, f"scenario.json: there is no fault {name}"
            getattr(server, name)(**arguments)
