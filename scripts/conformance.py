#!/usr/bin/env python3
"""A plain client drives the built `broca serve` over real sockets, and nothing it is told may surprise it.

Usage: conformance.py [PATH OF broca]; the last line is `N passed, N failed, N skipped`.
"""

import inspect
import json
import os
import pathlib
import sys
import tempfile
import traceback

from plain_client import Service, reasons, result_of, same, texts, types

TURN = ["client.message.send", "provider.request", "provider.response", "server.message.send"]
UNAVAILABLE = [{"type": "text", "text": "The provider is currently unavailable."}]
ABANDONED = "Client tool call was abandoned before returning a result."
TOOL = {"name": "read", "description": "Reads.", "input_schema": {"type": "object", "properties": {}}}

RULES = [
    {"when": {"equals": "loop"}, "then": {"tool_calls": [{"name": "clock", "input": {}}]}},
    {"when": {"after_tools": True}, "then": {"text": "done"}},
    {"when": {"contains": "client"}, "then": {"tool_calls": [{"name": "read", "id": "tu_c", "input": {"n": 1}}]}},
    {"when": {"equals": "server"}, "then": {"tool_calls": [{"name": "clock", "id": "tu_s", "input": {}}]}},
    {"when": {"equals": "mixed"}, "then": {"text": "let me", "tool_calls": [
        {"name": "read", "id": "tu_0", "input": {}}, {"name": "clock", "id": "tu_1", "input": {}},
        {"name": "nope", "id": "tu_2", "input": {"q": "x"}}]}},
    {"when": {"equals": "elsewhere"}, "then": {"tool_calls": [
        {"name": "shell", "id": "tu_b", "input": {"command": "ls"}},
        {"name": "launch", "id": "tu_a", "input": {}}]}},
    {"when": {"equals": "slow"}, "then": {"pieces": ["sl", {"text": "ow", "delay_ms": 1500}]}},
    {"when": {"equals": "think"}, "then": {"reasoning": "hm", "text": "thought"}},
    {"when": {"contains": "ruin"}, "then": {"fail": {"status": 500, "error": "down", "body": "boom"}}},
]
BREAK = {"when": {"equals": "break"}, "then": {"fail": {"status": 503, "error": "down"}}}
PRIMARY = [BREAK, *RULES, {"then": {"text": "hello"}}]
FALLBACK = [{"when": {"contains": "ruin"}, "then": {"fail": {"error": "nobody there"}}}, {"then": {"text": "spare"}}]


# The name of each check is the sentence that it proves; `s` is a service with two models that follow the rules above.


def the_open_routes_answer(s):
    for method, path, status in [("GET", "/healthz", 200), ("HEAD", "/healthz", 200), ("GET", "/nowhere", 404),
                                 ("PUT", "/api/v1/meta", 405), ("GET", "/admin/v1/profiles", 404)]:
        _, response = s.send(method, path)
        same((response.status, response.read()), (status, b""), path)
    status, meta = s.rest("GET", "/api/v1/meta")
    same((status, meta["version"], meta["api_versions"]), (200, "0.1.0", ["v1"]))


def keys_are_told_apart_before_anything_else(s):
    a, b = s.open(), s.open()
    nonsense = "{"
    for key, path, detail in [
        (None, a.path, "missing Authorization header"), (s.key, a.path, "invalid session key"),
        (b.key, a.path, "invalid session key"), (a.key, "/api/v1/sessions/ses_none", "invalid session key"),
    ]:
        same(s.problem("POST", f"{path}/rpc", key, nonsense), (401, "unauthorized", detail))
        same(s.problem("DELETE", path, key), (401, "unauthorized", detail))
    for value, detail in [("Token x", "Authorization header must be a Bearer token"),
                          ("BEARER x", "Authorization header must be a Bearer token"),
                          ("Bearer ", "empty bearer token"), (f"Bearer {a.key}", "invalid client key")]:
        headers = {"Authorization": value}
        same(s.problem("POST", "/api/v1/sessions", body="{", headers=headers), (401, "unauthorized", detail))
    same(s.rest("GET", f"{a.path}/participants", headers={"Authorization": f"bearer {a.key}"})[0], 200)


