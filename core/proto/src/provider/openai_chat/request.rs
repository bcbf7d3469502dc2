//! What is sent to a Chat Completions server (session service §6.4).
//!
//! The session's Anthropic-style blocks become the server's messages. Arguments of earlier calls and tool schemas go out
//! as the text they came in. Blocks without a counterpart, such as reasoning, are left out, and so is `is_error`. Halves of
//! surrogate pairs stay in the log and never leave: a server would refuse every request of the session for one.

use super::super::ToolSpec;
use super::super::alternation::alternating;
use super::parts;
use crate::Json;
use crate::session::content::{Block, Content, Message, Role};
use crate::session::generation::{Generation, Options, ToolChoice};
use std::borrow::Cow;

/// One request.
#[derive(Debug, Clone, Copy)]
pub struct ChatRequest<'a> {
    /// The model's name.
    pub model: &'a str,
    /// The most tokens the model may answer with.
    pub max_tokens: u64,
    /// The member that says so: `max_tokens`, or `max_completion_tokens` for models that refuse the older name.
    pub max_tokens_member: &'a str,
    /// The conversation.
    pub messages: &'a [Message],
    /// The tools on offer; with none the member is left out.
    pub tools: &'a [ToolSpec],
    /// System prompt and options.
    pub generation: &'a Generation,
    /// Whether images and files go out; otherwise they are left out.
    pub media: bool,
}

impl ChatRequest<'_> {
    /// The body of the request: streamed, with usage at the end.
    #[must_use]
    pub fn body(&self) -> Json {
        let messages = readable(self.messages);
        let system = self.generation.system().map(|text| {
            Json::object([("role", &Json::string("system")), ("content", &Json::string(&text))])
        });
        let messages = alternating(&messages);
        let messages: Vec<Json> = system
            .into_iter()
            .chain(messages.iter().flat_map(|m| messages_of(m, self.media)))
            .collect();
        let messages = Json::array(&messages);
        let tools: Vec<Json> = self.tools.iter().map(tool).collect();
        let tools = (!tools.is_empty()).then(|| Json::array(&tools));
        let model = Json::string(self.model);
        let max_tokens = Json::integer(i64::try_from(self.max_tokens).unwrap_or(i64::MAX));
        let yes = Json::of_written("true".to_owned());
        let options = Json::object([("include_usage", &yes)]);
        let members = [
            ("model", &model),
            (self.max_tokens_member, &max_tokens),
            ("messages", &messages),
            ("stream", &yes),
            ("stream_options", &options),
        ];
        let asked = options_of(&self.generation.options(), tools.is_some());
        let asked = asked.iter().map(|(name, value)| (*name, value));
        let tools = tools.iter().map(|tools| ("tools", tools));
        Json::object(members.into_iter().chain(tools).chain(asked))
    }
}

/// The options in the server's words. Servers refuse a choice of tools where there are none.
fn options_of(options: &Options, has_tools: bool) -> Vec<(&'static str, Json)> {
    let stop = (!options.stop.is_empty()).then(|| {
        let stop: Vec<Json> = options.stop.iter().map(|text| Json::string(text)).collect();
        Json::array(&stop)
    });
    let choice = options.tool_choice.as_ref().filter(|_| has_tools).map(|choice| match choice {
        ToolChoice::Auto => Json::string("auto"),
        ToolChoice::Any => Json::string("required"),
        ToolChoice::Never => Json::string("none"),
        ToolChoice::Tool(name) => {
            let function = Json::object([("name", &Json::string(name))]);
            Json::object([("type", &Json::string("function")), ("function", &function)])
        }
    });
    let effort = options.effort.map(|effort| Json::string(effort.as_str()));
    let members = [
        ("temperature", options.temperature.clone()),
        ("top_p", options.top_p.clone()),
        ("stop", stop),
        ("tool_choice", choice),
        ("reasoning_effort", effort),
    ];
    members.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// The conversation as any reader of JSON takes it.
fn readable(messages: &[Message]) -> Cow<'_, [Message]> {
    let broken = |message: &Message| match &message.content {
        Content::Text(_) => false,
        Content::Blocks(blocks) => blocks.iter().any(|b| b.json().without_halves().is_some()),
        Content::Other(json) => json.without_halves().is_some(),
    };
    if !messages.iter().any(broken) {
        return Cow::Borrowed(messages);
    }
    let whole = |message: &Message| match message.content.to_json().without_halves() {
        Some(content) => Message { role: message.role.clone(), content: Content::read(&content) },
        None => message.clone(),
    };
    Cow::Owned(messages.iter().map(whole).collect())
}

