//! The store in a file: SQLite in the process.
//!
//! One thread writes. It runs everything that waits as one transaction with a savepoint for each verb,
//! commits once (one fsync), and only then answers: that is what makes many sessions fast and keeps
//! "acknowledged" equal to "on disk". Reads go to a small pool of read-only connections.

mod approvals;
mod credentials;
mod events;
mod fault;
mod gates;
mod limits;
mod list;
mod messages;
mod overviews;
mod place;
mod profiles;
mod readers;
mod schema;
mod sessions;
mod uses;
mod writer;

use super::directory::{ClientKeyRecord, ListPlace, Listed, NewAdminKey, ProfileRecord, Rotation};
use super::event::{LoggedMessage, NewEvent, Page, PageLimit, Seq, Stored, WallTime};
use super::message::{KnownMessage, MessageNote};
use super::session::{
    ClientKey, Closing, Counters, Epoch, Join, Lease, LoggedApproval, MetadataChange, NewClientKey,
    NewSession, OpenApproval, Overview, OverviewPage, Parked, Pause, Profile, Registration,
    Session, SessionState, ToolLists,
};
use super::{Answer, Store, StoreError};
use crate::keys::KeyHash;
use broca_proto::run::quota::KeyLimits;
use readers::Readers;
use rusqlite::Connection;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use uses::{Credential, Uses};
use writer::Writer;

/// Where the database is and how it is used.
#[derive(Debug, Clone)]
pub struct SqliteSettings {
    /// The file. It is made (mode 0600) when it is missing; its folder must exist.
    pub path: PathBuf,
    /// Connections that read at the same time. Default 4.
    pub readers: usize,
    /// Verbs that may wait for the writer before further ones wait outside. Default 4096.
    pub queue: usize,
    /// Verbs that one commit may cover. Default 1024.
    pub group: usize,
    /// How long a lock held by another program is waited for. Default 10 s.
    pub busy_timeout: Duration,
    /// The most bytes that the database file may have. Default: what the disk has.
    pub max_bytes: Option<u64>,
    /// How exact the last use of a key is kept. Default one minute.
    pub last_use_resolution: Duration,
}

impl SqliteSettings {
    /// The defaults for this file.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            readers: 4,
            queue: 4096,
            group: 1024,
            busy_timeout: Duration::from_secs(10),
            max_bytes: None,
            last_use_resolution: Duration::from_secs(60),
        }
    }
}

/// The [`Store`] in one SQLite file. Reads need a tokio runtime.
///
/// Dropping it ends the writer after what it was given is on disk.
pub struct SqliteStore {
    // Fields are dropped in this order: the writer closes after the readers, because only who can write empties
    // the write-ahead log into the file, and the lock is given back last.
    readers: Readers,
    writer: Writer,
    uses: Arc<Uses>,
    path: PathBuf,
    _lock: File,
}

impl SqliteStore {
    /// Opens the file, makes it if it is missing, and brings its schema up to date.
    ///
    /// Turns that merely held their gate when the service ended are gone: their gates are free.
    /// Blocks on the disk; call it before serving.
    ///
    /// # Errors
    /// [`StoreError::CannotOpen`], [`StoreError::Foreign`], [`StoreError::Newer`],
    /// [`StoreError::InUse`], [`StoreError::ReadOnly`] or [`StoreError::Full`].
    pub fn open(settings: &SqliteSettings) -> Result<Self, StoreError> {
        let path = &settings.path;
        schema::inspect(path)?;
        let lock = schema::lock(path)?;
        let connection = schema::open(settings)?;
        gates::free_held(&connection)?;
        let uses = Arc::new(Uses::new(settings.last_use_resolution));
        let readers = (0..settings.readers.max(1))
            .map(|_| schema::open_reader(settings))
            .collect::<Result<Vec<_>, _>>()?;
        let writer = Writer::start(connection, settings, Arc::clone(&uses))?;
        Ok(Self { writer, readers: Readers::new(readers), uses, path: path.clone(), _lock: lock })
    }

