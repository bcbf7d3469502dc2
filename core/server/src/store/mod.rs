//! What the service remembers: a trait of domain verbs, and the store that is inside by default.
//!
//! [`Store`] speaks of sessions, events, gates and pauses, never of rows, so that another database can
//! stand behind it. [`SqliteStore`] is a file in the process.
//!
//! Three rules hold for every verb. **A verb that answered is on disk**, all of it; one that failed
//! changed nothing. **The events of a session are numbered by the store** without gaps. **A turn writes
//! under its lease**: the gate's [`Epoch`] grows each time that the gate changes hands, and what comes
//! with an older one is refused ([`StoreError::LeaseLost`]).
//!
//! Verbs take the time as an argument. A future that is dropped leaves it open whether its verb happened.

mod directory;
mod error;
mod event;
mod message;
mod session;
mod sqlite;

pub use directory::{ClientKeyRecord, ListPlace, Listed, NewAdminKey, ProfileRecord, Rotation};
pub use error::StoreError;
pub use event::{Elided, Event, LoggedMessage, NewEvent, Page, PageLimit, Seq, Stored, WallTime};
pub use message::{KnownMessage, MessageAnswer, MessageNote, MessageOutcome, NamedMessage};
pub use session::{
    ClientKey, Closing, Counters, Epoch, Join, Lease, LoggedApproval, MetadataChange, NewClientKey,
    NewSession, OpenApproval, Overview, OverviewPage, Parked, Pause, Profile, Registration,
    Session, SessionState, ToolLists,
};
pub use sqlite::{SqliteSettings, SqliteStore};

use crate::keys::KeyHash;
use broca_proto::run::quota::KeyLimits;
use futures_core::future::BoxFuture;

/// The answer of a verb, once it is on disk or read.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// Everything that the service asks of its memory.
pub trait Store: Send + Sync {
    // Profiles and keys.

    /// Records a profile, or replaces the one with its id.
    ///
    /// # Errors
    /// [`StoreError::NameTaken`] when another profile, even a deleted one, has the name.
    fn put_profile(&self, profile: Profile, now: WallTime) -> Answer<'_, ()>;

    /// Replaces everything that a profile says.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] when there is none with its id or it was deleted, [`StoreError::NameTaken`] as above.
    fn replace_profile(&self, profile: Profile, now: WallTime) -> Answer<'_, ProfileRecord>;

    /// Deletes a profile. Its name stays taken, and the sessions that were opened with it stay.
    ///
    /// # Errors
    /// [`StoreError::Unknown`], [`StoreError::ProfileInUse`].
    fn delete_profile(&self, id: &str, now: WallTime) -> Answer<'_, ()>;

    /// The profiles that were not deleted.
    fn profiles(&self, after: ListPlace, limit: u32) -> Answer<'_, Listed<ProfileRecord>>;

    /// The profile with this id and its times, unless it was deleted.
    fn profile_record(&self, id: &str) -> Answer<'_, Option<ProfileRecord>>;

    /// The profile with this id, deleted ones included.
    fn profile(&self, id: &str) -> Answer<'_, Option<Profile>>;

    /// The profile with this name, deleted ones included.
    fn profile_named(&self, name: &str) -> Answer<'_, Option<Profile>>;

    /// Records a client key.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] when its profile does not exist or was deleted.
    fn add_client_key(&self, key: NewClientKey, now: WallTime) -> Answer<'_, ()>;

    /// The client keys that were not revoked.
    fn client_keys(&self, after: ListPlace, limit: u32) -> Answer<'_, Listed<ClientKeyRecord>>;

    /// The client key with this id, unless it was revoked.
    fn client_key_record(&self, id: &str) -> Answer<'_, Option<ClientKeyRecord>>;

