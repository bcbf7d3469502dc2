/*
 * libbroca: take part in agent sessions from C and C++. docs/c.md is the guide.
 *
 * Made of bindings/capi by `cargo run -p broca-xtask -- header`; not edited by hand. All of it is since 0.1.
 *
 * Functions     read broca_<type>_<verb>(<type> *self, inputs, outputs, broca_error **err) and return a broca_status:
 *               0 or a negative number of the table of errors. `err` may be NULL; else it is NULL after success, and after
 *               a failure an error that the caller frees. Other outputs are NULL or 0 after a failure.
 * Texts in      are a pointer and a length in bytes, UTF-8 unless something else is said. (NULL, 0) is empty. They are copied.
 * Texts out     are broca_bytes: borrowed, with a NUL behind them that is not counted.
 * Ownership     `borrows`: only during the call. `copies`: what is needed is copied. `takes`: it is the library's from here on.
 *               `returns owned`: the caller frees it with the function of its type. `returns borrowed from X until Y`: X keeps
 *               it until Y. Every free takes NULL. Objects keep what they need: the order of freeing does not matter.
 * Threads       `any`: from any thread, also at the same time. The library starts none.
 * Forks         A client belongs to the process that made it: elsewhere its calls fail with BROCA_E_FORKED.
 * Callbacks     are called without any lock of the library held, and may call the library. They must not throw or jump out.
 */


#ifndef BROCA_H
#define BROCA_H

#include <stddef.h>
#include <stdint.h>

#define BROCA_VERSION "0.1.0"
#define BROCA_VERSION_MAJOR 0
#define BROCA_VERSION_MINOR 1
#define BROCA_VERSION_PATCH 0
/* MAJOR * 1000000 + MINOR * 1000 + PATCH */
#define BROCA_VERSION_NUMBER 1000

/* Whether the library that was loaded fits the header that was compiled: 1 or 0. */
#define BROCA_CHECK_ABI() (broca_abi_version() == BROCA_ABI_VERSION)

/* A broca_bytes in printf: printf("%" BROCA_FORMAT "\n", BROCA_ARGUMENTS(text)). */
#define BROCA_FORMAT ".*s"
#define BROCA_ARGUMENTS(bytes) (int)(bytes).len, ((bytes).data ? (bytes).data : "")


/**
 * Nothing happened: the call may be repeated at once.
 */
#define BROCA_RETRY_SAFE 1

/**
 * Repeating would do harm or fail the same way.
 */
#define BROCA_RETRY_UNSAFE 2

/**
 * The other side may or may not have acted: look before repeating.
 */
#define BROCA_RETRY_UNKNOWN 3

/**
 * Raised whenever a program that was compiled with an older header could no longer run with the library.
 */
#define BROCA_ABI_VERSION 1

/**
 * For people who look for a fault of the library.
 */
#define BROCA_LOG_DEBUG 0

/**
 * Worth knowing.
 */
#define BROCA_LOG_INFO 1

/**
 * Something is odd.
 */
#define BROCA_LOG_WARNING 2

/**
 * Something the session logged: `id`, `type`, `session_id`, `client_key_id`, `created_at`, `payload`, `json`. Types of the
 * future come, too.
 */
#define BROCA_STEP_EVENT 1

/**
 * A notification that this version does not know: `name`, `json`.
 */
#define BROCA_STEP_NOTIFICATION 2

/**
 * A piece of what is being produced, for display; lossy by contract: `delta_kind`, `text`, `link`.
 */
#define BROCA_STEP_DELTA 3

/**
 * Something was lost: `gap_reason`, `count`, `limit`, `cursor`, `after`.
 */
#define BROCA_STEP_GAP 4

/**
 * Run this tool, then answer with `broca_call_complete` or `broca_call_fail`: `name`, `input`, `call`, `tool_use_id`,
 * `idempotency_key`, `may_have_run`. Calls that may run at the same time come together.
 */
#define BROCA_STEP_TOOL_CALL 5

/**
 * Stop the tool of this `call` if you can; its answer no longer counts, or only for a moment.
 */
#define BROCA_STEP_TOOL_CANCEL 6

/**
 * A call has its one result: `tool_use_id`, `name`, `outcome`.
 */
#define BROCA_STEP_TOOL_SETTLED 7

/**
 * Somebody has to allow this call first; answer with `broca_approval_allow`, `broca_approval_allow_narrowed` or
 * `broca_approval_deny`. It has what a tool call has, and `server_side`.
 */
#define BROCA_STEP_APPROVAL 8

/**
 * The question about this `call` no longer matters.
 */
#define BROCA_STEP_APPROVAL_WITHDRAWN 9

/**
 * Where the operation stands: `state`, for `reconnecting` also `delay_ms`, `error_kind`, `why`, and for `queued` perhaps
 * `position`, `waiting`, `why`.
 */
#define BROCA_STEP_STATUS 10

/**
 * Something odd that does not end the stream: `category`, `message`.
 */
#define BROCA_STEP_WARNING 11

/**
 * A message is about to leave; answer with `broca_sending_send` or `broca_sending_refuse`. Only with the option `hooks`:
 * `round`, `message`, `call`.
 */
#define BROCA_STEP_SENDING 12

/**
 * The answer to a message. Only with the option `hooks`: `round`, `message`.
 */
#define BROCA_STEP_RECEIVED 13

/**
 * The turn is done: `text`, `message`, `usage`, `rounds`, `tool_calls`, `session_spent`, `events`.
 */
#define BROCA_STEP_DONE 14

/**
 * The operation is over; nothing follows: `outcome`, `value`. Turns and subscriptions show it only in `broca_io_next`.
 */
#define BROCA_STEP_FINISHED 15

/**
 * The operation is over with an error; nothing follows: `broca_step_error`. Only `broca_io_next` shows it.
 */
#define BROCA_STEP_FAILED 16

/**
 * A piece of the answer.
 */
#define BROCA_DELTA_TEXT 0

/**
 * A piece of the model's reasoning.
 */
#define BROCA_DELTA_REASONING 1

/**
 * A piece of the arguments of a tool call, as JSON text.
 */
#define BROCA_DELTA_TOOL_INPUT 2

/**
 * Everything partial shown so far is void: the attempt failed or was replaced.
 */
#define BROCA_DELTA_RESET 3

/**
 * Display pieces, `count` of them; the whole message still comes.
 */
#define BROCA_GAP_DELTAS 0

/**
 * One line of `count` bytes where `limit` are allowed.
 */
#define BROCA_GAP_LINE 1

/**
 * The service does not know `cursor`; it begins again at the start of its log.
 */
#define BROCA_GAP_CURSOR 2

/**
 * Whatever happened while the stream was away, before the first event.
 */
#define BROCA_GAP_UNSEEN 3

/**
 * The program's event loop shall watch this socket for something to read …
 */
#define BROCA_READABLE 1

/**
 * … for room to write …
 */
#define BROCA_WRITABLE 2

/**
 * … or forget it: it is closed right after.
 */
#define BROCA_FORGET 4

/**
 * A client.
 */
typedef struct broca_client broca_client;

/**
 * Content blocks in their order: texts, images and files.
 */
typedef struct broca_content broca_content;

/**
 * Why a call failed. It never holds keys or payloads.
 */
typedef struct broca_error broca_error;

/**
 * The sockets of a client, with all that moves them: `broca_io`.
 */
typedef struct broca_io broca_io;

/**
 * Everything about a client before it is made.
 */
typedef struct broca_options broca_options;

/**
 * A request under way: opening a session, reading a page, closing.
 */
typedef struct broca_request broca_request;

/**
 * A session as a text that outlives its program. The text is a secret: it holds the key of the session and results of tools. Its
 * memory is overwritten when it is freed.
 */
typedef struct broca_saved broca_saved;

/**
 * A session, as a program holds it.
 */
typedef struct broca_session broca_session;

/**
 * One step of an operation.
 */
typedef struct broca_step broca_step;

/**
 * A session watched: every event once and in order, over as many connections as it takes, until the session ends. What cannot
 * be had is a visible gap.
 */
typedef struct broca_subscription broca_subscription;

