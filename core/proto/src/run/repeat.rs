//! Messages that come again under the ids of their senders (feature `message-id`).

use crate::Json;
use crate::session::feature::Features;
use crate::session::rpc::{RpcFailure, code};

/// The longest id that a sender may give its message.
pub const MAX_MESSAGE_ID: usize = 128;

/// The id that the sender gave its message, for requests that asked for `message-id`.
///
/// # Errors
/// `-32602` unless it is 1 to [`MAX_MESSAGE_ID`] visible ASCII characters.
pub fn message_id(params: &Json, features: Features) -> Result<Option<String>, RpcFailure> {
    let Some(id) = params.member("message_id").filter(|_| features.message_id) else {
        return Ok(None);
    };
    let fits = |id: &String| {
        (1..=MAX_MESSAGE_ID).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic())
    };
    match id.to_text().filter(fits) {
        Some(id) => Ok(Some(id)),
        None => {
            let message =
                "Invalid params: \"message_id\" must be 1 to 128 visible ASCII characters";
            Err(RpcFailure::new(code::INVALID_PARAMS, message))
        }
    }
}

/// How far the message that came first under an id has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstOne {
    /// It waits for its turn, or its turn runs.
    GoesOn,
    /// Its turn was answered.
    Answered,
    /// Its turn began, goes on no longer, and was not answered.
    BrokeOff,
}

/// Whether a message that comes again under its id shares in the first one: in its streams while that goes on, in its answer
/// after that. `same` says whether it is the same message.
///
/// # Errors
/// `-32023` for another message, `-32022` when the turn broke off.
pub fn share_in(first: FirstOne, same: bool) -> Result<(), RpcFailure> {
    if !same {
        let message = "message_id was used for another message";
        return Err(RpcFailure::new(code::MESSAGE_ID_USED, message));
    }
    match first {
        FirstOne::GoesOn | FirstOne::Answered => Ok(()),
        FirstOne::BrokeOff => {
            let message = "turn interrupted: the service restarted or failed while it ran";
            Err(RpcFailure::new(code::TURN_INTERRUPTED, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Json {
        Json::parse(text.to_owned()).unwrap()
    }

    #[test]
    fn an_id_of_a_message_is_visible_ascii_and_only_for_those_who_asked() {
        let with = Features { message_id: true, ..Features::NONE };
        let read = |params: &str| message_id(&json(params), with);
        let longest = "x".repeat(MAX_MESSAGE_ID);
        for id in ["a", "!~", &longest] {
            let params = format!(r#"{{"message_id":"{id}"}}"#);
            assert_eq!(read(&params), Ok(Some(id.to_owned())));
            assert_eq!(message_id(&json(&params), Features::NONE), Ok(None));
        }
        assert_eq!(read("{}"), Ok(None));
        let long = format!("\"{longest}x\"");
        for bad in ["\"\"", "\"a b\"", "\"\\u0007\"", "\"é\"", "5", "null", "[]", &long] {
            let params = format!(r#"{{"message_id":{bad}}}"#);
            let refused = read(&params).unwrap_err();
            assert_eq!(refused.code, -32602, "{bad}");
            assert!(refused.message.contains("1 to 128 visible ASCII"), "{}", refused.message);
            assert_eq!(message_id(&json(&params), Features::NONE), Ok(None), "ignored as ever");
        }
    }

    #[test]
    fn a_message_that_comes_again_shares_in_the_first_one_unless_that_is_another_or_broke_off() {
        let code = |first, same| share_in(first, same).err().map(|failure| failure.code);
        for first in [FirstOne::GoesOn, FirstOne::Answered] {
            assert_eq!((code(first, true), code(first, false)), (None, Some(-32023)));
        }
        let broke_off = FirstOne::BrokeOff;
        assert_eq!((code(broke_off, true), code(broke_off, false)), (Some(-32022), Some(-32023)));
    }
}
