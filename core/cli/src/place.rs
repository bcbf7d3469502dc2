//! Where the service is and where its key lies: options, environment, the state folder of
//! `broca serve --dev`.

use crate::arguments::ReachArguments;
use crate::fault::Fault;
use broca::engine::{Config, Engine, Environment};
use broca::{Error, Secret};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Where `broca serve --dev` listens when nothing else is said.
pub const DEV_URL: &str = "http://127.0.0.1:8080";

/// The largest key file that is read.
const MAX_KEY_BYTES: u64 = 4 * 1024;

/// The folder that `broca serve --dev` keeps its things in: `$XDG_STATE_HOME/broca`, else
/// `~/.local/state/broca`. Mode 0700; its files 0600.
#[derive(Debug, Clone)]
pub struct StateFolder(PathBuf);

/// The key that this file holds.
///
/// # Errors
/// When there is no such file, or it holds no key.
pub(crate) fn key_in(file: &Path) -> Result<Secret, Fault> {
    read_key(file).map_err(|fault| fault.told(file))
}

impl StateFolder {
    /// The folder of this environment; it need not be there yet.
    ///
    /// # Errors
    /// When neither `XDG_STATE_HOME` nor `HOME` holds an absolute path.
    pub fn find(variable: impl Fn(&str) -> Option<String>) -> Result<Self, Fault> {
        let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let state = absolute("XDG_STATE_HOME")
            .or_else(|| absolute("HOME").map(|home| home.join(".local").join("state")))
            .ok_or_else(|| {
                Fault::usage(
                    "there is no place for the state folder: HOME is not set",
                    "set HOME or XDG_STATE_HOME to an absolute path",
                )
            })?;
        Ok(Self(state.join("broca")))
    }

    /// Makes the folder if it is not there, for its owner alone.
    ///
    /// # Errors
    /// When it cannot be made or closed to others.
    pub fn create(&self) -> Result<(), Fault> {
        let make = || {
            fs::create_dir_all(&self.0)?;
            restrict(&self.0, 0o700)
        };
        make().map_err(|e| {
            Fault::failed(
                format!("the state folder {} cannot be made: {e}", self.0.display()),
                "set XDG_STATE_HOME to a folder of yours",
            )
        })
    }

    /// The database of the development service.
    #[must_use]
    pub fn database(&self) -> PathBuf {
        self.0.join("broca.db")
    }

    /// The file of its client key.
    #[must_use]
    pub fn key_file(&self) -> PathBuf {
        self.0.join("client-key")
    }

    /// The file that says where it listens.
    #[must_use]
    pub fn url_file(&self) -> PathBuf {
        self.0.join("url")
    }

    /// The file of its admin key.
    #[must_use]
    pub fn admin_key_file(&self) -> PathBuf {
        self.0.join("admin-key")
    }

    /// The file that says where its admin port listens.
    #[must_use]
    pub fn admin_url_file(&self) -> PathBuf {
        self.0.join("admin-url")
    }

    /// The file of the client key that `broca watch` uses: a watcher that joined with a driver's key would
    /// take the driver's tools away (session service §3.3).
    #[must_use]
    pub fn watch_key_file(&self) -> PathBuf {
        self.0.join("watch-key")
    }

    /// The key kept in one of these files, if it is there.
    ///
    /// # Errors
    /// When the file is there and cannot be used.
    pub fn kept_key(&self, file: &Path) -> Result<Option<Secret>, Fault> {
        match read_key(file) {
            Ok(key) => Ok(Some(key)),
            Err(KeyFault::Missing) => Ok(None),
            Err(fault) => Err(fault.told(file)),
        }
    }

    /// Where the admin port of the development service listens, as far as its last start said.
    #[must_use]
    pub fn admin_url(&self) -> Option<String> {
        let noted = fs::read_to_string(self.admin_url_file()).ok()?;
        Some(noted.trim().to_owned()).filter(|url| !url.is_empty())
    }

    /// Removes a file that still holds this text.
    pub fn remove_if(&self, path: &Path, text: &str) {
        if fs::read_to_string(path).is_ok_and(|found| found.trim() == text) {
            // Left behind, it only names a service that does not answer.
            let _left_behind = fs::remove_file(path);
        }
    }

