//! Tools as a client declares them, and how it wants its own run (session service §3.2, §6.2).

use super::narrow::NarrowRules;
use crate::Json;
use serde::{Deserialize, Serialize};

/// A tool as it is declared on the wire and shown to the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolDeclaration {
    /// Its name.
    pub name: String,
    /// What it does, for the model.
    #[serde(default)]
    pub description: Option<String>,
    /// The JSON Schema of its arguments; `{}` when the declaration had none.
    #[serde(default = "Json::empty_object")]
    pub input_schema: Json,
}

/// A client's own tool: its declaration, and how its calls are run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tool {
    /// The declaration.
    pub declaration: ToolDeclaration,
    /// Never two calls of sequential tools at once.
    pub sequential: bool,
    /// How long one call may take, in milliseconds; no limit of its own when absent.
    pub timeout_ms: Option<u64>,
    /// Whether a call needs somebody's consent.
    pub approval: bool,
    /// Which arguments a consent may narrow, and how. Nothing may be narrowed without a rule.
    pub narrow: NarrowRules,
}

impl Tool {
    /// A tool that runs concurrently, without approval or a limit of its own.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        description: impl Into<String>,
        input_schema: Json,
    ) -> Self {
        Self {
            declaration: ToolDeclaration {
                name: name.into(),
                description: Some(description.into()),
                input_schema,
            },
            sequential: false,
            timeout_ms: None,
            approval: false,
            narrow: NarrowRules::default(),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.declaration.name
    }
}
