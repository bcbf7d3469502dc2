//! Tool calls put together from their pieces, tolerant as provider streams §2 says.

use super::super::unit::{InvalidCall, InvalidReason, ToolCall};
use crate::Json;

/// The calls of one answer while they arrive.
#[derive(Debug, Default)]
pub(super) struct Calls {
    calls: Vec<OpenCall>,
}

/// One piece of a call.
#[derive(Debug, Default)]
pub(super) struct Piece<'a> {
    pub(super) index: Option<u64>,
    pub(super) id: &'a str,
    pub(super) name: &'a str,
    pub(super) arguments: &'a str,
}

/// Where a piece went.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) call: usize,
    /// One of the tolerance rules 2 to 4 was needed.
    pub(super) loose: bool,
}

#[derive(Debug, Default)]
struct OpenCall {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
    nesting: Nesting,
}

/// Follows brackets and strings, so that "is this object closed?" costs nothing.
#[derive(Debug, Default)]
struct Nesting {
    depth: u32,
    started: bool,
    in_string: bool,
    escaped: bool,
}

impl Calls {
    /// Adds a piece to the call it belongs to, opening one where needed.
    pub(super) fn add(&mut self, piece: &Piece<'_>) -> Placed {
        let (call, mut loose) = match self.find(piece) {
            (Some(call), loose) => (call, loose),
            (None, loose) => {
                let index = piece.index;
                self.calls.push(OpenCall { index, id: piece.id.to_owned(), ..OpenCall::default() });
                (self.calls.len() - 1, loose)
            }
        };
        if let Some(open) = self.calls.get_mut(call) {
            loose |= open.add(piece);
        }
        Placed { call, loose }
    }

    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }

    /// The id and name of a call as far as they are known.
    pub(super) fn known(&self, call: usize) -> (Option<String>, Option<String>) {
        let text = |text: &String| (!text.is_empty()).then(|| text.clone());
        self.calls.get(call).map_or((None, None), |open| (text(&open.id), text(&open.name)))
    }

    /// The calls that may run, those that may not, and how many ids had to be made from `answer_id`.
    pub(super) fn finish(self, answer_id: Option<&str>) -> (Vec<ToolCall>, Vec<InvalidCall>, u64) {
        let mut whole = Vec::new();
        let mut invalid = Vec::new();
        let mut made = 0;
        for (i, open) in self.calls.into_iter().enumerate() {
            let id = if open.id.is_empty() {
                made += 1;
                answer_id.map_or_else(|| format!("call_{i}"), |answer| format!("{answer}_call_{i}"))
            } else {
                open.id
            };
            let name = open.name;
            let blank = open.arguments.trim().is_empty();
            let input = if blank { Ok(Json::empty_object()) } else { Json::parse(open.arguments) };
            let reason = match input {
                _ if name.is_empty() => InvalidReason::NoName,
                Ok(input) if input.is_object() => {
                    whole.push(ToolCall { id, name, input });
                    continue;
                }
                Err(_) if open.nesting.is_open() => InvalidReason::Truncated,
                _ => InvalidReason::NotAnObject,
            };
            invalid.push(InvalidCall { id, name, reason });
        }
        (whole, invalid, made)
    }

    /// The call a piece belongs to, or none when it opens one; and whether that needed a loose rule.
    fn find(&self, piece: &Piece<'_>) -> (Option<usize>, bool) {
        let newest = |test: &dyn Fn(&OpenCall) -> bool| self.calls.iter().rposition(test);
        let (found, loose) = match (piece.index, piece.id) {
            (Some(index), "") => (newest(&|c| c.index == Some(index)), false),
            (Some(index), id) => match newest(&|c| c.index == Some(index)) {
                Some(at) if self.calls[at].id.is_empty() || self.calls[at].id == id => {
                    (Some(at), false)
                }
                // Parallel calls that all carry the same index are told apart by their ids.
                Some(_) => (newest(&|c| c.index == Some(index) && c.id == id), true),
                None => (newest(&|c| c.index.is_none() && c.id == id), false),
            },
            (None, "") => (self.calls.len().checked_sub(1), true),
            (None, id) => (newest(&|c| c.id == id), true),
        };
        // A named piece that would be glued to a closed object can only be the next call of a
        // server that sends neither ids nor useful indices.
        let next = |at: usize| {
            piece.id.is_empty()
                && !piece.name.is_empty()
                && !piece.arguments.trim().is_empty()
                && self.calls[at].nesting.is_closed()
        };
        match found {
            Some(at) if next(at) => (None, true),
            found => (found, loose),
        }
    }
}

impl OpenCall {
    /// Takes what the piece brings; true when the name was repeated.
    fn add(&mut self, piece: &Piece<'_>) -> bool {
        if self.id.is_empty() {
            piece.id.clone_into(&mut self.id);
        }
        if self.index.is_none() {
            self.index = piece.index;
        }
        let mut repeated = false;
        if self.name.is_empty() {
            piece.name.clone_into(&mut self.name);
        } else if !piece.name.is_empty() {
            repeated = true;
            // A name in pieces: either the next piece or everything so far, before any argument.
            if piece.name != self.name && self.arguments.is_empty() {
                if piece.name.starts_with(&self.name) {
                    piece.name.clone_into(&mut self.name);
                } else {
                    self.name.push_str(piece.name);
                }
            }
        }
        self.arguments.push_str(piece.arguments);
        self.nesting.follow(piece.arguments);
        repeated
    }
}

