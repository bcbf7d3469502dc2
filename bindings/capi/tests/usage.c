/* Calls that are wrong: every function with NULL, outputs that stay empty, texts that are none. Needs no service. */
#include "check.h"

static broca_client *client_of(const char *url) {
    broca_options *options = NULL;
    broca_client *client = NULL;
    OK(broca_options_new(TEXT(url), TEXT("bae_test"), &options, err));
    OK(broca_client_new(options, &client, err));
    broca_options_free(options);
    return client;
}

static void what_is_read_of_null_is_nothing(void) {
    CHECK(broca_error_code(NULL) == BROCA_OK);
    CHECK(broca_error_kind(NULL).data == NULL);
    CHECK(broca_error_message(NULL).data == NULL);
    CHECK(broca_error_details(NULL).data == NULL);
    CHECK(broca_error_retry(NULL) == BROCA_RETRY_UNKNOWN);
    CHECK(broca_client_io(NULL) == NULL);
    CHECK(broca_io_due(NULL) == -1);
    CHECK(broca_session_id(NULL).data == NULL);
    CHECK(broca_session_profile(NULL).data == NULL);
    CHECK(broca_session_features(NULL).data == NULL);
    CHECK(broca_session_meta(NULL).data == NULL);
    CHECK(broca_turn_id(NULL) == 0);
    CHECK(broca_turn_is_over(NULL) == 1);
    CHECK(broca_subscription_id(NULL) == 0);
    CHECK(broca_subscription_is_over(NULL) == 1);
    CHECK(broca_subscription_cursor(NULL).data == NULL);
    CHECK(broca_request_id(NULL) == 0);
    CHECK(broca_request_is_over(NULL) == 1);
    CHECK(broca_step_kind(NULL) == 0);
    CHECK(broca_step_operation(NULL) == 0);
    CHECK(broca_step_data(NULL) == NULL);
    broca_bytes (*const texts[])(const broca_step *) = {
        broca_step_id,         broca_step_type,    broca_step_session_id,  broca_step_client_key_id,
        broca_step_created_at, broca_step_payload, broca_step_json,        broca_step_text,
        broca_step_link,       broca_step_cursor,  broca_step_after,       broca_step_tool_use_id,
        broca_step_name,       broca_step_input,   broca_step_idempotency_key, broca_step_outcome,
        broca_step_value,      broca_step_state,   broca_step_error_kind,  broca_step_why,
        broca_step_category,   broca_step_message, broca_step_usage,       broca_step_events,
        broca_step_next_cursor, broca_step_session_spent,
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        CHECK(texts[i](NULL).data == NULL && texts[i](NULL).len == 0);
    }
    CHECK(broca_step_delta_kind(NULL) == 0);
    CHECK(broca_step_gap_reason(NULL) == 0);
    CHECK(broca_step_count(NULL) == 0);
    CHECK(broca_step_limit(NULL) == 0);
    CHECK(broca_step_call(NULL) == 0);
    CHECK(broca_step_delay_ms(NULL) == 0 && broca_step_position(NULL) == 0 && broca_step_waiting(NULL) == 0);
    CHECK(broca_step_rounds(NULL) == 0);
    CHECK(broca_step_tool_calls(NULL) == 0);
    CHECK(broca_step_may_have_run(NULL) == 0);
    CHECK(broca_saved_text(NULL).data == NULL && broca_saved_text(NULL).len == 0);
}

static void freeing_null_is_fine(void) {
    broca_error_free(NULL);
    broca_options_free(NULL);
    broca_tool_free(NULL);
    broca_client_free(NULL);
    broca_session_free(NULL);
    broca_turn_free(NULL);
    broca_subscription_free(NULL);
    broca_request_free(NULL);
    broca_step_free(NULL);
    broca_saved_free(NULL);
}

/* Every output holds this before: after a failure it must be empty. */
#define STALE(type) ((type)(void *)&stale)
static int stale;

