/* Sessions that outlive their program: saved by a process that is gone, resumed by another; and what turns may spend.
 *
 * BROCA_URL and BROCA_CLIENT_KEY name a service with the scripted model.
 */
#define _GNU_SOURCE
#include "service.h"
#include <sys/wait.h>
#include <unistd.h>

enum { TEXT_BYTES = 32768 };

/* Side effects of tools: a line with its idempotency key for each time that one has run, in any process. */
static char effects[] = "/tmp/broca-effects-XXXXXX";

static int times_run(const char *key) {
    char line[512];
    int times = 0;
    FILE *file = fopen(effects, "r");
    CHECK(file != NULL);
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = 0;
        times += strcmp(line, key) == 0;
    }
    if (file != NULL) {
        fclose(file);
    }
    return times;
}

static void run_tool(const broca_step *call) {
    FILE *file = fopen(effects, "a");
    CHECK(file != NULL);
    if (file != NULL) {
        fprintf(file, "%s\n", broca_step_idempotency_key(call).data);
        fclose(file);
    }
}

/* A program in a process of its own, which ends without a word to the service. What it writes is its last will. */
static void of_a_program_that_is_gone(void (*program)(FILE *will), char *text) {
    int will[2];
    size_t len = 0;
    ssize_t got;
    CHECK(pipe(will) == 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        FILE *file = fdopen(will[1], "w");
        program(file);
        if (failed_checks == 0) {
            fclose(file);
        }
        _exit(0);
    }
    close(will[1]);
    while (len < TEXT_BYTES - 1 && (got = read(will[0], text + len, TEXT_BYTES - 1 - len)) > 0) {
        len += (size_t)got;
    }
    text[len] = 0;
    close(will[0]);
    waitpid(child, NULL, 0);
    CHECK(len > 0); /* it came to its end, and every check of it held */
}

static void save_to(FILE *will, broca_session *session) {
    broca_saved *saved = NULL;
    OK(broca_session_save(session, &saved, err));
    CHECK(holds(broca_saved_text(saved), "\"session_key\""));
    fprintf(will, "%s", broca_saved_text(saved).data);
    broca_saved_free(saved);
}

static broca_session *open_with_two_tools(broca_client *client) {
    broca_tool *read = new_tool("read_file", 0), *count = new_tool("count", 0);
    const broca_tool *tools[] = {read, count};
    broca_session *session = NULL;
    OK(broca_client_open(client, tools, 2, &session, err));
    broca_tool_free(read);
    broca_tool_free(count);
    return session;
}

static void leaves_with_one_call_answered_and_one_only_run(FILE *will) {
    broca_session *session = open_with_two_tools(new_client(0));
    broca_turn *turn = NULL;
    OK(broca_session_send(session, TEXT("read_file on a.txt and count on b.txt"), &turn, err));
    for (int calls = 0; calls < 2; calls++) {
        broca_step *call = next_of(turn, BROCA_STEP_TOOL_CALL);
        CHECK(broca_step_may_have_run(call) == 0);
        run_tool(call);
        if (is(broca_step_name(call), "read_file")) {
            OK(broca_call_complete_text(call, TEXT("words of a.txt"), NULL, err));
            broca_step_free(call);
        } /* the other one's answer would have come next */
    }
    save_to(will, session);
}

static void a_session_left_in_mid_pause_is_resumed_by_another_process(void) {
    char saved[TEXT_BYTES];
    broca_client *client = new_client(0);
    broca_tool *read = new_tool("read_file", 0), *count = new_tool("count", 0);
    const broca_tool *tools[] = {read, count};
    broca_session *session = NULL;
    broca_turn *turn = NULL, *again = NULL;
    broca_step *step = NULL;
    int calls = 0;
    of_a_program_that_is_gone(leaves_with_one_call_answered_and_one_only_run, saved);
    OK(broca_client_attach(client, TEXT(saved), tools, 2, &session, err));
    CHECK(broca_session_id(session).len > 0 && strstr(saved, broca_session_id(session).data) != NULL);
    OK(broca_session_resume(session, &turn, err));
    CHECK(turn != NULL);
    OK(broca_session_resume(session, &again, err));
    CHECK(again == NULL);
    for (;;) {
        OK(broca_turn_next(turn, 20000, &step, err));
        if (step == NULL || broca_step_kind(step) == BROCA_STEP_DONE) {
            break;
        }
        if (broca_step_kind(step) == BROCA_STEP_TOOL_CALL) {
            calls++;
            CHECK(is(broca_step_name(step), "count") && broca_step_may_have_run(step) == 1);
            /* The key is the one it had there: it tells that the tool has run. */
            CHECK(times_run(broca_step_idempotency_key(step).data) == 1);
            OK(broca_call_complete_text(step, TEXT("counted before"), NULL, err));
        }
        broca_step_free(step);
    }
    CHECK(calls == 1);
    CHECK(holds(broca_step_text(step), "words of a.txt") && holds(broca_step_text(step), "counted before"));
    CHECK(broca_step_tool_calls(step) == 2 && broca_step_rounds(step) >= 1);
    CHECK(holds(broca_step_session_spent(step), "\"tool_calls\":2"));
    broca_step_free(step);
    OK(broca_turn_next(turn, -1, &step, err));
    CHECK(step == NULL && broca_turn_is_over(turn) == 1);
    broca_turn_free(turn);
    /* The session goes on as any other. */
    OK(broca_session_ask(session, TEXT("hello"), NULL, NULL, &step, err));
    CHECK(broca_step_tool_calls(step) == 0 && holds(broca_step_session_spent(step), "\"tool_calls\":2"));
    broca_step_free(step);
    broca_tool_free(read);
    broca_tool_free(count);
    close_all(client, session);
}