    /// Gives a client key new plaintext. The old one stays good for a while; one that is older still ends now. It is the
    /// same client as before: its sessions, their keys and its drivers stay.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] when there is none or it was revoked.
    fn rotate_client_key(&self, rotation: Rotation, now: WallTime) -> Answer<'_, ClientKeyRecord>;

    /// Gives a client key another name and other limits.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] when there is none or it was revoked.
    fn change_client_key(
        &self,
        id: &str,
        name: &str,
        limits: KeyLimits,
    ) -> Answer<'_, ClientKeyRecord>;

    /// The client keys that are limited in something, with what they may use: their own limits before those of their
    /// profiles.
    fn key_limits(&self) -> Answer<'_, Vec<(String, KeyLimits)>>;

    /// How many sessions are open that this client key opened.
    fn open_sessions_of(&self, client_key_id: &str) -> Answer<'_, u64>;

    /// How many tokens were counted for this client key on this day; only the last day of each key is remembered.
    fn tokens_of(&self, client_key_id: &str, day: u64) -> Answer<'_, u64>;

    /// Counts tokens for this client key on this day.
    fn count_tokens(&self, client_key_id: &str, day: u64, tokens: u64) -> Answer<'_, ()>;

    /// Revokes a client key and every session key that was minted for it, together. Answers the open sessions in which no
    /// session key is left.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] when there is none or it was revoked before.
    fn revoke_client_key(&self, id: &str, now: WallTime) -> Answer<'_, Vec<String>>;

    /// The open sessions in which no session key is left: a service that ended between a revocation and the closes that
    /// follow it makes up for them.
    fn abandoned_sessions(&self) -> Answer<'_, Vec<String>>;

    /// Closes a session in which no session key is left, as [`Store::close`] does.
    ///
    /// # Errors
    /// [`StoreError::Unknown`].
    fn close_abandoned(
        &self,
        session: &str,
        events: Vec<NewEvent>,
        now: WallTime,
    ) -> Answer<'_, Closing>;

    /// Whether there is an admin key.
    fn has_admin_key(&self) -> Answer<'_, bool>;

    /// Puts an admin key in place of all that there are.
    fn put_admin_key(&self, key: NewAdminKey, now: WallTime) -> Answer<'_, ()>;

    /// The id of the admin key with this hash.
    fn admin_key(&self, hash: KeyHash) -> Answer<'_, Option<String>>;

    /// The client key with this hash, or with this hash before its rotation. Finding it stamps its last use, at the next commit there is.
    fn client_key(&self, hash: KeyHash, now: WallTime) -> Answer<'_, Option<ClientKey>>;

    /// The client key for which a session key with this hash was minted, if it belongs to this session.
    /// Finding it stamps its last use. Session keys outlive their session, so that it can be read.
    fn session_key(
        &self,
        session: &str,
        hash: KeyHash,
        now: WallTime,
    ) -> Answer<'_, Option<String>>;

    // Sessions.

    /// Records a session, its creator's tools and session key, and its first event, together.
    ///
    /// # Errors
    /// [`StoreError::Revoked`] when the creator was revoked meanwhile.
    fn open_session(
        &self,
        session: NewSession,
        tools: ToolLists,
        session_key: KeyHash,
        event: NewEvent,
        now: WallTime,
    ) -> Answer<'_, Stored>;

    /// Records a session that was refused, in state [`SessionState::Error`], and the event that says why.
    fn record_refused_open(
        &self,
        session: NewSession,
        event: NewEvent,
        now: WallTime,
    ) -> Answer<'_, Stored>;

    /// Records a join: tools replaced, session key added, event logged.
    ///
    /// # Errors
    /// [`StoreError::Unknown`], [`StoreError::NotOpen`]; [`StoreError::Revoked`] when who joins was revoked meanwhile.
    fn join(&self, join: Join, now: WallTime) -> Answer<'_, Stored>;

    /// The sessions, refused ones included; only those in this state if one is named.
    fn sessions(
        &self,
        state: Option<SessionState>,
        after: ListPlace,
        limit: u32,
    ) -> Answer<'_, Listed<Session>>;