static void null_objects_are_refused_and_outputs_emptied(void) {
    broca_client *client = STALE(broca_client *);
    broca_session *session = STALE(broca_session *);
    broca_turn *turn = STALE(broca_turn *);
    broca_subscription *subscription = STALE(broca_subscription *);
    broca_request *request = STALE(broca_request *);
    broca_saved *saved = STALE(broca_saved *);
    broca_step *step = STALE(broca_step *);
    broca_error *failure = STALE(broca_error *);
    broca_bytes text = {"x", 1};
    int32_t number = 7;
    broca_socket socket = 7;

    FAILS(BROCA_E_USAGE, broca_client_new(NULL, &client, err));
    CHECK(client == NULL);
    FAILS(BROCA_E_USAGE, broca_client_open(NULL, NULL, 0, &session, err));
    CHECK(session == NULL);
    session = STALE(broca_session *);
    FAILS(BROCA_E_USAGE, broca_client_join(NULL, TEXT("ses_1"), NULL, 0, &session, err));
    CHECK(session == NULL);
    session = STALE(broca_session *);
    FAILS(BROCA_E_USAGE, broca_client_observe(NULL, TEXT("ses_1"), &session, err));
    CHECK(session == NULL);
    session = STALE(broca_session *);
    FAILS(BROCA_E_USAGE, broca_client_attach(NULL, TEXT("{}"), NULL, 0, &session, err));
    CHECK(session == NULL);
    FAILS(BROCA_E_USAGE, broca_session_save(NULL, &saved, err));
    CHECK(saved == NULL);
    FAILS(BROCA_E_USAGE, broca_client_meta(NULL, &step, err));
    CHECK(step == NULL);
    FAILS(BROCA_E_USAGE, broca_client_next_log(NULL, &number, &text, err));
    CHECK(number == 0 && text.data == NULL && text.len == 0);
    session = STALE(broca_session *);
    FAILS(BROCA_E_USAGE, broca_session_new(NULL, &session, err));
    CHECK(session == NULL);

#define REQUEST(call)                                                                              \
    request = STALE(broca_request *);                                                              \
    FAILS(BROCA_E_USAGE, call);                                                                    \
    CHECK(request == NULL)
    REQUEST(broca_session_start_open(NULL, NULL, 0, &request, err));
    REQUEST(broca_session_start_join(NULL, TEXT("ses_1"), NULL, 0, &request, err));
    REQUEST(broca_session_start_observe(NULL, TEXT("ses_1"), &request, err));
    REQUEST(broca_session_start_attach(NULL, TEXT("{}"), NULL, 0, &request, err));
    REQUEST(broca_session_start_meta(NULL, &request, err));
    REQUEST(broca_session_start_open_with_metadata(NULL, NULL, 0, TEXT("{}"), &request, err));
    REQUEST(broca_session_start_info(NULL, &request, err));
    REQUEST(broca_session_start_update(NULL, TEXT("{}"), NULL, &request, err));
    REQUEST(broca_session_start_sessions(NULL, NULL, 0, 0, &request, err));
    REQUEST(broca_session_history(NULL, NULL, 0, 0, &request, err));
    REQUEST(broca_session_start_participants(NULL, &request, err));
    REQUEST(broca_session_start_update_tools(NULL, NULL, 0, &request, err));
    REQUEST(broca_session_start_close(NULL, &request, err));

    session = STALE(broca_session *);
    FAILS(BROCA_E_USAGE, broca_client_open_with_metadata(NULL, NULL, 0, TEXT("{}"), &session, err));
    CHECK(session == NULL);
    step = STALE(broca_step *);
    FAILS(BROCA_E_USAGE, broca_session_info(NULL, &step, err));
    CHECK(step == NULL);
    step = STALE(broca_step *);
    FAILS(BROCA_E_USAGE, broca_session_update(NULL, TEXT("{}"), NULL, &step, err));
    CHECK(step == NULL);
    step = STALE(broca_step *);
    FAILS(BROCA_E_USAGE, broca_client_sessions(NULL, NULL, 0, 0, &step, err));
    CHECK(step == NULL);
    step = STALE(broca_step *);
    FAILS(BROCA_E_USAGE, broca_session_participants(NULL, &step, err));
    CHECK(step == NULL);
    FAILS(BROCA_E_USAGE, broca_session_update_tools(NULL, NULL, 0, err));
    FAILS(BROCA_E_USAGE, broca_session_close(NULL, err));
    FAILS(BROCA_E_USAGE, broca_session_cancel(NULL, err));
    FAILS(BROCA_E_USAGE, broca_session_send(NULL, TEXT("hi"), &turn, err));
    CHECK(turn == NULL);
    turn = STALE(broca_turn *);
    FAILS(BROCA_E_USAGE, broca_session_send_message(NULL, TEXT("\"hi\""), NULL, 0, NULL, 0, &turn, err));
    CHECK(turn == NULL);
    turn = STALE(broca_turn *);
    FAILS(BROCA_E_USAGE, broca_session_resume(NULL, &turn, err));
    CHECK(turn == NULL);
    step = STALE(broca_step *);
    FAILS(BROCA_E_USAGE, broca_session_ask(NULL, TEXT("hi"), NULL, NULL, &step, err));
    CHECK(step == NULL);
    FAILS(BROCA_E_USAGE, broca_session_subscribe(NULL, &subscription, err));
    CHECK(subscription == NULL);
    subscription = STALE(broca_subscription *);
    FAILS(BROCA_E_USAGE, broca_session_subscribe_from(NULL, NULL, 0, &subscription, err));
    CHECK(subscription == NULL);

#define STEP(call)                                                                                 \
    step = STALE(broca_step *);                                                                    \
    FAILS(BROCA_E_USAGE, call);                                                                    \
    CHECK(step == NULL)
    STEP(broca_turn_next(NULL, 0, &step, err));
    STEP(broca_turn_reply(NULL, NULL, NULL, &step, err));
    STEP(broca_subscription_next(NULL, 0, &step, err));
    STEP(broca_request_next(NULL, 0, &step, err));
    STEP(broca_io_next(NULL, &step, err));
    FAILS(BROCA_E_USAGE, broca_turn_leave(NULL, err));
    FAILS(BROCA_E_USAGE, broca_turn_cancel(NULL, err));
    FAILS(BROCA_E_USAGE, broca_turn_set_data(NULL, NULL, err));
    FAILS(BROCA_E_USAGE, broca_subscription_cancel(NULL, err));
    FAILS(BROCA_E_USAGE, broca_subscription_set_data(NULL, NULL, err));
    FAILS(BROCA_E_USAGE, broca_request_cancel(NULL, err));
    FAILS(BROCA_E_USAGE, broca_request_set_data(NULL, NULL, err));

    FAILS(BROCA_E_USAGE, broca_step_error(NULL, &failure, err));
    CHECK(failure == NULL);
#define ANSWER(call)                                                                               \
    number = 7;                                                                                    \
    FAILS(BROCA_E_USAGE, call);                                                                    \
    CHECK(number == 0)
    ANSWER(broca_call_complete(NULL, TEXT("\"\""), &number, err));
    ANSWER(broca_call_complete_text(NULL, TEXT(""), &number, err));
    ANSWER(broca_call_fail(NULL, TEXT(""), &number, err));
    ANSWER(broca_approval_allow(NULL, &number, err));
    ANSWER(broca_approval_allow_narrowed(NULL, TEXT("{}"), &number, err));
    ANSWER(broca_approval_deny(NULL, TEXT(""), &number, err));
    ANSWER(broca_sending_send(NULL, NULL, 0, NULL, 0, NULL, 0, &number, err));
    ANSWER(broca_sending_refuse(NULL, TEXT(""), &number, err));

    number = 7;
    FAILS(BROCA_E_USAGE, broca_io_wants(NULL, &socket, &number, err));
    CHECK(number == 0);
    FAILS(BROCA_E_USAGE, broca_io_ready(NULL, 0, BROCA_READABLE, err));
    FAILS(BROCA_E_USAGE, broca_io_tick(NULL, err));
    FAILS(BROCA_E_USAGE, broca_io_wait(NULL, 0, NULL, err));
    FAILS(BROCA_E_USAGE, broca_io_set_wake(NULL, NULL, NULL, NULL, err));
    FAILS(BROCA_E_USAGE, broca_io_wake(NULL, err));
    FAILS(BROCA_E_USAGE, broca_io_set_resolver(NULL, NULL, NULL, NULL, err));
    FAILS(BROCA_E_USAGE, broca_io_resolved(NULL, 1, NULL, 0, NULL, 0, err));

    FAILS(BROCA_E_USAGE, broca_options_set_number(NULL, TEXT("idle_reuse_ms"), 1, err));
    FAILS(BROCA_E_USAGE, broca_options_set_text(NULL, TEXT("user_agent"), TEXT("a"), err));
    FAILS(BROCA_E_USAGE, broca_options_set_flag(NULL, TEXT("hooks"), 1, err));
    FAILS(BROCA_E_USAGE, broca_options_add_trusted_roots(NULL, NULL, 0, err));
    FAILS(BROCA_E_USAGE, broca_tool_set_sequential(NULL, 1, err));
    FAILS(BROCA_E_USAGE, broca_tool_set_timeout_ms(NULL, 1, err));
    FAILS(BROCA_E_USAGE, broca_tool_set_approval(NULL, 1, err));
    FAILS(BROCA_E_USAGE, broca_tool_add_narrow_rule(NULL, TEXT("/a"), TEXT("remove_elements"), err));
}

