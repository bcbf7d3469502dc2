//! Client keys: `broca key create`, and those that `broca serve --dev` keeps.

use crate::arguments::KeyCreateArguments;
use crate::fault::{Fault, written};
use crate::place::StateFolder;
use crate::serve;
use broca::{Json, Secret};
use broca_proto::run::quota::KeyLimits;
use broca_server::Service;
use broca_server::keys::{self, IdKind, KeyHash, NewKey, Role};
use broca_server::service::{NewProfile, ServiceError};
use broca_server::store::{NewClientKey, StoreError, WallTime};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::time::SystemTime;

/// The profile of every key that is made here: all tools, the models of the command line.
const PROFILE: &str = "main";

/// What the profile calls the model that is asked first.
pub(crate) const PRIMARY_MODEL: &str = "primary";

/// Runs `broca key create`.
pub(crate) async fn create(arguments: KeyCreateArguments) -> Result<(), Fault> {
    let named = arguments.dev || arguments.db.is_some();
    let (config, _folder) = serve::database(arguments.dev, arguments.db)?;
    let opening = Service::open(config, BTreeMap::new(), Vec::new()).await;
    let service = opening.map_err(|e| serve::not_opened(e, named))?;
    let profile = profile(&service, &Offer::default()).await?;
    let made = service.create_client_key(&arguments.name, &profile).await?;
    let mut out = io::stdout().lock();
    if arguments.json {
        let (id, key) = (Json::string(&made.id), Json::string(made.key.expose()));
        let members = [("id", &id), ("key", &key)];
        return written(crate::view::write_object(&mut out, "key", &members));
    }
    written(writeln!(out, "{}", made.key.expose()))
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