    /// The session as it stands.
    fn session(&self, id: &str) -> Answer<'_, Option<Session>>;

    /// The session as it is told of.
    fn overview(&self, id: &str) -> Answer<'_, Option<Overview>>;

    /// The sessions in which this client key took part, newest first, after the one with this id.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] when `after` is none of them.
    fn sessions_of(
        &self,
        client_key_id: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Answer<'_, OverviewPage>;

    /// Replaces the metadata of a session (a JSON object as text) if it still has version `was`, and logs the event that
    /// says so.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] or [`StoreError::NotOpen`].
    fn change_metadata(
        &self,
        session: &str,
        was: u64,
        metadata: String,
        event: NewEvent,
        now: WallTime,
    ) -> Answer<'_, MetadataChange>;

    /// Ends a session and logs the events that say so, once. Gate and pause are cleared; a turn that ran
    /// can log no more. A close to `closed` clears the drivers too; a failure unregisters nobody.
    ///
    /// With a lease only the turn that holds the gate can do it. A note goes with the events.
    ///
    /// # Errors
    /// [`StoreError::Unknown`], [`StoreError::LeaseLost`]; [`StoreError::Internal`] for a close to `open`.
    fn close(
        &self,
        session: &str,
        lease: Option<Epoch>,
        to: SessionState,
        events: Vec<NewEvent>,
        note: Option<MessageNote>,
        now: WallTime,
    ) -> Answer<'_, Closing>;

    /// The tool lists that this client key declared.
    fn tools(&self, session: &str, client_key_id: &str) -> Answer<'_, Option<ToolLists>>;

    /// Replaces the client's own tools (a JSON array as text); its other lists stay.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] or [`StoreError::NotOpen`].
    fn replace_tools(&self, session: &str, client_key_id: &str, tools: String) -> Answer<'_, ()>;

    /// Makes a client key a driver; the first time, logs the events. Survives a restart.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] or [`StoreError::NotOpen`].
    fn register_driver(
        &self,
        session: &str,
        client_key_id: &str,
        events: Vec<NewEvent>,
        now: WallTime,
    ) -> Answer<'_, Registration>;

    /// The drivers of a session by id, sorted.
    fn drivers(&self, session: &str) -> Answer<'_, Vec<String>>;

    // The log.

    /// Logs events. Without a lease in any state of the session; with one only in an open session
    /// whose gate it still holds.
    ///
    /// # Errors
    /// [`StoreError::Unknown`], [`StoreError::NotOpen`] or [`StoreError::LeaseLost`].
    fn append(
        &self,
        session: &str,
        lease: Option<Epoch>,
        events: Vec<NewEvent>,
        now: WallTime,
    ) -> Answer<'_, Vec<Stored>>;

    /// Events after a place, oldest first, their payloads complete.
    fn page(&self, session: &str, after: Seq, limit: PageLimit) -> Answer<'_, Page>;

    /// The place of an event in this session's log.
    fn position_of(&self, session: &str, event_id: &str) -> Answer<'_, Option<Seq>>;

    /// The place of the last event.
    fn last_position(&self, session: &str) -> Answer<'_, Seq>;

    /// The message events between two places, both included, in order. The cost is that of the
    /// messages, whatever else was logged between them.
    fn messages(&self, session: &str, from: Seq, up_to: Seq) -> Answer<'_, Vec<LoggedMessage>>;

    /// What the log says about the newest question for consent to the call with this id; nothing when nobody was asked.
    fn approval(&self, session: &str, call: &str) -> Answer<'_, Option<LoggedApproval>>;

    /// Every question for consent that nothing settles, in any session: what a service finds that starts.
    fn open_approvals(&self) -> Answer<'_, Vec<OpenApproval>>;

    // Messages under the ids of their senders. A note that goes with a verb is written together with its events, and says
    // what began or ended with them.

    /// Remembers what became of a message without a turn of its own, or beside it.
    ///
    /// # Errors
    /// [`StoreError::Unknown`].
    fn note_message(&self, session: &str, note: MessageNote) -> Answer<'_, ()>;

    /// What is known of a message; nothing when it never came, or was forgotten for newer ones.
    fn known_message(
        &self,
        session: &str,
        sender: &str,
        message: &str,
    ) -> Answer<'_, Option<KnownMessage>>;

    // The gate. Who may claim it next is decided in front of the store.

    /// Takes the gate and logs events with it. A gate that is still held changes hands: its turn can
    /// log no more.
    ///
    /// # Errors
    /// [`StoreError::Unknown`], [`StoreError::NotOpen`]; [`StoreError::Parked`] when a paused turn holds it.
    fn claim_gate(
        &self,
        session: &str,
        owner: &str,
        events: Vec<NewEvent>,
        note: Option<MessageNote>,
        now: WallTime,
    ) -> Answer<'_, Lease>;

    /// Pauses the turn and logs the events that show it, together. The lease ends; the pause survives
    /// a restart.
    ///
    /// # Errors
    /// [`StoreError::Unknown`], [`StoreError::NotOpen`] or [`StoreError::LeaseLost`].
    fn park(
        &self,
        session: &str,
        lease: Epoch,
        pause: Pause,
        events: Vec<NewEvent>,
        note: Option<MessageNote>,
        now: WallTime,
    ) -> Answer<'_, Vec<Stored>>;

    /// The paused turn in the gate.
    fn pause(&self, session: &str) -> Answer<'_, Option<Parked>>;

    /// The owner takes its paused turn up again and logs its continuation, together. `parked` is the
    /// epoch of the pause that the caller read.
    ///
    /// # Errors
    /// [`StoreError::Unknown`], [`StoreError::NotOpen`], [`StoreError::NotParked`] or [`StoreError::NotOwner`].
    fn resume(
        &self,
        session: &str,
        owner: &str,
        parked: Epoch,
        events: Vec<NewEvent>,
        note: Option<MessageNote>,
        now: WallTime,
    ) -> Answer<'_, Lease>;

    /// The owner renews its paused turn: it waits at least until `deadline`.
    ///
    /// # Errors
    /// [`StoreError::Unknown`], [`StoreError::NotOpen`], [`StoreError::NotParked`] or [`StoreError::NotOwner`].
    fn hold(&self, session: &str, owner: &str, deadline: WallTime) -> Answer<'_, ()>;

    /// Another takes the gate from a paused turn and logs the events that say so, together. Whether the
    /// deadline allows it is decided in front of the store.
    ///
    /// # Errors
    /// [`StoreError::Unknown`], [`StoreError::NotOpen`] or [`StoreError::NotParked`].
    fn take_over(
        &self,
        session: &str,
        new_owner: &str,
        parked: Epoch,
        events: Vec<NewEvent>,
        note: Option<MessageNote>,
        now: WallTime,
    ) -> Answer<'_, Lease>;

    /// Logs the last events of a turn and gives the gate back, together.
    ///
    /// # Errors
    /// [`StoreError::Unknown`], [`StoreError::NotOpen`] or [`StoreError::LeaseLost`].
    fn release_gate(
        &self,
        session: &str,
        lease: Epoch,
        events: Vec<NewEvent>,
        note: Option<MessageNote>,
        now: WallTime,
    ) -> Answer<'_, Vec<Stored>>;

    /// Every paused turn, for the timers of a service that starts.
    fn all_pauses(&self) -> Answer<'_, Vec<Parked>>;

    // Health.

    /// Whether the store answers and could write. Writes nothing.
    fn probe(&self) -> Answer<'_, ()>;

    /// A few numbers that cost nothing to read.
    fn counters(&self) -> Answer<'_, Counters>;
}