static void an_output_that_is_missing_is_refused(void) {
    FAILS(BROCA_E_USAGE, broca_options_new(TEXT("http://h"), TEXT("k"), NULL, err));
    FAILS(BROCA_E_USAGE, broca_tool_new(TEXT("t"), NULL, 0, NULL, 0, NULL, err));
    FAILS(BROCA_E_USAGE, broca_client_new(NULL, NULL, err));
    CHECK(broca_client_new(NULL, NULL, NULL) == BROCA_E_USAGE);
}

static void texts_are_checked(void) {
    broca_options *options = STALE(broca_options *);
    broca_tool *tool = STALE(broca_tool *);
    FAILS(BROCA_E_USAGE, broca_options_new(NULL, 3, TEXT("k"), &options, err));
    CHECK(options == NULL);
    FAILS(BROCA_E_INVALID_ARGUMENT, broca_options_new(TEXT("http://\xff"), TEXT("k"), &options, err));
    FAILS(BROCA_E_USAGE, broca_options_new("a", (size_t)-1, TEXT("k"), &options, err));
    FAILS(BROCA_E_INVALID_ARGUMENT, broca_tool_new(NULL, 0, NULL, 0, NULL, 0, &tool, err));
    CHECK(tool == NULL);
    FAILS(BROCA_E_INVALID_ARGUMENT, broca_tool_new(TEXT("t"), NULL, 0, TEXT("[]"), &tool, err));
    FAILS(BROCA_E_INVALID_ARGUMENT, broca_tool_new(TEXT("t"), NULL, 0, TEXT("{"), &tool, err));
    OK(broca_tool_new(TEXT("t"), NULL, 0, NULL, 0, &tool, err));
    OK(broca_tool_set_sequential(tool, 1, err));
    OK(broca_tool_set_timeout_ms(tool, 1000, err));
    OK(broca_tool_set_approval(tool, 1, err));
    OK(broca_tool_add_narrow_rule(tool, TEXT("/paths"), TEXT("remove_elements"), err));
    FAILS(BROCA_E_INVALID_ARGUMENT, broca_tool_add_narrow_rule(tool, TEXT("/paths"), TEXT("widen"), err));
    broca_tool_free(tool);
}