/**
 * A tool, as it is declared to the service.
 */
typedef struct broca_tool broca_tool;

/**
 * A turn under way.
 */
typedef struct broca_turn broca_turn;

/**
 * What a function came to: `BROCA_OK`, or a negative number of the table of errors. Numbers are added, never
 * changed; treat one that you do not know by its sign.
 */
typedef int32_t broca_status;

/**
 * Bytes that belong to the object they were asked of: UTF-8 unless something else is said. A NUL follows them and is not
 * counted in `len`. What is not there has `data` NULL and `len` 0.
 */
typedef struct broca_bytes {
    /**
     * The first byte.
     */
    const char *data;
    /**
     * How many there are.
     */
    size_t len;
} broca_bytes;

/**
 * Is shown the steps of a turn that somebody else drives. It may answer a step, not free it.
 */
typedef void (*broca_step_fn)(void *user_data, const broca_step *step);

/**
 * A socket: a descriptor, or a `SOCKET` on Windows; -1 is none.
 */
typedef ptrdiff_t broca_socket;

/**
 * Ends the wait of the program's event loop. It must not wait, and may be called on any thread, several at once.
 */
typedef void (*broca_wake_fn)(void *user_data);

/**
 * Lets go of `user_data`. Called once, after the last call of the function it belongs to has returned.
 */
typedef void (*broca_destroy_fn)(void *user_data);

/**
 * Begins to look up `host`, a text that ends with a NUL and is valid during the call only. `broca_io_resolved` answers, at once
 * or later, on any thread.
 */
typedef void (*broca_resolve_fn)(void *user_data, uint64_t request, const char *host);

/**
 * It worked.
 */
#define BROCA_OK 0

/**
 * The call itself was wrong: a NULL, the wrong order, the wrong style.
 */
#define BROCA_E_USAGE -1

/**
 * An argument cannot be used as given.
 */
#define BROCA_E_INVALID_ARGUMENT -2

/**
 * The session was closed before the call.
 */
#define BROCA_E_CLOSED -3

/**
 * The client was made before a fork and used after it.
 */
#define BROCA_E_FORKED -4

/**
 * The connection failed.
 */
#define BROCA_E_TRANSPORT -100

/**
 * No connection could be made: nothing was sent.
 */
#define BROCA_E_CONNECT -101

/**
 * TLS could not be agreed or the certificate was refused: nothing was sent.
 */
#define BROCA_E_TLS -102

/**
 * The connection broke while in use.
 */
#define BROCA_E_IO -103

/**
 * The peer did not answer in time.
 */
#define BROCA_E_TIMEOUT -110

/**
 * The stream ended without its terminal line.
 */
#define BROCA_E_STREAM_ENDED_EARLY -120

/**
 * The terminal line was longer than the limit.
 */
#define BROCA_E_LINE_TOO_LONG -121

/**
 * The service dropped this reader because it fell behind.
 */
#define BROCA_E_LAGGED -122

/**
 * The peer broke the protocol.
 */
#define BROCA_E_PROTOCOL -200

/**
 * Bytes that are not what the protocol says.
 */
#define BROCA_E_MALFORMED -201

/**
 * The peer speaks a version this program does not.
 */
#define BROCA_E_UNSUPPORTED_VERSION -202

/**
 * A bound of this program was exceeded; the message names it.
 */
#define BROCA_E_LIMIT -203

/**
 * The opening exchange failed.
 */
#define BROCA_E_HANDSHAKE -204

/**
 * What answered is not a session service.
 */
#define BROCA_E_NOT_BROCA -205

/**
 * The service does not offer what this call needs, or this client does not ask for it.
 */
#define BROCA_E_NOT_OFFERED -206

/**
 * The service answered with a problem document.
 */
#define BROCA_E_API -300

/**
 * The key was refused.
 */
#define BROCA_E_UNAUTHORIZED -301

/**
 * The session is closed or in error.
 */
#define BROCA_E_SESSION_CLOSED -302

/**
 * The profile does not allow a declared tool.
 */
#define BROCA_E_TOOL_NOT_ALLOWED -303

/**
 * The service answered with a JSON-RPC error.
 */
#define BROCA_E_RPC -320

/**
 * The caller has not registered as a driver.
 */
#define BROCA_E_DRIVER_NOT_REGISTERED -321

/**
 * A paused turn stands in the way.
 */
#define BROCA_E_TURN_IN_PROGRESS -322

/**
 * The parameters were refused.
 */
#define BROCA_E_INVALID_PARAMS -323

/**
 * Every model provider failed.
 */
#define BROCA_E_PROVIDERS_FAILED -340

/**
 * The turn reached the service's limit of model rounds.
 */
#define BROCA_E_LOOP_LIMIT -341

/**
 * The model's answer does not fit the type that the program wants, also after it was told so.
 */
#define BROCA_E_OUTPUT_INVALID -343

/**
 * A tool failed.
 */
#define BROCA_E_TOOL -400

/**
 * The model asked for a tool that nobody registered.
 */
#define BROCA_E_UNKNOWN_TOOL -401

/**
 * A tool did not finish before its deadline.
 */
#define BROCA_E_TOOL_TIMEOUT -402

/**
 * A hook of the program refused.
 */
#define BROCA_E_HOOK -410

/**
 * A person or a rule refused the call.
 */
#define BROCA_E_APPROVAL_DENIED -411

/**
 * The program cancelled the operation.
 */
#define BROCA_E_CANCELLED -500

/**
 * A fault of this library.
 */
#define BROCA_E_INTERNAL -900

/**
 * A panic of this library was caught; the session it met is unusable, and nothing else.
 */
#define BROCA_E_PANIC -901

/**
 * Two parts of Broca of different versions met.
 */
#define BROCA_E_VERSION_MISMATCH -902

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The name of a status, such as `"BROCA_E_USAGE"`; `"BROCA_E_UNKNOWN"` for a number that has none.
 *
 * Ownership: returns borrowed from the library, for ever.
 * Threads: any.
 */
const char *broca_status_name(broca_status status);

/**
 * The status that `status` is a special case of, such as `BROCA_E_TRANSPORT` of `BROCA_E_TLS`; 0 for none.
 *
 * Ownership: nothing changes hands.
 * Threads: any.
 */
broca_status broca_status_parent(broca_status status);

/**
 * The status that the call returned.
 *
 * Ownership: borrows `error`.
 * Threads: any.
 */
broca_status broca_error_code(const broca_error *error);

/**
 * The kind as a word, the same in every language, such as `session_closed`.
 *
 * Ownership: returns borrowed from `error` until it is freed.
 * Threads: any.
 */
broca_bytes broca_error_kind(const broca_error *error);

/**
 * What was wrong, where, and the cure: a sentence for people.
 *
 * Ownership: returns borrowed from `error` until it is freed.
 * Threads: any.
 */
broca_bytes broca_error_message(const broca_error *error);

/**
 * Whether the same call may be made again: `BROCA_RETRY_SAFE`, `BROCA_RETRY_UNSAFE` or `BROCA_RETRY_UNKNOWN`.
 *
 * Ownership: borrows `error`.
 * Threads: any.
 */
int32_t broca_error_retry(const broca_error *error);

/**
 * Details for programs: a JSON object, or nothing.
 *
 * Ownership: returns borrowed from `error` until it is freed.
 * Threads: any.
 */
broca_bytes broca_error_details(const broca_error *error);

/**
 * Frees an error. NULL is fine.
 *
 * Ownership: takes `error`.
 * Threads: any.
 */
void broca_error_free(broca_error *error);

/**
 * The version of the library as text, such as `"0.1.0"`. `BROCA_VERSION` is that of the header.
 *
 * Ownership: returns borrowed from the library, for ever.
 * Threads: any.
 */
const char *broca_version(void);

/**
 * The version of the binary interface of the library. `BROCA_CHECK_ABI()` compares it with that of the header.
 *
 * Ownership: nothing changes hands.
 * Threads: any.
 */
int32_t broca_abi_version(void);

/**
 * Begins the options of a client of the service at `url` (`http://host:port` or `https://…`), with a client key.
 *
 * Ownership: returns `options` owned: free it with `broca_options_free`. Copies the texts.
 * Threads: any.
 */
