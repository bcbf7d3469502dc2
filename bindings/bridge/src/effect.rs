//! Effects and log records as records.

use crate::batch::Batch;
use crate::layout::{
    busy, close, connect, log, log_dropped, pause_read, ready, resolve, resume_read, start_tls,
    timer, write,
};
use broca::engine::{Effect, LogLevel, LogRecord, Tls};
use broca_proto::Time;

impl Batch {
    /// Adds an effect.
    pub(crate) fn push_effect(&mut self, effect: &Effect) {
        match effect {
            Effect::Resolve { req, host } => {
                self.begin(&resolve::KIND);
                self.push_number(Some(req.0));
                self.push_text(Some(host));
            }
            Effect::Connect { conn, addr, tls } => {
                self.begin(&connect::KIND);
                self.push_number(Some(conn.0));
                self.push_text(Some(&addr.ip().to_string()));
                self.push_word(u32::from(addr.port()));
                self.push_text(tls.as_ref().map(|Tls { server_name }| server_name.as_str()));
            }
            Effect::StartTls { conn, tls } => {
                self.begin(&start_tls::KIND);
                self.push_number(Some(conn.0));
                self.push_text(Some(&tls.server_name));
            }
            Effect::Write { conn, bytes } => {
                self.begin(&write::KIND);
                self.push_number(Some(conn.0));
                self.push_bytes(bytes);
            }
            Effect::PauseRead { conn } => {
                self.begin(&pause_read::KIND);
                self.push_number(Some(conn.0));
            }
            Effect::ResumeRead { conn } => {
                self.begin(&resume_read::KIND);
                self.push_number(Some(conn.0));
            }
            Effect::Close { conn, abort } => {
                self.begin(&close::KIND);
                self.push_number(Some(conn.0));
                self.push_word(u32::from(*abort));
            }
            Effect::Timer { at } => {
                self.begin(&timer::KIND);
                self.push_number(at.map(Time::as_millis));
            }
            Effect::Busy(working) => {
                self.begin(&busy::KIND);
                self.push_word(u32::from(*working));
            }
            Effect::Ready { op } => {
                self.begin(&ready::KIND);
                self.push_number(Some(op.0));
            }
            Effect::Log(record) => self.push_log(record),
        }
    }

    pub(crate) fn push_log(&mut self, record: &LogRecord) {
        self.begin(&log::KIND);
        self.push_word(match record.level {
            LogLevel::Debug => 0,
            LogLevel::Info => 1,
            _ => 2,
        });
        self.push_text(Some(&record.message));
    }

    pub(crate) fn push_dropped(&mut self, count: u64) {
        self.begin(&log_dropped::KIND);
        self.push_number(Some(count));
    }
}
