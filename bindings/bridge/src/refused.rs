//! What is wrong with JSON that a host hands in, by the name of the member and without its value.

use broca_proto::{Error, ErrorKind};
use serde::de::DeserializeOwned;

/// Reads a value. What cannot be read is read once more to find the member at fault.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`]. Values are not repeated: there are keys and messages among them.
pub(crate) fn read<T: DeserializeOwned>(json: &[u8], what: &str) -> Result<T, Error> {
    serde_json::from_slice(json).map_err(|e| {
        let mut again = serde_json::Deserializer::from_slice(json);
        let path = match serde_path_to_error::deserialize::<_, T>(&mut again) {
            Err(e) => e.path().to_string(),
            Ok(_) => String::new(),
        };
        let place =
            if path.is_empty() || path == "." { String::new() } else { format!("{path}: ") };
        let message = format!("{what} cannot be used: {place}{}", words(&e));
        Error::new(ErrorKind::InvalidArgument, message)
    })
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