broca_status broca_options_new(const char *url,
                               size_t url_len,
                               const char *key,
                               size_t key_len,
                               broca_options **options,
                               broca_error **err);

/**
 * Sets a number by its name: a time in milliseconds (`connect_timeout_ms`, `idle_reuse_ms` …), a size in bytes
 * (`max_line_bytes` …) or a count (`max_connections`, `concurrent_tools` …). docs/c.md lists them with their defaults.
 *
 * Ownership: borrows `options`; copies `name`.
 * Threads: not concurrently on one object.
 */
broca_status broca_options_set_number(broca_options *options,
                                      const char *name,
                                      size_t name_len,
                                      uint64_t number,
                                      broca_error **err);

/**
 * Sets a text by its name: `client_version`, `user_agent`, `features` (the words to ask for, separated by commas; all
 * when it is never set), or `approvals` (JSON: which tools of the service a person is asked for before they run, in sessions that
 * the client opens: `{"ask": "*" or [name…], "narrow": {name: {pointer: rule}}}`).
 *
 * Ownership: borrows `options`; copies the texts.
 * Threads: not concurrently on one object.
 */
broca_status broca_options_set_text(broca_options *options,
                                    const char *name,
                                    size_t name_len,
                                    const char *text,
                                    size_t text_len,
                                    broca_error **err);

/**
 * Switches something on or off by its name: `hooks` (off: whether `BROCA_STEP_SENDING` and `BROCA_STEP_RECEIVED` come),
 * `proxy_from_environment` (on: whether proxy variables count), `platform_roots` (on: whether TLS trusts what the machine
 * trusts).
 *
 * Ownership: borrows `options`; copies `name`.
 * Threads: not concurrently on one object.
 */
broca_status broca_options_set_flag(broca_options *options,
                                    const char *name,
                                    size_t name_len,
                                    int32_t on,
                                    broca_error **err);

/**
 * Has TLS trust the certificates of a PEM text too, such as a company's own authority.
 *
 * Ownership: borrows `options`; copies `pem`.
 * Threads: not concurrently on one object.
 */
broca_status broca_options_add_trusted_roots(broca_options *options,
                                             const char *pem,
                                             size_t pem_len,
                                             broca_error **err);

/**
 * Frees options. NULL is fine. Clients that were made of them keep what they need.
 *
 * Ownership: takes `options`.
 * Threads: any.
 */
void broca_options_free(broca_options *options);

/**
 * Makes a tool: its name, what it is for (the model reads it), and the JSON Schema of its arguments, `{}` when empty.
 *
 * Ownership: returns `tool` owned: free it with `broca_tool_free`. Copies the texts.
 * Threads: any.
 */
broca_status broca_tool_new(const char *name,
                            size_t name_len,
                            const char *description,
                            size_t description_len,
                            const char *schema,
                            size_t schema_len,
                            broca_tool **tool,
                            broca_error **err);

/**
 * Whether the tool never runs beside others of the same answer. Default: it does.
 *
 * Ownership: borrows `tool`.
 * Threads: not concurrently on one object.
 */
broca_status broca_tool_set_sequential(broca_tool *tool,
                                       int32_t sequential,
                                       broca_error **err);

/**
 * How long a call may run, in milliseconds; then it is `timed_out_may_have_run`. Default: as long as the turn may pause.
 *
 * Ownership: borrows `tool`.
 * Threads: not concurrently on one object.
 */
broca_status broca_tool_set_timeout_ms(broca_tool *tool,
                                       uint64_t timeout_ms,
                                       broca_error **err);

/**
 * Whether somebody has to allow each call first (`BROCA_STEP_APPROVAL`). Default: nobody has to.
 *
 * Ownership: borrows `tool`.
 * Threads: not concurrently on one object.
 */
broca_status broca_tool_set_approval(broca_tool *tool,
                                     int32_t approval,
                                     broca_error **err);

/**
 * Says how an approval may narrow the argument at `pointer` (a JSON Pointer), by the name of a rule such as
 * `remove_elements`.
 *
 * Ownership: borrows `tool`; copies the texts.
 * Threads: not concurrently on one object.
 */
broca_status broca_tool_add_narrow_rule(broca_tool *tool,
                                        const char *pointer,
                                        size_t pointer_len,
                                        const char *rule,
                                        size_t rule_len,
                                        broca_error **err);

/**
 * Frees a tool. NULL is fine. Sessions that were opened with it keep what they need.
 *
 * Ownership: takes `tool`.
 * Threads: any.
 */
void broca_tool_free(broca_tool *tool);

/**
 * Makes a client. Nothing is sent yet.
 *
 * Ownership: returns `client` owned: free it with `broca_client_free`. Borrows `options`.
 * Threads: any.
 */
broca_status broca_client_new(const broca_options *options,
                              broca_client **client,
                              broca_error **err);

/**
 * The sockets of the client, for a program with an event loop of its own.
 *
 * Ownership: returns borrowed from `client` until it is freed.
 * Threads: any.
 */
broca_io *broca_client_io(broca_client *client);

/**
 * Opens a session with these tools, and waits until it is open.
 *
 * Ownership: returns `session` owned: free it with `broca_session_free`. Borrows `client` and the tools.
 * Threads: any.
 */
broca_status broca_client_open(broca_client *client,
                               const broca_tool *const *tools,
                               size_t tool_count,
                               broca_session **session,
                               broca_error **err);

/**
 * Joins a session as a driver with these tools, and waits until that is done.
 *
 * Ownership: returns `session` owned: free it with `broca_session_free`. Borrows `client` and the tools; copies `id`.
 * Threads: any.
 */
broca_status broca_client_join(broca_client *client,
                               const char *id,
                               size_t id_len,
                               const broca_tool *const *tools,
                               size_t tool_count,
                               broca_session **session,
                               broca_error **err);

/**
 * Joins a session to watch it, without registering as a driver, and waits until that is done.
 *
 * Ownership: returns `session` owned: free it with `broca_session_free`. Borrows `client`; copies `id`.
 * Threads: any.
 */
broca_status broca_client_observe(broca_client *client,
                                  const char *id,
                                  size_t id_len,
                                  broca_session **session,
                                  broca_error **err);

/**
 * Asks what the service is and can do, and waits for it: `broca_step_value` of the step is its JSON.
 *
 * Ownership: returns `step` owned: free it with `broca_step_free`. Borrows `client`.
 * Threads: any.
 */
broca_status broca_client_meta(broca_client *client,
                               broca_step **step,
                               broca_error **err);

/**
 * Takes the oldest log record that waits: `BROCA_LOG_…` and a sentence without keys or payloads. Without one, `message`
 * is nothing. At most 256 wait; older ones are dropped and counted.
 *
 * Ownership: returns `message` borrowed from `client` until the next call of this function. Borrows `client`.
 * Threads: not concurrently with itself on one object.
 */
broca_status broca_client_next_log(broca_client *client,
                                   int32_t *level,
                                   broca_bytes *message,
                                   broca_error **err);

/**
 * Frees a client. NULL is fine. Its sessions and whatever they have under way stay until they are freed, too; its
 * `broca_io` does not.
 *
 * Ownership: takes `client`.
 * Threads: any.
 */
void broca_client_free(broca_client *client);

/**
 * Makes a session that is not open yet: for programs with an event loop, which open it with `broca_session_start_open`, `_join`,
 * `_observe` or `_attach`. The others use `broca_client_open` and its like.
 *
 * Ownership: returns `session` owned: free it with `broca_session_free`. Borrows `client`.
 * Threads: any.
 */
broca_status broca_session_new(broca_client *client,
                               broca_session **session,
                               broca_error **err);

/**
 * Begins to open a session with these tools.
 *
 * Ownership: returns `request` owned: free it with `broca_request_free`. Borrows `session` and the tools.
 * Threads: any.
 */
broca_status broca_session_start_open(broca_session *session,
                                      const broca_tool *const *tools,
                                      size_t tool_count,
                                      broca_request **request,
                                      broca_error **err);

