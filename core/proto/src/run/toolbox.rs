//! The tools of one turn: what the model is told, and who runs a call (session service §6.2).

use crate::Json;
use crate::session::content::Dispatch;
use crate::session::tool::ToolDeclaration;

/// A tool that the service runs in the bucket `mcp`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerTool {
    /// The declaration.
    pub declaration: ToolDeclaration,
    /// The server that runs it.
    pub server_name: String,
}

/// The tools of the acting driver and those of the session.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Toolbox {
    /// The acting driver's own tools.
    pub client: Vec<ToolDeclaration>,
    /// Its tools that run in the session's sandbox.
    pub sandbox: Vec<ToolDeclaration>,
    /// Its tools that start subagents.
    pub subagent: Vec<ToolDeclaration>,
    /// The session's server-side tools, in the order in which their servers were connected.
    pub server: Vec<ServerTool>,
}

/// Who runs a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// The driver that owns the turn.
    Client,
    /// The session's sandbox.
    Sandbox,
    /// A subagent.
    Subagent,
    /// A server-side tool; `None` when no server has a tool of that name.
    Mcp(Option<String>),
}

impl Route {
    /// The word for it on the wire.
    #[must_use]
    pub const fn dispatch(&self) -> Dispatch {
        match self {
            Self::Client => Dispatch::Client,
            Self::Sandbox => Dispatch::Sandbox,
            Self::Subagent => Dispatch::Subagent,
            Self::Mcp(_) => Dispatch::Mcp,
        }
    }
}

impl Toolbox {
    /// Every tool as the model is told about it, in the order of the buckets.
    #[must_use]
    pub fn advertised(&self) -> Vec<ToolDeclaration> {
        let own = [&self.client, &self.sandbox, &self.subagent].into_iter().flatten();
        own.chain(self.server.iter().map(|tool| &tool.declaration)).cloned().collect()
    }

    /// The tools as they stand in `provider.request`: an array of `{description, input_schema, name}`.
    #[must_use]
    pub fn to_json(&self) -> Json {
        let tools: Vec<Json> = self.advertised().iter().map(declaration_json).collect();
        Json::array(&tools)
    }

    /// Who runs a call of `name`: the first bucket that has it, and of several servers the one
    /// connected last. An unknown name falls to `mcp` without a server.
    #[must_use]
    pub fn route(&self, name: &str) -> Route {
        let has = |tools: &[ToolDeclaration]| tools.iter().any(|tool| tool.name == name);
        if has(&self.client) {
            Route::Client
        } else if has(&self.sandbox) {
            Route::Sandbox
        } else if has(&self.subagent) {
            Route::Subagent
        } else {
            let found = self.server.iter().rev().find(|tool| tool.declaration.name == name);
            Route::Mcp(found.map(|tool| tool.server_name.clone()))
        }
    }
}

fn declaration_json(tool: &ToolDeclaration) -> Json {
    let description = tool.description.as_deref().map_or_else(Json::null, Json::string);
    Json::object([
        ("description", &description),
        ("input_schema", &tool.input_schema),
        ("name", &Json::string(&tool.name)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str) -> ToolDeclaration {
        ToolDeclaration {
            name: name.to_owned(),
            description: None,
            input_schema: Json::empty_object(),
        }
    }

    fn server(name: &str, server: &str) -> ServerTool {
        ServerTool { declaration: tool(name), server_name: server.to_owned() }
    }

    #[test]
    fn a_name_goes_to_the_first_bucket_that_has_it_and_to_the_server_connected_last() {
        let toolbox = Toolbox {
            client: vec![tool("a")],
            sandbox: vec![tool("a"), tool("b")],
            subagent: vec![tool("b"), tool("c")],
            server: vec![server("c", "one"), server("d", "one"), server("d", "two")],
        };
        for (name, route) in [
            ("a", Route::Client),
            ("b", Route::Sandbox),
            ("c", Route::Subagent),
            ("d", Route::Mcp(Some("two".to_owned()))),
            ("e", Route::Mcp(None)),
        ] {
            assert_eq!(toolbox.route(name), route, "{name}");
        }
        let names: Vec<String> = toolbox.advertised().into_iter().map(|t| t.name).collect();
        assert_eq!(names, ["a", "a", "b", "b", "c", "c", "d", "d"]);
    }

    #[test]
    fn an_omitted_description_is_advertised_as_null() {
        let toolbox = Toolbox { client: vec![tool("a")], ..Toolbox::default() };
        let expected = r#"[{"description":null,"input_schema":{},"name":"a"}]"#;
        assert_eq!(toolbox.to_json().as_str(), expected);
    }
}