    /// Writes a file that only its owner can read. Readers see the old or the new text, never half of it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, path: &Path, text: &str) -> Result<(), Fault> {
        let fresh = path.with_extension(format!("new-{}", std::process::id()));
        let write = || {
            let mut file = private_file(&fresh)?;
            file.write_all(text.as_bytes())?;
            file.write_all(b"\n")?;
            file.sync_all()?;
            fs::rename(&fresh, path)
        };
        write().map_err(|e| {
            let _left_over = fs::remove_file(&fresh);
            Fault::failed(
                format!("{} cannot be written: {e}", path.display()),
                "make room there, or set XDG_STATE_HOME to another folder",
            )
        })
    }
}

/// What somebody wants of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To take turns in it.
    Drive,
    /// To see what happens.
    Watch,
}

/// A service and the key for it.
#[derive(Debug, Clone)]
pub struct Reach {
    /// The address of the service.
    pub url: String,
    /// The client key.
    pub key: Secret,
}

impl Reach {
    /// Finds both: options first, then the environment, then the state folder of `broca serve --dev`. The key of a
    /// development service goes to this machine only.
    ///
    /// # Errors
    /// Wrong usage, with the cure, when one of them is nowhere or the address is none. What is wrong with the address is
    /// said before what is wrong with the key.
    pub fn find(
        given: &ReachArguments,
        purpose: Purpose,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Fault> {
        let (url, key) = Self::look(given, purpose, variable)?;
        Ok(Self { url, key: key? })
    }

    /// The same for who can do something with the address alone: what is wrong with the key is told apart.
    ///
    /// # Errors
    /// Wrong usage, when the address is none.
    pub fn look(
        given: &ReachArguments,
        purpose: Purpose,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<(String, Result<Secret, Fault>), Fault> {
        let named = |names: [&'static str; 2]| {
            let found = names.into_iter().find_map(|name| Some((name, variable(name)?)));
            found.filter(|(_, value)| !value.is_empty())
        };
        let set = |names| named(names).map(|(_, value)| value);
        let url = given.url.clone().map(|url| ("--url", url));
        let url = url.or_else(|| named(["BROCA_URL", "BAE_SERVER_URL"]));
        if let Some((from, url)) = &url {
            check_address(url).map_err(|e| Fault::usage(format!("{from}: {}", e.message()), ""))?;
        }
        let is_given = url.is_some();
        let url = url.map(|(_, url)| url);
        let url = url.unwrap_or_else(|| dev_url(&variable));
        let key = match (&given.key, &given.key_file) {
            (Some(key), _) => Ok(Secret::new(key.as_str())),
            (None, Some(file)) => read_key(file).map_err(|fault| fault.told(file)),
            (None, None) => match set(["BROCA_CLIENT_KEY", "BAE_CLIENT_KEY"]).map(Secret::new) {
                Some(key) => Ok(watching(key, purpose, &variable)),
                None if is_given && !is_this_machine(&url) => Err(Fault::usage(
                    "no key was given for a service on another machine",
                    "pass --key-file FILE, or set BROCA_CLIENT_KEY",
                )),
                None => dev_key(purpose, &variable),
            },
        };
        Ok((url, key))
    }
}

/// The key that the development service keeps in the state folder.
fn dev_key(purpose: Purpose, variable: &impl Fn(&str) -> Option<String>) -> Result<Secret, Fault> {
    let folder = StateFolder::find(variable)?;
    let kept = match purpose {
        Purpose::Drive => folder.kept_key(&folder.key_file())?,
        Purpose::Watch => folder.kept_key(&folder.watch_key_file())?,
    };
    kept.ok_or_else(|| {
        Fault::usage(
            "no key was given and no development service has been started here",
            "start one with: broca serve --dev, or pass --key-file FILE",
        )
    })
}

/// The environment may hold the driver's key of the development service, which is no key for watching.
fn watching(key: Secret, purpose: Purpose, variable: &impl Fn(&str) -> Option<String>) -> Secret {
    let Some(folder) = StateFolder::find(variable).ok().filter(|_| purpose == Purpose::Watch)
    else {
        return key;
    };
    match (folder.kept_key(&folder.key_file()), folder.kept_key(&folder.watch_key_file())) {
        (Ok(Some(driving)), Ok(Some(watching))) if driving == key => watching,
        _ => key,
    }
}

/// Where the development service listens, or listened last.
fn dev_url(variable: &impl Fn(&str) -> Option<String>) -> String {
    let folder = StateFolder::find(variable).ok();
    let noted = folder.and_then(|folder| fs::read_to_string(folder.url_file()).ok());
    noted
        .map(|url| url.trim().to_owned())
        .filter(|url| !url.is_empty())
        .unwrap_or_else(|| DEV_URL.to_owned())
}

/// Whether a client could work with this address; its own rules say so, and nothing is connected.
fn check_address(url: &str) -> Result<(), Error> {
    let config = Config::new(url, Secret::new("any"));
    Engine::new(config, 0, 0, Environment::none()).map(drop)
}

fn is_this_machine(url: &str) -> bool {
    let Some((_, rest)) = url.split_once("://") else { return false };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        return false;
    }
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Why a key file cannot be used.
enum KeyFault {
    Missing,
    Unreadable(io::Error),
    NoKey,
}

impl KeyFault {
    fn told(self, path: &Path) -> Fault {
        let path = path.display();
        match self {
            Self::Missing => Fault::usage(format!("there is no key file {path}"), "check the path"),
            Self::Unreadable(e) => Fault::failed(
                format!("the key file {path} cannot be read: {e}"),
                "check its owner and mode",
            ),
            Self::NoKey => Fault::usage(
                format!("the key file {path} holds no key"),
                "it must hold the key alone, as it was shown; remove it to have a new one made by broca serve --dev",
            ),
        }
    }
}

fn read_key(path: &Path) -> Result<Secret, KeyFault> {
    let about = fs::metadata(path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => KeyFault::Missing,
        _ => KeyFault::Unreadable(e),
    })?;
    if about.len() > MAX_KEY_BYTES || !about.is_file() {
        return Err(KeyFault::NoKey);
    }
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::InvalidData => return Err(KeyFault::NoKey),
        Err(e) => return Err(KeyFault::Unreadable(e)),
    };
    let key = text.trim();
    if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(KeyFault::NoKey);
    }
    warn_if_open(path, &about);
    Ok(Secret::new(key))
}