/**
 * Begins to join a session as a driver with these tools.
 *
 * Ownership: returns `request` owned: free it with `broca_request_free`. Borrows `session` and the tools; copies `id`.
 * Threads: any.
 */
broca_status broca_session_start_join(broca_session *session,
                                      const char *id,
                                      size_t id_len,
                                      const broca_tool *const *tools,
                                      size_t tool_count,
                                      broca_request **request,
                                      broca_error **err);

/**
 * Begins to join a session to watch it.
 *
 * Ownership: returns `request` owned: free it with `broca_request_free`. Borrows `session`; copies `id`.
 * Threads: any.
 */
broca_status broca_session_start_observe(broca_session *session,
                                         const char *id,
                                         size_t id_len,
                                         broca_request **request,
                                         broca_error **err);

/**
 * Begins to ask what the service is and can do.
 *
 * Ownership: returns `request` owned: free it with `broca_request_free`. Borrows `session`.
 * Threads: any.
 */
broca_status broca_session_start_meta(broca_session *session,
                                      broca_request **request,
                                      broca_error **err);

/**
 * Begins to read a page of the session's log: from its start when `cursor` is empty, with at most `limit` events (0: as many as
 * the service likes). The events come as steps of the request; the step that finishes it tells with
 * `broca_step_next_cursor` where the next page begins.
 *
 * Ownership: returns `request` owned: free it with `broca_request_free`. Borrows `session`; copies `cursor`.
 * Threads: any.
 */
broca_status broca_session_history(broca_session *session,
                                   const char *cursor,
                                   size_t cursor_len,
                                   uint32_t limit,
                                   broca_request **request,
                                   broca_error **err);

/**
 * Begins to ask who drives the session.
 *
 * Ownership: returns `request` owned: free it with `broca_request_free`. Borrows `session`.
 * Threads: any.
 */
broca_status broca_session_start_participants(broca_session *session,
                                              broca_request **request,
                                              broca_error **err);

/**
 * Asks who drives the session, and waits for it: `broca_step_value` of the step is the JSON.
 *
 * Ownership: returns `step` owned: free it with `broca_step_free`. Borrows `session`.
 * Threads: any.
 */
broca_status broca_session_participants(broca_session *session,
                                        broca_step **step,
                                        broca_error **err);

/**
 * Begins to replace the tools, from the next turn on.
 *
 * Ownership: returns `request` owned: free it with `broca_request_free`. Borrows `session` and the tools.
 * Threads: any.
 */
broca_status broca_session_start_update_tools(broca_session *session,
                                              const broca_tool *const *tools,
                                              size_t tool_count,
                                              broca_request **request,
                                              broca_error **err);

/**
 * Replaces the tools, from the next turn on, and waits until that is done. If it fails, the old ones stay.
 *
 * Ownership: borrows `session` and the tools.
 * Threads: any.
 */
broca_status broca_session_update_tools(broca_session *session,
                                        const broca_tool *const *tools,
                                        size_t tool_count,
                                        broca_error **err);

/**
 * Begins to close the session for everybody. One that is closed already is no error.
 *
 * Ownership: returns `request` owned: free it with `broca_request_free`. Borrows `session`.
 * Threads: any.
 */
broca_status broca_session_start_close(broca_session *session,
                                       broca_request **request,
                                       broca_error **err);

/**
 * Closes the session for everybody, and waits until that is done. One that is closed already is no error.
 *
 * Ownership: borrows `session`.
 * Threads: any.
 */
broca_status broca_session_close(broca_session *session,
                                 broca_error **err);

/**
 * Starts a turn with a text. Nothing is waited for. Turns of one session run one after the other.
 *
 * Ownership: returns `turn` owned: free it with `broca_turn_free`. Borrows `session`; copies `text`.
 * Threads: any.
 */
broca_status broca_session_send(broca_session *session,
                                const char *text,
                                size_t text_len,
                                broca_turn **turn,
                                broca_error **err);

/**
 * Starts a turn with a message as JSON: a string, an array of content blocks, or an object with `content`. The trace headers
 * (W3C Trace Context) go with every request of the turn; they may be empty.
 *
 * Ownership: returns `turn` owned: free it with `broca_turn_free`. Borrows `session`; copies the texts.
 * Threads: any.
 */
broca_status broca_session_send_message(broca_session *session,
                                        const char *message,
                                        size_t message_len,
                                        const char *traceparent,
                                        size_t traceparent_len,
                                        const char *tracestate,
                                        size_t tracestate_len,
                                        broca_turn **turn,
                                        broca_error **err);

/**
 * Sends a text and drives the turn to its end: the loop, driven for you. See `broca_turn_reply`.
 *
 * Ownership: returns `done` owned: free it with `broca_step_free`. Borrows `session`; copies `text`. `on_step` is called
 * only before this returns.
 * Threads: any. `on_step` runs on the calling thread.
 */
broca_status broca_session_ask(broca_session *session,
                               const char *text,
                               size_t text_len,
                               broca_step_fn on_step,
                               void *user_data,
                               broca_step **done,
                               broca_error **err);

/**
 * Watches the session, from now on.
 *
 * Ownership: returns `subscription` owned: free it with `broca_subscription_free`. Borrows `session`.
 * Threads: any.
 */
broca_status broca_session_subscribe(broca_session *session,
                                     broca_subscription **subscription,
                                     broca_error **err);

/**
 * Watches the session from a stored cursor; an empty one is the start of its log.
 *
 * Ownership: returns `subscription` owned: free it with `broca_subscription_free`. Borrows `session`; copies `cursor`.
 * Threads: any.
 */
broca_status broca_session_subscribe_from(broca_session *session,
                                          const char *cursor,
                                          size_t cursor_len,
                                          broca_subscription **subscription,
                                          broca_error **err);

/**
 * Asks every turn of the session to end; each ends with `BROCA_E_CANCELLED`. Nothing is waited for.
 *
 * Ownership: borrows `session`.
 * Threads: any.
 */
broca_status broca_session_cancel(broca_session *session, broca_error **err);

/**
 * The id of the session; nothing before it is open.
 *
 * Ownership: returns borrowed from `session` until it is freed.
 * Threads: any.
 */
broca_bytes broca_session_id(broca_session *session);

/**
 * The profile of the session as the service shows it: JSON.
 *
 * Ownership: returns borrowed from `session` until it is freed.
 * Threads: any.
 */
broca_bytes broca_session_profile(broca_session *session);

/**
 * The features that are in force, as a JSON array of words.
 *
 * Ownership: returns borrowed from `session` until it is freed.
 * Threads: any.
 */
broca_bytes broca_session_features(broca_session *session);

/**
 * What the service said of itself when the session was opened: JSON.
 *
 * Ownership: returns borrowed from `session` until it is freed.
 * Threads: any.
 */
broca_bytes broca_session_meta(broca_session *session);

/**
 * Frees a session; it is not closed, and others may go on with it. NULL is fine. What it has under way stays until that is
 * freed, too.
 *
 * Ownership: takes `session`.
 * Threads: any.
 */
void broca_session_free(broca_session *session);

/**
 * Saves the session, so that another program can go on with it (`broca_client_attach`), in this language or another: at any
 * time, also in the middle of a turn, whose finished results are kept. Nothing is waited for, in either style, and the session goes on.
 * A session that is only observed cannot be saved.
 *
 * Ownership: returns `saved` owned: free it with `broca_saved_free`. Borrows `session`.
 * Threads: any.
 */
broca_status broca_session_save(broca_session *session,
                                broca_saved **saved,
                                broca_error **err);

/**
 * The text of a saved session: JSON, the same in every language (docs/attach.md). Keep it as keys are kept, such as in a file that
 * nobody else may read, and never log it.
 *
 * Ownership: returns borrowed from `saved` until it is freed.
 * Threads: any.
 */
broca_bytes broca_saved_text(const broca_saved *saved);

/**
 * Frees a saved session and overwrites its memory. NULL is fine.
 *
 * Ownership: takes `saved`.
 * Threads: any, but not while another uses it.
 */
void broca_saved_free(broca_saved *saved);