static void options_are_checked_by_name_and_keys_are_not_repeated(void) {
    broca_options *options = NULL;
    broca_client *client = NULL;
    broca_error *error = NULL;
    OK(broca_options_new(TEXT("http://127.0.0.1:1"), TEXT("hunter 2"), &options, err));
    OK(broca_options_set_number(options, TEXT("idle_reuse_ms"), 7, err));
    OK(broca_options_set_number(options, TEXT("max_connections"), 2, err));
    const char *limits[] = {"hold_ms",        "resume_wait_ms", "turn_rounds",        "turn_tokens", "turn_tool_calls",
                            "session_rounds", "session_tokens", "session_tool_calls", "reply_bytes", "recovery_timeout_ms",
                            "reach_timeout_ms", "replay_timeout_ms"};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        OK(broca_options_set_number(options, TEXT(limits[i]), 5, err));
    }
    OK(broca_options_set_text(options, TEXT("user_agent"), TEXT("a test"), err));
    OK(broca_options_set_text(options, TEXT("features"), TEXT("cancel, display"), err));
    OK(broca_options_set_flag(options, TEXT("hooks"), 1, err));
    OK(broca_options_set_flag(options, TEXT("proxy_from_environment"), 0, err));
    CHECK(broca_options_set_number(options, TEXT("tiemout"), 7, &error) == BROCA_E_INVALID_ARGUMENT);
    CHECK(holds(broca_error_message(error), "tiemout"));
    CHECK(is(broca_error_kind(error), "invalid_argument"));
    CHECK(broca_error_retry(error) == BROCA_RETRY_UNSAFE);
    broca_error_free(error);
    FAILS(BROCA_E_INVALID_ARGUMENT, broca_options_set_text(options, TEXT("client_key"), TEXT("k"), err));
    FAILS(BROCA_E_INVALID_ARGUMENT, broca_options_set_text(options, TEXT("idle_reuse_ms"), TEXT("k"), err));
    FAILS(BROCA_E_INVALID_ARGUMENT, broca_options_set_flag(options, TEXT("max_connections"), 1, err));
    FAILS(BROCA_E_INVALID_ARGUMENT, broca_options_add_trusted_roots(options, TEXT("no pem"), err));
    CHECK(broca_client_new(options, &client, &error) == BROCA_E_INVALID_ARGUMENT);
    CHECK(client == NULL && !holds(broca_error_message(error), "hunter"));
    broca_error_free(error);
    broca_options_free(options);
}

