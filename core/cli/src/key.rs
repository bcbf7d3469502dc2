//! Client keys: `broca key`, and those that `broca serve --dev` keeps.

use crate::arguments::{
    KeyCommand, KeyCreateArguments, KeyListArguments, KeyRevokeArguments, KeyRotateArguments,
};
use crate::desk::Desk;
use crate::fault::{Fault, one_line, written};
use crate::place::StateFolder;
use broca::{Json, Secret};
use broca_proto::run::quota::KeyLimits;
use broca_server::Service;
use broca_server::keys::{self, IdKind, KeyHash, NewKey, Role};
use broca_server::service::{NewProfile, ServiceError};
use broca_server::store::{NewClientKey, StoreError, WallTime};
use std::io::{self, Write};
use std::path::Path;
use std::time::SystemTime;

/// The profile of every key that is made here: all tools, the models of the command line.
const PROFILE: &str = "main";

/// What the profile calls the model that is asked first.
pub(crate) const PRIMARY_MODEL: &str = "primary";

/// Runs `broca key`.
pub(crate) async fn run(command: KeyCommand) -> Result<(), Fault> {
    match command {
        KeyCommand::Create(create) => self::create(create).await,
        KeyCommand::List(list) => self::list(list).await,
        KeyCommand::Rotate(rotate) => self::rotate(rotate).await,
        KeyCommand::Revoke(revoke) => self::revoke(revoke).await,
    }
}

async fn create(arguments: KeyCreateArguments) -> Result<(), Fault> {
    let desk = Desk::find(&arguments.manage).await?;
    let profile = profile_for(&desk, &arguments.profile).await?;
    let body = Json::object([
        ("name", &Json::string(&arguments.name)),
        ("profile_id", &Json::string(&profile)),
    ]);
    let made = desk.call("POST", "/keys", &body).await?;
    show_key(&made, arguments.manage.json)
}

async fn list(arguments: KeyListArguments) -> Result<(), Fault> {
    let desk = Desk::find(&arguments.manage).await?;
    let keys = desk.list("/keys").await?;
    let mut out = io::stdout().lock();
    for key in keys {
        let text = |name: &str| key.member(name).and_then(|value| value.to_text());
        if arguments.manage.json {
            written(writeln!(out, "{}", key.as_str()))?;
            continue;
        }
        let shown = |name: &str| one_line(&text(name).unwrap_or_default(), MAX_NAME);
        let used = text("last_used_at").unwrap_or_else(|| "never used".to_owned());
        let (id, prefix, name) = (shown("id"), shown("prefix"), shown("name"));
        written(writeln!(out, "{id}  {prefix}…  {used:24}  {name}"))?;
    }
    Ok(())
}

async fn rotate(arguments: KeyRotateArguments) -> Result<(), Fault> {
    let desk = Desk::find(&arguments.manage).await?;
    let path = format!("/keys/{}/rotate", id_in_path(&arguments.id)?);
    let overlap = arguments.overlap.and_then(|seconds| i64::try_from(seconds).ok());
    let body = match overlap {
        Some(seconds) => Json::object([("overlap_seconds", &Json::integer(seconds))]),
        None => Json::empty_object(),
    };
    let rotated = desk.call("POST", &path, &body).await?;
    show_key(&rotated, arguments.manage.json)
}

async fn revoke(arguments: KeyRevokeArguments) -> Result<(), Fault> {
    let desk = Desk::find(&arguments.manage).await?;
    let path = format!("/keys/{}", id_in_path(&arguments.id)?);
    desk.call("DELETE", &path, &Json::null()).await?;
    if arguments.manage.json {
        let members = [("id", &Json::string(&arguments.id))];
        return written(crate::view::write_object(&mut io::stdout().lock(), "revoked", &members));
    }
    Ok(())
}

/// The longest name of a key that is shown whole.
const MAX_NAME: usize = 100;

/// Shows a key that is shown once.
fn show_key(made: &Json, json: bool) -> Result<(), Fault> {
    let member = |name: &str| made.member(name).unwrap_or_default();
    let (id, key) = (member("id"), member("key"));
    let mut out = io::stdout().lock();
    if json {
        let members = [("id", &id), ("key", &key)];
        return written(crate::view::write_object(&mut out, "key", &members));
    }
    written(writeln!(out, "{}", key.to_text().unwrap_or_default()))
}

/// An id as part of a path.
fn id_in_path(id: &str) -> Result<&str, Fault> {
    let is_id = !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    is_id
        .then_some(id)
        .ok_or_else(|| Fault::usage("that is no id of a key", "broca key list shows them"))
}

