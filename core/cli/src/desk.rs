//! The admin port as `broca key` uses it: of a service that runs, or of a database that none has open.

use crate::arguments::ManageArguments;
use crate::doctor::connection::{Broken, Line};
use crate::fault::{Fault, one_line};
use crate::place::{StateFolder, key_in};
use crate::serve;
use broca::http1::{Request, Target};
use broca::{Error, ErrorKind, Json, Secret};
use broca_proto::session::problem::Problem;
use broca_server::Service;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::timeout;

/// The most bytes of an answer.
const MOST: usize = 64 * 1024 * 1024;

/// How long one request may take. Revoking a key closes its sessions before it is answered.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where requests of the operator go.
pub(crate) enum Desk {
    /// To the admin port of a service that runs.
    Port {
        /// Its address.
        addr: SocketAddr,
        /// The admin key.
        key: Secret,
    },
    /// To a database that is open here.
    Database(Box<Service>),
}

impl Desk {
    /// The admin port where one is named, and that of a development service that runs; else the database.
    pub(crate) async fn find(given: &ManageArguments) -> Result<Self, Fault> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        if given.db.is_none() {
            let named = ["BROCA_ADMIN_URL", "BAE_ADMIN_URL"].into_iter().find_map(variable);
            if let Some(url) = given.admin_url.clone().or_else(|| named.filter(|_| !given.dev)) {
                let key = match &given.admin_key_file {
                    Some(file) => key_in(file)?,
                    None => variable("BROCA_ADMIN_KEY").map(Secret::new).ok_or_else(|| {
                        let cure = "pass --admin-key-file FILE, or set BROCA_ADMIN_KEY";
                        Fault::usage("no admin key was given", cure)
                    })?,
                };
                return Ok(Self::Port { addr: address(&url)?, key });
            }
            if given.dev {
                let folder = StateFolder::find(variable)?;
                if let Some(url) = folder.admin_url() {
                    let addr = address(&url)?;
                    // One that was killed leaves the file behind.
                    if Line::open(addr).await.is_ok() {
                        return Ok(Self::Port { addr, key: key_in(&folder.admin_key_file())? });
                    }
                }
            }
        }
        let named = given.dev || given.db.is_some();
        let (config, _folder) = serve::database(given.dev, given.db.clone())?;
        let opening = Service::open(config, BTreeMap::new(), Vec::new()).await;
        let service = opening.map_err(|e| serve::not_opened(e, named))?;
        Ok(Self::Database(Box::new(service)))
    }

    /// Whether a service runs here.
    pub(crate) const fn is_port(&self) -> bool {
        matches!(self, Self::Port { .. })
    }

    /// Asks for something. An answer without a body is null.
    pub(crate) async fn call(&self, method: &str, path: &str, body: &Json) -> Result<Json, Fault> {
        let path = format!("/admin/v1{path}");
        let (status, body) = match self {
            Self::Database(service) => service.manage(method, &path, body).await?,
            Self::Port { addr, key } => {
                let asked = timeout(PATIENCE, ask(*addr, key, method, &path, body)).await;
                asked.map_err(|_| unreachable(*addr, "it did not answer in time"))??
            }
        };
        let answer = if body.is_empty() { Ok(Json::null()) } else { Json::parse(body) };
        let Ok(answer) = answer else {
            let what = format!("the answer to {method} {path} is no JSON");
            return Err(Fault::failed(what, "--admin-url must be the admin port of broca serve"));
        };
        if (200..300).contains(&status) {
            return Ok(answer);
        }
        let detail = answer.decode::<Problem>().ok().map(|problem| problem.detail);
        let detail = one_line(&detail.unwrap_or_else(|| "without a reason".to_owned()), 300);
        let what = format!("the service answered {status}: {detail}");
        Err(match status {
            401 => Fault::refused(what, "check the file of the admin key"),
            _ => Fault::failed(what, ""),
        })
    }

    /// A whole list, page by page.
    pub(crate) async fn list(&self, path: &str) -> Result<Vec<Json>, Fault> {
        let mut items = Vec::new();
        let mut cursor = String::new();
        loop {
            let page = format!("{path}?limit=200&cursor={cursor}");
            let page = self.call("GET", &page, &Json::null()).await?;
            let more = page.member("items").and_then(|items| items.elements());
            items.extend(more.unwrap_or_default());
            match page.member("next_cursor").and_then(|next| next.to_text()) {
                Some(next) if next != cursor => cursor = next,
                _ => return Ok(items),
            }
        }
    }
}

async fn ask(
    addr: SocketAddr,
    key: &Secret,
    method: &str,
    path: &str,
    body: &Json,
) -> Result<(u16, Bytes), Fault> {
    let opened = Line::open(addr).await;
    let mut line = opened.map_err(|_| unreachable(addr, "nobody listens there"))?;
    let (host, bearer) = (addr.to_string(), format!("Bearer {}", key.expose()));
    let body = body.clone().into_bytes();
    let has_body = matches!(method, "POST" | "PUT");
    let request = Request {
        method,
        target: Target::Origin(path),
        host: &host,
        headers: &[("Authorization", &bearer), ("Content-Type", "application/json")],
        body: if has_body { &body } else { b"" },
    };
    let answer = line.exchange(request, MOST).await.map_err(|broken| match broken {
        Broken::Closed(_) => unreachable(addr, "it closed the connection"),
        _ => unreachable(addr, "it speaks no HTTP"),
    })?;
    Ok((answer.head.status(), answer.body.into()))
}

fn unreachable(addr: SocketAddr, why: &str) -> Fault {
    let what = format!("the admin port at {addr} cannot be used: {why}");
    Fault::from(Error::new(ErrorKind::Connect, what))
}

/// The address of an admin port, which is on this machine or at the near end of a tunnel.
fn address(url: &str) -> Result<SocketAddr, Fault> {
    let rest = url.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
    let addr = rest.map(|rest| rest.replacen("localhost:", "127.0.0.1:", 1));
    addr.and_then(|addr| addr.parse().ok()).ok_or_else(|| {
        let what = "the address of the admin port cannot be used";
        Fault::usage(what, "write it like http://127.0.0.1:8081")
    })
}
