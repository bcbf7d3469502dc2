//! The layout of a batch: which records there are, and which fields each has.
//!
//! A batch is a table of 32-bit words and a text. Records follow each other in the table:
//!
//! ```text
//! word 0   the kind
//! word 1   the number of words of this record, these two included
//! word 2…  the fields, in the order of the kind's row in KINDS
//! ```
//!
//! | field | words | holds |
//! |---|---:|---|
//! | [`FieldType::Text`] | 2 | where its UTF-8 text lies in the batch's text: offset, length in bytes |
//! | [`FieldType::Json`] | 2 | the same; the text is one JSON value, exactly as it came |
//! | [`FieldType::Bytes`] | 2 | the same; any bytes |
//! | [`FieldType::Number`] | 2 | an unsigned 64-bit number, low word first |
//! | [`FieldType::Word`] | 1 | a small number, a truth value, or one of the codes named in the row |
//!
//! An absent text has the offset [`ABSENT`]; an absent number has both words [`ABSENT`]. Texts may overlap:
//! those of an event lie inside its raw JSON. A reader skips kinds and trailing fields that it does not know.

/// Stands for an absent text (as its offset) or number (as both words).
pub const ABSENT: u32 = u32::MAX;

/// How a field is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldType {
    /// UTF-8 text, two words.
    Text,
    /// One JSON value as text, two words.
    Json,
    /// Bytes, two words.
    Bytes,
    /// 64 bits, two words.
    Number,
    /// One word.
    Word,
}

impl FieldType {
    /// The words it takes.
    #[must_use]
    pub const fn words(self) -> usize {
        match self {
            Self::Word => 1,
            _ => 2,
        }
    }
}

/// A field of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Its name, the same in every language.
    pub name: &'static str,
    /// How it is stored.
    pub field_type: FieldType,
    /// The word of the record at which it begins.
    pub at: usize,
}

/// A kind of record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// Its number; never changes.
    pub number: u32,
    /// Its name.
    pub name: &'static str,
    /// Its fields.
    pub fields: &'static [Field],
    /// The words of a whole record.
    pub words: usize,
}

/// Words before the first field.
pub const HEAD_WORDS: usize = 2;