/**
 * Goes on with a session that another program has saved, and waits until that is done: registers again, declares the tools that
 * are brought here (without any, those of before stay) and reads the log. `saved` is what `broca_saved_text` gave, or another
 * language's `save`. Then `broca_session_resume` takes up the turn that was left, if there is one. See to it that the
 * program before is gone.
 *
 * Ownership: returns `session` owned: free it with `broca_session_free`. Borrows `client` and the tools; copies `saved`.
 * Threads: any.
 */
broca_status broca_client_attach(broca_client *client,
                                 const char *saved,
                                 size_t saved_len,
                                 const broca_tool *const *tools,
                                 size_t tool_count,
                                 broca_session **session,
                                 broca_error **err);

/**
 * Begins to go on with a session that another program has saved; see `broca_client_attach`.
 *
 * Ownership: returns `request` owned: free it with `broca_request_free`. Borrows `session` and the tools; copies `saved`.
 * Threads: any.
 */
broca_status broca_session_start_attach(broca_session *session,
                                        const char *saved,
                                        size_t saved_len,
                                        const broca_tool *const *tools,
                                        size_t tool_count,
                                        broca_request **request,
                                        broca_error **err);

/**
 * Takes up the turn that the program before this one has left: it brings the events that were missed, asks again for what is
 * still open (`broca_step_may_have_run`) and ends like any other turn. Nothing is waited for. `turn` is NULL when no turn waits,
 * or it was taken up already. A message that is sent instead gives that turn up.
 *
 * Ownership: returns `turn` owned: free it with `broca_turn_free`. Borrows `session`.
 * Threads: any.
 */
broca_status broca_session_resume(broca_session *session,
                                  broca_turn **turn,
                                  broca_error **err);

/**
 * Opens a session with these tools and with metadata (JSON, an object) that is kept with it, and waits until it is open. Where the
 * service keeps none, nothing is opened: `BROCA_E_NOT_OFFERED`.
 *
 * Ownership: returns `session` owned: free it with `broca_session_free`. Borrows `client` and the tools; copies `metadata`.
 * Threads: any.
 */
broca_status broca_client_open_with_metadata(broca_client *client,
                                             const broca_tool *const *tools,
                                             size_t tool_count,
                                             const char *metadata,
                                             size_t metadata_len,
                                             broca_session **session,
                                             broca_error **err);

/**
 * Begins to open a session with these tools and metadata; see `broca_client_open_with_metadata`.
 *
 * Ownership: returns `request` owned: free it with `broca_request_free`. Borrows `session` and the tools; copies `metadata`.
 * Threads: any.
 */
broca_status broca_session_start_open_with_metadata(broca_session *session,
                                                    const broca_tool *const *tools,
                                                    size_t tool_count,
                                                    const char *metadata,
                                                    size_t metadata_len,
                                                    broca_request **request,
                                                    broca_error **err);

/**
 * Asks how the session stands, also after its end, and waits for it: `broca_step_value` of the step is the JSON, with
 * `state`, `turn`, `drivers`, `metadata`, `metadata_version`, `last_event_id` and more (docs/wire.md). Where the service does not
 * tell: `BROCA_E_NOT_OFFERED`.
 *
 * Ownership: returns `step` owned: free it with `broca_step_free`. Borrows `session`.
 * Threads: any.
 */
broca_status broca_session_info(broca_session *session,
                                broca_step **step,
                                broca_error **err);

/**
 * Begins to ask how the session stands; see `broca_session_info`.
 *
 * Ownership: returns `request` owned: free it with `broca_request_free`. Borrows `session`.
 * Threads: any.
 */
broca_status broca_session_start_info(broca_session *session,
                                      broca_request **request,
                                      broca_error **err);

/**
 * Changes what is kept with the session, and waits until that is done: `metadata` is a JSON merge patch, an object whose
 * members replace those of before; null takes one away. `version` may be NULL; else only that `metadata_version` is changed, and
 * another one is `BROCA_E_API` of the type `version_conflict`. `broca_step_value` of the step tells how the session stands then.
 *
 * Ownership: returns `step` owned: free it with `broca_step_free`. Borrows `session` and `version`; copies `metadata`.
 * Threads: any.
 */
broca_status broca_session_update(broca_session *session,
                                  const char *metadata,
                                  size_t metadata_len,
                                  const uint64_t *version,
                                  broca_step **step,
                                  broca_error **err);

/**
 * Begins to change what is kept with the session; see `broca_session_update`.
 *
 * Ownership: returns `request` owned: free it with `broca_request_free`. Borrows `session` and `version`; copies `metadata`.
 * Threads: any.
 */
broca_status broca_session_start_update(broca_session *session,
                                        const char *metadata,
                                        size_t metadata_len,
                                        const uint64_t *version,
                                        broca_request **request,
                                        broca_error **err);

/**
 * Lists the sessions that the client's key has opened or joined, the newest first, and waits for it: a page that begins with the
 * newest when `cursor` is empty, with at most `limit` sessions (0: as many as the service likes). `broca_step_value` of the
 * step is JSON, whose `items` are as `broca_session_info` tells them; `broca_step_next_cursor` says where the next page begins.
 *
 * Ownership: returns `step` owned: free it with `broca_step_free`. Borrows `client`; copies `cursor`.
 * Threads: any.
 */
broca_status broca_client_sessions(broca_client *client,
                                   const char *cursor,
                                   size_t cursor_len,
                                   uint32_t limit,
                                   broca_step **step,
                                   broca_error **err);

/**
 * Begins to list the sessions of the client; see `broca_client_sessions`. The session need not be open.
 *
 * Ownership: returns `request` owned: free it with `broca_request_free`. Borrows `session`; copies `cursor`.
 * Threads: any.
 */
broca_status broca_session_start_sessions(broca_session *session,
                                          const char *cursor,
                                          size_t cursor_len,
                                          uint32_t limit,
                                          broca_request **request,
                                          broca_error **err);

/**
 * The next step, waiting at most `timeout_ms` milliseconds for it (negative: as long as it takes; 0: not at all). `step` is NULL
 * when none came in time or the turn is over; `broca_turn_is_over` tells which. What the turn failed with
 * comes once; `BROCA_STEP_DONE` is the last step of one that did not fail.
 *
 * Ownership: returns `step` owned: free it with `broca_step_free`. Borrows `turn`.
 * Threads: not concurrently with itself on one object.
 */
broca_status broca_turn_next(broca_turn *turn,
                             int64_t timeout_ms,
                             broca_step **step,
                             broca_error **err);

/**
 * Drives the turn to its end and gives its last step, `BROCA_STEP_DONE`. Each step is shown to `on_step` (which may be NULL)
 * while it is valid; a question that it leaves open is answered when it returns: calls fail, approvals are denied, messages leave.
 *
 * Ownership: returns `done` owned: free it with `broca_step_free`. Borrows `turn`. `on_step` is called only before this
 * returns, and borrows the step.
 * Threads: not concurrently with `broca_turn_next` on one object. `on_step` runs on the calling thread.
 */
broca_status broca_turn_reply(broca_turn *turn,
                              broca_step_fn on_step,
                              void *user_data,
                              broca_step **done,
                              broca_error **err);

/**
 * Leaves the turn early: asks for its end and waits until it is quiet, bounded by `cancel_timeout_ms`, the grace time of
 * tools and a second. Steps that were still waiting are dropped. A turn that is over is no error.
 *
 * Ownership: borrows `turn`; free it as ever.
 * Threads: not concurrently with `broca_turn_next` on one object.
 */
broca_status broca_turn_leave(broca_turn *turn,
                              broca_error **err);

/**
 * The number of the turn among all operations of its client; `broca_step_operation` of its steps is the same.
 *
 * Ownership: borrows `turn`.
 * Threads: any.
 */
uint64_t broca_turn_id(broca_turn *turn);

/**
 * Attaches a pointer of the program's to the turn; `broca_step_data` of its steps gives it back.
 *
 * Ownership: the pointer stays the program's.
 * Threads: any.
 */
broca_status broca_turn_set_data(broca_turn *turn,
                                 void *data,
                                 broca_error **err);

/**
 * Whether the turn is over and nothing follows: 1 or 0.
 *
 * Ownership: borrows `turn`.
 * Threads: any.
 */