/// The text of a result that is nothing but images or files.
const SHOWN: &str = "(shown in the next message)";

fn messages_of(message: &Message, media: bool) -> Vec<Json> {
    let role = Json::string(message.role.as_str());
    let plain = |content: &Json| Json::object([("role", &role), ("content", content)]);
    match &message.content {
        Content::Text(text) => vec![plain(&Json::string(text))],
        Content::Blocks(blocks) if message.role == Role::Assistant => vec![assistant(blocks)],
        Content::Blocks(blocks) => {
            let results = blocks.iter().filter_map(|block| tool_message(block, media));
            let mut out: Vec<Json> = results.collect();
            if let Some(parts) = media.then(|| parts::parts(blocks)).flatten() {
                out.push(plain(&parts));
                return out;
            }
            let text = joined_text(blocks);
            if let Some(text) = text.or_else(|| out.is_empty().then(String::new)) {
                out.push(plain(&Json::string(&text)));
            }
            out
        }
        other => vec![plain(&other.to_json())],
    }
}

fn assistant(blocks: &[Block]) -> Json {
    let content = joined_text(blocks).map_or_else(Json::null, |text| Json::string(&text));
    let calls: Vec<Json> = blocks.iter().filter_map(call).collect();
    let calls = (!calls.is_empty()).then(|| Json::array(&calls));
    // Some servers refuse null where there are no calls either.
    let content = if content.is_null() && calls.is_none() { Json::string("") } else { content };
    let role = Json::string("assistant");
    let members = [("role", &role), ("content", &content)];
    Json::object(members.into_iter().chain(calls.iter().map(|calls| ("tool_calls", calls))))
}

fn call(block: &Block) -> Option<Json> {
    let call = block.tool_use()?;
    let (name, arguments) = (Json::string(&call.name), Json::string(call.input.as_str()));
    let function = Json::object([("name", &name), ("arguments", &arguments)]);
    let (id, kind) = (Json::string(&call.id), Json::string("function"));
    Some(Json::object([("id", &id), ("type", &kind), ("function", &function)]))
}

fn tool_message(block: &Block, media: bool) -> Option<Json> {
    let result = block.tool_result()?;
    let id = Json::string(&result.tool_use_id);
    let content = if media && parts::has_media(&result.content) {
        // What is no text follows in a message of its own.
        joined_text(Content::read(&result.content).blocks()).unwrap_or_else(|| SHOWN.to_owned())
    } else {
        flattened(&result.content)
    };
    let content = Json::string(&content);
    Some(Json::object([
        ("role", &Json::string("tool")),
        ("tool_call_id", &id),
        ("content", &content),
    ]))
}

/// The text of a tool result: a string as it is, text blocks joined by newlines, anything else as JSON.
#[must_use]
pub fn flattened(content: &Json) -> String {
    let parsed = Content::read(content);
    match &parsed {
        Content::Text(text) => text.clone(),
        Content::Blocks(blocks) => {
            joined_text(blocks).unwrap_or_else(|| content.as_str().to_owned())
        }
        _ => content.as_str().to_owned(),
    }
}

fn joined_text(blocks: &[Block]) -> Option<String> {
    let texts: Vec<&str> = blocks.iter().filter_map(Block::text).collect();
    (!texts.is_empty()).then(|| texts.join("\n"))
}

