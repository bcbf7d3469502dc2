//! Sees to it that there is an admin key when the service starts (session service §13).

use crate::engine::{Engine, now};
use crate::keys::{IdKind, KeyHash, NewKey, Role};
use crate::service::ServiceError;
use crate::store::NewAdminKey;
use serde::Deserialize;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The most bytes that a file with a hash may have.
const MOST_BYTES: u64 = 64 * 1024;

/// Where the admin key of a service comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdminKey {
    /// It was there already.
    Kept,
    /// Its hash was read from this file.
    Ingested(PathBuf),
    /// It was made, and lies in this file.
    Written(PathBuf),
    /// The admin port asks for none.
    Disabled,
}

/// What a file with a hash holds.
#[derive(Deserialize)]
struct HashFile {
    key_hash: String,
    prefix: String,
    #[serde(default)]
    name: Option<String>,
}

/// An admin key that is there is kept, unless it is to be rotated; else the hash file is read if there is one; else a key
/// is made and written to the key file. Blocks on the disk: to be run before serving.
pub(crate) async fn establish(engine: &Engine, rotate: bool) -> Result<AdminKey, ServiceError> {
    let config = engine.config();
    if config.admin.auth_disabled {
        return Ok(AdminKey::Disabled);
    }
    if !rotate {
        if engine.store().has_admin_key().await? {
            return Ok(AdminKey::Kept);
        }
        let path = config.admin_key_hash_file();
        if let Some(key) = read_hash(&path)? {
            engine.store().put_admin_key(key, now()).await?;
            return Ok(AdminKey::Ingested(path));
        }
    }
    let path = config.admin_key_file();
    let key = NewKey::mint(Role::Admin)?;
    let cannot = |source| ServiceError::AdminKeyFile { path: path.clone(), source };
    // The file first, but not in its place: a key that nobody can read must not become the only one.
    let written = write_beside(&path, key.plaintext.expose()).map_err(cannot)?;
    let new = NewAdminKey {
        id: IdKind::Key.mint()?,
        name: "admin".to_owned(),
        display_prefix: key.display_prefix,
        hash: key.hash,
    };
    if let Err(error) = engine.store().put_admin_key(new, now()).await {
        // It opens nothing.
        let _left_over = fs::remove_file(&written);
        return Err(error.into());
    }
    fs::rename(&written, &path).map_err(cannot)?;
    Ok(AdminKey::Written(path))
}

fn read_hash(path: &Path) -> Result<Option<NewAdminKey>, ServiceError> {
    let bad =
        |why: &str| ServiceError::AdminKeyHashFile { path: path.to_owned(), why: why.to_owned() };
    let about = match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(bad(&error.to_string())),
        Ok(about) => about,
    };
    if !about.is_file() || about.len() > MOST_BYTES {
        return Err(bad("it is no small file"));
    }
    let text = fs::read_to_string(path).map_err(|error| bad(&error.to_string()))?;
    let file: HashFile = serde_json::from_str(&text)
        .map_err(|_| bad("it must be a JSON object with the strings key_hash and prefix"))?;
    let hash = KeyHash::from_hex(&file.key_hash)
        .ok_or_else(|| bad("key_hash must be the SHA-256 of the key as 64 lowercase hex digits"))?;
    if file.prefix.trim().is_empty() || file.prefix.chars().count() > 8 {
        return Err(bad("prefix must be the first eight characters of the key"));
    }
    Ok(Some(NewAdminKey {
        id: IdKind::Key.mint()?,
        name: file.name.unwrap_or_else(|| "admin".to_owned()),
        display_prefix: file.prefix,
        hash,
    }))
}

/// Writes the key to a new file beside `path` that only its owner can read.
fn write_beside(path: &Path, key: &str) -> io::Result<PathBuf> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".new-{}", std::process::id()));
    let beside = PathBuf::from(name);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = match options.open(&beside) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            // Left behind by a start that was killed.
            fs::remove_file(&beside)?;
            options.open(&beside)?
        }
        opened => opened?,
    };
    file.write_all(key.as_bytes())?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    Ok(beside)
}