int32_t broca_turn_is_over(broca_turn *turn);

/**
 * Asks for the end of the turn: it ends with `BROCA_E_CANCELLED`, or as it would have if that was too late. Nothing is
 * waited for. Any number of times.
 *
 * Ownership: borrows `turn`.
 * Threads: any, also while another waits in `broca_turn_next`.
 */
broca_status broca_turn_cancel(broca_turn *turn,
                               broca_error **err);

/**
 * Frees a turn. NULL is fine. One that is not over is cancelled, without waiting; `broca_turn_leave` waits.
 *
 * Ownership: takes `turn`.
 * Threads: any, but not while another uses it.
 */
void broca_turn_free(broca_turn *turn);

/**
 * The next step, waiting at most `timeout_ms` milliseconds for it (negative: as long as it takes; 0: not at all). `step` is NULL
 * when none came in time or the subscription is over; `broca_subscription_is_over` tells which. What the subscription
 * failed with comes once.
 *
 * Ownership: returns `step` owned: free it with `broca_step_free`. Borrows `subscription`.
 * Threads: not concurrently with itself on one object.
 */
broca_status broca_subscription_next(broca_subscription *subscription,
                                     int64_t timeout_ms,
                                     broca_step **step,
                                     broca_error **err);

/**
 * Just after the last event handed out: store it to go on from there, in this process or another. Nothing before the first
 * event of a subscription that began with what happens from now on.
 *
 * Ownership: returns borrowed from `subscription` until the next call of this function.
 * Threads: not concurrently with itself or `broca_subscription_next` on one object.
 */
broca_bytes broca_subscription_cursor(broca_subscription *subscription);

/**
 * The number of the subscription among all operations of its client; `broca_step_operation` of its steps is the same.
 *
 * Ownership: borrows `subscription`.
 * Threads: any.
 */
uint64_t broca_subscription_id(broca_subscription *subscription);

/**
 * Attaches a pointer of the program's to the subscription; `broca_step_data` of its steps gives it back.
 *
 * Ownership: the pointer stays the program's.
 * Threads: any.
 */
broca_status broca_subscription_set_data(broca_subscription *subscription,
                                         void *data,
                                         broca_error **err);

/**
 * Whether the subscription is over and nothing follows: 1 or 0.
 *
 * Ownership: borrows `subscription`.
 * Threads: any.
 */
int32_t broca_subscription_is_over(broca_subscription *subscription);

/**
 * Asks for the end of the subscription: it ends with `BROCA_E_CANCELLED`, or as it would have if that was too late. Nothing is
 * waited for. Any number of times.
 *
 * Ownership: borrows `subscription`.
 * Threads: any, also while another waits in `broca_subscription_next`.
 */
broca_status broca_subscription_cancel(broca_subscription *subscription,
                                       broca_error **err);

/**
 * Frees a subscription, which ends it. NULL is fine.
 *
 * Ownership: takes `subscription`.
 * Threads: any, but not while another uses it.
 */
void broca_subscription_free(broca_subscription *subscription);

/**
 * The next step, waiting at most `timeout_ms` milliseconds for it (negative: as long as it takes; 0: not at all). `step` is NULL
 * when none came in time or the request is over; `broca_request_is_over` tells which. The last step is
 * `BROCA_STEP_FINISHED`; a request that failed returns its error here.
 *
 * Ownership: returns `step` owned: free it with `broca_step_free`. Borrows `request`.
 * Threads: not concurrently with itself on one object.
 */
broca_status broca_request_next(broca_request *request,
                                int64_t timeout_ms,
                                broca_step **step,
                                broca_error **err);

/**
 * The number of the request among all operations of its client; `broca_step_operation` of its steps is the same.
 *
 * Ownership: borrows `request`.
 * Threads: any.
 */
uint64_t broca_request_id(broca_request *request);

/**
 * Attaches a pointer of the program's to the request; `broca_step_data` of its steps gives it back.
 *
 * Ownership: the pointer stays the program's.
 * Threads: any.
 */
broca_status broca_request_set_data(broca_request *request,
                                    void *data,
                                    broca_error **err);

/**
 * Whether the request is over and nothing follows: 1 or 0.
 *
 * Ownership: borrows `request`.
 * Threads: any.
 */
int32_t broca_request_is_over(broca_request *request);

/**
 * Asks for the end of the request: it ends with `BROCA_E_CANCELLED`, or as it would have if that was too late. Nothing is
 * waited for. Any number of times.
 *
 * Ownership: borrows `request`.
 * Threads: any, also while another waits in `broca_request_next`.
 */
broca_status broca_request_cancel(broca_request *request,
                                  broca_error **err);

/**
 * Frees a request. NULL is fine. One that is not over is cancelled.
 *
 * Ownership: takes `request`.
 * Threads: any, but not while another uses it.
 */
void broca_request_free(broca_request *request);

/**
 * What kind of step it is: `BROCA_STEP_…`; 0 for NULL. Pass over kinds that you do not know.
 *
 * Ownership: borrows `step`.
 * Threads: any.
 */
int32_t broca_step_kind(const broca_step *step);

/**
 * The number of the operation that the step belongs to: that of `broca_turn_id` and its like.
 *
 * Ownership: borrows `step`.
 * Threads: any.
 */
uint64_t broca_step_operation(const broca_step *step);

/**
 * What the program attached to the operation with `broca_turn_set_data` and its like; NULL for nothing.
 *
 * Ownership: the pointer is the program's.
 * Threads: any.
 */
void *broca_step_data(const broca_step *step);

/**
 * The id of an event: the cursor just after it.
 *
 * Ownership: returns borrowed from `step` until it is freed.
 * Threads: any.
 */
broca_bytes broca_step_id(const broca_step *step);

/**
 * The type of an event, such as `user.message`.
 *
 * Ownership: returns borrowed from `step` until it is freed.
 * Threads: any.
 */
broca_bytes broca_step_type(const broca_step *step);

/**
 * The session of an event.
 *
 * Ownership: returns borrowed from `step` until it is freed.
 * Threads: any.
 */
broca_bytes broca_step_session_id(const broca_step *step);

/**
 * The client key behind an event, if there is one.
 *
 * Ownership: returns borrowed from `step` until it is freed.
 * Threads: any.
 */
broca_bytes broca_step_client_key_id(const broca_step *step);

/**
 * When an event was logged, as the service wrote it (RFC 3339).
 *
 * Ownership: returns borrowed from `step` until it is freed.
 * Threads: any.
 */
broca_bytes broca_step_created_at(const broca_step *step);

/**
 * What an event says: JSON, exactly as it came.
 *
 * Ownership: returns borrowed from `step` until it is freed.
 * Threads: any.
 */
broca_bytes broca_step_payload(const broca_step *step);

/**
 * The whole of an event or of an unknown notification: JSON, exactly as it came.
 *
 * Ownership: returns borrowed from `step` until it is freed.
 * Threads: any.
 */
broca_bytes broca_step_json(const broca_step *step);

/**
 * What a delta is a piece of: `BROCA_DELTA_…`.
 *
 * Ownership: borrows `step`.
 * Threads: any.
 */
int32_t broca_step_delta_kind(const broca_step *step);

/**
 * The piece of a delta; the answer of a turn that is done.
 *
 * Ownership: returns borrowed from `step` until it is freed.
 * Threads: any.
 */
broca_bytes broca_step_text(const broca_step *step);

/**
 * The message that a delta belongs to or, for the arguments of a tool, the call.
 *
 * Ownership: returns borrowed from `step` until it is freed.
 * Threads: any.
 */
broca_bytes broca_step_link(const broca_step *step);

/**
 * What a gap has swallowed: `BROCA_GAP_…`.
 *
 * Ownership: borrows `step`.
 * Threads: any.
 */
int32_t broca_step_gap_reason(const broca_step *step);

/**
 * How many deltas, or how many bytes of a line, a gap has swallowed.
 *
 * Ownership: borrows `step`.
 * Threads: any.
 */
uint64_t broca_step_count(const broca_step *step);

