//! What the service was started with: MCP servers, providers, the configuration file, sandboxes.

use super::{answer, failed};
use crate::engine::Engine;
use crate::http::refusal::Refusal;
use crate::store::ListPlace;
use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use std::sync::Arc;

/// Profiles read at once for `sandbox-status`.
const PROFILES: u32 = 200;

#[derive(Serialize)]
struct All<T> {
    items: Vec<T>,
}

#[derive(Serialize)]
struct McpServer {
    name: String,
    transport: String,
}

#[derive(Serialize)]
struct Provider {
    base_url: String,
    model: String,
    name: String,
    provider: String,
}

#[derive(Serialize)]
struct SandboxStatus {
    images: Vec<Image>,
    profile_id: String,
}

#[derive(Serialize)]
struct Image {
    detail: &'static str,
    name: String,
    status: &'static str,
}

/// `GET /admin/v1/mcp-servers`.
pub(super) async fn mcp_servers(State(engine): State<Arc<Engine>>) -> Response {
    let servers = engine.config().file.mcp_servers.iter();
    let items = servers.map(|server| McpServer {
        name: server.name.clone(),
        transport: server.transport.as_str().to_owned(),
    });
    answer(200, &All { items: items.collect() })
}

/// `GET /admin/v1/providers`: every name that a profile may use.
pub(super) async fn providers(State(engine): State<Arc<Engine>>) -> Response {
    let items = engine.models().iter().map(|(name, model)| {
        let shown = model.describe();
        Provider {
            base_url: shown.base_url,
            model: shown.model,
            name: name.clone(),
            provider: shown.provider,
        }
    });
    answer(200, &All { items: items.collect() })
}

/// `GET /admin/v1/config`: the configuration file, every secret value redacted.
pub(super) async fn config(State(engine): State<Arc<Engine>>) -> Response {
    answer(200, &engine.config().file.redacted())
}

/// `GET /admin/v1/sandbox-status`: there are no sandboxes here, so every image that a profile names is in error.
pub(super) async fn sandbox_status(State(engine): State<Arc<Engine>>) -> Result<Response, Refusal> {
    let mut items = Vec::new();
    let mut after = Some(ListPlace::START);
    while let Some(place) = after {
        let listed = engine.store().profiles(place, PROFILES).await;
        let listed = listed.map_err(|error| failed(&error, ""))?;
        after = listed.next;
        items.extend(listed.items.into_iter().map(|record| {
            let mut names = record.profile.available_sandboxes;
            names.sort_unstable();
            names.dedup();
            let detail = "sandboxes are not built into this service";
            let image = |name| Image { detail, name, status: "error" };
            let images = names.into_iter().map(image).collect();
            SandboxStatus { images, profile_id: record.profile.id }
        }));
    }
    items.sort_by(|a, b| a.profile_id.cmp(&b.profile_id));
    Ok(answer(200, &All { items }))
}