static void a_wrong_address_and_an_untrusting_client_are_refused_at_once(void) {
    broca_options *options = NULL;
    broca_client *client = NULL;
    OK(broca_options_new(TEXT("gopher://h"), TEXT("k"), &options, err));
    FAILS(BROCA_E_INVALID_ARGUMENT, broca_client_new(options, &client, err));
    broca_options_free(options);
    OK(broca_options_new(TEXT("https://h"), TEXT("k"), &options, err));
    OK(broca_options_set_flag(options, TEXT("platform_roots"), 0, err));
    FAILS(BROCA_E_TLS, broca_client_new(options, &client, err));
    broca_options_free(options);
}

static void nobody_listening_is_a_connect_error_that_is_safe_to_retry(void) {
    broca_client *client = client_of("http://127.0.0.1:1");
    broca_session *session = NULL;
    broca_error *error = NULL;
    CHECK(broca_client_open(client, NULL, 0, &session, &error) == BROCA_E_CONNECT);
    CHECK(session == NULL && broca_error_retry(error) == BROCA_RETRY_SAFE);
    CHECK(broca_status_parent(broca_error_code(error)) == BROCA_E_TRANSPORT);
    broca_error_free(error);
    broca_client_free(client);
}

static void a_session_that_is_not_open_refuses_commands(void) {
    broca_client *client = client_of("http://127.0.0.1:1");
    broca_session *session = NULL;
    broca_turn *turn = STALE(broca_turn *);
    broca_request *request = NULL;
    OK(broca_session_new(client, &session, err));
    FAILS(BROCA_E_USAGE, broca_session_send(session, TEXT("hi"), &turn, err));
    CHECK(turn == NULL);
    FAILS(BROCA_E_INVALID_ARGUMENT, broca_session_start_observe(session, NULL, 0, &request, err));
    const broca_tool *tools[1] = {NULL};
    FAILS(BROCA_E_USAGE, broca_session_start_open(session, tools, 1, &request, err));
    FAILS(BROCA_E_USAGE, broca_session_start_open(session, NULL, 1, &request, err));
    CHECK(broca_session_id(session).data == NULL);
    broca_client_free(client); /* in any order */
    OK(broca_session_cancel(session, err));
    broca_session_free(session);
}