/**
 * The bound that a line of a gap exceeded: raise the option `max_line_bytes`.
 *
 * Ownership: borrows `step`.
 * Threads: any.
 */
uint64_t broca_step_limit(const broca_step *step);

/**
 * The cursor that the service does not know.
 *
 * Ownership: returns borrowed from `step` until it is freed.
 * Threads: any.
 */
broca_bytes broca_step_cursor(const broca_step *step);

/**
 * The cursor after which a gap lies.
 *
 * Ownership: returns borrowed from `step` until it is freed.
 * Threads: any.
 */
broca_bytes broca_step_after(const broca_step *step);

/**
 * The number of a question: the same in a tool call and the cancel that follows it, in an approval and its withdrawal.
 *
 * Ownership: borrows `step`.
 * Threads: any.
 */
uint64_t broca_step_call(const broca_step *step);

/**
 * The id of a tool call in the conversation.
 *
 * Ownership: returns borrowed from `step` until it is freed.
 * Threads: any.
 */
broca_bytes broca_step_tool_use_id(const broca_step *step);

/**
 * The name of a tool, or the method of an unknown notification.
 *
 * Ownership: returns borrowed from `step` until it is freed.
 * Threads: any.
 */
broca_bytes broca_step_name(const broca_step *step);

/**
 * The arguments of a tool call: JSON, exactly as the model wrote it, or as an approval narrowed it.
 *
 * Ownership: returns borrowed from `step` until it is freed.
 * Threads: any.
 */
broca_bytes broca_step_input(const broca_step *step);

/**
 * The same for every attempt at this call, in every process, and never that of another: for what must not happen twice.
 *
 * Ownership: returns borrowed from `step` until it is freed.
 * Threads: any.
 */
broca_bytes broca_step_idempotency_key(const broca_step *step);

/**
 * Whether the program that had the session before may have run this call, or been asked to allow it, and nobody knows how far it
 * came: 1 or 0. Only in a turn that was taken up with `broca_session_resume`.
 *
 * Ownership: borrows `step`.
 * Threads: any.
 */
int32_t broca_step_may_have_run(const broca_step *step);

/**
 * Whether the tool that an approval is about is the service's own, so that it runs there: 1 or 0.
 *
 * Ownership: borrows `step`.
 * Threads: any.
 */
int32_t broca_step_server_side(const broca_step *step);

/**
 * What became of a call (`done`, `failed`, `not_started`, `interrupted_may_have_run`, `timed_out_may_have_run`) or of an
 * operation that finished (`opened`, `replied`, `ended`, `page`, `participants`, `meta`, `updated`, `closed`).
 *
 * Ownership: returns borrowed from `step` until it is freed.
 * Threads: any.
 */
broca_bytes broca_step_outcome(const broca_step *step);

/**
 * What an operation that finished came to, as JSON: `{"next"}` of a page, `{"drivers"}`, the meta of the service.
 *
 * Ownership: returns borrowed from `step` until it is freed.
 * Threads: any.
 */
broca_bytes broca_step_value(const broca_step *step);

/**
 * Where the next page of the history, or of a list of sessions, begins, of the step that finished a page; nothing after the last.
 *
 * Ownership: returns borrowed from `step` until it is freed.
 * Threads: any.
 */
broca_bytes broca_step_next_cursor(const broca_step *step);

/**
 * Where an operation stands: `queued`, `sent`, `connected` or `reconnecting`.
 *
 * Ownership: returns borrowed from `step` until it is freed.
 * Threads: any.
 */
broca_bytes broca_step_state(const broca_step *step);

/**
 * Milliseconds until the next try to reconnect.
 *
 * Ownership: borrows `step`.
 * Threads: any.
 */
uint64_t broca_step_delay_ms(const broca_step *step);

/**
 * The place of a message in the service's queue; 1 goes next. 0 where it is not told.
 *
 * Ownership: borrows `step`.
 * Threads: any.
 */
uint64_t broca_step_position(const broca_step *step);

/**
 * How many messages wait in the service's queue, this one included. 0 where it is not told.
 *
 * Ownership: borrows `step`.
 * Threads: any.
 */
uint64_t broca_step_waiting(const broca_step *step);

/**
 * The kind of the error that ended the stream before.
 *
 * Ownership: returns borrowed from `step` until it is freed.
 * Threads: any.
 */
broca_bytes broca_step_error_kind(const broca_step *step);

/**
 * Why the stream ended before, or which place a message has in the service's queue, in words.
 *
 * Ownership: returns borrowed from `step` until it is freed.
 * Threads: any.
 */
broca_bytes broca_step_why(const broca_step *step);

/**
 * What a warning is about, as a word.
 *
 * Ownership: returns borrowed from `step` until it is freed.
 * Threads: any.
 */
broca_bytes broca_step_category(const broca_step *step);

/**
 * The sentence of a warning; the message, as JSON, that is about to leave, that came, or that a turn ended with.
 *
 * Ownership: returns borrowed from `step` until it is freed.
 * Threads: any.
 */
broca_bytes broca_step_message(const broca_step *step);

/**
 * Which round of the turn a message belongs to, from 0; how many rounds a turn took that is done.
 *
 * Ownership: borrows `step`.
 * Threads: any.
 */
uint32_t broca_step_rounds(const broca_step *step);

/**
 * The tokens of all rounds of a turn: `{"input_tokens", "output_tokens"}` as JSON, or nothing when nobody counted.
 *
 * Ownership: returns borrowed from `step` until it is freed.
 * Threads: any.
 */
broca_bytes broca_step_usage(const broca_step *step);

/**
 * How many calls of tools a turn made that is done.
 *
 * Ownership: borrows `step`.
 * Threads: any.
 */
uint32_t broca_step_tool_calls(const broca_step *step);

/**
 * What all turns of the session have spent when a turn is done, those of programs that had it before included:
 * `{"rounds", "input_tokens", "output_tokens", "tool_calls"}` as JSON.
 *
 * Ownership: returns borrowed from `step` until it is freed.
 * Threads: any.
 */
broca_bytes broca_step_session_spent(const broca_step *step);

/**
 * The events of a turn that is done, as a JSON array.
 *
 * Ownership: returns borrowed from `step` until it is freed.
 * Threads: any.
 */
broca_bytes broca_step_events(const broca_step *step);

/**
 * The error that a failed operation ended with. For any other step the call fails with `BROCA_E_USAGE`.
 *
 * Ownership: returns `error` owned: free it with `broca_error_free`. Borrows `step`.
 * Threads: any.
 */
broca_status broca_step_error(const broca_step *step,
                              broca_error **error,
                              broca_error **err);

/**
 * Frees a step. NULL is fine. A tool call without an answer fails, an approval without one is denied, and a message
 * without one does not leave.
 *
 * Ownership: takes `step`.
 * Threads: any.
 */
void broca_step_free(broca_step *step);

/**
 * Answers a tool call with its result: JSON, either a string or an array of content blocks. `accepted` may be NULL; it
 * becomes 1, or 0 when the call already had its result and the answer changes nothing.
 *
 * Ownership: borrows `step`; copies `json`.
 * Threads: any.
 */
broca_status broca_call_complete(const broca_step *step,
                                 const char *json,
                                 size_t json_len,
                                 int32_t *accepted,
                                 broca_error **err);

/**
 * Answers a tool call with a text.
 *
 * Ownership: borrows `step`; copies `text`.
 * Threads: any.
 */
broca_status broca_call_complete_text(const broca_step *step,
                                      const char *text,
                                      size_t text_len,
                                      int32_t *accepted,
                                      broca_error **err);

/**
 * Answers that a tool failed; the model reads the text.
 *
 * Ownership: borrows `step`; copies `text`.
 * Threads: any.
 */
broca_status broca_call_fail(const broca_step *step,
                             const char *text,
                             size_t text_len,
                             int32_t *accepted,
                             broca_error **err);

/**
 * Lets a call run as it is. The first answer counts.
 *
 * Ownership: borrows `step`.
 * Threads: any.
 */
broca_status broca_approval_allow(const broca_step *step,
                                  int32_t *accepted,
                                  broca_error **err);

