//! What can be set about a client, as a JSON object.
//!
//! Names and meanings are those of [`Config`]; what is absent has its default, what is unknown is refused.
//! Beside them: `environment`, an object of proxy variables (`http_proxy`, `https_proxy`, `all_proxy`,
//! `no_proxy`, `REQUEST_METHOD`) as the host's environment has them.

use crate::refused;
use broca::engine::{Budget, Config, Environment};
use broca_proto::session::approval::Approvals;
use broca_proto::session::feature::Features;
use broca_proto::{Error, ErrorKind, Json};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Reads the options of a client.
///
/// # Errors
/// [`broca_proto::ErrorKind::InvalidArgument`], naming the option. Values are not repeated: there is a key among them.
pub fn read(json: &[u8]) -> Result<(Config, Environment), Error> {
    let options: Options = refused::read_rare(json, "the options")?;
    let mut config = Config::new(options.base_url, options.client_key);
    config.client_version = options.client_version;
    set(&mut config.user_agent, options.user_agent);
    if let Some(words) = options.features {
        config.features = Features::parse(words.iter().map(String::as_str));
    }
    set(&mut config.max_line_bytes, options.max_line_bytes);
    set(&mut config.max_answer_bytes, options.max_answer_bytes);
    set(&mut config.connect_timeout_ms, options.connect_timeout_ms);
    set(&mut config.head_timeout_ms, options.head_timeout_ms);
    set(&mut config.rest_timeout_ms, options.rest_timeout_ms);
    config.silence_timeout_ms = options.silence_timeout_ms.or(config.silence_timeout_ms);
    set(&mut config.silence_intervals, options.silence_intervals);
    set(&mut config.reply_bytes, options.reply_bytes);
    set(&mut config.recovery_timeout_ms, options.recovery_timeout_ms);
    set(&mut config.reach_timeout_ms, options.reach_timeout_ms);
    set(&mut config.replay_timeout_ms, options.replay_timeout_ms);
    set(&mut config.cancel_timeout_ms, options.cancel_timeout_ms);
    set(&mut config.resume_wait_ms, options.resume_wait_ms);
    set(&mut config.eyeballs_delay_ms, options.eyeballs_delay_ms);
    set(&mut config.idle_reuse_ms, options.idle_reuse_ms);
    set(&mut config.idle_close_ms, options.idle_close_ms);
    set(&mut config.max_connections, options.max_connections);
    set(&mut config.delta_buffer_bytes, options.delta_buffer_bytes);
    set(&mut config.step_buffer_bytes, options.step_buffer_bytes);
    // 0 is how the host says that pauses are not to be held.
    config.hold_ms = options.hold_ms.map_or(config.hold_ms, |ms| Some(ms).filter(|ms| *ms > 0));
    config.turn_budget = Budget {
        rounds: options.turn_rounds,
        tokens: options.turn_tokens,
        tool_calls: options.turn_tool_calls,
    };
    config.session_budget = Budget {
        rounds: options.session_rounds,
        tokens: options.session_tokens,
        tool_calls: options.session_tool_calls,
    };
    set(&mut config.calls.concurrent, options.concurrent_tools);
    set(&mut config.calls.pause_ms, options.pause_ms);
    set(&mut config.calls.cancel_grace_ms, options.cancel_grace_ms);
    set(&mut config.calls.results_bytes, options.results_bytes);
    if let Some(approvals) = &options.approvals {
        config.approvals = Approvals::read(&Json::object([("approvals", approvals)]))
            .map_err(|error| Error::new(ErrorKind::InvalidArgument, error.to_string()))?;
    }
    set(&mut config.reconnect.first_delay_ms, options.reconnect_first_delay_ms);
    set(&mut config.reconnect.max_delay_ms, options.reconnect_max_delay_ms);
    config.reconnect.max_failures = options.reconnect_max_failures;
    set(&mut config.hooks, options.hooks);
    set(&mut config.hook_timeout_ms, options.hook_timeout_ms);
    let environment = Environment::from_vars(|name| options.environment.get(name).cloned());
    Ok((config, environment))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    base_url: String,
    client_key: String,
    client_version: Option<String>,
    user_agent: Option<String>,
    features: Option<Vec<String>>,
    max_line_bytes: Option<usize>,
    max_answer_bytes: Option<usize>,
    connect_timeout_ms: Option<u64>,
    head_timeout_ms: Option<u64>,
    rest_timeout_ms: Option<u64>,
    silence_timeout_ms: Option<u64>,
    silence_intervals: Option<u32>,
    reply_bytes: Option<usize>,
    recovery_timeout_ms: Option<u64>,
    reach_timeout_ms: Option<u64>,
    replay_timeout_ms: Option<u64>,
    cancel_timeout_ms: Option<u64>,
    resume_wait_ms: Option<u64>,
    eyeballs_delay_ms: Option<u64>,
    idle_reuse_ms: Option<u64>,
    idle_close_ms: Option<u64>,
    max_connections: Option<usize>,
    delta_buffer_bytes: Option<usize>,
    step_buffer_bytes: Option<usize>,
    /// `Config::hold_ms`; 0 for none.
    hold_ms: Option<u64>,
    /// `Config::turn_budget`.
    turn_rounds: Option<u32>,
    turn_tokens: Option<u64>,
    turn_tool_calls: Option<u32>,
    /// `Config::session_budget`.
    session_rounds: Option<u32>,
    session_tokens: Option<u64>,
    session_tool_calls: Option<u32>,
    /// `Config::calls.concurrent`.
    concurrent_tools: Option<usize>,
    /// `Config::calls.pause_ms`.
    pause_ms: Option<u64>,
    /// `Config::calls.cancel_grace_ms`.
    cancel_grace_ms: Option<u64>,
    /// `Config::calls.results_bytes`.
    results_bytes: Option<usize>,
    /// `Config::approvals`: `{"ask": "*" or [name…], "narrow": {name: {pointer: rule}}}`.
    approvals: Option<Json>,
    reconnect_first_delay_ms: Option<u64>,
    reconnect_max_delay_ms: Option<u64>,
    reconnect_max_failures: Option<u32>,
    hooks: Option<bool>,
    hook_timeout_ms: Option<u64>,
    #[serde(default)]
    environment: BTreeMap<String, String>,
}