def opens_and_joins_are_checked(s):
    here = "/api/v1/sessions"
    for body in ["{", "[]", {"tools": "x"}, {"tools": [{}]}, {"compaction": {"mode": "auto", "size": 999}},
                 {"compaction": {"mode": "other"}}]:
        same(s.problem("POST", here, s.key, body)[:2], (400, "bad_request"), body)
    same(s.problem("POST", here, s.key, {}, headers={})[:2], (400, "bad_request"))
    small = "compaction size 5 is below the minimum of 1000 tokens"
    same(s.problem("POST", here, s.key, {"compaction": {"mode": "auto", "size": 5}})[2], small)
    reserved = {"sandbox_tools": [{"name": "remote_subagent_status"}]}
    same(s.problem("POST", here, s.key, reserved)[:2], (422, "reserved_tool_name"))
    agent = {"name": "l", "image": "i", "subagents": [{"harness": "h", "command_template": "x {prompt}"}]}
    for bad in [{"name": "l"}, agent, {**agent, "image": " "}]:
        same(s.problem("POST", here, s.key, {"subagent_tools": [bad]})[:2], (422, "invalid_subagent_tools"), bad)
    a = s.open(TOOL, unknown=1)
    fixed = (400, "bad_request", "compaction is a session-level setting fixed at creation and cannot be set on join")
    same(s.problem("POST", f"{a.path}/join", s.key, {"compaction": None}), fixed)
    same(s.problem("POST", f"{here}/ses_no/join", s.key, {}), (404, "not_found", "no session ses_no"))


def every_envelope_error_has_its_text(s):
    a = s.open()
    for body, found, code, message in [
        ("{", None, -32700, "Parse error"), ("", None, -32700, "Parse error"),
        ("[]", None, -32600, "Invalid Request: batch requests are not supported"),
        ("5", None, -32600, "Invalid Request"),
        ({"id": 9, "method": "x"}, 9, -32600, 'Invalid Request: missing or wrong "jsonrpc" version'),
        ({"id": 9, "jsonrpc": "2.0", "method": 5}, 9, -32600, 'Invalid Request: missing "method"'),
        ({"id": 9, "jsonrpc": "2.0", "method": "session.x"}, 9, -32601, "Method not found: session.x"),
        ({"id": 9, "jsonrpc": "2.0", "method": "session.cancel"}, 9, -32601, "Method not found: session.cancel"),
    ]:
        _, response = s.send("POST", f"{a.path}/rpc", a.key, body, headers={})
        line = response.read()
        expected = {"jsonrpc": "2.0", "id": found, "error": {"code": code, "message": message}}
        same((response.status, json.loads(line)), (200, expected))
        same(response.getheader("content-length"), str(len(line)))
    for value in [None, {"a": [1]}, "1", 9007199254740993, 1.5, True]:
        request = {"jsonrpc": "2.0", "method": "session.unsubscribe", "id": value}
        _, response = s.send("POST", f"{a.path}/rpc", a.key, request)
        same(json.loads(response.read()), {"jsonrpc": "2.0", "id": value, "result": {"unsubscribed": True}})
    for method in ["session.unsubscribe", "session.nope", "session.sendMessage"]:
        same(a.stream(method, request_id=None).rest(), [], method)


def the_driver_gate_comes_first(s):
    a = s.open()
    for method in ["sendMessage", "compact", "startRemoteSandbox", "stopRemoteSandbox", "execRemoteSandbox",
                   "reportLocalSandbox", "reportLocalSubagent", "cancelSubagent", "updateClientTools"]:
        method = f"session.{method}"
        same(a.error(method, [1]), (-32001, f"call session.registerDriver before {method}"))
    same(a.result("session.registerDriver"), {"registered": True})
    same(a.result("session.registerDriver"), {"registered": True})
    same(types(a.events()), ["session.open", "session.driver.register"])
    for params, message in [({}, 'missing "message"'), ({"message": {}}, "missing field `content`")]:
        same(a.error("session.sendMessage", params), (-32602, f"Invalid params: {message}"))
    for params in [{"message": 5}, {"message": {"content": "x", "role": 5}}, 5, [1]]:
        same(a.error("session.sendMessage", params)[0], -32602, params)
    for method, params, code in [("startRemoteSandbox", {"image": "x"}, -32011), ("startRemoteSandbox", {}, -32602),
                                 ("stopRemoteSandbox", {}, -32013), ("execRemoteSandbox", {"command": "ls"}, -32013),
                                 ("execRemoteSandbox", {}, -32602), ("cancelSubagent", {"subagent_id": "x"}, -32014)]:
        same(a.error(f"session.{method}", params)[0], code, method)


