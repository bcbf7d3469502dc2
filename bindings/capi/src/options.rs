//! What can be set about a client, by the names that every language uses.

use crate::boundary::{call, given_mut, invalid, output, value};
use crate::cast;
use crate::failure::Failure;
use crate::hub::Setup;
use crate::status::Status;
use broca::tls::{Connector, Trust};
use broca_proto::{Error, Json};
use std::collections::BTreeMap;
use std::ffi::c_char;
use std::mem::MaybeUninit;

/// Everything about a client before it is made.
pub struct Options {
    values: BTreeMap<String, Json>,
    trust: Trust,
    platform_roots: bool,
    proxy_from_environment: bool,
}

/// Variables that name proxies; only these are read.
const PROXY_VARIABLES: [&str; 9] = [
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "REQUEST_METHOD",
];

impl Options {
    /// Checks everything, and gives what clients are made of.
    pub(crate) fn setup(&self) -> Result<Setup, Error> {
        let mut values = self.values.clone();
        if self.proxy_from_environment && !values.contains_key("environment") {
            let set = PROXY_VARIABLES.iter().filter_map(|name| {
                Some(((*name).to_owned(), Json::string(&std::env::var(name).ok()?)))
            });
            let set: Vec<(String, Json)> = set.collect();
            let members = set.iter().map(|(name, value)| (name.as_str(), value));
            values.insert("environment".to_owned(), Json::object(members));
        }
        let json = Json::object(values.iter().map(|(name, value)| (name.as_str(), value)));
        let (config, environment) = broca_bridge::options::read(json.as_bytes())?;
        let trust = self.trust.clone().with_platform_roots(self.platform_roots);
        let connector = Connector::new(trust);
        if config.base_url.trim_start().to_ascii_lowercase().starts_with("https") {
            connector.prepare()?;
        }
        // What is wrong with the address, the key or a proxy shows here, not at the first session.
        broca_bridge::Handle::with_config(config.clone(), environment.clone(), 0, 0)?;
        Ok(Setup { config, environment, connector })
    }

    fn set(&mut self, name: &str, value: Json) -> Result<(), Error> {
        if name == "base_url" || name == "client_key" {
            return Err(invalid(format!("{name} is given to broca_options_new")));
        }
        let before = self.values.insert(name.to_owned(), value);
        let json = Json::object(self.values.iter().map(|(name, value)| (name.as_str(), value)));
        if let Err(error) = broca_bridge::options::read(json.as_bytes()) {
            match before {
                Some(before) => self.values.insert(name.to_owned(), before),
                None => self.values.remove(name),
            };
            return Err(error);
        }
        Ok(())
    }
}

/// Begins the options of a client of the service at `url` (`http://host:port` or `https://…`), with a client key.
///
/// Ownership: returns `options` owned: free it with `broca_options_free`. Copies the texts.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_options_new(
    url: *const c_char,
    url_len: usize,
    key: *const c_char,
    key_len: usize,
    options: Option<&mut MaybeUninit<Option<Box<Options>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let options = output("options", options)?;
        // SAFETY: the header says what `url` and `url_len` are.
        let url = unsafe { cast::text("url", url, url_len) }?;
        // SAFETY: the same of `key`.
        let key = unsafe { cast::text("key", key, key_len) }?;
        let values = [("base_url", url), ("client_key", key)];
        *options = Some(Box::new(Options {
            values: values.map(|(name, text)| (name.to_owned(), Json::string(text))).into(),
            trust: Trust::default(),
            platform_roots: true,
            proxy_from_environment: true,
        }));
        Ok(())
    })
}

/// Sets a number by its name: a time in milliseconds (`connect_timeout_ms`, `idle_reuse_ms` …), a size in bytes
/// (`max_line_bytes` …) or a count (`max_connections`, `concurrent_tools` …). docs/c.md lists them with their defaults.
///
/// Ownership: borrows `options`; copies `name`.
/// Threads: not concurrently on one object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_options_set_number(
    options: Option<&mut Options>,
    name: *const c_char,
    name_len: usize,
    number: u64,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let options = given_mut("options", options)?;
        // SAFETY: the header says what `name` and `name_len` are.
        let name = unsafe { cast::text("name", name, name_len) }?;
        let number =
            Json::parse(number.to_string()).map_err(|_| invalid("the number cannot be written"))?;
        options.set(name, number)
    })
}

/// Sets a text by its name: `client_version`, `user_agent`, `features` (the words to ask for, separated by commas; all
/// when it is never set), or `approvals` (JSON: which tools of the service a person is asked for before they run, in sessions that
/// the client opens: `{"ask": "*" or [name…], "narrow": {name: {pointer: rule}}}`).
///
/// Ownership: borrows `options`; copies the texts.
/// Threads: not concurrently on one object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_options_set_text(
    options: Option<&mut Options>,
    name: *const c_char,
    name_len: usize,
    text: *const c_char,
    text_len: usize,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let options = given_mut("options", options)?;
        // SAFETY: the header says what `name` and `name_len` are.
        let name = unsafe { cast::text("name", name, name_len) }?;
        // SAFETY: the same of `text`.
        let text = unsafe { cast::text("text", text, text_len) }?;
        if name == "features" {
            let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
            let words: Vec<Json> = words.map(Json::string).collect();
            return options.set(name, Json::array(&words));
        }
        if name == "approvals" {
            let approvals = Json::parse(text.to_owned());
            let approvals = approvals.map_err(|e| invalid(format!("approvals: {e}")))?;
            return options.set(name, approvals);
        }
        options.set(name, Json::string(text))
    })
}

/// Switches something on or off by its name: `hooks` (off: whether `BROCA_STEP_SENDING` and `BROCA_STEP_RECEIVED` come),
/// `proxy_from_environment` (on: whether proxy variables count), `platform_roots` (on: whether TLS trusts what the machine
/// trusts).
///
/// Ownership: borrows `options`; copies `name`.
/// Threads: not concurrently on one object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_options_set_flag(
    options: Option<&mut Options>,
    name: *const c_char,
    name_len: usize,
    on: i32,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let options = given_mut("options", options)?;
        // SAFETY: the header says what `name` and `name_len` are.
        match unsafe { cast::text("name", name, name_len) }? {
            "proxy_from_environment" => options.proxy_from_environment = on != 0,
            "platform_roots" => options.platform_roots = on != 0,
            name => {
                let word = if on != 0 { "true" } else { "false" };
                let flag = Json::parse(word).map_err(|_| invalid("no flag"))?;
                return options.set(name, flag);
            }
        }
        Ok(())
    })
}

/// Has TLS trust the certificates of a PEM text too, such as a company's own authority.
///
/// Ownership: borrows `options`; copies `pem`.
/// Threads: not concurrently on one object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_options_add_trusted_roots(
    options: Option<&mut Options>,
    pem: *const c_char,
    pem_len: usize,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let options = given_mut("options", options)?;
        // SAFETY: the header says what `pem` and `pem_len` are.
        let pem = unsafe { cast::bytes("pem", pem, pem_len) }?;
        options.trust = options.trust.clone().with_pem(pem)?;
        Ok(())
    })
}

/// Frees options. NULL is fine. Clients that were made of them keep what they need.
///
/// Ownership: takes `options`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_options_free(options: Option<Box<Options>>) {
    value(|| drop(options));
}
