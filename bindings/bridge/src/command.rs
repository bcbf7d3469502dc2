//! Commands and answers as a binding hands them in.
//!
//! A command is a JSON object with one member:
//!
//! | command | its value |
//! |---|---|
//! | `open` | `{"tools": [tool…], "metadata": object or null}` |
//! | `join` | `{"session_id": text, "tools": [tool…]}` |
//! | `observe` | `{"session_id": text}` |
//! | `attach` | `{"saved": a saved session, as text or as the object it is, "tools": [tool…]}` |
//! | `resume`, `save` | `{}` |
//! | `send` | `{"message": text, array of blocks, or message object}` |
//! | `subscribe` | `{"from": cursor text, "" for the start, or null for now}` |
//! | `history` | `{"cursor": text or null, "limit": number or null}` |
//! | `participants`, `info`, `meta`, `close` | `{}` |
//! | `update` | `{"metadata": object, "version": number or null}` |
//! | `sessions` | `{"cursor": text or null, "limit": number or null}` |
//! | `update_tools` | `{"tools": [tool…]}` |
//!
//! A tool is `{"name", "description", "input_schema", "sequential", "timeout_ms", "approval", "narrow": {pointer: rule}}`, all but
//! the name optional.

use crate::refused;
use broca::engine::{Answer, CloseReason, Command, Trace};
use broca_proto::session::content::{Content, Message, Role};
use broca_proto::session::ids::Cursor;
use broca_proto::session::narrow::{NarrowRule, NarrowRules};
use broca_proto::session::saved::SavedSession;
use broca_proto::session::tool::{Tool, ToolDeclaration};
use broca_proto::{Error, ErrorKind, Json};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Reads a command.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`], naming what is wrong and nothing of what a message says.
pub fn read(json: &[u8]) -> Result<Command, Error> {
    let wire: Wire = refused::read(json, "the command")?;
    Ok(match wire {
        Wire::Open { tools, metadata } => {
            let metadata = metadata.filter(|metadata| !metadata.is_null());
            Command::Open { tools: read_tools(tools)?, metadata }
        }
        Wire::Join { session_id, tools } => {
            Command::Join { session_id: session(&session_id)?, tools: read_tools(tools)? }
        }
        Wire::Observe { session_id } => Command::Observe { session_id: session(&session_id)? },
        Wire::Attach { saved, tools } => {
            let text = saved.to_text();
            let saved = text.as_ref().map_or(saved.as_bytes(), String::as_bytes);
            let saved = Box::new(SavedSession::parse(saved)?);
            Command::Attach { saved, tools: read_tools(tools)? }
        }
        Wire::Resume {} => Command::Resume,
        Wire::Save {} => Command::Save,
        Wire::Send { message } => Command::Send { message: read_message(&message)? },
        Wire::Subscribe { from } => {
            Command::Subscribe { from: from.map(|text| Cursor::from(text.as_str())) }
        }
        Wire::History { cursor, limit } => Command::History { cursor, limit },
        Wire::Participants {} => Command::Participants,
        Wire::Info {} => Command::Info,
        Wire::Update { metadata, version } => Command::Update { metadata, version },
        Wire::Sessions { cursor, limit } => Command::Sessions { cursor, limit },
        Wire::Meta {} => Command::Meta,
        Wire::UpdateTools { tools } => Command::UpdateTools { tools: read_tools(tools)? },
        Wire::Close {} => Command::Close,
    })
}

/// Makes an answer of its word and what it says: `complete` (JSON: a string or an array of content blocks), `complete_text` (a
/// text), `fail` (a text), `interrupted` (a text), `allow`, `allow_narrowed` (JSON), `deny` (a text), `send` (a message as JSON, or nothing),
/// `refuse` (a text).
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for an unknown word, or a value that is not what the word needs.
pub fn answer(word: &str, value: Option<&[u8]>, trace: Option<Trace>) -> Result<Answer, Error> {
    let text = || match value.map(std::str::from_utf8) {
        Some(Ok(text)) => Ok(text.to_owned()),
        Some(Err(_)) => Err(invalid(format!("the text of the answer \"{word}\" is not UTF-8"))),
        None => Ok(String::new()),
    };
    let json = || match value {
        Some(value) => Json::parse(value.to_vec())
            .map_err(|e| invalid(format!("the value of the answer \"{word}\" is not JSON: {e}"))),
        None => Err(invalid(format!("the answer \"{word}\" needs a value"))),
    };
    Ok(match word {
        "complete" => Answer::Complete(json()?),
        "complete_text" => Answer::Complete(Json::string(&text()?)),
        "fail" => Answer::Fail(text()?),
        "interrupted" => Answer::Interrupted(text()?),
        "allow" => Answer::Allow,
        "allow_narrowed" => Answer::AllowNarrowed(json()?),
        "deny" => Answer::Deny(text()?),
        "send" => {
            let message = value.map(|_| json()).transpose()?.map(|json| read_message(&json));
            Answer::Send { message: message.transpose()?, trace }
        }
        "refuse" => Answer::Refuse(text()?),
        other => return Err(invalid(format!("there is no answer \"{other}\""))),
    })
}

/// Reads a message: a text, an array of content blocks, or an object with `content` and perhaps `role`.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`], with nothing of what the message says.
pub fn read_message(json: &Json) -> Result<Message, Error> {
    if json.is_object() {
        return Message::read(json, Role::User)
            .map_err(|e| invalid(format!("the message cannot be sent: {e}")));
    }
    if json.to_text().is_none() && json.elements().is_none() {
        let message =
            "a message is a text, an array of content blocks, or an object with \"content\"";
        return Err(invalid(message.to_owned()));
    }
    Ok(Message { role: Role::User, content: Content::read(json) })
}