static void leaves_while_somebody_is_asked(FILE *will) {
    broca_session *session = open_with(new_client(0), "remove", 1);
    broca_turn *turn = NULL;
    OK(broca_session_send(session, TEXT("remove a.txt"), &turn, err));
    CHECK(broca_step_may_have_run(next_of(turn, BROCA_STEP_APPROVAL)) == 0);
    save_to(will, session);
}

static void an_event_loop_attaches_and_asks_for_the_approval_anew(void) {
    char text[TEXT_BYTES];
    broca_client *client = new_client(0);
    struct loop loop = {broca_client_io(client), {{0, 0, 0}}, 0, 0};
    broca_tool *tool = new_tool("remove", 1);
    const broca_tool *tools[] = {tool};
    broca_session *session = NULL;
    broca_request *request = NULL;
    broca_saved *saved = NULL;
    broca_turn *turn = NULL;
    broca_step *step = NULL;
    of_a_program_that_is_gone(leaves_while_somebody_is_asked, text);
    OK(broca_session_new(client, &session, err));
    OK(broca_session_start_attach(session, TEXT(text), tools, 1, &request, err));
    step = loop_until(&loop, BROCA_STEP_FINISHED);
    CHECK(is(broca_step_outcome(step), "opened") && holds(broca_step_value(step), "\"pending\":true"));
    broca_step_free(step);
    broca_request_free(request);
    OK(broca_session_resume(session, &turn, err));
    step = loop_until(&loop, BROCA_STEP_APPROVAL);
    CHECK(is(broca_step_name(step), "remove") && broca_step_may_have_run(step) == 1);
    OK(broca_approval_allow(step, NULL, err));
    broca_step_free(step);
    step = loop_until(&loop, BROCA_STEP_TOOL_CALL);
    CHECK(broca_step_may_have_run(step) == 1);
    /* Saving waits for nothing, here too, and brings no step of its own. */
    OK(broca_session_save(session, &saved, err));
    CHECK(holds(broca_saved_text(saved), broca_session_id(session).data));
    broca_saved_free(saved);
    OK(broca_call_complete_text(step, TEXT("gone"), NULL, err));
    broca_step_free(step);
    step = loop_until(&loop, BROCA_STEP_DONE);
    CHECK(holds(broca_step_text(step), "gone"));
    broca_step_free(step);
    step = loop_until(&loop, BROCA_STEP_FINISHED);
    CHECK(broca_step_operation(step) == broca_turn_id(turn) && is(broca_step_outcome(step), "replied"));
    broca_step_free(step);
    broca_turn_free(turn);
    OK(broca_session_start_close(session, &request, err));
    broca_step_free(loop_until(&loop, BROCA_STEP_FINISHED));
    broca_request_free(request);
    broca_session_free(session);
    broca_tool_free(tool);
    broca_client_free(client);
}

static void a_message_instead_gives_the_turn_up(void) {
    char saved[TEXT_BYTES];
    broca_client *client = new_client(0);
    broca_session *session = NULL;
    broca_turn *turn = NULL;
    broca_step *done = NULL;
    of_a_program_that_is_gone(leaves_while_somebody_is_asked, saved);
    /* Without tools, those of before stay declared. */
    OK(broca_client_attach(client, TEXT(saved), NULL, 0, &session, err));
    OK(broca_session_ask(session, TEXT("hello"), NULL, NULL, &done, err));
    CHECK(broca_step_kind(done) == BROCA_STEP_DONE);
    broca_step_free(done);
    OK(broca_session_resume(session, &turn, err));
    CHECK(turn == NULL);
    close_all(client, session);
}

static void leaves_between_turns(FILE *will) {
    broca_session *session = open_with(new_client(0), "read_file", 0);
    broca_step *done = NULL;
    OK(broca_session_ask(session, TEXT("read_file on a.txt"), NULL, NULL, &done, err));
    CHECK(holds(broca_step_session_spent(done), "\"rounds\":2"));
    broca_step_free(done);
    save_to(will, session);
}