    /// The database file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn write<T: Send + 'static>(
        &self,
        verb: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Answer<'_, T> {
        Box::pin(self.writer.run(verb))
    }

    fn read<T: Send + 'static>(
        &self,
        verb: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Answer<'_, T> {
        Box::pin(self.readers.run(verb))
    }
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Store for SqliteStore {
    fn put_profile(&self, profile: Profile, now: WallTime) -> Answer<'_, ()> {
        self.write(move |db| profiles::put(db, &profile, now))
    }

    fn replace_profile(&self, profile: Profile, now: WallTime) -> Answer<'_, ProfileRecord> {
        self.write(move |db| profiles::replace(db, &profile, now))
    }

    fn delete_profile(&self, id: &str, now: WallTime) -> Answer<'_, ()> {
        let id = id.to_owned();
        self.write(move |db| profiles::delete(db, &id, now))
    }

    fn profiles(&self, after: ListPlace, limit: u32) -> Answer<'_, Listed<ProfileRecord>> {
        self.read(move |db| profiles::listed(db, after, limit))
    }

    fn profile_record(&self, id: &str) -> Answer<'_, Option<ProfileRecord>> {
        let id = id.to_owned();
        self.read(move |db| profiles::record(db, &id))
    }

    fn profile(&self, id: &str) -> Answer<'_, Option<Profile>> {
        let id = id.to_owned();
        self.read(move |db| profiles::by_id(db, &id))
    }

    fn profile_named(&self, name: &str) -> Answer<'_, Option<Profile>> {
        let name = name.to_owned();
        self.read(move |db| profiles::by_name(db, &name))
    }

    fn add_client_key(&self, key: NewClientKey, now: WallTime) -> Answer<'_, ()> {
        self.write(move |db| credentials::add_client_key(db, &key, now))
    }

    fn client_keys(&self, after: ListPlace, limit: u32) -> Answer<'_, Listed<ClientKeyRecord>> {
        self.read(move |db| credentials::listed(db, after, limit))
    }

    fn client_key_record(&self, id: &str) -> Answer<'_, Option<ClientKeyRecord>> {
        let id = id.to_owned();
        self.read(move |db| credentials::record(db, &id))
    }

    fn rotate_client_key(&self, rotation: Rotation, now: WallTime) -> Answer<'_, ClientKeyRecord> {
        self.write(move |db| credentials::rotate(db, &rotation, now))
    }

    fn change_client_key(
        &self,
        id: &str,
        name: &str,
        limits: KeyLimits,
    ) -> Answer<'_, ClientKeyRecord> {
        let (id, name) = (id.to_owned(), name.to_owned());
        self.write(move |db| credentials::change(db, &id, &name, &limits))
    }

    fn key_limits(&self) -> Answer<'_, Vec<(String, KeyLimits)>> {
        self.read(limits::all)
    }

    fn open_sessions_of(&self, client_key_id: &str) -> Answer<'_, u64> {
        let key = client_key_id.to_owned();
        self.read(move |db| limits::open_sessions(db, &key))
    }

    fn tokens_of(&self, client_key_id: &str, day: u64) -> Answer<'_, u64> {
        let key = client_key_id.to_owned();
        self.read(move |db| limits::tokens(db, &key, day))
    }

    fn count_tokens(&self, client_key_id: &str, day: u64, tokens: u64) -> Answer<'_, ()> {
        let key = client_key_id.to_owned();
        self.write(move |db| limits::count(db, &key, day, tokens))
    }

    fn revoke_client_key(&self, id: &str, now: WallTime) -> Answer<'_, Vec<String>> {
        let id = id.to_owned();
        self.write(move |db| credentials::revoke(db, &id, now))
    }

    fn abandoned_sessions(&self) -> Answer<'_, Vec<String>> {
        self.read(credentials::abandoned)
    }

    fn close_abandoned(
        &self,
        session: &str,
        events: Vec<NewEvent>,
        now: WallTime,
    ) -> Answer<'_, Closing> {
        let session = session.to_owned();
        self.write(move |db| sessions::close_abandoned(db, &session, events, now))
    }

    fn has_admin_key(&self) -> Answer<'_, bool> {
        self.read(credentials::has_admin_key)
    }

    fn put_admin_key(&self, key: NewAdminKey, now: WallTime) -> Answer<'_, ()> {
        self.write(move |db| credentials::put_admin_key(db, &key, now))
    }

    fn admin_key(&self, hash: KeyHash) -> Answer<'_, Option<String>> {
        self.read(move |db| credentials::admin_key(db, &hash))
    }

    fn client_key(&self, hash: KeyHash, now: WallTime) -> Answer<'_, Option<ClientKey>> {
        let uses = Arc::clone(&self.uses);
        self.read(move |db| {
            let found = credentials::client_key(db, &hash, now)?;
            Ok(found.map(|(number, key)| {
                uses.note(Credential::Client(number), now);
                key
            }))
        })
    }

    fn session_key(
        &self,
        session: &str,
        hash: KeyHash,
        now: WallTime,
    ) -> Answer<'_, Option<String>> {
        let (session, uses) = (session.to_owned(), Arc::clone(&self.uses));
        self.read(move |db| {
            let found = credentials::session_key(db, &session, &hash)?;
            Ok(found.map(|(number, client_key_id)| {
                uses.note(Credential::Session(number), now);
                client_key_id
            }))
        })
    }

    fn open_session(
        &self,
        session: NewSession,
        tools: ToolLists,
        session_key: KeyHash,
        event: NewEvent,
        now: WallTime,
    ) -> Answer<'_, Stored> {
        self.write(move |db| sessions::open(db, &session, &tools, &session_key, event, now))
    }

    fn record_refused_open(
        &self,
        session: NewSession,
        event: NewEvent,
        now: WallTime,
    ) -> Answer<'_, Stored> {
        self.write(move |db| sessions::record_refused(db, &session, event, now))
    }

    fn join(&self, join: Join, now: WallTime) -> Answer<'_, Stored> {
        self.write(move |db| sessions::join(db, join, now))
    }

    fn sessions(
        &self,
        state: Option<SessionState>,
        after: ListPlace,
        limit: u32,
    ) -> Answer<'_, Listed<Session>> {
        self.read(move |db| sessions::listed(db, state, after, limit))
    }

    fn session(&self, id: &str) -> Answer<'_, Option<Session>> {
        let id = id.to_owned();
        self.read(move |db| sessions::find(db, &id))
    }

    fn overview(&self, id: &str) -> Answer<'_, Option<Overview>> {
        let id = id.to_owned();
        self.read(move |db| overviews::find(db, &id))
    }

    fn sessions_of(
        &self,
        client_key_id: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Answer<'_, OverviewPage> {
        let (key, after) = (client_key_id.to_owned(), after.map(str::to_owned));
        self.read(move |db| overviews::of_client(db, &key, after.as_deref(), limit))
    }

    fn change_metadata(
        &self,
        session: &str,
        was: u64,
        metadata: String,
        event: NewEvent,
        now: WallTime,
    ) -> Answer<'_, MetadataChange> {
        let session = session.to_owned();
        self.write(move |db| overviews::change_metadata(db, &session, was, &metadata, event, now))
    }

    fn close(
        &self,
        session: &str,
        lease: Option<Epoch>,
        to: SessionState,
        events: Vec<NewEvent>,
        note: Option<MessageNote>,
        now: WallTime,
    ) -> Answer<'_, Closing> {
        let session = session.to_owned();
        self.write(move |db| sessions::close(db, &session, lease, to, events, note.as_ref(), now))
    }

    fn tools(&self, session: &str, client_key_id: &str) -> Answer<'_, Option<ToolLists>> {
        let (session, key) = (session.to_owned(), client_key_id.to_owned());
        self.read(move |db| sessions::tools(db, &session, &key))
    }

    fn replace_tools(&self, session: &str, client_key_id: &str, tools: String) -> Answer<'_, ()> {
        let (session, key) = (session.to_owned(), client_key_id.to_owned());
        self.write(move |db| sessions::replace_tools(db, &session, &key, &tools))
    }

    fn register_driver(
        &self,
        session: &str,
        client_key_id: &str,
        events: Vec<NewEvent>,
        now: WallTime,
    ) -> Answer<'_, Registration> {
        let (session, key) = (session.to_owned(), client_key_id.to_owned());
        self.write(move |db| sessions::register_driver(db, &session, &key, events, now))
    }

    fn drivers(&self, session: &str) -> Answer<'_, Vec<String>> {
        let session = session.to_owned();
        self.read(move |db| sessions::drivers(db, &session))
    }

    fn append(
        &self,
        session: &str,
        lease: Option<Epoch>,
        events: Vec<NewEvent>,
        now: WallTime,
    ) -> Answer<'_, Vec<Stored>> {
        let session = session.to_owned();
        self.write(move |db| {
            let row = match lease {
                None => sessions::row(db, &session)?,
                Some(lease) => gates::holder(db, &session, lease)?,
            };
            events::append(db, row.number, events, now)
        })
    }

    fn page(&self, session: &str, after: Seq, limit: PageLimit) -> Answer<'_, Page> {
        let session = session.to_owned();
        self.read(move |db| events::page(db, &session, after, limit))
    }

    fn position_of(&self, session: &str, event_id: &str) -> Answer<'_, Option<Seq>> {
        let (session, id) = (session.to_owned(), event_id.to_owned());
        self.read(move |db| events::position_of(db, &session, &id))
    }

    fn last_position(&self, session: &str) -> Answer<'_, Seq> {
        let session = session.to_owned();
        self.read(move |db| events::last(db, sessions::row(db, &session)?.number))
    }

    fn messages(&self, session: &str, from: Seq, up_to: Seq) -> Answer<'_, Vec<LoggedMessage>> {
        let session = session.to_owned();
        self.read(move |db| events::messages(db, sessions::row(db, &session)?.number, from, up_to))
    }

    fn approval(&self, session: &str, call: &str) -> Answer<'_, Option<LoggedApproval>> {
        let (session, call) = (session.to_owned(), call.to_owned());
        self.read(move |db| approvals::find(db, &session, &call))
    }

    fn open_approvals(&self) -> Answer<'_, Vec<OpenApproval>> {
        self.read(approvals::open)
    }

    fn note_message(&self, session: &str, note: MessageNote) -> Answer<'_, ()> {
        let session = session.to_owned();
        self.write(move |db| {
            messages::note(db, sessions::row(db, &session)?.number, &note, None, &[])
        })
    }

    fn known_message(
        &self,
        session: &str,
        sender: &str,
        message: &str,
    ) -> Answer<'_, Option<KnownMessage>> {
        let (session, sender) = (session.to_owned(), sender.to_owned());
        let message = message.to_owned();
        self.read(move |db| messages::find(db, &session, &sender, &message))
    }

    fn claim_gate(
        &self,
        session: &str,
        owner: &str,
        events: Vec<NewEvent>,
        note: Option<MessageNote>,
        now: WallTime,
    ) -> Answer<'_, Lease> {
        let (session, owner) = (session.to_owned(), owner.to_owned());
        self.write(move |db| gates::claim(db, &session, &owner, events, note.as_ref(), now))
    }

    fn park(
        &self,
        session: &str,
        lease: Epoch,
        pause: Pause,
        events: Vec<NewEvent>,
        note: Option<MessageNote>,
        now: WallTime,
    ) -> Answer<'_, Vec<Stored>> {
        let session = session.to_owned();
        self.write(move |db| gates::park(db, &session, lease, &pause, events, note.as_ref(), now))
    }

    fn pause(&self, session: &str) -> Answer<'_, Option<Parked>> {
        let session = session.to_owned();
        self.read(move |db| gates::pause(db, &session))
    }

    fn resume(
        &self,
        session: &str,
        owner: &str,
        parked: Epoch,
        events: Vec<NewEvent>,
        note: Option<MessageNote>,
        now: WallTime,
    ) -> Answer<'_, Lease> {
        let (session, owner) = (session.to_owned(), owner.to_owned());
        self.write(move |db| {
            gates::unpark(
                db,
                &session,
                gates::By::Owner(&owner),
                parked,
                events,
                note.as_ref(),
                now,
            )
        })
    }

    fn hold(&self, session: &str, owner: &str, deadline: WallTime) -> Answer<'_, ()> {
        let (session, owner) = (session.to_owned(), owner.to_owned());
        self.write(move |db| gates::prolong(db, &session, &owner, deadline))
    }

    fn take_over(
        &self,
        session: &str,
        new_owner: &str,
        parked: Epoch,
        events: Vec<NewEvent>,
        note: Option<MessageNote>,
        now: WallTime,
    ) -> Answer<'_, Lease> {
        let (session, owner) = (session.to_owned(), new_owner.to_owned());
        self.write(move |db| {
            gates::unpark(
                db,
                &session,
                gates::By::Anyone(&owner),
                parked,
                events,
                note.as_ref(),
                now,
            )
        })
    }

    fn release_gate(
        &self,
        session: &str,
        lease: Epoch,
        events: Vec<NewEvent>,
        note: Option<MessageNote>,
        now: WallTime,
    ) -> Answer<'_, Vec<Stored>> {
        let session = session.to_owned();
        self.write(move |db| gates::release(db, &session, lease, events, note.as_ref(), now))
    }

    fn all_pauses(&self) -> Answer<'_, Vec<Parked>> {
        self.read(gates::all_pauses)
    }

    fn probe(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            self.read(schema::alive).await?;
            self.write(schema::alive).await
        })
    }

    fn counters(&self) -> Answer<'_, Counters> {
        self.read(events::counters)
    }
}

#[cfg(test)]
mod tests;