def a_text_turn_is_four_events(s):
    a = s.driver(TOOL)
    content, events = a.reply("hi")
    same((content, types(events)), ([{"type": "text", "text": "hello"}], TURN))
    same(events[0]["payload"], {"role": "user", "content": "hi"})
    same(events[1]["payload"]["messages"], [{"role": "user", "content": "hi"}])
    same([tool["name"] for tool in events[1]["payload"]["tools"]], ["read", "clock"])
    same(events[1]["payload"]["tools"][0], TOOL)
    same((events[1]["payload"]["attempt"], events[1]["payload"]["kind"]), (0, "primary"))
    same(events[3]["payload"], {"role": "assistant", "content": content})
    _, events = a.reply([{"type": "text", "text": "more"}])
    same([m["role"] for m in events[1]["payload"]["messages"]], ["user", "assistant", "user"])
    log = a.events()
    same(types(log), ["session.open", "session.driver.register", *TURN, *TURN])
    same(log[-4:], events)
    names = {"client_version": "plain/1", "tools": ["read"], "sandbox_tools": [], "subagent_tools": []}
    same(log[0]["payload"], names)


def a_server_tool_runs_within_the_call(s):
    a = s.driver(TOOL)
    content, events = a.reply("server")
    expected = TURN[:3] + ["tool.call", "mcp.request", "mcp.response", "tool.result", *TURN[1:]]
    same((types(events), texts(content)), (expected, ["done"]))
    asked = events[7]["payload"]["messages"]
    same([m["role"] for m in asked], ["user", "assistant", "user"])
    same((asked[2]["content"][0]["tool_use_id"], asked[2]["content"][0]["is_error"]), ("tu_s", False))
    _, events = a.reply("hi")
    same(texts(events[1]["payload"]["messages"][1]["content"]), ["done"], "inner exchanges are not replayed")


def nobody_is_asked_for_consent_who_did_not_ask_to_be(s):
    a = s.driver(TOOL, approvals={"ask": "*"})
    content, events = a.reply("server")
    expected = TURN[:3] + ["tool.call", "mcp.request", "mcp.response", "tool.result", *TURN[1:]]
    same((types(events), texts(content)), (expected, ["done"]))
    same(a.error("session.approve", {"tool_use_id": "tu_s", "decision": "allow"})[0], -32601)


def a_client_tool_pauses_the_turn(s):
    a = s.driver(TOOL)
    content, events = a.reply("client")
    call = {"type": "tool_use", "id": "tu_c", "name": "read", "input": {"n": 1}, "dispatch": "client"}
    same((content, types(events)), ([call], TURN[:3] + ["tool.call", TURN[3]]))
    results = [result_of("tu_c"), {"type": "text", "text": "and this"}]
    content, events = a.reply(list(reversed(results)))
    same((types(events), texts(content)), ([TURN[0], "tool.result", *TURN[1:]], ["done"]))
    same(events[0]["payload"], {"role": "user", "content": results})
    same(events[1]["payload"], {"tool_use_id": "tu_c", "dispatch": "client", "content": "r"})


