//! Images and files: sent where the session takes them, and never dropped in silence where it does not.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests and their own helpers")]

mod engine_host;

use broca::engine::{Answer, Command, Environment, Step, ToolOutcome};
use broca::proto::session::content::{Block, Message};
use broca::proto::session::media;
use broca::{ErrorKind, Json, Retry, Secret};
use engine_host::service::{
    PLAIN, blocks, failure, json, pause, reply, result, say, service, stream, tool,
};
use engine_host::{Act, CLIENT_KEY, Host, Request, config};

const BLOCKS: &[&str] = &["blocks"];

fn image() -> Block {
    media::image(b"\x89PNG\r\n\x1a\n", None, None).unwrap()
}

fn say_image() -> Command {
    Command::Send { message: Message::user_blocks(vec![Block::of_text("see"), image()]) }
}

/// A service whose first message pauses with a call of `x`.
fn calls_once() -> impl FnMut(&Request) -> Vec<Act> + 'static {
    let mut round = 0;
    move |request| {
        round += 1;
        match round {
            1 => stream(&[pause(request, &[("a", "x")])]),
            _ => stream(&[reply(request, "done")]),
        }
    }
}

fn called(host: &Host, op: u64) -> broca::engine::ToolCall {
    let call = |step: &Step| match step {
        Step::ToolCall(call) => Some(call.clone()),
        _ => None,
    };
    host.said(op).iter().find_map(call).unwrap()
}

#[test]
fn an_image_leaves_as_it_is_where_the_session_takes_it() {
    let service = |r: &Request| stream(&[reply(r, "a cat")]);
    let mut host = Host::opened(|_| (), 0, BLOCKS, Vec::new(), service);
    host.command(2, say_image());
    host.finish(2);
    assert!(host.outcome(2).unwrap().is_ok());
    let sent = blocks(host.rpcs("session.sendMessage")[0]);
    assert_eq!(sent[1]["source"]["media_type"], "image/png");
}

#[test]
fn an_image_for_a_session_of_text_is_refused_before_anything_leaves() {
    let mut host = Host::opened(|_| (), 0, PLAIN, Vec::new(), |r| panic!("{r:?}"));
    let error = host.try_command(2, say_image()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("\"blocks\""), "{}", error.message());
    // Not asked for is the same as not offered.
    let unasked = |config: &mut broca::engine::Config| config.features.blocks = false;
    let mut host = Host::opened(unasked, 0, BLOCKS, Vec::new(), |r| panic!("{r:?}"));
    assert!(host.try_command(2, say_image()).is_err());
    host.settle();
    assert!(host.requests.is_empty());
}

#[test]
fn a_hook_cannot_bring_an_image_into_a_session_of_text_either() {
    let hooked = |config: &mut broca::engine::Config| config.hooks = true;
    let mut host = Host::opened(hooked, 0, PLAIN, Vec::new(), |r| panic!("{r:?}"));
    host.command(2, say("hi"));
    host.settle();
    let Some(Step::Sending { call, .. }) = host.said(2).last() else { panic!() };
    let message = Some(Message::user_blocks(vec![image()]));
    host.answer(*call, Answer::Send { message, trace: None }).unwrap();
    host.finish(2);
    assert_eq!(host.error(2).kind(), ErrorKind::InvalidArgument);
}

#[test]
fn a_message_above_the_limit_of_the_service_is_refused_with_its_name() {
    let meta = r#"{"version":"0.1.0","api_versions":["v1"],"features":["blocks"],"limits":{"max_request_bytes":4096}}"#;
    let mut settings = config();
    settings.client_key = Secret::new(CLIENT_KEY.to_owned());
    let mut host = Host::new(settings, Environment::none(), 0);
    let mut rest = service(BLOCKS, |r| stream(&[reply(r, "ok")]));
    host.script =
        Box::new(
            move |request: &Request| {
                if request.target.ends_with("/meta") { json(200, meta) } else { rest(request) }
            },
        );
    host.pull = usize::MAX;
    host.command(1, Command::Open { tools: Vec::new(), metadata: None });
    host.finish(1);
    host.requests.clear();
    for message in [
        Message::user("x".repeat(4096)),
        Message::user_blocks(vec![media::image(&[0x89; 3000], Some("image/png"), None).unwrap()]),
    ] {
        let error = host.try_command(2, Command::Send { message }).unwrap_err();
        assert_eq!((error.kind(), error.retry()), (ErrorKind::Limit, Retry::Safe));
        assert!(error.message().contains("max_request_bytes"), "{}", error.message());
    }
    host.settle();
    assert!(host.requests.is_empty());
    host.command(2, say("x"));
    host.finish(2);
    assert!(host.outcome(2).unwrap().is_ok());
}

#[test]
fn words_stand_in_a_result_where_an_image_cannot_be() {
    for (features, expected) in [(BLOCKS, "image"), (PLAIN, "text")] {
        let mut host = Host::opened(|_| (), 0, features, vec![tool("x")], calls_once());
        host.command(2, say("go"));
        host.settle();
        let content = Json::array([image().json()]);
        host.answer(called(&host, 2).call, Answer::Complete(content)).unwrap();
        host.finish(2);
        let sent = blocks(host.rpcs("session.sendMessage")[1]);
        assert_eq!(sent[0]["content"][0]["type"], expected);
        assert_ne!(sent[0]["is_error"], true);
        if expected == "text" {
            let words = sent[0]["content"][0]["text"].as_str().unwrap();
            assert!(words.contains("image/png"), "{words}");
        }
    }
}

#[test]
fn a_call_whose_host_was_lost_may_have_run() {
    let mut host = Host::opened(|_| (), 0, PLAIN, vec![tool("x")], calls_once());
    host.command(2, say("go"));
    host.settle();
    host.answer(called(&host, 2).call, Answer::Interrupted("the host ended".to_owned())).unwrap();
    host.finish(2);
    let settled = |step: &Step| match step {
        Step::ToolSettled { outcome, .. } => Some(*outcome),
        _ => None,
    };
    let outcome = host.said(2).iter().find_map(settled);
    assert_eq!(outcome, Some(ToolOutcome::InterruptedMayHaveRun));
    let sent = blocks(host.rpcs("session.sendMessage")[1]);
    assert_eq!(
        (&sent[0]["content"], &sent[0]["is_error"]),
        (&"the host ended".into(), &true.into())
    );
}

#[test]
fn a_turn_has_the_tools_that_were_given_just_before_it() {
    for works in [true, false] {
        let mut host = Host::opened(
            |_| (),
            0,
            PLAIN,
            vec![tool("old")],
            move |r| match r.rpc() {
                "session.updateClientTools" if works => stream(&[result(r, r#"{"updated":true}"#)]),
                "session.updateClientTools" => stream(&[failure(r, -32000, "no")]),
                _ => stream(&[reply(r, "done")]),
            },
        );
        host.command(2, Command::UpdateTools { tools: vec![tool("new")] });
        host.command(3, say("go"));
        host.finish(3);
        assert_eq!(host.outcome(2).unwrap().is_ok(), works);
        assert!(host.outcome(3).unwrap().is_ok(), "{:?}", host.said(3));
        let order: Vec<&str> = host.requests.iter().map(Request::rpc).collect();
        assert_eq!(order, ["session.updateClientTools", "session.sendMessage"]);
    }
}