static void a_session_left_between_turns_has_nothing_to_resume_and_remembers_what_it_spent(void) {
    char saved[TEXT_BYTES];
    broca_client *client = new_client(0);
    broca_session *session = NULL;
    broca_turn *turn = NULL;
    broca_step *done = NULL;
    of_a_program_that_is_gone(leaves_between_turns, saved);
    OK(broca_client_attach(client, TEXT(saved), NULL, 0, &session, err));
    OK(broca_session_resume(session, &turn, err));
    CHECK(turn == NULL);
    OK(broca_session_ask(session, TEXT("hello"), NULL, NULL, &done, err));
    CHECK(broca_step_rounds(done) == 1 && holds(broca_step_session_spent(done), "\"rounds\":3"));
    broca_step_free(done);
    close_all(client, session);
    /* Nobody goes on with what is closed. */
    client = new_client(0);
    FAILS(BROCA_E_SESSION_CLOSED, broca_client_attach(client, TEXT(saved), NULL, 0, &session, err));
    CHECK(session == NULL);
    broca_client_free(client);
}

static void what_cannot_be_saved_or_attached_to_is_refused(void) {
    broca_client *client = new_client(0);
    broca_session *session = open_with(client, "read_file", 0), *other = NULL;
    broca_turn *turn = NULL;
    broca_request *request = NULL;
    broca_saved *saved = NULL;
    broca_error *error = NULL;
    broca_bytes id = broca_session_id(session);
    const char *damaged = "{\"broca_session\":1,\"session_key\":\"hunter2\"}";
    const char *newer = "{\"broca_session\":2,\"session_key\":\"hunter2\"}";
    CHECK(broca_client_attach(client, TEXT(damaged), NULL, 0, &other, &error) == BROCA_E_INVALID_ARGUMENT);
    CHECK(other == NULL && !holds(broca_error_message(error), "hunter2"));
    broca_error_free(error);
    FAILS(BROCA_E_UNSUPPORTED_VERSION, broca_client_attach(client, TEXT(newer), NULL, 0, &other, err));
    FAILS(BROCA_E_INVALID_ARGUMENT, broca_client_attach(client, NULL, 0, NULL, 0, &other, err));
    FAILS(BROCA_E_INVALID_ARGUMENT, broca_session_start_attach(session, TEXT(damaged), NULL, 0, &request, err));
    CHECK(request == NULL);
    OK(broca_client_observe(client, id.data, id.len, &other, err));
    FAILS(BROCA_E_USAGE, broca_session_save(other, &saved, err));
    CHECK(saved == NULL);
    OK(broca_session_resume(other, &turn, err));
    CHECK(turn == NULL);
    broca_session_free(other);
    OK(broca_session_new(client, &other, err));
    FAILS(BROCA_E_USAGE, broca_session_save(other, &saved, err));
    FAILS(BROCA_E_USAGE, broca_session_resume(other, &turn, err));
    broca_session_free(other);
    close_all(client, session);
}

static broca_client *client_with_a_limit(const char *name, uint64_t limit) {
    const char *url = getenv("BROCA_URL");
    const char *key = getenv("BROCA_CLIENT_KEY");
    broca_options *options = NULL;
    broca_client *client = NULL;
    OK(broca_options_new(TEXT(url), TEXT(key), &options, err));
    OK(broca_options_set_flag(options, TEXT("proxy_from_environment"), 0, err));
    OK(broca_options_set_number(options, TEXT(name), limit, err));
    OK(broca_client_new(options, &client, err));
    broca_options_free(options);
    return client;
}

static void a_turn_that_needs_more_than_it_may_spend_ends(void) {
    broca_client *client = client_with_a_limit("turn_rounds", 1);
    broca_session *session = open_with(client, "read_file", 0);
    broca_step *done = NULL;
    FAILS(BROCA_E_LOOP_LIMIT, broca_session_ask(session, TEXT("read_file on a.txt"), NULL, NULL, &done, err));
    CHECK(done == NULL);
    OK(broca_session_ask(session, TEXT("hello"), NULL, NULL, &done, err));
    broca_step_free(done);
    close_all(client, session);

    client = client_with_a_limit("session_tool_calls", 1);
    session = open_with(client, "read_file", 0);
    OK(broca_session_ask(session, TEXT("read_file on a.txt"), NULL, NULL, &done, err));
    CHECK(broca_step_tool_calls(done) == 1 && broca_step_rounds(done) == 2);
    broca_step_free(done);
    FAILS(BROCA_E_LOOP_LIMIT, broca_session_ask(session, TEXT("read_file on a.txt"), NULL, NULL, &done, err));
    close_all(client, session);
}

int main(int argc, char **argv) {
    wanted_test = argc > 1 ? argv[1] : NULL;
    int file = mkstemp(effects);
    if (file < 0) {
        perror(effects);
        return 1;
    }
    close(file);
    TEST(a_session_left_in_mid_pause_is_resumed_by_another_process);
    TEST(an_event_loop_attaches_and_asks_for_the_approval_anew);
    TEST(a_message_instead_gives_the_turn_up);
    TEST(a_session_left_between_turns_has_nothing_to_resume_and_remembers_what_it_spent);
    TEST(what_cannot_be_saved_or_attached_to_is_refused);
    TEST(a_turn_that_needs_more_than_it_may_spend_ends);
    unlink(effects);
    return report("attach");
}