def a_mixed_turn_is_merged(s):
    a = s.driver(TOOL)
    content, events = a.reply("mixed")
    served = ["mcp.request", "mcp.response", "tool.result"]
    same(types(events), TURN[:3] + ["tool.call"] * 3 + served * 2 + [TURN[3]])
    same([(b.get("id"), b.get("dispatch")) for b in content],
         [(None, None), ("tu_0", "client"), ("tu_1", "mcp"), ("tu_2", "mcp")])
    fault = "no MCP server is configured for tool 'nope'"
    request, response, result = (event["payload"] for event in events[9:12])
    same(request, {"method": "tools/call", "server_name": None, "tool": "nope", "input": {"q": "x"}})
    same(response, {"server_name": None, "ok": False, "error": fault})
    failed = [{"type": "text", "text": f"MCP error: {fault}"}]
    nope = {"tool_use_id": "tu_2", "dispatch": "mcp", "server_name": None, "is_error": True, "content": failed}
    same(result, nope)
    # What the client says about the service's own calls does not count.
    content, events = a.reply([result_of("tu_1", "forged"), result_of("tu_0", "12:00")])
    same(types(events), [TURN[0], "tool.result", *TURN[1:]])
    blocks = events[0]["payload"]["content"]
    same([(b["tool_use_id"], b.get("is_error")) for b in blocks], [("tu_0", None), ("tu_1", False), ("tu_2", True)])
    same(blocks[2]["content"], failed)
    same([m["role"] for m in events[2]["payload"]["messages"]], ["user", "assistant", "user"])


def tools_that_have_no_place_get_error_results(s):
    agent = {"harness": "h", "command_template": "run"}
    launch = {"name": "launch", "image": "i", "subagents": [agent]}
    a = s.driver(sandbox_tools=[{"name": "shell"}], subagent_tools=[launch])
    _, events = a.reply("elsewhere")
    sandbox = ["sandbox.request", "sandbox.response"]
    same(types(events), TURN[:3] + ["tool.call"] * 2 + sandbox + ["tool.result"] * 2 + TURN[1:])
    same([e["payload"]["dispatch"] for e in events[3:5]], ["sandbox", "subagent"])
    same(events[5]["payload"], {"tool": "shell", "input": {"command": "ls"}, "command": "ls"})
    fault = "no remote sandbox is running for tool 'shell'; call session.startRemoteSandbox first"
    same(events[6]["payload"], {"sandbox_id": None, "ok": False, "error": fault})
    same(events[7]["payload"]["content"], [{"type": "text", "text": f"sandbox error: {fault}"}])


def a_malformed_continuation_ends_the_session(s):
    missing = 'no tool_result for tool_use id "tu_c"'
    for content, role, reason in [
        ([], "user", missing), ("", "user", missing), (None, "user", missing),
        ([result_of("z")], "user", 'tool_result id "z" is not in the paused assistant turn'),
        ([result_of("tu_c")] * 2, "user", 'client returned a duplicate tool_result for id "tu_c"'),
        ([result_of("tu_c")], "assistant", 'paused tool continuation must have role "user", got "assistant"'),
    ]:
        a = s.driver(TOOL)
        a.reply("client")
        answer = a.error("session.sendMessage", {"message": {"role": role, "content": content}})
        same(answer, (-32000, f"tool result merge invalid: {reason}"))
        last = a.events()[-1]
        same(last["payload"], {"reason": "tool_result_merge_invalid", "detail": reason})
        over = (-32000, "session is error, not open")
        same((a.refusal("hi"), a.error("session.registerDriver")), (over, over))
        already = (409, "session_closed", "session is already error")
        same((s.problem("DELETE", a.path, a.key), s.problem("POST", f"{a.path}/join", s.key, {})), (already, already))


def results_for_nothing_leave_no_trace(s):
    a = s.driver()
    reason = "no paused turn is awaiting tool results (it may have timed out and been retired)"
    same(a.refusal([result_of("x")]), (-32000, f"tool result merge invalid: {reason}"))
    same((len(a.events()), texts(a.reply("hi")[0])), (2, ["hello"]))


def a_plain_message_of_the_owner_abandons_its_calls(s):
    a = s.driver(TOOL)
    a.reply("client")
    _, events = a.reply("never mind")
    same(types(events), [TURN[0], "tool.result", *TURN[1:]])
    synthetic = {**result_of("tu_c", ABANDONED), "is_error": True}
    same(events[0]["payload"]["content"], [synthetic, {"type": "text", "text": "never mind"}])
    same(events[1]["payload"], {"tool_use_id": "tu_c", "dispatch": "client", "content": ABANDONED})
    same(reasons(a.events()), [])