const fn place<const N: usize>(types: [(&'static str, FieldType); N]) -> [Field; N] {
    let mut fields = [Field { name: "", field_type: FieldType::Word, at: 0 }; N];
    let (mut i, mut next) = (0, HEAD_WORDS);
    while i < N {
        let (name, field_type) = types[i];
        fields[i] = Field { name, field_type, at: next };
        next += field_type.words();
        i += 1;
    }
    fields
}

const fn words(fields: &[Field]) -> usize {
    match fields.last() {
        Some(last) => last.at + last.field_type.words(),
        None => HEAD_WORDS,
    }
}

macro_rules! kinds {
    ($( $(#[$doc:meta])* $module:ident = $number:literal { $( $field:ident : $type:ident ),* $(,)? } )*) => {
        $(
            $(#[$doc])*
            pub mod $module {
                /// The row of this kind.
                pub const KIND: super::Kind = super::Kind {
                    number: $number,
                    name: stringify!($module),
                    fields: &FIELDS_OF_KIND,
                    words: super::words(&FIELDS_OF_KIND),
                };
                /// Its number.
                pub const NUMBER: u32 = $number;
                const FIELDS_OF_KIND: [super::Field; <[&str]>::len(&[ $( stringify!($field) ),* ])] =
                    super::place([ $( (stringify!($field), super::FieldType::$type) ),* ]);
                kinds!(@fields [ $( $field )* ] 0);
            }
        )*

        /// Every kind, in the order of the numbers.
        pub const KINDS: &[Kind] = &[ $( $module::KIND ),* ];
    };
    (@fields [ $field:ident $( $rest:ident )* ] $index:expr) => {
        #[allow(non_upper_case_globals, missing_docs, reason = "fields bear the names they have in every language")]
        pub const $field: usize = FIELDS_OF_KIND[$index].at;
        kinds!(@fields [ $( $rest )* ] $index + 1);
    };
    (@fields [ ] $index:expr) => {};
}

kinds! {
    /// Something the session logged; its id is the cursor after it.
    event = 1 {
        id: Text, event_type: Text, session_id: Text, client_key_id: Text, created_at: Text, payload: Json, raw: Json,
    }
    /// A notification that this version does not know.
    notification = 2 { method: Text, raw: Json }
    /// A piece of the display lane. `delta_kind`: 0 text, 1 reasoning, 2 tool input, 3 everything partial shown so far is void.
    delta = 3 { delta_kind: Word, link: Text, text: Text }
    /// Something was lost. `lost`: 0 deltas (`count` of them), 1 a line of `count` bytes where `limit` are allowed,
    /// 2 the cursor `cursor` is unknown and the log begins again, 3 whatever happened while the stream was away.
    gap = 4 { lost: Word, count: Number, limit: Number, cursor: Text, after: Text }
    /// Run this tool and answer. `may_have_run` is 1 when the program that had the session before may have run it.
    tool_call = 5 { call: Number, tool_use_id: Text, name: Text, input: Json, idempotency_key: Text, may_have_run: Word }
    /// Stop this call if you can.
    tool_cancel = 6 { call: Number }
    /// A call has its one result; `outcome` is `done`, `failed`, `not_started`, `interrupted_may_have_run` or
    /// `timed_out_may_have_run`.
    tool_settled = 7 { tool_use_id: Text, outcome: Text, name: Text }
    /// Somebody has to allow this call first. `server_side` is 1 when the tool is the service's.
    approval = 8 { call: Number, tool_use_id: Text, name: Text, input: Json, idempotency_key: Text, may_have_run: Word, server_side: Word }
    /// The question no longer matters.
    approval_withdrawn = 9 { call: Number }
    /// Where the operation stands: `queued`, `sent`, `connected`, or `reconnecting` with the delay, the kind of error and
    /// why. `position` (1 goes next) and `waiting` are there while it is queued at a service that tells them.
    status = 10 { state: Text, delay_ms: Number, error_kind: Text, why: Text, position: Number, waiting: Number }
    /// Something odd that does not end the stream.
    warning = 11 { class: Text, message: Text }
    /// The message about to leave; answer it.
    sending = 12 { call: Number, round: Word, message: Json }
    /// The answer to a message.
    received = 13 { round: Word, message: Json }
    /// The turn is done. `usage` is absent when nobody counted; `events` is an array of the turn's events; `session` is what all
    /// turns have spent: `rounds`, `input_tokens`, `output_tokens`, `tool_calls`.
    done = 14 { text: Text, message: Json, usage: Json, rounds: Word, events: Json, tool_calls: Word, session: Json }
    /// The operation is over: `opened` (value: `session_id`, `profile`, `features`, `meta`, `pending`), `saved` (value: the saved
    /// session), `replied`, `ended`, `page` (its events stand before it; value: `next`), `participants` (value: `drivers`),
    /// `info` (value: how the session stands), `sessions` (value: `items`, each as in `info`, and `next_cursor`), `meta` (value: the
    /// service's words), `updated`, `closed`.
    finished = 15 { outcome: Text, value: Json }
    /// The operation is over with an error. `code` is the error's number as a signed 32-bit word.
    failed = 16 { code: Word, kind: Text, message: Text, retry: Text, details: Json }

    /// Find the addresses of `host`, then call `resolved`.
    resolve = 64 { req: Number, host: Text }
    /// Connect to `address`, with TLS when `server_name` is there, then call `connected`.
    connect = 65 { conn: Number, address: Text, port: Word, server_name: Text }
    /// Start TLS on an open connection, then call `tls_started`.
    start_tls = 66 { conn: Number, server_name: Text }
    /// Write these bytes after all earlier ones, then call `written`.
    write = 67 { conn: Number, bytes: Bytes }
    /// Read nothing more for now.
    pause_read = 68 { conn: Number }
    /// Read again.
    resume_read = 69 { conn: Number }
    /// Close, or give up connecting; at once and with unsent bytes when `abort` is 1.
    close = 70 { conn: Number, abort: Word }
    /// Call `timeout` at this time; absent: never. The latest one counts.
    timer = 71 { at: Number }
    /// Whether work is going on that should keep the process alive.
    busy = 72 { busy: Word }
    /// Steps of `op` wait.
    ready = 73 { op: Number }

    /// A line for the application's log. `level`: 0 debug, 1 info, 2 warning.
    log = 96 { level: Word, message: Text }
    /// This many log records were dropped, because nobody took them.
    log_dropped = 97 { count: Number }
}

/// The kind of this number.
#[must_use]
pub fn kind(number: u32) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.number == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_unique_and_ascending() {
        assert!(KINDS.windows(2).all(|pair| pair[0].number < pair[1].number));
    }

    #[test]
    fn fields_follow_each_other_without_a_gap() {
        for kind in KINDS {
            let mut at = HEAD_WORDS;
            for field in kind.fields {
                assert_eq!(field.at, at, "{}.{}", kind.name, field.name);
                at += field.field_type.words();
            }
            assert_eq!(kind.words, at, "{}", kind.name);
        }
        assert_eq!((event::id, event::raw, delta::text), (2, 14, 5));
    }
}
