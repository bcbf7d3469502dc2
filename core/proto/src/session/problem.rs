//! Problem documents: how the REST calls say no (session service §3.5).

use crate::Json;
use crate::error::{Error, ErrorKind, Retry};
use serde::{Deserialize, Serialize};

/// `{"type","title","status","detail"}`, served as `application/json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The slug that programs match on, such as `tool_not_allowed`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The HTTP reason phrase.
    #[serde(default)]
    pub title: String,
    /// The HTTP status.
    #[serde(default)]
    pub status: u16,
    /// What was wrong, for people.
    #[serde(default)]
    pub detail: String,
}

impl Problem {
    /// A problem document with the title that belongs to its status.
    #[must_use]
    pub fn new(status: u16, kind: impl Into<String>, detail: impl Into<String>) -> Self {
        let title = match status {
            400 => "Bad Request",
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "Not Found",
            405 => "Method Not Allowed",
            408 => "Request Timeout",
            409 => "Conflict",
            413 => "Payload Too Large",
            422 => "Unprocessable Entity",
            429 => "Too Many Requests",
            501 => "Not Implemented",
            503 => "Service Unavailable",
            507 => "Insufficient Storage",
            _ => "Internal Server Error",
        };
        Self { kind: kind.into(), title: title.to_owned(), status, detail: detail.into() }
    }

    /// The document as JSON text.
    #[must_use]
    pub fn to_json(&self) -> Json {
        Json::encode(self).unwrap_or_default()
    }

    /// The error that an application sees for this document.
    #[must_use]
    pub fn to_error(&self) -> Error {
        let kind = match (self.status, self.kind.as_str()) {
            (401, _) => ErrorKind::Unauthorized,
            (_, "session_closed") => ErrorKind::SessionClosed,
            (_, "tool_not_allowed") => ErrorKind::ToolNotAllowed,
            _ => ErrorKind::Api,
        };
        let retry = match self.status {
            408 | 425 | 429 | 503 => Retry::Safe,
            500..=599 => Retry::Unknown,
            _ => Retry::Unsafe,
        };
        let cure = match (self.status, self.kind.as_str()) {
            (401, _) => "; check the key and that it belongs to this service",
            (_, "tool_not_allowed") => {
                "; add the tool to the profile's allowed_tools or do not declare it"
            }
            (413, _) => "; send less in one message",
            (404, "not_found") => "; check the id of the session and that it lives on this service",
            _ => "",
        };
        let message = if kind == ErrorKind::SessionClosed {
            let how = if self.detail.ends_with("error") { "in an error" } else { "by a close" };
            format!(
                "the session has ended {how}: nobody can join it or send any more; open a new one"
            )
        } else {
            format!("the service answered {} {}: {}{cure}", self.status, self.kind, self.detail)
        };
        Error::new(kind, message).with_retry(retry).with_details(self.to_json())
    }
}