def a_failed_primary_falls_back(s):
    a = s.driver()
    content, events = a.reply("break")
    same((texts(content), reasons(events)), (["spare"], ["provider_call_failed"]))
    same(types(events), TURN[:3] + ["session.error", *TURN[1:]])
    same([(e["payload"]["attempt"], e["payload"]["kind"]) for e in events if e["event_type"] == "provider.request"],
         [(0, "primary"), (1, "fallback")])
    same(texts(a.reply("hi")[0]), ["hello"])


def providers_that_all_fail_are_a_result(s):
    a = s.driver()
    watch = a.stream("session.subscribe")
    content, events = a.reply("ruin")
    same(content, UNAVAILABLE)
    same(types(events), TURN[:3] + ["session.error"] + TURN[1:3] + ["session.error"])
    same([events[2]["payload"][m] for m in ("ok", "status", "body")], [False, 500, "boom"])
    same([events[5]["payload"][m] for m in ("ok", "status", "body")], [False, None, None])
    same(events[6]["payload"], {"reason": "all_providers_failed", "attempts": 2})
    same(set(events[3]["payload"]), {"reason", "provider", "detail"})
    same(a.refusal("hi"), (-32000, "session is error, not open"))
    same(watch.rest()[-1], events[-1])


def sessions_are_neither_read_nor_changed_nor_listed(s):
    a = s.open()
    for method, path, allowed in [("GET", a.path, "DELETE"), ("PATCH", a.path, "DELETE"), ("GET", "/api/v1/sessions", "POST")]:
        _, response = s.send(method, path)
        same((response.status, response.read(), response.headers["allow"]), (405, b"", allowed), path)


def eight_rounds_are_the_limit(s):
    a = s.driver()
    content, events = a.reply("loop")
    same((content, types(events).count("provider.request")), (UNAVAILABLE, 8))
    same(events[-1]["payload"], {"reason": "loop_limit", "max_iterations": 8})


def calls_wait_in_order_without_a_byte(s):
    a = s.driver(TOOL)
    b = a.join()
    same(b.result("session.registerDriver"), {"registered": True})
    status, found = s.rest("GET", f"{b.path}/participants", b.key)
    same((status, len(found["drivers"]), found["drivers"]), (200, 2, sorted(found["drivers"])))
    watch = a.stream("session.subscribe")
    running = a.message("slow")
    running.until("provider.request")
    queued = b.message("hi")
    queued.silent(0.2)
    running.terminal()
    same(texts(queued.terminal()["result"]["message"]["content"]), ["hello"])
    a.reply("client")
    queued = b.message("hi")
    queued.silent(0.2)
    same(texts(a.reply([result_of("tu_c")])[0]), ["done"])
    same(texts(queued.terminal()["result"]["message"]["content"]), ["hello"])
    same(a.close(), (200, {"session_id": a.id, "state": "closed"}))
    shown = watch.rest()
    same(shown, a.events()[-len(shown):])
    same((shown[-1]["event_type"], shown[-1]["payload"]), ("session.close", {"reason": "client_close"}))
    actors = [event["client_key_id"] for event in shown[:-1]]
    same(sum(x != y for x, y in zip(actors, actors[1:])), 3, "turns are not interleaved")


def tools_belong_to_their_driver(s):
    a = s.driver(TOOL)
    b = a.join({"name": "write", "input_schema": {"type": "object"}})
    b.result("session.registerDriver")
    offered = lambda session: [t["name"] for t in session.reply("hi")[1][1]["payload"]["tools"]]
    same((offered(a), offered(b)), (["read", "clock"], ["write", "clock"]))
    same(b.result("session.updateClientTools", {"tools": [{"name": "other"}]}), {"updated": True})
    same((offered(a), offered(b)), (["read", "clock"], ["other", "clock"]))
    again = a.join(key=s.key)
    same((offered(again), offered(a)), (["clock"], ["clock"]))
    same(b.error("session.updateClientTools", {"tools": [{"name": ""}]})[0], -32602)