/// The words for why a connection is gone.
const CLOSE_REASONS: [(&str, CloseReason); 10] = [
    ("eof", CloseReason::Eof),
    ("unclean_eof", CloseReason::UncleanEof),
    ("reset", CloseReason::Reset),
    ("timed_out", CloseReason::TimedOut),
    ("refused", CloseReason::Refused),
    ("unreachable", CloseReason::Unreachable),
    ("tls_cert", CloseReason::TlsCert),
    ("tls_host", CloseReason::TlsHost),
    ("tls_other", CloseReason::TlsOther),
    ("local", CloseReason::Local),
];

/// Why a connection is gone, from its word.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`], with the words there are.
pub fn close_reason(word: &str) -> Result<CloseReason, Error> {
    let found = CLOSE_REASONS.iter().find(|(known, _)| *known == word);
    found.map(|(_, reason)| *reason).ok_or_else(|| {
        let words = CLOSE_REASONS.map(|(known, _)| known).join(", ");
        invalid(format!("no connection is closed for the reason \"{word}\"; it is one of {words}"))
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Wire {
    Open {
        #[serde(default)]
        tools: Vec<WireTool>,
        #[serde(default)]
        metadata: Option<Json>,
    },
    Join {
        session_id: String,
        #[serde(default)]
        tools: Vec<WireTool>,
    },
    Observe {
        session_id: String,
    },
    Attach {
        saved: Json,
        #[serde(default)]
        tools: Vec<WireTool>,
    },
    Resume {},
    Save {},
    Send {
        message: Json,
    },
    Subscribe {
        from: Option<String>,
    },
    History {
        cursor: Option<String>,
        limit: Option<u32>,
    },
    Participants {},
    Info {},
    Update {
        metadata: Json,
        version: Option<u64>,
    },
    Sessions {
        cursor: Option<String>,
        limit: Option<u32>,
    },
    Meta {},
    UpdateTools {
        tools: Vec<WireTool>,
    },
    Close {},
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireTool {
    name: String,
    description: Option<String>,
    #[serde(default = "Json::empty_object")]
    input_schema: Json,
    #[serde(default)]
    sequential: bool,
    timeout_ms: Option<u64>,
    #[serde(default)]
    approval: bool,
    #[serde(default)]
    narrow: BTreeMap<String, String>,
}

fn read_tools(wire: Vec<WireTool>) -> Result<Vec<Tool>, Error> {
    wire.into_iter().map(read_tool).collect()
}

fn read_tool(wire: WireTool) -> Result<Tool, Error> {
    let mut rules = Vec::new();
    for (pointer, word) in wire.narrow {
        let Some(rule) = NarrowRule::parse(&word) else {
            let message = format!("tool \"{}\": there is no narrowing rule \"{word}\"", wire.name);
            return Err(invalid(message));
        };
        rules.push((pointer, rule));
    }
    Ok(Tool {
        declaration: ToolDeclaration {
            name: wire.name,
            description: wire.description,
            input_schema: wire.input_schema,
        },
        sequential: wire.sequential,
        timeout_ms: wire.timeout_ms,
        approval: wire.approval,
        narrow: NarrowRules::new(rules),
    })
}

fn session(id: &str) -> Result<broca_proto::session::ids::SessionId, Error> {
    if id.is_empty() {
        return Err(invalid("the id of the session is empty".to_owned()));
    }
    Ok(id.into())
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(message: &str) -> Result<Message, Error> {
        match read(format!(r#"{{"send":{{"message":{message}}}}}"#).as_bytes())? {
            Command::Send { message } => Ok(message),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_message_is_a_text_blocks_or_an_object() {
        assert_eq!(sent(r#""hi""#).unwrap(), Message::user("hi"));
        assert_eq!(sent(r#"[{"type":"text","text":"a"}]"#).unwrap().text(), "a");
        assert_eq!(sent(r#"{"content":"b"}"#).unwrap(), Message::user("b"));
        for wrong in ["7", "null", r#"{"role":"user"}"#] {
            assert_eq!(sent(wrong).unwrap_err().kind(), ErrorKind::InvalidArgument, "{wrong}");
        }
    }

    #[test]
    fn tools_are_read_with_their_rules() {
        let json = br#"{"open":{"tools":[{"name":"rm","input_schema":{"type":"object","x":1e3},"sequential":true,
            "timeout_ms":5,"approval":true,"narrow":{"/paths":"remove_elements"}},{"name":"ls"}]}}"#;
        let Ok(Command::Open { tools, .. }) = read(json) else { panic!() };
        assert_eq!(tools[0].declaration.input_schema.as_str(), r#"{"type":"object","x":1e3}"#);
        assert_eq!(
            (tools[0].sequential, tools[0].timeout_ms, tools[0].approval),
            (true, Some(5), true)
        );
        assert_eq!(tools[1].declaration.input_schema.as_str(), "{}");
        let wrong = br#"{"open":{"tools":[{"name":"rm","narrow":{"/p":"widen"}}]}}"#;
        assert!(read(wrong).unwrap_err().message().contains("widen"));
    }

    #[test]
    fn unknown_commands_and_members_are_refused_without_their_values() {
        for wrong in [
            r#"{"fly":{}}"#,
            r#"{"close":{"now":1}}"#,
            r#"{"send":{"#,
            r#"{"history":{"limit":"hunter2"}}"#,
            r#"{"attach":{"saved":"hunter2"}}"#,
            r#"{"attach":{"saved":{"broca_session":1,"session_key":"hunter2"}}}"#,
        ] {
            let error = read(wrong.as_bytes()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{wrong}");
            assert!(!error.message().contains("hunter2"), "{error}");
        }
        let negative = read(br#"{"open":{"tools":[{"name":"x","timeout_ms":-1}]}}"#).unwrap_err();
        assert!(negative.message().contains("tools[0].timeout_ms"), "{negative}");
    }

    #[test]
    fn a_saved_session_is_read_as_text_and_as_an_object() {
        let saved =
            r#"{"broca_session":1,"service":"http://h","session_id":"s","session_key":"k"}"#;
        let text = Json::string(saved);
        for saved in [saved, text.as_str()] {
            let command = read(format!(r#"{{"attach":{{"saved":{saved}}}}}"#).as_bytes());
            let Ok(Command::Attach { saved, .. }) = command else { panic!("{command:?}") };
            assert_eq!(saved.session_key.expose(), "k");
        }
    }

    #[test]
    fn every_reason_has_one_word_and_an_unknown_one_names_them() {
        for (word, reason) in CLOSE_REASONS {
            assert_eq!(close_reason(word).unwrap(), reason);
        }
        let refused = close_reason("bored").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        assert!(refused.message().contains("tls_cert"), "{refused}");
    }

    #[test]
    fn answers_need_what_their_word_says() {
        assert!(
            matches!(answer("complete_text", Some(b"a\"b"), None), Ok(Answer::Complete(j)) if j.as_str() == r#""a\"b""#)
        );
        assert!(matches!(
            answer("send", None, None),
            Ok(Answer::Send { message: None, trace: None })
        ));
        assert!(answer("complete", Some(b"{"), None).is_err());
        assert!(answer("complete", None, None).is_err());
        assert!(answer("fail", Some(b"\xff"), None).is_err());
        assert!(answer("shrug", None, None).is_err());
    }
}