fn set<T>(of: &mut T, given: Option<T>) {
    if let Some(given) = given {
        *of = given;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(json: &str) -> String {
        let error = read(json.as_bytes()).map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        error.message().to_owned()
    }

    #[test]
    fn what_is_absent_has_its_default() {
        let json = br#"{"base_url":"http://h:1","client_key":"k","idle_reuse_ms":7,"features":["cancel","x"]}"#;
        let (config, _) = read(json).unwrap();
        let default = Config::new("http://h:1", "k");
        assert_eq!((config.idle_reuse_ms, config.head_timeout_ms), (7, default.head_timeout_ms));
        assert_eq!(config.features, Features { cancel: true, ..Features::NONE });
        assert_eq!(config.user_agent, default.user_agent);
    }

    #[test]
    fn whom_to_ask_is_read_with_its_rules() {
        let json = br#"{"base_url":"a","client_key":"k","approvals":{"ask":["find"],"narrow":{"find":{"/n":"at_most"}}}}"#;
        let (config, _) = read(json).unwrap();
        assert!(config.approvals.ask.covers("find"));
        let rules = config.approvals.rules_of("find");
        assert_eq!(rules.iter().map(|(pointer, _)| pointer).collect::<Vec<_>>(), ["/n"]);
        let wrong = r#"{"base_url":"a","client_key":"k","approvals":{"ask":"find"}}"#;
        assert!(fault(wrong).contains("approvals.ask"));
    }

    #[test]
    fn unknown_options_are_refused_by_name_and_keys_are_not_repeated() {
        assert!(fault(r#"{"base_url":"a","client_key":"k","tiemout":1}"#).contains("tiemout"));
        assert!(fault(r#"{"base_url":"a"}"#).contains("client_key"));
        assert!(
            !fault(r#"{"base_url":"a","client_key":"k","hooks":"hunter2"}"#).contains("hunter2")
        );
        assert!(!fault(r#"{"base_url":"a","client_key":"hunter2"#).contains("hunter2"));
    }
}