impl Nesting {
    fn follow(&mut self, text: &str) {
        for byte in text.bytes() {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => {
                    self.in_string = !self.in_string;
                    self.started = true;
                }
                _ if self.in_string => {}
                b'{' | b'[' => {
                    self.depth = self.depth.saturating_add(1);
                    self.started = true;
                }
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
    }

    fn is_closed(&self) -> bool {
        self.started && !self.is_open()
    }

    fn is_open(&self) -> bool {
        self.depth > 0 || self.in_string
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Raw = (Option<u64>, &'static str, &'static str, &'static str);

    fn assemble(pieces: &[Raw]) -> (Vec<(String, String, String)>, Vec<InvalidReason>, bool) {
        let mut calls = Calls::default();
        let mut loose = false;
        for &(index, id, name, arguments) in pieces {
            loose |= calls.add(&Piece { index, id, name, arguments }).loose;
        }
        let (whole, invalid, _) = calls.finish(Some("ans"));
        let whole =
            whole.into_iter().map(|c| (c.id, c.name, c.input.as_str().to_owned())).collect();
        (whole, invalid.into_iter().map(|c| c.reason).collect(), loose)
    }

    fn call(id: &str, name: &str, input: &str) -> (String, String, String) {
        (id.to_owned(), name.to_owned(), input.to_owned())
    }

    #[test]
    fn interleaved_pieces_are_told_apart_by_their_index() {
        let (calls, invalid, loose) = assemble(&[
            (Some(0), "a", "read", ""),
            (Some(1), "b", "write", ""),
            (Some(1), "", "", "{\"y\":"),
            (Some(0), "", "", "{\"x\":9007199254740993}"),
            (Some(1), "", "", "2.50}"),
        ]);
        assert_eq!(
            calls,
            [call("a", "read", "{\"x\":9007199254740993}"), call("b", "write", "{\"y\":2.50}")]
        );
        assert!(invalid.is_empty() && !loose);
    }

    #[test]
    fn another_id_under_the_same_index_is_another_call() {
        let (calls, _, loose) = assemble(&[
            (Some(0), "a", "read", "{}"),
            (Some(0), "b", "read", "{\"n\":"),
            (Some(0), "a", "", " "),
            (Some(0), "b", "", "1}"),
        ]);
        assert_eq!(calls, [call("a", "read", "{}"), call("b", "read", "{\"n\":1}")]);
        assert!(loose);
    }

    #[test]
    fn without_index_an_id_opens_a_call_and_a_bare_piece_goes_to_the_last_one() {
        let (calls, _, loose) = assemble(&[
            (None, "a", "read", "{\"p\""),
            (None, "", "", ":1}"),
            (None, "b", "read", ""),
            (None, "", "", "{\"p\":2}"),
        ]);
        assert_eq!(calls, [call("a", "read", "{\"p\":1}"), call("b", "read", "{\"p\":2}")]);
        assert!(loose);
    }

    #[test]
    fn a_repeated_name_is_not_appended() {
        let (calls, _, loose) = assemble(&[
            (Some(0), "a", "read", "{"),
            (Some(0), "a", "read", "}"),
            (Some(0), "", "read", ""),
        ]);
        assert_eq!(calls, [call("a", "read", "{}")]);
        assert!(loose);
    }

    #[test]
    fn calls_without_any_id_or_index_stay_apart_when_each_comes_whole() {
        let (calls, _, loose) =
            assemble(&[(None, "", "read", "{}"), (None, "", "read", "{\"a\":\"}\"}")]);
        assert_eq!(
            calls,
            [call("ans_call_0", "read", "{}"), call("ans_call_1", "read", "{\"a\":\"}\"}")]
        );
        assert!(loose);
    }

    #[test]
    fn no_arguments_mean_an_empty_object() {
        assert_eq!(
            assemble(&[(Some(0), "a", "now", ""), (Some(0), "", "", " ")]).0,
            [call("a", "now", "{}")]
        );
    }

    #[test]
    fn arguments_that_are_not_one_object_never_become_a_call() {
        for (arguments, reason) in [
            ("{\"a\": 1", InvalidReason::Truncated),
            ("{\"a\": \"x", InvalidReason::Truncated),
            ("[1]", InvalidReason::NotAnObject),
            ("{}{}", InvalidReason::NotAnObject),
            ("null", InvalidReason::NotAnObject),
        ] {
            let (calls, invalid, _) = assemble(&[(Some(0), "a", "pay", arguments)]);
            assert!(calls.is_empty(), "{arguments}");
            assert_eq!(invalid, [reason], "{arguments}");
        }
        assert_eq!(assemble(&[(Some(0), "a", "", "{}")]).1, [InvalidReason::NoName]);
    }
}
