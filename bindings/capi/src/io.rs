//! The sockets of a client, for a program with an event loop of its own.
//!
//! Level-triggered, and changes only: the program watches what `broca_io_wants` tells, says what it found with
//! `broca_io_ready`, lets time pass with `broca_io_tick`, and takes steps with `broca_io_next`. None of these waits.

use crate::boundary::{call, given, invalid, output, usage, value};
use crate::callback::UserData;
use crate::cast;
use crate::failure::Failure;
use crate::hub::{Hub, Resolver, Wake, deadline};
use crate::status::Status;
use crate::step::Step;
use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;
use std::net::IpAddr;

/// The program's event loop shall watch this socket for something to read …
pub const BROCA_READABLE: i32 = 1;
/// … for room to write …
pub const BROCA_WRITABLE: i32 = 2;
/// … or forget it: it is closed right after.
pub const BROCA_FORGET: i32 = 4;

/// A socket: a descriptor, or a `SOCKET` on Windows; -1 is none.
pub type Socket = isize;

/// Ends the wait of the program's event loop. It must not wait, and may be called on any thread, several at once.
pub type WakeFn = Option<unsafe extern "C" fn(user_data: *mut c_void)>;

/// Begins to look up `host`, a text that ends with a NUL and is valid during the call only. `broca_io_resolved` answers, at once
/// or later, on any thread.
pub type ResolveFn =
    Option<unsafe extern "C" fn(user_data: *mut c_void, request: u64, host: *const c_char)>;

/// Lets go of `user_data`. Called once, after the last call of the function it belongs to has returned.
pub type DestroyFn = Option<unsafe extern "C" fn(user_data: *mut c_void)>;

/// The next change of what to watch: `events` is `BROCA_READABLE` and `BROCA_WRITABLE` in any combination, 0 to watch neither for
/// now, or `BROCA_FORGET`: the socket is closed by the next call of this function. Without a change, `socket` is -1. Call it
/// until then, before each wait. From the first call on, calls that wait refuse this client with `BROCA_E_USAGE`.
///
/// Ownership: sockets belong to the library; never read, write or close them. Borrows `io`.
/// Threads: not concurrently with itself on one object.
#[unsafe(no_mangle)]
pub extern "C" fn broca_io_wants(
    io: Option<&Hub>,
    socket: Option<&mut MaybeUninit<Socket>>,
    events: Option<&mut MaybeUninit<i32>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let (socket, events) = (output("socket", socket), output("events", events));
        let (socket, events) = (socket?, events?);
        *socket = -1;
        if let Some((number, wanted)) = given("io", io)?.next_want()? {
            debug_assert!(wanted & !(BROCA_READABLE | BROCA_WRITABLE | BROCA_FORGET) == 0);
            (*socket, *events) = (number, wanted);
        }
        Ok(())
    })
}

/// Says that something happened at a socket. `events` is what the loop found, `BROCA_READABLE` and `BROCA_WRITABLE`; report errors
/// and hang-ups as both. Sockets that should have been forgotten are ignored.
///
/// Ownership: borrows `io`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_io_ready(
    io: Option<&Hub>,
    socket: Socket,
    events: i32,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let io = given("io", io)?;
        if events & (BROCA_READABLE | BROCA_WRITABLE) == 0 {
            return Err(usage("events holds neither BROCA_READABLE nor BROCA_WRITABLE"));
        }
        io.heard(socket)
    })
}

/// Lets time pass. Call it when the time of `broca_io_due` is over, and when the loop was woken; more often does no harm.
/// Without a resolver of the program's own, names are looked up here, which blocks.
///
/// Ownership: borrows `io`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_io_tick(
    io: Option<&Hub>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || given("io", io)?.tick())
}

/// How many milliseconds the loop may wait until it calls `broca_io_tick`; 0: steps or work wait already; -1: as long as it likes.
///
/// Ownership: borrows `io`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_io_due(io: Option<&Hub>) -> i64 {
    value(|| {
        let due = io.and_then(Hub::due);
        due.map_or(-1, |ms| i64::try_from(ms).unwrap_or(i64::MAX))
    })
}

