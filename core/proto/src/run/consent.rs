//! What is settled about consent when a session is opened (feature `approve`).

use super::toolbox::ServerTool;
use crate::Json;
use crate::session::approval::{Approvals, Ask};
use crate::session::feature::Features;
use crate::session::problem::Problem;

/// What holds for a session: what its opening body says, where the request asks for `approve`, and what the operator
/// requires in any case. `tools` are the service's own.
///
/// # Errors
/// `400 bad_request`, naming the member, for what cannot be meant or could never apply: a name that no tool of the service
/// has, rules of a tool that is not asked for, rules for arguments that the tool does not have.
pub fn settle(
    body: &Json,
    features: Features,
    required: &Ask,
    tools: &[ServerTool],
) -> Result<Approvals, Problem> {
    let said = if features.approve {
        let bad = |reason: String| {
            Problem::new(400, "bad_request", format!("invalid request body: {reason}"))
        };
        let said = Approvals::read(body).map_err(|error| bad(error.to_string()))?;
        if let Some(name) = unknown(&said.ask, tools) {
            return Err(bad(format!(
                "\"approvals.ask\" names {name:?}, which is no tool of this service"
            )));
        }
        for (name, rules) in &said.narrow {
            // Of several servers the one connected last has the tool.
            let tool = tools.iter().rev().find(|tool| tool.declaration.name == *name);
            let Some(tool) = tool else {
                return Err(bad(format!(
                    "\"approvals.narrow\" names {name:?}, which is no tool of this service"
                )));
            };
            rules
                .fit(&tool.declaration.input_schema)
                .map_err(|why| bad(format!("\"approvals.narrow\" of {name:?}: {why}")))?;
        }
        said
    } else {
        Approvals::default()
    };
    Ok(Approvals { ask: said.ask.and(required), ..said })
}

/// The first name that no tool of the service has.
#[must_use]
pub fn unknown<'a>(ask: &'a Ask, tools: &[ServerTool]) -> Option<&'a str> {
    let has = |name: &str| tools.iter().any(|tool| tool.declaration.name == name);
    ask.names().iter().map(String::as_str).find(|name| !has(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::tool::ToolDeclaration;

    fn json(text: &str) -> Json {
        Json::parse(text.to_owned()).unwrap()
    }

    fn settled(approvals: &str, features: Features, required: &str) -> Result<Approvals, Problem> {
        let schema = r#"{"type":"object","properties":{"limit":{"type":"integer"}}}"#;
        let tool = |name: &str| ServerTool {
            declaration: ToolDeclaration {
                name: name.to_owned(),
                description: None,
                input_schema: json(schema),
            },
            server_name: "s".to_owned(),
        };
        let body = json(&format!(r#"{{"approvals":{approvals}}}"#));
        settle(&body, features, &Ask::parse(required), &[tool("clock"), tool("find")])
    }

    const ASKED: Features = Features { approve: true, ..Features::NONE };

    #[test]
    fn the_body_counts_where_the_feature_was_asked_for_and_the_operator_always() {
        let ask =
            |approvals, features, required| settled(approvals, features, required).unwrap().ask;
        assert_eq!(ask(r#"{"ask":["clock"]}"#, ASKED, "find"), Ask::parse("clock,find"));
        assert_eq!(ask(r#"{"ask":"*"}"#, ASKED, ""), Ask::Everything);
        for unread in [r#"{"ask":"*"}"#, r#"{"ask":"nonsense"}"#, "7"] {
            assert_eq!(ask(unread, Features::NONE, "find"), Ask::parse("find"), "{unread}");
        }
    }

    #[test]
    fn what_could_never_apply_is_refused_by_name() {
        for (approvals, name) in [
            (r#"{"ask":["clok"]}"#, "approvals.ask"),
            (r#"{"ask":"*","narrow":{"clok":{"/limit":"at_most"}}}"#, "clok"),
            (r#"{"ask":"*","narrow":{"find":{"/limits":"at_most"}}}"#, "/limits"),
            (r#"{"ask":"*","narrow":{"find":{"/limit":"path_within"}}}"#, "/limit"),
            (r#"{"ask":["clock"],"narrow":{"find":{"/limit":"at_most"}}}"#, "find"),
            ("7", "approvals"),
        ] {
            let problem = settled(approvals, ASKED, "").unwrap_err();
            assert_eq!((problem.status, problem.kind.as_str()), (400, "bad_request"));
            assert!(problem.detail.contains(name), "{approvals}: {}", problem.detail);
        }
        let good = r#"{"ask":["find"],"narrow":{"find":{"/limit":"at_most"}}}"#;
        assert_eq!(settled(good, ASKED, "").unwrap().to_json().as_str(), good);
    }
}
