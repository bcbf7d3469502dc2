//! What functions return: zero, or a number of the one table of errors.

use broca_bridge::errors;
use std::ffi::{CStr, c_char};

/// What a function came to: `BROCA_OK`, or a negative number of the table of errors. Numbers are added, never
/// changed; treat one that you do not know by its sign.
pub type Status = i32;

/// It worked.
pub const BROCA_OK: Status = 0;
/// The call itself was wrong: a NULL, the wrong order, the wrong style.
pub const BROCA_E_USAGE: Status = -1;
/// An argument cannot be used as given.
pub const BROCA_E_INVALID_ARGUMENT: Status = -2;
/// The session was closed before the call.
pub const BROCA_E_CLOSED: Status = -3;
/// The client was made before a fork and used after it.
pub const BROCA_E_FORKED: Status = -4;
/// The connection failed.
pub const BROCA_E_TRANSPORT: Status = -100;
/// No connection could be made: nothing was sent.
pub const BROCA_E_CONNECT: Status = -101;
/// TLS could not be agreed or the certificate was refused: nothing was sent.
pub const BROCA_E_TLS: Status = -102;
/// The connection broke while in use.
pub const BROCA_E_IO: Status = -103;
/// The peer did not answer in time.
pub const BROCA_E_TIMEOUT: Status = -110;
/// The stream ended without its terminal line.
pub const BROCA_E_STREAM_ENDED_EARLY: Status = -120;
/// The terminal line was longer than the limit.
pub const BROCA_E_LINE_TOO_LONG: Status = -121;
/// The service dropped this reader because it fell behind.
pub const BROCA_E_LAGGED: Status = -122;
/// The peer broke the protocol.
pub const BROCA_E_PROTOCOL: Status = -200;
/// Bytes that are not what the protocol says.
pub const BROCA_E_MALFORMED: Status = -201;
/// The peer speaks a version this program does not.
pub const BROCA_E_UNSUPPORTED_VERSION: Status = -202;
/// A bound of this program was exceeded; the message names it.
pub const BROCA_E_LIMIT: Status = -203;
/// The opening exchange failed.
pub const BROCA_E_HANDSHAKE: Status = -204;
/// What answered is not a session service.
pub const BROCA_E_NOT_BROCA: Status = -205;
/// The service does not offer what this call needs, or this client does not ask for it.
pub const BROCA_E_NOT_OFFERED: Status = -206;
/// The service answered with a problem document.
pub const BROCA_E_API: Status = -300;
/// The key was refused.
pub const BROCA_E_UNAUTHORIZED: Status = -301;
/// The session is closed or in error.
pub const BROCA_E_SESSION_CLOSED: Status = -302;
/// The profile does not allow a declared tool.
pub const BROCA_E_TOOL_NOT_ALLOWED: Status = -303;
/// The service answered with a JSON-RPC error.
pub const BROCA_E_RPC: Status = -320;
/// The caller has not registered as a driver.
pub const BROCA_E_DRIVER_NOT_REGISTERED: Status = -321;
/// A paused turn stands in the way.
pub const BROCA_E_TURN_IN_PROGRESS: Status = -322;
/// The parameters were refused.
pub const BROCA_E_INVALID_PARAMS: Status = -323;
/// Every model provider failed.
pub const BROCA_E_PROVIDERS_FAILED: Status = -340;
/// The turn reached the service's limit of model rounds.
pub const BROCA_E_LOOP_LIMIT: Status = -341;
/// The model's answer does not fit the type that the program wants, also after it was told so.
pub const BROCA_E_OUTPUT_INVALID: Status = -343;
/// A tool failed.
pub const BROCA_E_TOOL: Status = -400;
/// The model asked for a tool that nobody registered.
pub const BROCA_E_UNKNOWN_TOOL: Status = -401;
/// A tool did not finish before its deadline.
pub const BROCA_E_TOOL_TIMEOUT: Status = -402;
/// A hook of the program refused.
pub const BROCA_E_HOOK: Status = -410;
/// A person or a rule refused the call.
pub const BROCA_E_APPROVAL_DENIED: Status = -411;
/// The program cancelled the operation.
pub const BROCA_E_CANCELLED: Status = -500;
/// A fault of this library.
pub const BROCA_E_INTERNAL: Status = -900;
/// A panic of this library was caught; the session it met is unusable, and nothing else.
pub const BROCA_E_PANIC: Status = -901;
/// Two parts of Broca of different versions met.
pub const BROCA_E_VERSION_MISMATCH: Status = -902;