/// The id of the profile with this name. That of the command line is made if there is none.
async fn profile_for(desk: &Desk, name: &str) -> Result<String, Fault> {
    let text = |json: &Json, name: &str| json.member(name).and_then(|value| value.to_text());
    let profiles = desk.list("/profiles").await?;
    let found = profiles.iter().find(|profile| text(profile, "name").as_deref() == Some(name));
    if let Some(id) = found.and_then(|profile| text(profile, "id")) {
        return Ok(id);
    }
    if name != PROFILE {
        let what = format!("there is no profile {}", one_line(name, MAX_NAME));
        return Err(Fault::failed(what, "make it on the admin port first"));
    }
    let mut primary = PRIMARY_MODEL.to_owned();
    if desk.is_port() {
        let providers = desk.call("GET", "/providers", &Json::null()).await?;
        let providers = providers.member("items").and_then(|items| items.elements());
        let names: Vec<_> =
            providers.unwrap_or_default().iter().filter_map(|p| text(p, "name")).collect();
        if let Some(first) = names.first().filter(|_| !names.contains(&primary)) {
            primary.clone_from(first);
        }
    }
    let body = Json::object([
        ("name", &Json::string(PROFILE)),
        ("primary_provider", &Json::string(&primary)),
        ("allowed_tools", &Json::array(&[Json::string("*")])),
    ]);
    let made = desk.call("POST", "/profiles", &body).await?;
    text(&made, "id").ok_or_else(|| Fault::failed("the new profile has no id", ""))
}

/// The models that a start of the service has for the profile of the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) primary: String,
    pub(crate) fallbacks: Vec<String>,
}

impl Default for Offer {
    fn default() -> Self {
        Self { primary: PRIMARY_MODEL.to_owned(), fallbacks: Vec::new() }
    }
}

/// The id of the profile, which is made if there is none, with these models.
pub(crate) async fn profile(service: &Service, offer: &Offer) -> Result<String, Fault> {
    if let Some(id) = service.profile_named(PROFILE).await? {
        return Ok(id);
    }
    let mut profile = NewProfile::permissive(PROFILE, &offer.primary);
    profile.fallback_providers.clone_from(&offer.fallbacks);
    Ok(service.create_profile(profile).await?)
}

/// Whether a key was ever made here.
pub(crate) async fn any(service: &Service) -> Result<bool, Fault> {
    Ok(service.profile_named(PROFILE).await?.is_some())
}

/// Lets the profile, if it is there, know which models this start of the service has. Unless `always`, only where it
/// names the model of the command line: what an operator chose stays.
pub(crate) async fn refresh_profile(
    service: &Service,
    offer: &Offer,
    always: bool,
) -> Result<(), Fault> {
    let found = service.store().profile_named(PROFILE).await.map_err(stored)?;
    let Some(mut profile) = found.filter(|profile| !profile.deleted) else { return Ok(()) };
    let is_ours = always || profile.primary_provider == PRIMARY_MODEL;
    let Offer { primary, fallbacks } = offer.clone();
    if !is_ours
        || (&profile.primary_provider, &profile.fallback_providers) == (&primary, &fallbacks)
    {
        return Ok(());
    }
    (profile.primary_provider, profile.fallback_providers) = (primary, fallbacks);
    service.store().put_profile(profile, now()).await.map_err(stored)
}

/// The key of this file, known to the service from now on; made if there is no file yet.
pub(crate) async fn keep(
    service: &Service,
    profile: &str,
    name: &str,
    folder: &StateFolder,
    file: &Path,
) -> Result<(), Fault> {
    let key = match folder.kept_key(file)? {
        Some(key) => key,
        None => {
            let key = NewKey::mint(Role::Client).map_err(ServiceError::from)?.plaintext;
            folder.write(file, key.expose())?;
            key
        }
    };
    let hash = KeyHash::of(key.expose());
    let known = service.store().client_key(hash.clone(), now()).await.map_err(stored)?;
    if known.is_none() {
        let new = NewClientKey {
            id: IdKind::Key.mint().map_err(ServiceError::from)?,
            name: name.to_owned(),
            display_prefix: keys::display_prefix(key.expose()),
            hash,
            profile_id: profile.to_owned(),
            limits: KeyLimits::default(),
        };
        service.store().add_client_key(new, now()).await.map_err(stored)?;
    }
    Ok(())
}

/// Whether this is the admin key of the service.
pub(crate) async fn opens_admin_port(service: &Service, key: &Secret) -> Result<bool, Fault> {
    let found = service.store().admin_key(KeyHash::of(key.expose())).await.map_err(stored)?;
    Ok(found.is_some())
}

fn stored(error: StoreError) -> Fault {
    ServiceError::from(error).into()
}

/// The service's errors say the cure themselves.
impl From<ServiceError> for Fault {
    fn from(error: ServiceError) -> Self {
        match error {
            ServiceError::Config(_) | ServiceError::AdminKeyHashFile { .. } => {
                Self::usage(error.to_string(), "")
            }
            error => Self::failed(error.to_string(), ""),
        }
    }
}

fn now() -> WallTime {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    WallTime(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
