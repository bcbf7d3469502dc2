//! What is wrong with JSON that a host hands in, by the name of the member and without its value.

use broca_proto::{Error, ErrorKind};
use serde::de::DeserializeOwned;

/// Reads a value. What cannot be read is read once more to find the member at fault.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`]. Values are not repeated: there are keys and messages among them.
pub(crate) fn read<T: DeserializeOwned>(json: &[u8], what: &str) -> Result<T, Error> {
    serde_json::from_slice(json).map_err(|e| match read_rare::<T>(json, what) {
        Err(error) => error,
        Ok(_) => refusal(what, "", &e),
    })
}

/// Reads a value that few programs read often: the member at fault is known at once, for less code and a little more work.
///
/// # Errors
/// As [`read`].
pub(crate) fn read_rare<T: DeserializeOwned>(json: &[u8], what: &str) -> Result<T, Error> {
    let mut from = serde_json::Deserializer::from_slice(json);
    let value = serde_path_to_error::deserialize(&mut from)
        .map_err(|e| refusal(what, &e.path().to_string(), e.inner()))?;
    from.end().map_err(|e| refusal(what, "", &e))?;
    Ok(value)
}

fn refusal(what: &str, path: &str, e: &serde_json::Error) -> Error {
    let place = if path.is_empty() || path == "." { String::new() } else { format!("{path}: ") };
    let message = format!("{what} cannot be used: {place}{}", words(e));
    Error::new(ErrorKind::InvalidArgument, message)
}

/// serde's words name members and types; what it quotes of a value is cut out, and so is the place, which nobody who
/// did not write the JSON can look at.
fn words(e: &serde_json::Error) -> String {
    if !e.is_data() {
        return "not valid JSON".to_owned();
    }
    let mut text = e.to_string();
    if let Some(at) = text.rfind(" at line ") {
        text.truncate(at);
    }
    for kind in ["invalid type: ", "invalid value: "] {
        let Some(rest) = text.strip_prefix(kind) else { continue };
        let wanted = rest.rfind(", expected ").map_or("", |at| &rest[at + 2..]);
        return format!("a value of another kind, {wanted}");
    }
    text
}