macro_rules! names {
    ($( $status:ident )*) => {
        const NAMES: &[(Status, &CStr)] = &[
            $( ($status, match CStr::from_bytes_with_nul(concat!(stringify!($status), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"BROCA_E_UNKNOWN",
            }), )*
        ];
    };
}

names! {
    BROCA_OK BROCA_E_USAGE BROCA_E_INVALID_ARGUMENT BROCA_E_CLOSED BROCA_E_FORKED BROCA_E_TRANSPORT BROCA_E_CONNECT
    BROCA_E_TLS BROCA_E_IO BROCA_E_TIMEOUT BROCA_E_STREAM_ENDED_EARLY BROCA_E_LINE_TOO_LONG BROCA_E_LAGGED
    BROCA_E_PROTOCOL BROCA_E_MALFORMED BROCA_E_UNSUPPORTED_VERSION BROCA_E_LIMIT BROCA_E_HANDSHAKE
    BROCA_E_NOT_BROCA BROCA_E_NOT_OFFERED BROCA_E_API BROCA_E_UNAUTHORIZED BROCA_E_SESSION_CLOSED BROCA_E_TOOL_NOT_ALLOWED BROCA_E_RPC
    BROCA_E_DRIVER_NOT_REGISTERED BROCA_E_TURN_IN_PROGRESS BROCA_E_INVALID_PARAMS BROCA_E_PROVIDERS_FAILED
    BROCA_E_LOOP_LIMIT BROCA_E_OUTPUT_INVALID BROCA_E_TOOL BROCA_E_UNKNOWN_TOOL BROCA_E_TOOL_TIMEOUT BROCA_E_HOOK
    BROCA_E_APPROVAL_DENIED BROCA_E_CANCELLED BROCA_E_INTERNAL BROCA_E_PANIC BROCA_E_VERSION_MISMATCH
}

/// The name of a status, such as `"BROCA_E_USAGE"`; `"BROCA_E_UNKNOWN"` for a number that has none.
///
/// Ownership: returns borrowed from the library, for ever.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_status_name(status: Status) -> *const c_char {
    let found = NAMES.iter().find(|(number, _)| *number == status);
    found.map_or(c"BROCA_E_UNKNOWN", |(_, name)| *name).as_ptr()
}

/// The status that `status` is a special case of, such as `BROCA_E_TRANSPORT` of `BROCA_E_TLS`; 0 for none.
///
/// Ownership: nothing changes hands.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_status_parent(status: Status) -> Status {
    errors::table().find(|row| row.code == status).and_then(|row| row.parent).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table_has_its_constant_and_its_name() {
        let rows: Vec<(i32, String)> = errors::table()
            .map(|row| (row.code, format!("BROCA_E_{}", row.kind.to_ascii_uppercase())))
            .collect();
        let ours: Vec<(i32, String)> =
            NAMES[1..].iter().map(|(code, name)| (*code, name.to_string_lossy().into())).collect();
        assert_eq!(ours, rows);
    }

    #[test]
    fn parents_come_from_the_table() {
        assert_eq!(broca_status_parent(BROCA_E_TLS), BROCA_E_TRANSPORT);
        assert_eq!(broca_status_parent(BROCA_E_USAGE), 0);
        assert_eq!(broca_status_parent(7), 0);
    }
}
