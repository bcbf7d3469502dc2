//! From the words on the command line to a model: `scripted`, `scripted:PATH`, `openai:NAME`; and from an entry of the
//! configuration file.

use super::openai::{BaseUrlError, DEFAULT_BASE_URL, OpenAi, OpenAiSettings};
use super::scripted::Scripted;
use super::scripted::script::{Script, ScriptError};
use super::unbuilt::Unbuilt;
use super::{Model, ModelDescription};
use crate::config::{ProviderEntry, ProviderKind};
use std::path::Path;
use std::sync::Arc;
use thiserror::Error;

/// The variable that holds OpenAI's key when no other is named.
pub const DEFAULT_KEY_ENV: &str = "OPENAI_API_KEY";

/// What may be said beside a model's name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelOptions {
    /// `--base-url`: where the server is.
    pub base_url: Option<String>,
    /// `--model-key-env`: the environment variable that holds the key.
    pub key_env: Option<String>,
    /// The most tokens of an answer.
    pub max_tokens: Option<u64>,
}

/// Why a model cannot be made.
#[derive(Debug, Error)]
pub enum CatalogError {
    /// No such kind of model.
    #[error("unknown model {0:?}; write scripted, scripted:PATH or openai:NAME")]
    Unknown(String),
    /// `openai:` without a name.
    #[error("the model needs a name: openai:NAME, such as openai:gpt-4.1-mini")]
    NoName,
    /// `scripted:` without a path.
    #[error("the script needs a path: scripted:PATH; or write scripted for the built-in rules")]
    NoPath,
    /// An option that this model has no use for.
    #[error("{option} has no meaning for the scripted model; leave it out or use openai:NAME")]
    NotForScripted {
        /// The option.
        option: &'static str,
    },
    /// The base URL cannot be used.
    #[error("--base-url: {0}")]
    BaseUrl(#[from] BaseUrlError),
    /// The base URL of an entry of the configuration file cannot be used.
    #[error("provider {name:?}: base_url: {why}")]
    EntryBaseUrl {
        /// The entry.
        name: String,
        /// What is wrong.
        why: BaseUrlError,
    },
    /// The script cannot be used.
    #[error("{0}")]
    Script(#[from] ScriptError),
}

/// Makes the model that `name` and `options` describe. Scripts are read now; keys are read for each attempt.
///
/// Without `key_env`, OpenAI itself gets the key of [`DEFAULT_KEY_ENV`] and a server of one's own gets none.
///
/// # Errors
/// [`CatalogError`], whose text names the cure.
pub fn open(name: &str, options: &ModelOptions) -> Result<Arc<dyn Model>, CatalogError> {
    let (kind, rest) = match name.split_once(':') {
        Some((kind, rest)) => (kind, Some(rest)),
        None => (name, None),
    };
    match (kind, rest) {
        ("scripted", path) => {
            refuse(options.base_url.is_some(), "--base-url")?;
            refuse(options.key_env.is_some(), "--model-key-env")?;
            match path {
                None => Ok(Arc::new(Scripted::default())),
                Some("") => Err(CatalogError::NoPath),
                Some(path) => Ok(Arc::new(Scripted::new(Script::load(Path::new(path))?))),
            }
        }
        ("openai", None | Some("")) => Err(CatalogError::NoName),
        ("openai", Some(model)) => {
            let base_url = options.base_url.as_deref().unwrap_or(DEFAULT_BASE_URL);
            let mut settings = OpenAiSettings::new(base_url, model);
            let default_key = options.base_url.is_none().then(|| DEFAULT_KEY_ENV.to_owned());
            settings.key_env = options.key_env.clone().or(default_key);
            if let Some(max_tokens) = options.max_tokens {
                settings.max_tokens = max_tokens;
            }
            Ok(Arc::new(OpenAi::new(settings)?))
        }
        _ => Err(CatalogError::Unknown(name.to_owned())),
    }
}

/// Makes the model that an entry of the configuration file describes. Its key is resolved for each attempt.
///
/// # Errors
/// [`CatalogError`], whose text names the cure.
pub fn configured(entry: &ProviderEntry) -> Result<Arc<dyn Model>, CatalogError> {
    match entry.provider {
        ProviderKind::Scripted if entry.model.is_empty() => Ok(Arc::new(Scripted::default())),
        ProviderKind::Scripted => {
            Ok(Arc::new(Scripted::new(Script::load(Path::new(&entry.model))?)))
        }
        ProviderKind::OpenAi => {
            let mut settings = OpenAiSettings::new(entry.effective_base_url(), &entry.model);
            settings.key = entry.auth_token.clone();
            settings.max_tokens = entry.max_tokens;
            let made = OpenAi::new(settings);
            let made =
                made.map_err(|why| CatalogError::EntryBaseUrl { name: entry.name.clone(), why })?;
            Ok(Arc::new(made))
        }
        ProviderKind::Anthropic => Ok(Arc::new(Unbuilt::new(ModelDescription {
            provider: entry.provider.as_str().to_owned(),
            base_url: entry.effective_base_url().to_owned(),
            model: entry.model.clone(),
            max_tokens: entry.max_tokens,
        }))),
    }
}

fn refuse(given: bool, option: &'static str) -> Result<(), CatalogError> {
    if given { Err(CatalogError::NotForScripted { option }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(name: &str, options: &ModelOptions) -> String {
        match open(name, options) {
            Ok(model) => format!("made {:?}", model.describe()),
            Err(e) => e.to_string(),
        }
    }

    #[test]
    fn the_three_forms_make_models() {
        let plain = open("scripted", &ModelOptions::default()).unwrap();
        assert_eq!(plain.describe().provider, "scripted");
        let remote = open("openai:gpt-x", &ModelOptions::default()).unwrap().describe();
        assert_eq!((remote.base_url.as_str(), remote.model.as_str()), (DEFAULT_BASE_URL, "gpt-x"));
        let options = ModelOptions {
            base_url: Some("http://127.0.0.1:11434/v1/".into()),
            max_tokens: Some(7),
            ..ModelOptions::default()
        };
        let local = open("openai:qwen:7b", &options).unwrap().describe();
        assert_eq!((local.model.as_str(), local.max_tokens), ("qwen:7b", 7));
    }

    #[test]
    fn a_wrong_form_is_told_with_its_cure() {
        let none = ModelOptions::default();
        for (name, part) in [
            ("gpt-4", "openai:NAME"),
            ("", "scripted"),
            ("openai", "needs a name"),
            ("openai:", "needs a name"),
            ("scripted:", "needs a path"),
            ("scripted:/no/such/script.json", "/no/such/script.json"),
        ] {
            let words = fault(name, &none);
            assert!(words.contains(part), "{name}: {words}");
        }
        for (url, part) in [
            ("ftp://x", "http://"),
            ("localhost", "not a URL"),
            ("http://a b", "not a URL"),
            ("http://user:hunter2@x", "user name"),
            ("http://x?key=hunter2", "query"),
        ] {
            let options = ModelOptions { base_url: Some(url.into()), ..none.clone() };
            let words = fault("openai:m", &options);
            assert!(words.contains(part) && !words.contains("hunter2"), "{url}: {words}");
        }
        let options = ModelOptions { base_url: Some("http://x".into()), ..none };
        assert!(fault("scripted", &options).contains("--base-url"));
    }
}