def subscriptions_replay_and_go_on(s):
    a = s.driver()
    a.reply("hi")
    log = a.events()
    for since, replayed in [(log[2]["id"], 3), (log[0]["id"], None), ("evt_unknown", None), ("", None), (5, 0)]:
        past = log[len(log) - replayed:] if replayed is not None else log[since == log[0]["id"]:]
        watch = a.stream("session.subscribe", {"since_event_id": since})
        same([watch.next() for _ in past], past, since)
        if not past:
            watch.silent(0.2)
        live = a.reply("hi")[1]
        same([watch.next() for _ in live], live)
        same(a.result("session.unsubscribe"), {"unsubscribed": True})
        same(watch.rest(), [])
        log = a.events()
    same(types(log).count("session.driver.register"), 1, "observers leave no trace")


def a_caller_sees_what_others_do_meanwhile(s):
    a = s.driver()
    call = a.message("slow")
    call.until("provider.request")
    b = a.join()
    b.result("session.registerDriver")
    result = call.terminal()["result"]
    same(types(call.events), ["provider.request", "session.join", "session.driver.register", *TURN[2:]])
    same(types(result["events"]), TURN)


def reports_become_events(s):
    a = s.driver()
    for method, params, event_type, payload in [
        ("Sandbox", {"state": "running", "image": "i", "container_id": "c"}, "session.sandbox.running",
         {"image": "i", "unsandboxed": False, "container_id": "c", "detail": None}),
        ("Sandbox", {"state": "error", "image": None, "unsandboxed": True, "detail": "d"}, "session.sandbox.error",
         {"image": None, "unsandboxed": True, "container_id": None, "detail": "d"}),
        ("Subagent", {"state": "running", "detail": None, "exit_code": None}, "session.subagent.running",
         {"detail": None}),
        ("Subagent", {"state": "completed", "exit_code": 0}, "session.subagent.completed",
         {"detail": None, "exit_code": 0}),
        ("Subagent", {"state": "failed", "reason": "timeout", "exit_code": None}, "session.subagent.failed",
         {"detail": None, "reason": "timeout", "exit_code": None}),
        ("Subagent", {"state": "cancelled", "reason": "explicit"}, "session.subagent.cancelled",
         {"detail": None, "reason": "explicit"}),
    ]:
        common = {"subagent_id": "sba_1", "harness": "h", "model": "m"} if method == "Subagent" else {}
        same(a.result(f"session.reportLocal{method}", {**common, **params}), {"reported": True})
        event = a.events()[-1]
        same((event["event_type"], event["payload"]), (event_type, {"dispatch": "local", **common, **payload}))
    for params in [{}, {"state": "running"}, {"state": "running", "image": "i", "unsandboxed": True}]:
        same(a.error("session.reportLocalSandbox", params)[0], -32602, params)
    same(a.error("session.reportLocalSubagent", {"state": "start", "harness": "h", "model": "m"})[0], -32602)
    a.reply("ruin")
    params = {"state": "stopped", "image": "i"}
    same(a.result("session.reportLocalSandbox", params), {"reported": True}, "also after a failure")


def a_closed_session_can_be_read(s):
    a = s.driver()
    a.reply("hi")
    same(a.close()[0], 200)
    same(s.problem("DELETE", a.path, a.key), (409, "session_closed", "session is already closed"))
    same(a.refusal("hi"), (-32001, "call session.registerDriver before session.sendMessage"))
    same(a.error("session.registerDriver"), (-32000, "session is closed, not open"))
    log = a.events()
    same(a.stream("session.subscribe", {"since_event_id": ""}).rest(), log)
    same(log[-1]["client_key_id"], log[0]["client_key_id"])


def a_close_ends_what_runs_and_what_waits(s):
    a = s.driver()
    running = a.message("slow")
    running.until("provider.request")
    queued = a.message("hi")
    queued.silent(0.2)
    a.close()
    for call in [running, queued]:
        same(call.terminal()["error"], {"code": -32000, "message": "session is closed, not open"})


