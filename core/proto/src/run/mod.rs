//! The service's side of a session, without I/O: who may go, what a message becomes, what a turn does.
//!
//! [`gate`] lets one call at a time into a session, in order. [`merge`] turns a driver's message
//! into the one the model sees when a paused turn waits for results. [`turn`] runs rounds of model
//! and tools as effects that a shell carries out, with the events to log ([`log`]) and the tools on
//! offer ([`toolbox`]). [`open`] checks what opens and joins a session, [`consent`] settles which calls need somebody's consent, [`methods`] who may call
//! what, [`repeat`] what a message gets that comes again, [`metadata`] what is kept with a session, [`view`] what a request may see, [`depth`] how deep content may nest.
//!
//! Nothing here waits, stores or reads a clock: times are wall-clock milliseconds since the Unix
//! epoch, given as arguments.

pub mod consent;
pub mod depth;
pub mod gate;
pub mod log;
pub mod merge;
pub mod metadata;
pub mod methods;
pub mod open;
pub mod quota;
pub mod repeat;
pub mod toolbox;
pub mod turn;
pub mod view;
