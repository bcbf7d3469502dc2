//! Errors for every language: the rows of the one table, and an error as a record.
//!
//! A binding makes one class of each row, below the class of its parent, and raises by number. Both
//! come from here, so no language can know a row that another does not.

use crate::batch::Batch;
use crate::layout::failed;
use broca_proto::{Error, ErrorKind, Json};
use std::any::Any;

/// A row of the table of errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The number that never changes; negative.
    pub code: i32,
    /// The kind as a word.
    pub kind: &'static str,
    /// The name of the class.
    pub class: &'static str,
    /// The number of the row this one is a special case of.
    pub parent: Option<i32>,
    /// `safe`, `unsafe` or `unknown`, when nothing more is known.
    pub retry: &'static str,
}

/// Every row, in the order of the table.
pub fn table() -> impl Iterator<Item = Row> {
    ErrorKind::ALL.iter().map(|kind| Row {
        code: kind.code(),
        kind: kind.as_str(),
        class: kind.class(),
        parent: kind.parent().map(ErrorKind::code),
        retry: kind.retry().as_str(),
    })
}

/// Adds an error as the record that ends an operation. Bindings also use it to hand over the error of a call.
pub fn push_failed(batch: &mut Batch, error: &Error) {
    batch.begin(&failed::KIND);
    batch.push_word(error.code().cast_unsigned());
    batch.push_text(Some(error.kind().as_str()));
    batch.push_text(Some(error.message()));
    batch.push_text(Some(error.retry().as_str()));
    match error.details().map(Json::as_bytes) {
        Some(details) => batch.push_bytes(details),
        None => batch.push_text(None),
    }
}

/// What a caught panic is to the application. A text that was made while it ran may hold payload, so only a fixed one is shown.
#[must_use]
pub fn of_panic(payload: &(dyn Any + Send)) -> Error {
    let what = payload.downcast_ref::<&str>().copied().unwrap_or("its text is on the error stream");
    let message = format!(
        "a fault of this library was caught ({what}); what it was working on is unusable: make a new client, and please report it"
    );
    Error::new(ErrorKind::Panic, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::failed;

    #[test]
    fn an_error_becomes_a_record_with_all_it_says() {
        let mut batch = Batch::new();
        let details = Json::parse(r#"{"status":401}"#).unwrap();
        push_failed(&mut batch, &Error::new(ErrorKind::Unauthorized, "no").with_details(details));
        let record = batch.records().next().unwrap();
        assert_eq!(record.word(failed::code).cast_signed(), -301);
        assert_eq!(record.text(failed::kind), Some("unauthorized"));
        assert_eq!(record.text(failed::message), Some("no"));
        assert_eq!(record.text(failed::retry), Some("unsafe"));
        assert_eq!(record.text(failed::details), Some(r#"{"status":401}"#));
    }

    #[test]
    fn every_row_has_its_parent_in_the_table() {
        let codes: Vec<i32> = table().map(|row| row.code).collect();
        assert_eq!(codes.len(), ErrorKind::ALL.len());
        assert!(table().filter_map(|row| row.parent).all(|parent| codes.contains(&parent)));
    }

    #[test]
    fn a_panic_with_a_made_up_text_does_not_repeat_it() {
        let payload: Box<dyn Any + Send> = Box::new("hunter2".to_owned());
        assert!(!of_panic(&*payload).message().contains("hunter2"));
        let payload: Box<dyn Any + Send> = Box::new("index out of order");
        assert!(of_panic(&*payload).message().contains("index out of order"));
    }
}