/// Takes the next step of any turn, subscription or request of this client; NULL when there is none. `broca_step_operation` and
/// `broca_step_data` tell whose it is. Nothing is waited for.
///
/// Ownership: returns `step` owned: free it with `broca_step_free`. Borrows `io`.
/// Threads: not concurrently with itself on one object.
#[unsafe(no_mangle)]
pub extern "C" fn broca_io_next(
    io: Option<&Hub>,
    step: Option<&mut MaybeUninit<Option<Box<Step>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let step = output("step", step)?;
        *step = given("io", io)?.next_step()?;
        Ok(())
    })
}

/// Waits until a step is there for `broca_io_next`, at most `timeout_ms` milliseconds (negative: as long as it takes), and tells with
/// `ready` (which may be NULL) whether one is: 1 or 0. For programs without an event loop.
///
/// Ownership: borrows `io`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_io_wait(
    io: Option<&Hub>,
    timeout_ms: i64,
    ready: Option<&mut MaybeUninit<i32>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let ready = crate::boundary::optional(ready);
        let some = given("io", io)?.wait(deadline(timeout_ms))?;
        if let Some(ready) = ready {
            *ready = i32::from(some);
        }
        Ok(())
    })
}

/// Sets the function that ends the wait of the program's event loop: it is called when another thread has answered, cancelled or
/// started something, once until the loop looks again. NULL takes it away.
///
/// Ownership: takes `user_data` if the call succeeds: `destroy` (which may be NULL) is called with it once, when it was replaced or
/// the client and everything that came from it is gone. Borrows `io`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_io_set_wake(
    io: Option<&Hub>,
    wake: WakeFn,
    user_data: *mut c_void,
    destroy: DestroyFn,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let io = given("io", io)?;
        io.check()?;
        io.set_wake(wake.map(|call| Wake { call, user_data: UserData::new(user_data, destroy) }));
        Ok(())
    })
}

/// Ends the wait of whoever drives this client: of the event loop, through its function, or of a call that waits, which looks around
/// and waits on.
///
/// Ownership: borrows `io`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_io_wake(
    io: Option<&Hub>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || given("io", io)?.wake())
}

/// Sets the function that looks names up. Without one, the resolver of the system is asked, which blocks the thread that drives
/// the client. NULL goes back to that.
///
/// Ownership: takes `user_data` if the call succeeds: `destroy` (which may be NULL) is called with it once, when it was replaced or
/// the client and everything that came from it is gone. Borrows `io`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_io_set_resolver(
    io: Option<&Hub>,
    resolve: ResolveFn,
    user_data: *mut c_void,
    destroy: DestroyFn,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let io = given("io", io)?;
        io.check()?;
        let user_data = UserData::new(user_data, destroy);
        io.set_resolver(resolve.map(|call| Resolver { call, user_data }));
        Ok(())
    })
}

/// Answers a look-up: `addresses` are numeric, separated by commas, best first; when there are none, `why` says why. Requests that
/// are not open are ignored.
///
/// Ownership: borrows `io`; copies the texts.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_io_resolved(
    io: Option<&Hub>,
    request: u64,
    addresses: *const c_char,
    addresses_len: usize,
    why: *const c_char,
    why_len: usize,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let io = given("io", io)?;
        // SAFETY: the header says what `addresses` and `addresses_len` are.
        let addresses = unsafe { cast::text("addresses", addresses, addresses_len) }?;
        // SAFETY: the same of `why`.
        let why = unsafe { cast::text("why", why, why_len) }?;
        let words = addresses.split(',').map(str::trim).filter(|word| !word.is_empty());
        let parsed = words.map(|word| {
            let address = word.parse::<IpAddr>();
            address.map_err(|_| invalid(format!("\"{word}\" is no numeric address")))
        });
        let addresses = parsed.collect::<Result<Vec<_>, _>>()?;
        io.resolved(request, if addresses.is_empty() { Err(why.to_owned()) } else { Ok(addresses) })
    })
}