static void an_event_loop_is_not_blocked_by_calls_that_wait(void) {
    broca_client *client = client_of("http://127.0.0.1:1");
    broca_io *io = broca_client_io(client);
    broca_session *session = NULL;
    broca_socket socket = 0;
    int32_t events = 0;
    OK(broca_io_wants(io, &socket, &events, err));
    CHECK(socket == -1 && events == 0);
    CHECK(broca_io_due(io) == -1);
    FAILS(BROCA_E_USAGE, broca_client_open(client, NULL, 0, &session, err));
    FAILS(BROCA_E_USAGE, broca_io_wait(io, -1, NULL, err));
    OK(broca_io_wait(io, 0, NULL, err));
    FAILS(BROCA_E_USAGE, broca_io_ready(io, 7, 0, err));
    OK(broca_io_ready(io, 7, BROCA_READABLE, err));
    OK(broca_io_tick(io, err));
    OK(broca_io_resolved(io, 99, TEXT("127.0.0.1, ::1"), NULL, 0, err));
    FAILS(BROCA_E_INVALID_ARGUMENT, broca_io_resolved(io, 99, TEXT("localhost"), NULL, 0, err));
    broca_client_free(client);
}

static void numbers_have_names(void) {
    CHECK(strcmp(broca_status_name(BROCA_OK), "BROCA_OK") == 0);
    CHECK(strcmp(broca_status_name(BROCA_E_NOT_BROCA), "BROCA_E_NOT_BROCA") == 0);
    CHECK(strcmp(broca_status_name(-12345), "BROCA_E_UNKNOWN") == 0);
    CHECK(broca_status_parent(BROCA_E_NOT_BROCA) == BROCA_E_PROTOCOL);
    CHECK(strcmp(broca_version(), BROCA_VERSION) == 0);
    CHECK(broca_abi_version() == BROCA_ABI_VERSION && BROCA_CHECK_ABI());
}

int main(int argc, char **argv) {
    wanted_test = argc > 1 ? argv[1] : NULL;
    TEST(what_is_read_of_null_is_nothing);
    TEST(freeing_null_is_fine);
    TEST(null_objects_are_refused_and_outputs_emptied);
    TEST(an_output_that_is_missing_is_refused);
    TEST(texts_are_checked);
    TEST(options_are_checked_by_name_and_keys_are_not_repeated);
    TEST(a_wrong_address_and_an_untrusting_client_are_refused_at_once);
    TEST(nobody_listening_is_a_connect_error_that_is_safe_to_retry);
    TEST(a_session_that_is_not_open_refuses_commands);
    TEST(an_event_loop_is_not_blocked_by_calls_that_wait);
    TEST(numbers_have_names);
    return report("usage");
}