#[cfg(unix)]
fn warn_if_open(path: &Path, about: &fs::Metadata) {
    use std::os::unix::fs::PermissionsExt;
    if about.permissions().mode() & 0o077 != 0 {
        let path = path.display();
        let line = format!("broca: others can read the key file {path}; run: chmod 600 {path}");
        let _reader_gone = writeln!(io::stderr().lock(), "{line}");
    }
}

#[cfg(not(unix))]
fn warn_if_open(_: &Path, _: &fs::Metadata) {}

#[cfg(unix)]
fn restrict(path: &Path, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

#[cfg(not(unix))]
fn restrict(_: &Path, _: u32) -> io::Result<()> {
    // The folder is below the user's own profile, which is closed to others.
    Ok(())
}

fn private_file(path: &Path) -> io::Result<fs::File> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    let file = options.open(path)?;
    restrict(path, 0o600)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(url: Option<&str>, key: Option<&str>) -> ReachArguments {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        ReachArguments { url: owned(url), key: owned(key), key_file: None }
    }

    fn variables(pairs: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> + use<> {
        let pairs: Vec<_> = pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        move |name| pairs.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone())
    }

    #[test]
    fn options_win_over_the_environment() {
        let environment = variables(&[("BROCA_URL", "http://b"), ("BAE_CLIENT_KEY", "k2")]);
        let reach =
            Reach::find(&given(Some("http://a"), None), Purpose::Drive, &environment).unwrap();
        assert_eq!((reach.url.as_str(), reach.key.expose()), ("http://a", "k2"));
        let reach = Reach::find(&given(None, Some("k1")), Purpose::Drive, &environment).unwrap();
        assert_eq!((reach.url.as_str(), reach.key.expose()), ("http://b", "k1"));
    }

    #[test]
    fn the_state_folder_is_the_last_resort() {
        let home = tempfile::tempdir().unwrap();
        let state = home.path().to_str().unwrap();
        let environment = variables(&[("XDG_STATE_HOME", state)]);
        let fault = Reach::find(&given(None, None), Purpose::Drive, &environment).unwrap_err();
        assert!(fault.line().contains("broca serve --dev"), "{}", fault.line());

        let folder = StateFolder::find(&environment).unwrap();
        folder.create().unwrap();
        folder.write(&folder.key_file(), "bae_kept").unwrap();
        folder.write(&folder.watch_key_file(), "bae_watch").unwrap();
        folder.write(&folder.url_file(), "http://127.0.0.1:9").unwrap();
        let reach = Reach::find(&given(None, None), Purpose::Drive, &environment).unwrap();
        assert_eq!((reach.url.as_str(), reach.key.expose()), ("http://127.0.0.1:9", "bae_kept"));
        let watching = Reach::find(&given(None, None), Purpose::Watch, &environment).unwrap();
        assert_eq!(watching.key.expose(), "bae_watch");
        for (pasted, used) in [("bae_kept", "bae_watch"), ("bae_other", "bae_other")] {
            let pasted = [("XDG_STATE_HOME", state), ("BROCA_CLIENT_KEY", pasted)];
            let watching =
                Reach::find(&given(None, None), Purpose::Watch, variables(&pasted)).unwrap();
            assert_eq!(watching.key.expose(), used);
        }

        folder.remove_if(&folder.url_file(), "http://127.0.0.1:8");
        assert!(folder.url_file().exists());
        folder.remove_if(&folder.url_file(), "http://127.0.0.1:9");
        let reach = Reach::find(&given(None, None), Purpose::Drive, &environment).unwrap();
        assert_eq!(reach.url, DEV_URL);
    }

    #[test]
    fn the_key_of_a_development_service_stays_on_this_machine() {
        let home = tempfile::tempdir().unwrap();
        let environment = variables(&[("HOME", home.path().to_str().unwrap())]);
        let folder = StateFolder::find(&environment).unwrap();
        folder.create().unwrap();
        folder.write(&folder.key_file(), "bae_kept").unwrap();
        for url in [
            "http://example.org",
            "http://127.0.0.1@example.org",
            "http://127.0.0.1.example.org:80",
        ] {
            assert!(
                Reach::find(&given(Some(url), None), Purpose::Drive, &environment).is_err(),
                "{url}"
            );
        }
        for url in ["http://localhost:1", "http://[::1]:8080/x", "http://127.0.0.1"] {
            assert!(
                Reach::find(&given(Some(url), None), Purpose::Drive, &environment).is_ok(),
                "{url}"
            );
        }
    }

    #[test]
    fn an_address_that_is_none_is_told_before_the_key_that_is_missing() {
        for (url, part) in [
            ("127.0.0.1:8080", "--url: the service's address has no scheme"),
            ("ftp://127.0.0.1", "must begin with http:// or https://"),
            ("https://user@127.0.0.1:8080/", "must not hold a user or password"),
            ("http://127.0.0.1:port", "no usable host and port"),
        ] {
            let line = Reach::find(&given(Some(url), None), Purpose::Drive, |_| None);
            let line = line.unwrap_err().line();
            assert!(line.contains(part) && line.contains("http://127.0.0.1:8080"), "{url}: {line}");
            assert!(!line.contains("key") && !line.contains("user@"), "{url}: {line}");
        }
        let line = Reach::find(
            &given(None, Some("k")),
            Purpose::Drive,
            variables(&[("BAE_SERVER_URL", "x")]),
        );
        assert!(line.unwrap_err().line().starts_with("broca: BAE_SERVER_URL: the service's"));
    }

    #[cfg(unix)]
    #[test]
    fn what_is_kept_is_closed_to_others() {
        use std::os::unix::fs::PermissionsExt;
        let home = tempfile::tempdir().unwrap();
        let environment = variables(&[("HOME", home.path().to_str().unwrap())]);
        let folder = StateFolder::find(&environment).unwrap();
        folder.create().unwrap();
        folder.write(&folder.key_file(), "bae_kept").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&folder.0), 0o700);
        assert_eq!(mode(&folder.key_file()), 0o600);
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_holds_no_key_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        let asked = || {
            let given = ReachArguments { url: None, key: None, key_file: Some(file.clone()) };
            Reach::find(&given, Purpose::Drive, |_| None).unwrap_err().line()
        };
        assert!(asked().contains("there is no key file"));
        for text in ["", "  \n", "two words", "\u{fffd}"] {
            fs::write(&file, text).unwrap();
            assert!(asked().contains("holds no key"), "{text:?}");
        }
    }
}