fn tool(tool: &ToolSpec) -> Json {
    let name = Json::string(&tool.name);
    let description = tool.description.as_deref().map(Json::string);
    let mut function = vec![("name", &name)];
    function.extend(description.iter().map(|text| ("description", text)));
    let schema = tool.input_schema.without_halves().unwrap_or_else(|| tool.input_schema.clone());
    function.push(("parameters", &schema));
    Json::object([("type", &Json::string("function")), ("function", &Json::object(function))])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(text: &str) -> Vec<Block> {
        Json::parse(text.to_owned())
            .unwrap()
            .elements()
            .unwrap()
            .into_iter()
            .map(Block::read)
            .collect()
    }

    fn body(messages: &[Message], tools: &[ToolSpec]) -> Json {
        let request = ChatRequest {
            model: "m",
            max_tokens: 4096,
            max_tokens_member: "max_tokens",
            messages,
            tools,
            generation: &Generation::default(),
            media: false,
        };
        request.body()
    }

    #[test]
    fn what_is_asked_beside_the_conversation_goes_out_in_the_servers_words() {
        let tools =
            [ToolSpec { name: "a".into(), description: None, input_schema: Json::empty_object() }];
        let asked = |text: &str, tools: &[ToolSpec]| {
            let generation = Generation::read(&Json::parse(text.to_owned()).unwrap()).unwrap();
            let body = ChatRequest {
                model: "m",
                max_tokens: 7,
                max_tokens_member: "max_tokens",
                messages: &[Message::user("hi")],
                tools,
                generation: &generation,
                media: false,
            };
            body.body()
        };
        let text = r#"{"system":"be brief","options":{"temperature":0.70,"top_p":1,"stop":["x"],"tool_choice":{"name":"a"},"reasoning":{"effort":"low"}}}"#;
        let body = asked(text, &tools);
        assert_eq!(
            body.member("messages").unwrap().as_str(),
            r#"[{"role":"system","content":"be brief"},{"role":"user","content":"hi"}]"#
        );
        assert!(body.as_str().ends_with(
            r#","temperature":0.70,"top_p":1,"stop":["x"],"tool_choice":{"type":"function","function":{"name":"a"}},"reasoning_effort":"low"}"#
        ));
        for (choice, word) in [("any", "required"), ("none", "none"), ("auto", "auto")] {
            let text = format!(r#"{{"options":{{"tool_choice":"{choice}"}}}}"#);
            let sent = asked(&text, &tools).member("tool_choice").unwrap();
            assert_eq!(sent.to_text().as_deref(), Some(word));
            assert_eq!(asked(&text, &[]).member("tool_choice"), None);
        }
    }

    #[test]
    fn a_tool_round_trip_is_written_in_the_servers_shape_with_exact_arguments() {
        let history = [
            Message::user("read it"),
            Message::assistant(blocks(
                r#"[{"type":"tool_use","id":"c1","name":"read","input":{"n": 9007199254740993, "f":1.0},"dispatch":"client"}]"#,
            )),
            Message::user_blocks(blocks(
                r#"[{"type":"text","text":"and now?"},{"type":"tool_result","tool_use_id":"c1","content":[{"type":"text","text":"a"},{"type":"image"},{"type":"text","text":"b"}],"is_error":true}]"#,
            )),
        ];
        assert_eq!(
            body(&history, &[]).as_str(),
            concat!(
                r#"{"model":"m","max_tokens":4096,"messages":[{"role":"user","content":"read it"},"#,
                r#"{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"read","arguments":"{\"n\": 9007199254740993, \"f\":1.0}"}}]},"#,
                r#"{"role":"tool","tool_call_id":"c1","content":"a\nb"},{"role":"user","content":"and now?"}],"#,
                r#""stream":true,"stream_options":{"include_usage":true}}"#
            )
        );
    }

    #[test]
    fn tools_are_declared_as_functions_and_left_out_when_there_are_none() {
        let schema = Json::parse(r#"{"type":"object", "x":1e400}"#).unwrap();
        let tools = [
            ToolSpec { name: "a".into(), description: Some("does".into()), input_schema: schema },
            ToolSpec { name: "b".into(), description: None, input_schema: Json::empty_object() },
        ];
        assert_eq!(
            body(&[], &tools).member("tools").unwrap().as_str(),
            concat!(
                r#"[{"type":"function","function":{"name":"a","description":"does","parameters":{"type":"object", "x":1e400}}},"#,
                r#"{"type":"function","function":{"name":"b","parameters":{}}}]"#
            )
        );
        assert!(body(&[], &[]).member("tools").is_none());
    }

    #[test]
    fn results_that_are_neither_text_nor_text_blocks_go_out_as_json() {
        for (content, text) in [
            (r#""plain""#, "plain"),
            (r#"[{"type":"text","text":"x"}]"#, "x"),
            (r#"[{"type":"image","data":1}]"#, r#"[{"type":"image","data":1}]"#),
            (r#"{"a":1}"#, r#"{"a":1}"#),
            ("null", "null"),
        ] {
            assert_eq!(flattened(&Json::parse(content.to_owned()).unwrap()), text);
        }
    }

    #[test]
    fn images_go_out_where_they_are_asked_for_and_their_results_stay_text() {
        let image = r#"{"type":"image","source":{"type":"url","url":"u"}}"#;
        let result = format!(r#"{{"type":"tool_result","tool_use_id":"c","content":[{image}]}}"#);
        let said = [
            Message::user_blocks(blocks(&format!("[{image}]"))),
            Message::assistant(blocks(r#"[{"type":"thinking","thinking":"hm"}]"#)),
            Message::user_blocks(blocks(&format!(r#"[{result},{{"type":"text","text":"so?"}}]"#))),
        ];
        let sent = |media: bool| {
            let request = ChatRequest {
                model: "m",
                max_tokens: 1,
                max_tokens_member: "max_tokens",
                messages: &said,
                tools: &[],
                generation: &Generation::default(),
                media,
            };
            request.body().member("messages").unwrap().as_str().to_owned()
        };
        let part = r#"{"type":"image_url","image_url":{"url":"u"}}"#;
        assert_eq!(
            sent(true),
            format!(
                "{}{part}{}{}{}{part}{}",
                r#"[{"role":"user","content":["#,
                r#"]},{"role":"assistant","content":""},"#,
                r#"{"role":"tool","tool_call_id":"c","content":"(shown in the next message)"},"#,
                r#"{"role":"user","content":[{"type":"text","text":"Content of the result of tool call c:"},"#,
                r#",{"type":"text","text":"so?"}]}]"#
            )
        );
        assert!(!sent(false).contains("image_url"));
    }

    #[test]
    fn messages_of_one_role_in_a_row_go_out_as_one() {
        let history = [Message::user("lost"), Message::user("again")];
        assert_eq!(
            body(&history, &[]).member("messages").unwrap().as_str(),
            r#"[{"role":"user","content":"lost\nagain"}]"#
        );
    }

    #[test]
    fn half_a_surrogate_pair_never_leaves_and_what_stands_around_it_does() {
        let other = |text: &str| Content::read(&Json::parse(text.to_owned()).unwrap());
        let user = |content| Message { role: Role::User, content };
        let history = [
            user(other(r#""a\ud83d b""#)),
            Message::assistant(blocks(
                r#"[{"type":"text","text":"c\ude00"},{"type":"tool_use","id":"c1","name":"read","input":{"p":"d\uD83D","q":"\ud83d\ude00 \\\\ud83d"}}]"#,
            )),
            Message::user_blocks(blocks(
                r#"[{"type":"tool_result","tool_use_id":"c1","content":"e\udfff"},{"type":"text","text":"f\ud83d"}]"#,
            )),
            user(other(r#"{"g":"\ud83d"}"#)),
        ];
        let schema = Json::parse(r#"{"title":"h\ud83d"}"#).unwrap();
        let tools = [ToolSpec { name: "read".into(), description: None, input_schema: schema }];
        // A typed reader refuses halves; this one takes it all.
        let body: serde_json::Value = body(&history, &tools).decode().unwrap();
        let arguments = body["messages"][1]["tool_calls"][0]["function"]["arguments"].as_str();
        let arguments: serde_json::Value = serde_json::from_str(arguments.unwrap()).unwrap();
        assert_eq!(arguments, serde_json::json!({"p": "d\u{fffd}", "q": "\u{1f600} \\\\ud83d"}));
        let said: Vec<&serde_json::Value> =
            body["messages"].as_array().unwrap().iter().map(|m| &m["content"]).collect();
        let said = serde_json::to_value(said).unwrap();
        let expected =
            ["a\u{fffd} b", "c\u{fffd}", "e\u{fffd}", "f\u{fffd}"].map(serde_json::Value::from);
        assert_eq!(said.as_array().unwrap()[..4], expected);
        assert_eq!(said[4], serde_json::json!({"g": "\u{fffd}"}));
        assert_eq!(body["tools"][0]["function"]["parameters"]["title"], "h\u{fffd}");
    }

    #[test]
    fn a_message_that_loses_all_its_blocks_keeps_its_place() {
        let image = Message::user_blocks(blocks(r#"[{"type":"image"}]"#));
        let empty = Message::assistant(Vec::new());
        assert_eq!(
            body(&[image, empty], &[]).member("messages").unwrap().as_str(),
            r#"[{"role":"user","content":""},{"role":"assistant","content":""}]"#
        );
    }
}
