//! Tools that the service runs itself: bucket `mcp` (session service §6.3, §6.6).

pub mod clock;

pub use clock::Clock;

use broca_proto::Json;
use broca_proto::provider::ToolSpec;
use broca_proto::run::toolbox;
use broca_proto::session::content::Block;
use broca_proto::session::tool::ToolDeclaration;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// A tool of the service.
pub trait ServerTool: Send + Sync {
    /// What the model is told.
    fn spec(&self) -> ToolSpec;

    /// What `server_name` says in `tool.call`, `mcp.request` and `mcp.response`.
    fn server_name(&self) -> &str;

    /// Runs one call. An answer with `is_error` is the tool's own failure; an error means that the tool could not be
    /// asked, and is shown as `MCP error: …`. Dropping the future ends the call.
    fn call<'a>(&'a self, input: &'a Json) -> ToolFuture<'a>;
}

/// A call under way.
pub type ToolFuture<'a> = Pin<Box<dyn Future<Output = Result<ToolAnswer, String>> + Send + 'a>>;

/// What a tool answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolAnswer {
    /// An MCP content array.
    pub content: Json,
    /// Whether the tool failed.
    pub is_error: bool,
}

impl ToolAnswer {
    /// One text block.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self { content: Json::array([Block::of_text(text).json()]), is_error: false }
    }

    /// One text block that says what went wrong.
    #[must_use]
    pub fn failed(text: impl Into<String>) -> Self {
        Self { is_error: true, ..Self::text(text) }
    }

    /// The `result` of `mcp.response`: `{"content":…,"isError":…}`.
    #[must_use]
    pub fn result(&self) -> Json {
        let is_error = Json::encode(&self.is_error).unwrap_or_default();
        Json::object([("content", &self.content), ("isError", &is_error)])
    }
}

/// The tools as a turn's toolbox has them.
pub(crate) fn declared(tools: &[Arc<dyn ServerTool>]) -> Vec<toolbox::ServerTool> {
    let declared = |tool: &Arc<dyn ServerTool>| {
        let ToolSpec { name, description, input_schema } = tool.spec();
        toolbox::ServerTool {
            declaration: ToolDeclaration { name, description, input_schema },
            server_name: tool.server_name().to_owned(),
        }
    };
    tools.iter().map(declared).collect()
}

/// The tools that every session has.
#[must_use]
pub fn built_in() -> Vec<Arc<dyn ServerTool>> {
    vec![Arc::new(Clock::system())]
}