/**
 * Lets a call run with narrower arguments, a JSON object. What the rules of the tool do not admit is a denial.
 *
 * Ownership: borrows `step`; copies `input`.
 * Threads: any.
 */
broca_status broca_approval_allow_narrowed(const broca_step *step,
                                           const char *input,
                                           size_t input_len,
                                           int32_t *accepted,
                                           broca_error **err);

/**
 * Does not let a call run; the model reads the reason.
 *
 * Ownership: borrows `step`; copies `reason`.
 * Threads: any.
 */
broca_status broca_approval_deny(const broca_step *step,
                                 const char *reason,
                                 size_t reason_len,
                                 int32_t *accepted,
                                 broca_error **err);

/**
 * Lets a message leave: as it is when `message` is empty, or this one (JSON, as `broca_step_message` shows it). Trace
 * headers may be empty: then those of the turn go with it.
 *
 * Ownership: borrows `step`; copies the texts.
 * Threads: any.
 */
broca_status broca_sending_send(const broca_step *step,
                                const char *message,
                                size_t message_len,
                                const char *traceparent,
                                size_t traceparent_len,
                                const char *tracestate,
                                size_t tracestate_len,
                                int32_t *accepted,
                                broca_error **err);

/**
 * Does not let a message leave: the turn ends with `BROCA_E_HOOK` and this reason.
 *
 * Ownership: borrows `step`; copies `reason`.
 * Threads: any.
 */
broca_status broca_sending_refuse(const broca_step *step,
                                  const char *reason,
                                  size_t reason_len,
                                  int32_t *accepted,
                                  broca_error **err);

/**
 * Makes content without anything in it.
 *
 * Ownership: returns `content` owned: free it with `broca_content_free`.
 * Threads: any.
 */
broca_status broca_content_new(broca_content **content, broca_error **err);

/**
 * Adds a text.
 *
 * Ownership: changes `content`; copies `text`.
 * Threads: any, but not while another uses it.
 */
broca_status broca_content_add_text(broca_content *content,
                                    const char *text,
                                    size_t text_len,
                                    broca_error **err);

/**
 * Adds an image. Its media type is `media_type`, such as `image/png`; empty, it is what the bytes show, else what the ending of
 * `name` means, which may be empty, too. Where neither tells it is an error.
 *
 * Ownership: changes `content`; copies the rest.
 * Threads: any, but not while another uses it.
 */
broca_status broca_content_add_image(broca_content *content,
                                     const char *bytes,
                                     size_t bytes_len,
                                     const char *media_type,
                                     size_t media_type_len,
                                     const char *name,
                                     size_t name_len,
                                     broca_error **err);

/**
 * Adds an image that the model's provider fetches by itself from this address.
 *
 * Ownership: changes `content`; copies `url`.
 * Threads: any, but not while another uses it.
 */
broca_status broca_content_add_image_url(broca_content *content,
                                         const char *url,
                                         size_t url_len,
                                         broca_error **err);

/**
 * Adds a file; its title is the last part of `name`, if it has one. Text travels as text. The media type is found as that of an
 * image.
 *
 * Ownership: changes `content`; copies the rest.
 * Threads: any, but not while another uses it.
 */
broca_status broca_content_add_file(broca_content *content,
                                    const char *bytes,
                                    size_t bytes_len,
                                    const char *media_type,
                                    size_t media_type_len,
                                    const char *name,
                                    size_t name_len,
                                    broca_error **err);

/**
 * The content as JSON, for `broca_session_send_message` and `broca_call_complete`. Nothing before something was added.
 *
 * Ownership: returns borrowed from `content` until it is changed or freed.
 * Threads: any, but not while another changes it.
 */
broca_bytes broca_content_json(const broca_content *content);

/**
 * Frees content. NULL is fine.
 *
 * Ownership: takes `content`.
 * Threads: any, but not while another uses it.
 */
void broca_content_free(broca_content *content);

/**
 * The next change of what to watch: `events` is `BROCA_READABLE` and `BROCA_WRITABLE` in any combination, 0 to watch neither for
 * now, or `BROCA_FORGET`: the socket is closed by the next call of this function. Without a change, `socket` is -1. Call it
 * until then, before each wait. From the first call on, calls that wait refuse this client with `BROCA_E_USAGE`.
 *
 * Ownership: sockets belong to the library; never read, write or close them. Borrows `io`.
 * Threads: not concurrently with itself on one object.
 */
broca_status broca_io_wants(broca_io *io,
                            broca_socket *socket,
                            int32_t *events,
                            broca_error **err);

/**
 * Says that something happened at a socket. `events` is what the loop found, `BROCA_READABLE` and `BROCA_WRITABLE`; report errors
 * and hang-ups as both. Sockets that should have been forgotten are ignored.
 *
 * Ownership: borrows `io`.
 * Threads: any.
 */
broca_status broca_io_ready(broca_io *io,
                            broca_socket socket,
                            int32_t events,
                            broca_error **err);

/**
 * Lets time pass. Call it when the time of `broca_io_due` is over, and when the loop was woken; more often does no harm.
 * Without a resolver of the program's own, names are looked up here, which blocks.
 *
 * Ownership: borrows `io`.
 * Threads: any.
 */
broca_status broca_io_tick(broca_io *io,
                           broca_error **err);

/**
 * How many milliseconds the loop may wait until it calls `broca_io_tick`; 0: steps or work wait already; -1: as long as it likes.
 *
 * Ownership: borrows `io`.
 * Threads: any.
 */
int64_t broca_io_due(broca_io *io);

/**
 * Takes the next step of any turn, subscription or request of this client; NULL when there is none. `broca_step_operation` and
 * `broca_step_data` tell whose it is. Nothing is waited for.
 *
 * Ownership: returns `step` owned: free it with `broca_step_free`. Borrows `io`.
 * Threads: not concurrently with itself on one object.
 */
broca_status broca_io_next(broca_io *io,
                           broca_step **step,
                           broca_error **err);

/**
 * Waits until a step is there for `broca_io_next`, at most `timeout_ms` milliseconds (negative: as long as it takes), and tells with
 * `ready` (which may be NULL) whether one is: 1 or 0. For programs without an event loop.
 *
 * Ownership: borrows `io`.
 * Threads: any.
 */
broca_status broca_io_wait(broca_io *io,
                           int64_t timeout_ms,
                           int32_t *ready,
                           broca_error **err);

/**
 * Sets the function that ends the wait of the program's event loop: it is called when another thread has answered, cancelled or
 * started something, once until the loop looks again. NULL takes it away.
 *
 * Ownership: takes `user_data` if the call succeeds: `destroy` (which may be NULL) is called with it once, when it was replaced or
 * the client and everything that came from it is gone. Borrows `io`.
 * Threads: any.
 */
broca_status broca_io_set_wake(broca_io *io,
                               broca_wake_fn wake,
                               void *user_data,
                               broca_destroy_fn destroy,
                               broca_error **err);

/**
 * Ends the wait of whoever drives this client: of the event loop, through its function, or of a call that waits, which looks around
 * and waits on.
 *
 * Ownership: borrows `io`.
 * Threads: any.
 */
broca_status broca_io_wake(broca_io *io,
                           broca_error **err);

/**
 * Sets the function that looks names up. Without one, the resolver of the system is asked, which blocks the thread that drives
 * the client. NULL goes back to that.
 *
 * Ownership: takes `user_data` if the call succeeds: `destroy` (which may be NULL) is called with it once, when it was replaced or
 * the client and everything that came from it is gone. Borrows `io`.
 * Threads: any.
 */
broca_status broca_io_set_resolver(broca_io *io,
                                   broca_resolve_fn resolve,
                                   void *user_data,
                                   broca_destroy_fn destroy,
                                   broca_error **err);

/**
 * Answers a look-up: `addresses` are numeric, separated by commas, best first; when there are none, `why` says why. Requests that
 * are not open are ignored.
 *
 * Ownership: borrows `io`; copies the texts.
 * Threads: any.
 */
broca_status broca_io_resolved(broca_io *io,
                               uint64_t request,
                               const char *addresses,
                               size_t addresses_len,
                               const char *why,
                               size_t why_len,
                               broca_error **err);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* BROCA_H */