def pages_are_cut_and_refused_as_documented(s):
    a = s.driver()
    a.reply("hi")
    pages, cursor = [], ""
    while cursor is not None:
        page = s.rest("GET", f"{a.path}/events?limit=2&cursor={cursor}", a.key)[1]
        pages.append(len(page["items"]))
        cursor = page["next_cursor"]
    same(pages, [2, 2, 2])
    positive = (400, "bad_request", "limit must be a positive integer")
    for query in ["limit=0", "limit=-1", "limit=x"]:
        same(s.problem("GET", f"{a.path}/events?{query}", a.key), positive, query)
    same(s.problem("GET", f"{a.path}/events?cursor=zz", a.key), (400, "bad_request", 'invalid cursor: "zz"'))
    same(s.rest("GET", f"{a.path}/events?limit=999", a.key)[0], 200)


def requests_without_an_id_have_their_effect(s):
    a = s.open(TOOL)
    same(a.stream("session.registerDriver", request_id=None).rest(), [])
    call = a.message("hi", request_id=None)
    call.rest()
    same(types(call.events), TURN[1:])


def reasoning_is_kept_from_a_plain_client(s):
    same(s.driver().reply("think")[0], [{"type": "text", "text": "thought"}])


def a_pause_that_expires_goes_to_who_waits(s):
    a = s.driver(TOOL)
    b, watch = a.join(), a.stream("session.subscribe")
    b.result("session.registerDriver")
    a.reply("client")
    result = b.message("mine now").terminal()["result"]
    same(types(result["events"]), [TURN[0], "tool.result", *TURN[1:]])
    synthetic = {**result_of("tu_c", ABANDONED), "is_error": True}
    same(result["events"][0]["payload"]["content"], [synthetic, {"type": "text", "text": "mine now"}])
    left = watch.until("session.error")
    owner = a.events()[0]["client_key_id"]
    same((left["payload"], left["client_key_id"]),
         ({"reason": "driver_turn_abandoned", "owner_client_key_id": owner}, owner))
    same(a.refusal([result_of("tu_c")])[0], -32000)
    same(texts(a.reply("hi")[0]), ["hello"])


def drivers_and_pauses_survive_a_restart(s):
    a = s.driver(TOOL)
    a.reply("client")
    s.stop()
    s.start()
    content, events = a.reply([result_of("tu_c")])
    same((texts(content), types(events)), (["done"], [TURN[0], "tool.result", *TURN[1:]]))


def a_reader_that_lags_is_told_and_catches_up(s):
    a = s.driver()
    connection, response = s.send("POST", f"{a.path}/rpc", a.key, {
        "jsonrpc": "2.0", "id": 1, "method": "session.subscribe", "params": {}})
    report = {"state": "running", "image": "i", "detail": "x" * 60_000}
    for _ in range(700):
        same(a.result("session.reportLocalSandbox", report), {"reported": True})
    lines = [json.loads(line) for line in response]
    lagged = {"code": -32000, "message": "lagged; reconnect with since_event_id"}
    same(lines.pop(), {"jsonrpc": "2.0", "error": lagged})
    connection.close()
    seen = [line["params"]["id"] for line in lines]
    watch = a.stream("session.subscribe", {"since_event_id": seen[-1]})
    seen += [watch.next()["id"] for _ in range(700 - len(seen))]
    same(seen, [event["id"] for event in a.events()[2:]])


SHORT = [a_pause_that_expires_goes_to_who_waits]
LASTING = [check for check in list(globals().values())
           if inspect.isfunction(check) and check.__module__ == __name__ and check not in SHORT]


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))
    broca = sys.argv[1] if len(sys.argv) > 1 else str(target / "debug" / "broca")
    passed = failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, checks, timeout in [("lasting", LASTING, 120), ("short", SHORT, 1)]:  # seconds that a pause lasts
            service = Service(broca, pathlib.Path(folder) / name, PRIMARY, FALLBACK, timeout=timeout)
            try:
                for check in checks:
                    try:
                        check(service)
                        passed += 1
                    except Exception:
                        failed += 1
                        print("not so:", check.__name__.replace("_", " "), traceback.format_exc(), sep="\n")
            finally:
                service.stop()
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
