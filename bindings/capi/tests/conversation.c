/* Conversations with a real service, in the blocking style and in an event loop, with threads, forks and faults.
 *
 * BROCA_URL and BROCA_CLIENT_KEY name a service with the scripted model. BROCA_TEST_SESSIONS says how many sessions the test of
 * many opens (2000). BROCA_TLS_URL is the same service behind TLS, with the certificate in the file BROCA_TLS_ROOTS.
 */
#define _GNU_SOURCE
#include "service.h"
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef BROCA_TESTING
broca_status broca_testing_panic(broca_session *session, broca_error **err);
broca_status broca_testing_throw(broca_session *session, int32_t code, broca_error **err);
#endif

static void a_turn_calls_a_tool_and_ends_with_its_reply(void) {
    broca_client *client = new_client(0);
    broca_session *session = open_with(client, "read_file", 0);
    broca_turn *turn = NULL;
    broca_step *step = NULL;
    int32_t accepted = 0;
    int mark;
    CHECK(broca_session_id(session).len > 4 && holds(broca_session_meta(session), "\"limits\""));
    CHECK(holds(broca_session_features(session), "[") && holds(broca_session_profile(session), "{"));
    OK(broca_session_send(session, TEXT("read_file on a.txt"), &turn, err));
    OK(broca_turn_set_data(turn, &mark, err));
    step = next_of(turn, BROCA_STEP_TOOL_CALL);
    CHECK(broca_step_data(step) == &mark && broca_step_operation(step) == broca_turn_id(turn));
    CHECK(is(broca_step_name(step), "read_file") && is(broca_step_input(step), "{\"path\":\"a.txt\"}"));
    CHECK(broca_step_tool_use_id(step).len > 0 && broca_step_idempotency_key(step).len > 0);
    CHECK(broca_step_call(step) != 0 && broca_step_text(step).data == NULL);
    FAILS(BROCA_E_USAGE, broca_approval_allow(step, &accepted, err));
    FAILS(BROCA_E_INVALID_ARGUMENT, broca_call_complete(step, TEXT("{"), &accepted, err));
    /* JSON, but no result: the call stays open. */
    FAILS(BROCA_E_INVALID_ARGUMENT, broca_call_complete(step, TEXT("5"), &accepted, err));
    FAILS(BROCA_E_INVALID_ARGUMENT, broca_call_complete(step, TEXT("[\"text\"]"), &accepted, err));
    OK(broca_call_complete_text(step, TEXT("the text \xc3\xa9"), &accepted, err));
    CHECK(accepted == 1);
    OK(broca_call_complete_text(step, TEXT("again"), &accepted, err));
    CHECK(accepted == 0);
    broca_step_free(step);
    step = next_of(turn, BROCA_STEP_TOOL_SETTLED);
    CHECK(is(broca_step_outcome(step), "done"));
    broca_step_free(step);
    step = next_of(turn, BROCA_STEP_DONE);
    CHECK(holds(broca_step_text(step), "the text \xc3\xa9") && broca_step_rounds(step) == 2);
    CHECK(holds(broca_step_events(step), "[{") && holds(broca_step_message(step), "assistant"));
    broca_step_free(step);
    CHECK(broca_turn_is_over(turn) == 0);
    OK(broca_turn_next(turn, -1, &step, err));
    CHECK(step == NULL && broca_turn_is_over(turn) == 1);
    OK(broca_turn_next(turn, -1, &step, err));
    CHECK(step == NULL);
    OK(broca_turn_leave(turn, err));
    broca_turn_free(turn);
    close_all(client, session);
}

static void count_step(void *user_data, const broca_step *step) {
    *(int *)user_data += 1;
    if (broca_step_kind(step) == BROCA_STEP_TOOL_CALL) {
        OK(broca_call_complete(step, TEXT("[{\"type\":\"text\",\"text\":\"blocks\"}]"), NULL, err));
    }
}

static void ask_drives_the_loop_and_answers_what_nobody_does(void) {
    broca_client *client = new_client(0);
    broca_session *session = open_with(client, "read_file", 0);
    broca_turn *turn = NULL;
    broca_step *done = NULL;
    int steps = 0;
    OK(broca_session_ask(session, TEXT("read_file on a.txt"), NULL, NULL, &done, err));
    CHECK(holds(broca_step_text(done), "Nobody is there to run this tool"));
    broca_step_free(done);
    OK(broca_session_ask(session, TEXT("read_file on a.txt"), count_step, &steps, &done, err));
    CHECK(holds(broca_step_text(done), "blocks") && steps > 3);
    broca_step_free(done);
    OK(broca_session_send_message(session, TEXT("{\"content\":\"hello\"}"), NULL, 0, NULL, 0, &turn, err));
    OK(broca_turn_reply(turn, NULL, NULL, &done, err));
    CHECK(broca_step_kind(done) == BROCA_STEP_DONE);
    broca_step_free(done);
    broca_turn_free(turn);
    FAILS(BROCA_E_INVALID_ARGUMENT, broca_session_send_message(session, TEXT("7"), NULL, 0, NULL, 0, &turn, err));
    FAILS(BROCA_E_INVALID_ARGUMENT, broca_session_send_message(session, TEXT("hi"), NULL, 0, NULL, 0, &turn, err));
    close_all(client, session);
}

static void content_holds_images_and_files(void) {
    broca_client *client = new_client(0);
    broca_session *session = open_with(client, "read_file", 0);
    broca_content *content = NULL;
    broca_turn *turn = NULL;
    broca_step *done = NULL;
    OK(broca_content_new(&content, err));
    CHECK(broca_content_json(content).len == 0);
    OK(broca_content_add_text(content, TEXT("see"), err));
    OK(broca_content_add_image(content, TEXT("GIF89a"), NULL, 0, NULL, 0, err));
    OK(broca_content_add_image_url(content, TEXT("https://example.com/x.png"), err));
    OK(broca_content_add_file(content, TEXT("# Notes"), NULL, 0, TEXT("/tmp/notes.md"), err));
    FAILS(BROCA_E_INVALID_ARGUMENT, broca_content_add_image(content, TEXT("words"), NULL, 0, NULL, 0, err));
    broca_bytes json = broca_content_json(content);
    CHECK(holds(json, "image/gif") && holds(json, "notes.md") && holds(json, "x.png"));
    OK(broca_session_send_message(session, json.data, json.len, NULL, 0, NULL, 0, &turn, err));
    broca_content_free(content);
    OK(broca_turn_reply(turn, NULL, NULL, &done, err));
    broca_step_free(done);
    broca_turn_free(turn);
    close_all(client, session);
}

static void approvals_are_asked_for_and_decide(void) {
    broca_client *client = new_client(0);
    broca_session *session = open_with(client, "remove", 1);
    broca_turn *turn = NULL;
    broca_step *step = NULL;
    OK(broca_session_send(session, TEXT("remove a.txt"), &turn, err));
    step = next_of(turn, BROCA_STEP_APPROVAL);
    CHECK(is(broca_step_name(step), "remove"));
    OK(broca_approval_allow(step, NULL, err));
    broca_step_free(step);
    step = next_of(turn, BROCA_STEP_TOOL_CALL);
    OK(broca_call_fail(step, TEXT("it is on fire"), NULL, err));
    broca_step_free(step);
    step = next_of(turn, BROCA_STEP_DONE);
    CHECK(holds(broca_step_text(step), "it is on fire"));
    broca_step_free(step);
    broca_turn_free(turn);

    OK(broca_session_send(session, TEXT("remove a.txt"), &turn, err));
    step = next_of(turn, BROCA_STEP_APPROVAL);
    OK(broca_approval_deny(step, TEXT("not on my watch"), NULL, err));
    broca_step_free(step);
    step = next_of(turn, BROCA_STEP_DONE);
    CHECK(holds(broca_step_text(step), "not on my watch"));
    broca_step_free(step);
    broca_turn_free(turn);

    /* Letting go of the question is an answer, too; arguments that no rule admits are a denial. */
    OK(broca_session_send(session, TEXT("remove a.txt"), &turn, err));
    broca_step_free(next_of(turn, BROCA_STEP_APPROVAL));
    broca_step_free(next_of(turn, BROCA_STEP_DONE));
    broca_turn_free(turn);
    OK(broca_session_send(session, TEXT("remove a.txt"), &turn, err));
    step = next_of(turn, BROCA_STEP_APPROVAL);
    OK(broca_approval_allow_narrowed(step, TEXT("{\"path\":\"b.txt\"}"), NULL, err));
    broca_step_free(step);
    broca_step_free(next_of(turn, BROCA_STEP_DONE));
    broca_turn_free(turn);
    close_all(client, session);
}

static void hooks_see_and_change_messages(void) {
    broca_client *client = new_client(1);
    broca_session *session = NULL;
    broca_turn *turn = NULL;
    broca_step *step = NULL;
    broca_error *error = NULL;
    OK(broca_client_open(client, NULL, 0, &session, err));
    OK(broca_session_send(session, TEXT("one"), &turn, err));
    step = next_of(turn, BROCA_STEP_SENDING);
    CHECK(holds(broca_step_message(step), "one") && broca_step_rounds(step) == 0);
    OK(broca_sending_send(step, TEXT("{\"content\":\"two\"}"),
                          TEXT("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), NULL, 0, NULL, err));
    broca_step_free(step);
    step = next_of(turn, BROCA_STEP_RECEIVED);
    CHECK(holds(broca_step_message(step), "You said: two"));
    broca_step_free(step);
    broca_step_free(next_of(turn, BROCA_STEP_DONE));
    broca_turn_free(turn);

    OK(broca_session_send(session, TEXT("three"), &turn, err));
    step = next_of(turn, BROCA_STEP_SENDING);
    OK(broca_sending_refuse(step, TEXT("no threes"), NULL, err));
    broca_step_free(step);
    while (broca_turn_next(turn, -1, &step, &error) == BROCA_OK && step != NULL) {
        broca_step_free(step);
    }
    CHECK(broca_error_code(error) == BROCA_E_HOOK && holds(broca_error_message(error), "no threes"));
    broca_error_free(error);
    broca_turn_free(turn);
    close_all(client, session);
}

static void the_log_is_read_page_by_page_and_watched_from_a_cursor(void) {
    broca_client *client = new_client(0);
    broca_session *session = open_with(client, "read_file", 0);
    broca_session *watching = NULL;
    broca_subscription *subscription = NULL;
    broca_request *request = NULL;
    broca_step *step = NULL;
    char cursor[256] = "";
    int events = 0, pages = 0, watched = 0;
    OK(broca_session_ask(session, TEXT("hello"), NULL, NULL, &step, err));
    broca_step_free(step);
    do {
        OK(broca_session_history(session, TEXT(cursor), 2, &request, err));
        cursor[0] = 0;
        for (;;) {
            OK(broca_request_next(request, -1, &step, err));
            if (step == NULL) {
                break;
            }
            if (broca_step_kind(step) == BROCA_STEP_FINISHED) {
                broca_bytes next = broca_step_next_cursor(step);
                CHECK(is(broca_step_outcome(step), "page") && holds(broca_step_value(step), "next"));
                if (next.data != NULL) {
                    strcpy(cursor, next.data);
                }
            } else {
                CHECK(broca_step_kind(step) == BROCA_STEP_EVENT && broca_step_id(step).len > 0);
                CHECK(holds(broca_step_json(step), broca_step_id(step).data));
                CHECK(broca_step_session_id(step).len > 0 && broca_step_created_at(step).len > 0);
                CHECK(holds(broca_step_payload(step), "{") && broca_step_type(step).len > 0);
                events++;
            }
            broca_step_free(step);
        }
        CHECK(broca_request_is_over(request) == 1);
        broca_request_free(request);
        pages++;
    } while (cursor[0] != 0);
    CHECK(events >= 4 && pages >= 2);

    broca_bytes id = broca_session_id(session);
    OK(broca_client_observe(client, id.data, id.len, &watching, err));
    OK(broca_session_subscribe_from(watching, NULL, 0, &subscription, err));
    OK(broca_session_participants(session, &step, err));
    CHECK(holds(broca_step_value(step), "drivers"));
    broca_step_free(step);
    OK(broca_client_meta(client, &step, err));
    CHECK(holds(broca_step_value(step), "limits"));
    broca_step_free(step);
    OK(broca_session_close(session, err));
    for (;;) {
        OK(broca_subscription_next(subscription, 20000, &step, err));
        if (step == NULL) {
            break;
        }
        if (broca_step_kind(step) == BROCA_STEP_EVENT) {
            broca_bytes at = broca_subscription_cursor(subscription);
            CHECK(at.len > 0 && is(at, broca_step_id(step).data));
            watched++;
        }
        broca_step_free(step);
    }
    CHECK(watched >= events && broca_subscription_is_over(subscription) == 1);
    broca_subscription_free(subscription);
    broca_session_free(watching);
    broca_session_free(session);
    broca_client_free(client);
}

static void a_session_tells_how_it_stands_and_keeps_what_is_said_of_it(void) {
    broca_client *client = new_client(0);
    broca_session *session = NULL;
    broca_session *asking = NULL;
    broca_request *request = NULL;
    broca_step *step = NULL;
    uint64_t version = 0;
    char cursor[128] = "";
    int sessions = 0;
    OK(broca_client_open_with_metadata(client, NULL, 0, TEXT("{\"title\":\"first\",\"n\":1.50}"), &session, err));
    OK(broca_session_info(session, &step, err));
    CHECK(is(broca_step_outcome(step), "info") && holds(broca_step_value(step), "\"n\":1.50"));
    CHECK(holds(broca_step_value(step), "\"state\":\"open\"") && holds(broca_step_value(step), "\"idle\""));
    broca_step_free(step);
    OK(broca_session_update(session, TEXT("{\"title\":null,\"m\":[1]}"), &version, &step, err));
    CHECK(holds(broca_step_value(step), "{\"n\":1.50,\"m\":[1]}") && holds(broca_step_value(step), "\"metadata_version\":1"));
    broca_step_free(step);
    FAILS(BROCA_E_API, broca_session_update(session, TEXT("{\"title\":\"late\"}"), &version, &step, err));
    FAILS(BROCA_E_INVALID_ARGUMENT, broca_session_update(session, TEXT("[]"), NULL, &step, err));
    FAILS(BROCA_E_INVALID_ARGUMENT, broca_session_update(session, TEXT("{"), NULL, &step, err));
    OK(broca_session_update(session, TEXT("{\"k\":2}"), NULL, &step, err));
    broca_step_free(step);
    OK(broca_client_open_with_metadata(client, NULL, 0, TEXT("{\"n\":2}"), &asking, err));
    broca_session_free(asking);
    do {
        OK(broca_client_sessions(client, TEXT(cursor), 1, &step, err));
        CHECK(is(broca_step_outcome(step), "sessions") && holds(broca_step_value(step), "\"session_id\""));
        if (sessions == 0) CHECK(holds(broca_step_value(step), "{\"n\":2}"));
        if (sessions == 1) CHECK(holds(broca_step_value(step), broca_session_id(session).data));
        broca_bytes next = broca_step_next_cursor(step);
        CHECK(next.len < sizeof cursor);
        memcpy(cursor, next.len > 0 ? next.data : "", next.len);
        cursor[next.len] = 0;
        broca_step_free(step);
        sessions++;
    } while (cursor[0] != 0);
    CHECK(sessions >= 2);

    OK(broca_session_start_info(session, &request, err));
    OK(broca_request_next(request, 20000, &step, err));
    CHECK(holds(broca_step_value(step), "\"k\":2"));
    broca_step_free(step);
    broca_request_free(request);
    OK(broca_session_start_update(session, TEXT("{\"k\":3}"), NULL, &request, err));
    OK(broca_request_next(request, 20000, &step, err));
    CHECK(holds(broca_step_value(step), "\"k\":3"));
    broca_step_free(step);
    broca_request_free(request);
    OK(broca_session_new(client, &asking, err));
    OK(broca_session_start_sessions(asking, NULL, 0, 0, &request, err));
    OK(broca_request_next(request, 20000, &step, err));
    CHECK(is(broca_step_outcome(step), "sessions"));
    broca_step_free(step);
    broca_request_free(request);
    OK(broca_session_start_open_with_metadata(asking, NULL, 0, TEXT("{\"n\":3}"), &request, err));
    OK(broca_request_next(request, 20000, &step, err));
    CHECK(is(broca_step_outcome(step), "opened"));
    broca_step_free(step);
    broca_request_free(request);
    broca_session_free(asking);
    close_all(client, session);
}

static void tools_are_replaced_and_others_join(void) {
    broca_client *client = new_client(0);
    broca_session *session = open_with(client, "read_file", 0);
    broca_session *other = NULL;
    broca_tool *tool = new_tool("shout", 0);
    const broca_tool *tools[] = {tool};
    broca_step *done = NULL;
    broca_bytes id = broca_session_id(session);
    int steps = 0;
    OK(broca_session_update_tools(session, tools, 1, err));
    OK(broca_session_ask(session, TEXT("shout a.txt"), count_step, &steps, &done, err));
    CHECK(holds(broca_step_text(done), "blocks"));
    broca_step_free(done);
    OK(broca_client_join(client, id.data, id.len, tools, 1, &other, err));
    OK(broca_session_ask(other, TEXT("hello"), NULL, NULL, &done, err));
    broca_step_free(done);
    broca_session_free(other);
    broca_tool_free(tool);
    close_all(client, session);
}

/* What a thread does to a step or a turn. */
struct errand {
    broca_step *step;
    broca_turn *turn;
    broca_io *io;
    int delay_ms;
};

static void *answer_later(void *data) {
    struct errand *errand = data;
    usleep((useconds_t)errand->delay_ms * 1000);
    OK(broca_call_complete_text(errand->step, TEXT("from a thread"), NULL, err));
    broca_step_free(errand->step);
    return NULL;
}

static void *cancel_later(void *data) {
    struct errand *errand = data;
    usleep((useconds_t)errand->delay_ms * 1000);
    OK(broca_turn_cancel(errand->turn, err));
    OK(broca_turn_cancel(errand->turn, err));
    return NULL;
}

static void a_thread_answers_while_another_waits(void) {
    broca_client *client = new_client(0);
    broca_session *session = open_with(client, "read_file", 0);
    broca_turn *turn = NULL;
    broca_step *step = NULL;
    pthread_t thread;
    OK(broca_session_send(session, TEXT("read_file on a.txt"), &turn, err));
    struct errand errand = {next_of(turn, BROCA_STEP_TOOL_CALL), turn, NULL, 100};
    int64_t begun = now_ms();
    pthread_create(&thread, NULL, answer_later, &errand);
    step = next_of(turn, BROCA_STEP_DONE);
    CHECK(holds(broca_step_text(step), "from a thread") && now_ms() - begun < 10000);
    pthread_join(thread, NULL);
    broca_step_free(step);
    broca_turn_free(turn);
    close_all(client, session);
}

static void cancel_twice_from_another_thread_ends_the_turn_once(void) {
    broca_client *client = new_client(0);
    broca_session *session = open_with(client, "read_file", 0);
    broca_turn *turn = NULL;
    broca_step *step = NULL;
    broca_step *call = NULL;
    broca_step *done = NULL;
    broca_error *error = NULL;
    pthread_t thread;
    int32_t accepted = 7;
    OK(broca_session_send(session, TEXT("read_file on a.txt"), &turn, err));
    call = next_of(turn, BROCA_STEP_TOOL_CALL);
    struct errand errand = {NULL, turn, NULL, 100};
    pthread_create(&thread, NULL, cancel_later, &errand);
    int cancels = 0;
    while (broca_turn_next(turn, -1, &step, &error) == BROCA_OK && step != NULL) {
        if (broca_step_kind(step) == BROCA_STEP_TOOL_CANCEL) {
            cancels++;
            CHECK(broca_step_call(step) == broca_step_call(call));
        }
        broca_step_free(step);
    }
    CHECK(cancels == 1 && broca_error_code(error) == BROCA_E_CANCELLED);
    broca_error_free(error);
    pthread_join(thread, NULL);
    OK(broca_turn_next(turn, -1, &step, err));
    CHECK(step == NULL && broca_turn_is_over(turn) == 1);
    /* The next turn can start at once. */
    OK(broca_session_ask(session, TEXT("hello"), NULL, NULL, &done, err));
    broca_step_free(done);
    OK(broca_call_complete_text(call, TEXT("too late"), &accepted, err));
    CHECK(accepted == 0);
    broca_step_free(call);
    broca_turn_free(turn);
    close_all(client, session);
}

static void a_turn_is_left_early_and_the_session_goes_on(void) {
    broca_client *client = new_client(0);
    broca_session *session = open_with(client, "read_file", 0);
    broca_turn *turn = NULL;
    broca_step *done = NULL;
    OK(broca_session_send(session, TEXT("read_file on a.txt"), &turn, err));
    broca_step_free(next_of(turn, BROCA_STEP_EVENT));
    OK(broca_turn_leave(turn, err));
    CHECK(broca_turn_is_over(turn) == 1);
    broca_turn_free(turn);
    OK(broca_session_send(session, TEXT("read_file on a.txt"), &turn, err));
    broca_turn_free(turn); /* without waiting */
    OK(broca_session_send(session, TEXT("hello"), &turn, err));
    OK(broca_session_cancel(session, err));
    FAILS(BROCA_E_CANCELLED, broca_turn_reply(turn, NULL, NULL, &done, err));
    broca_turn_free(turn);
    OK(broca_session_ask(session, TEXT("hello"), NULL, NULL, &done, err));
    broca_step_free(done);
    close_all(client, session);
}

static void a_late_answer_after_close_changes_nothing(void) {
    broca_client *client = new_client(0);
    broca_session *session = open_with(client, "read_file", 0);
    broca_turn *turn = NULL;
    broca_turn *more = NULL;
    broca_step *call = NULL;
    int32_t accepted = 7;
    OK(broca_session_send(session, TEXT("read_file on a.txt"), &turn, err));
    call = next_of(turn, BROCA_STEP_TOOL_CALL);
    OK(broca_session_close(session, err));
    FAILS(BROCA_E_CLOSED, broca_session_send(session, TEXT("hello"), &more, err));
    CHECK(more == NULL);
    broca_turn_free(turn);
    broca_session_free(session);
    broca_client_free(client);
    OK(broca_call_complete_text(call, TEXT("late"), &accepted, err));
    CHECK(accepted == 0);
    broca_step_free(call);
}

/* Ten threads, each with its own session of one client: one leads, the others follow. */
static void *talk(void *data) {
    broca_client *client = data;
    broca_session *session = open_with(client, "read_file", 0);
    broca_step *done = NULL;
    int steps = 0;
    for (int i = 0; i < 5; i++) {
        OK(broca_session_ask(session, TEXT("read_file on a.txt"), count_step, &steps, &done, err));
        CHECK(holds(broca_step_text(done), "blocks"));
        broca_step_free(done);
    }
    OK(broca_session_close(session, err));
    broca_session_free(session);
    return NULL;
}

static void many_threads_share_a_client(void) {
    broca_client *client = new_client(0);
    pthread_t threads[10];
    for (int i = 0; i < 10; i++) {
        pthread_create(&threads[i], NULL, talk, client);
    }
    for (int i = 0; i < 10; i++) {
        pthread_join(threads[i], NULL);
    }
    broca_client_free(client);
}

static void *begin_and_end(void *data) {
    broca_client *client = new_client(0);
    (void)data;
    broca_session *session = open_with(client, "read_file", 0);
    broca_turn *turn = NULL;
    OK(broca_session_send(session, TEXT("read_file on a.txt"), &turn, err));
    /* Everything in flight, in the wrong order. */
    broca_client_free(client);
    broca_session_free(session);
    broca_turn_free(turn);
    return NULL;
}

static void worker_threads_come_and_go_with_work_in_flight(void) {
    for (int i = 0; i < 20; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, begin_and_end, NULL);
        pthread_join(thread, NULL);
    }
}

static void after_a_fork_every_use_says_so(void) {
    broca_client *client = new_client(0);
    broca_session *session = open_with(client, "read_file", 0);
    broca_turn *turn = NULL;
    broca_step *step = NULL;
    int status = -1;
    int told[2];
    char bad_calls = 99;
    CHECK(pipe(told) == 0);
    OK(broca_session_send(session, TEXT("read_file on a.txt"), &turn, err));
    step = next_of(turn, BROCA_STEP_TOOL_CALL);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        broca_turn *more = NULL;
        broca_step *none = NULL;
        broca_error *error = NULL;
        int bad = 0;
        bad += broca_turn_next(turn, -1, &none, &error) != BROCA_E_FORKED;
        bad += !holds(broca_error_message(error), "fork");
        broca_error_free(error);
        bad += broca_session_send(session, TEXT("hi"), &more, NULL) != BROCA_E_FORKED;
        bad += broca_turn_cancel(turn, NULL) != BROCA_E_FORKED;
        bad += broca_call_complete_text(step, TEXT("hi"), NULL, NULL) != BROCA_E_FORKED;
        bad += broca_session_close(session, NULL) != BROCA_E_FORKED;
        bad += broca_io_tick(broca_client_io(client), NULL) != BROCA_E_FORKED;
        bad += broca_io_due(broca_client_io(client)) != -1;
        broca_step_free(step);
        broca_turn_free(turn);
        broca_session_free(session);
        broca_client_free(client);
        /* A client of its own works. */
        client = new_client(0);
        bad += broca_client_open(client, NULL, 0, &session, NULL) != BROCA_OK;
        bad += broca_session_close(session, NULL) != BROCA_OK;
        broca_session_free(session);
        broca_client_free(client);
        /* Through a pipe: the status of a child that has left the parent's objects alone is Valgrind's. */
        bad_calls = (char)(bad + failed_checks);
        _exit(write(told[1], &bad_calls, 1) == 1 ? 0 : 1);
    }
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && read(told[0], &bad_calls, 1) == 1 && bad_calls == 0);
    close(told[0]);
    close(told[1]);
    /* The parent's conversation is untouched. */
    OK(broca_call_complete_text(step, TEXT("fine"), NULL, err));
    broca_step_free(step);
    step = next_of(turn, BROCA_STEP_DONE);
    CHECK(holds(broca_step_text(step), "fine"));
    broca_step_free(step);
    broca_turn_free(turn);
    close_all(client, session);
}

static int woken[2];
static int destroyed;

static void wake(void *user_data) {
    CHECK(user_data == woken);
    /* Called without a lock: the library may be called from here. */
    CHECK(broca_version() != NULL);
    if (write(woken[1], "x", 1) != 1) {
        perror("write");
    }
}

static void destroy(void *user_data) {
    CHECK(user_data == woken || user_data == &destroyed);
    destroyed++;
}

static void an_event_loop_drives_everything(void) {
    broca_client *client = new_client(0);
    struct loop loop = {broca_client_io(client), {{0, 0, 0}}, 0, 0};
    broca_tool *tool = new_tool("read_file", 0);
    const broca_tool *tools[] = {tool};
    broca_session *session = NULL;
    broca_request *request = NULL;
    broca_subscription *subscription = NULL;
    broca_turn *turn = NULL;
    broca_step *step = NULL;
    broca_step *call = NULL;
    pthread_t thread;
    char byte;
    destroyed = 0;
    CHECK(pipe(woken) == 0);
    OK(broca_io_set_wake(loop.io, wake, woken, destroy, err));
    loop.watched[loop.count].fd = woken[0];
    loop.watched[loop.count++].events = POLLIN;
    OK(broca_session_new(client, &session, err));
    OK(broca_session_start_open(session, tools, 1, &request, err));
    step = loop_until(&loop, BROCA_STEP_FINISHED);
    CHECK(broca_step_operation(step) == broca_request_id(request) && is(broca_step_outcome(step), "opened"));
    CHECK(broca_session_id(session).len > 0);
    broca_step_free(step);
    broca_request_free(request);

    OK(broca_session_start_participants(session, &request, err));
    OK(broca_request_set_data(request, session, err));
    step = loop_until(&loop, BROCA_STEP_FINISHED);
    CHECK(broca_step_data(step) == session);
    broca_step_free(step);
    broca_request_free(request);
    OK(broca_session_start_update_tools(session, tools, 1, &request, err));
    broca_step_free(loop_until(&loop, BROCA_STEP_FINISHED));
    broca_request_free(request);
    OK(broca_session_start_meta(session, &request, err));
    broca_step_free(loop_until(&loop, BROCA_STEP_FINISHED));
    broca_request_free(request);
    OK(broca_session_start_meta(session, &request, err));
    OK(broca_request_cancel(request, err));
    broca_step_free(loop_until(&loop, BROCA_STEP_FAILED));
    broca_request_free(request);

    OK(broca_session_subscribe(session, &subscription, err));
    OK(broca_subscription_set_data(subscription, subscription, err));
    OK(broca_session_send(session, TEXT("read_file on a.txt"), &turn, err));
    OK(broca_turn_set_data(turn, turn, err));
    call = loop_until(&loop, BROCA_STEP_TOOL_CALL);
    CHECK(broca_step_data(call) == turn);
    while (poll(&loop.watched[0], 1, 0) > 0 && read(woken[0], &byte, 1) == 1) {
    }
    /* Another thread answers; the wake ends the wait of the loop. */
    struct errand errand = {call, turn, NULL, 50};
    pthread_create(&thread, NULL, answer_later, &errand);
    int64_t begun = now_ms();
    int heard = 0;
    do {
        step = NULL;
        OK(broca_io_next(loop.io, &step, err));
        if (step == NULL) {
            loop_turn(&loop, 5000);
            if (loop.watched[0].revents & POLLIN) {
                heard = 1;
                CHECK(read(woken[0], &byte, 1) == 1);
            }
            continue;
        }
        if (broca_step_kind(step) == BROCA_STEP_DONE) {
            break;
        }
        broca_step_free(step);
    } while (now_ms() - begun < 20000);
    CHECK(heard == 1 && step != NULL && holds(broca_step_text(step), "from a thread"));
    broca_step_free(step);
    pthread_join(thread, NULL);
    step = loop_until(&loop, BROCA_STEP_FINISHED);
    CHECK(broca_step_data(step) == turn && is(broca_step_outcome(step), "replied"));
    broca_step_free(step);
    broca_turn_free(turn);

    OK(broca_subscription_cancel(subscription, err));
    do {
        step = loop_until(&loop, BROCA_STEP_FAILED);
        CHECK(step != NULL && broca_step_data(step) == subscription);
    } while (0);
    broca_error *error = NULL;
    OK(broca_step_error(step, &error, err));
    CHECK(broca_error_code(error) == BROCA_E_CANCELLED);
    broca_error_free(error);
    broca_step_free(step);
    CHECK(broca_subscription_is_over(subscription) == 1 && broca_subscription_id(subscription) != 0);
    broca_subscription_free(subscription);

    OK(broca_session_start_close(session, &request, err));
    broca_step_free(loop_until(&loop, BROCA_STEP_FINISHED));
    broca_request_free(request);
    broca_session_free(session);
    for (int i = 0; i < 3; i++) {
        loop_turn(&loop, 0); /* forgets what was closed */
    }
    CHECK(loop.count == 1);
    CHECK(destroyed == 0);
    broca_tool_free(tool);
    broca_client_free(client);
    CHECK(destroyed == 1);
    close(woken[0]);
    close(woken[1]);
}

static broca_io *resolving;
static uint64_t asked;

static void resolve_later(void *user_data, uint64_t request, const char *host) {
    CHECK(user_data == &destroyed && strcmp(host, "broca.invalid") == 0);
    asked = request;
}

static void resolve_at_once(void *user_data, uint64_t request, const char *host) {
    (void)user_data;
    (void)host;
    /* A callback may call back. */
    OK(broca_io_resolved(resolving, request, TEXT("127.0.0.1"), NULL, 0, err));
    OK(broca_io_wake(resolving, err));
    asked = request;
}

static void the_programs_own_resolver_is_asked_and_may_answer_from_inside(void) {
    const char *url = strrchr(getenv("BROCA_URL"), ':');
    const char *key = getenv("BROCA_CLIENT_KEY");
    char named[64];
    broca_options *options = NULL;
    broca_client *client = NULL;
    broca_session *session = NULL;
    broca_request *request = NULL;
    snprintf(named, sizeof named, "http://broca.invalid%s", url);
    OK(broca_options_new(TEXT(named), TEXT(key), &options, err));
    OK(broca_options_set_flag(options, TEXT("proxy_from_environment"), 0, err));
    destroyed = 0;

    OK(broca_client_new(options, &client, err));
    resolving = broca_client_io(client);
    OK(broca_io_set_resolver(resolving, resolve_at_once, &destroyed, destroy, err));
    OK(broca_client_open(client, NULL, 0, &session, err));
    CHECK(asked == 1);
    close_all(client, session);
    CHECK(destroyed == 1);

    OK(broca_client_new(options, &client, err));
    struct loop loop = {broca_client_io(client), {{0, 0, 0}}, 0, 0};
    OK(broca_io_set_resolver(loop.io, resolve_later, &destroyed, destroy, err));
    OK(broca_session_new(client, &session, err));
    OK(broca_session_start_open(session, NULL, 0, &request, err));
    asked = 0;
    for (int i = 0; i < 5 && asked == 0; i++) {
        loop_turn(&loop, 50);
    }
    CHECK(asked == 1);
    OK(broca_io_resolved(loop.io, asked, TEXT("127.0.0.1"), NULL, 0, err));
    broca_step_free(loop_until(&loop, BROCA_STEP_FINISHED));
    broca_request_free(request);
    OK(broca_io_set_resolver(loop.io, NULL, NULL, NULL, err));
    CHECK(destroyed == 2);
    broca_session_free(session);
    broca_client_free(client);

    OK(broca_client_new(options, &client, err));
    struct loop other = {broca_client_io(client), {{0, 0, 0}}, 0, 0};
    OK(broca_io_set_resolver(other.io, resolve_later, &destroyed, NULL, err));
    OK(broca_session_new(client, &session, err));
    OK(broca_session_start_observe(session, TEXT("ses_none"), &request, err));
    asked = 0;
    for (int i = 0; i < 5 && asked == 0; i++) {
        loop_turn(&other, 50);
    }
    OK(broca_io_resolved(other.io, asked, NULL, 0, TEXT("nobody knows"), err));
    broca_step *step = loop_until(&other, BROCA_STEP_FAILED);
    broca_error *error = NULL;
    OK(broca_step_error(step, &error, err));
    CHECK(broca_error_code(error) == BROCA_E_CONNECT && holds(broca_error_message(error), "nobody knows"));
    broca_error_free(error);
    broca_step_free(step);
    broca_request_free(request);
    broca_session_free(session);
    broca_client_free(client);
    broca_options_free(options);
}

static void tls_trusts_whom_it_is_told_to(void) {
    const char *url = getenv("BROCA_TLS_URL");
    const char *key = getenv("BROCA_CLIENT_KEY");
    FILE *file = fopen(getenv("BROCA_TLS_ROOTS"), "rb");
    char pem[16384];
    broca_options *options = NULL;
    broca_client *client = NULL;
    broca_session *session = NULL;
    broca_request *request = NULL;
    broca_step *done = NULL;
    CHECK(file != NULL);
    if (file == NULL) {
        return;
    }
    size_t size = fread(pem, 1, sizeof pem, file);
    fclose(file);
    OK(broca_options_new(TEXT(url), TEXT(key), &options, err));
    OK(broca_options_set_flag(options, TEXT("proxy_from_environment"), 0, err));
    OK(broca_options_set_flag(options, TEXT("platform_roots"), 0, err));
    OK(broca_options_add_trusted_roots(options, pem, size, err));
    OK(broca_client_new(options, &client, err));
    OK(broca_client_open(client, NULL, 0, &session, err));
    OK(broca_session_ask(session, TEXT("hello over TLS"), NULL, NULL, &done, err));
    CHECK(holds(broca_step_text(done), "hello over TLS"));
    broca_step_free(done);
    close_all(client, session);

    OK(broca_client_new(options, &client, err));
    struct loop loop = {broca_client_io(client), {{0, 0, 0}}, 0, 0};
    OK(broca_session_new(client, &session, err));
    OK(broca_session_start_open(session, NULL, 0, &request, err));
    broca_step_free(loop_until(&loop, BROCA_STEP_FINISHED));
    broca_request_free(request);
    OK(broca_session_start_close(session, &request, err));
    broca_step_free(loop_until(&loop, BROCA_STEP_FINISHED));
    broca_request_free(request);
    broca_session_free(session);
    broca_client_free(client);
    broca_options_free(options);

    /* The machine does not know the authority. */
    OK(broca_options_new(TEXT(url), TEXT(key), &options, err));
    OK(broca_options_set_flag(options, TEXT("proxy_from_environment"), 0, err));
    if (broca_client_new(options, &client, NULL) == BROCA_OK) {
        FAILS(BROCA_E_TLS, broca_client_open(client, NULL, 0, &session, err));
        broca_client_free(client);
    }
    broca_options_free(options);
}

static void *watch_on(void *data) {
    broca_step *step = NULL;
    broca_error *error = NULL;
    while (broca_subscription_next(data, -1, &step, &error) == BROCA_OK && step != NULL) {
        broca_step_free(step);
    }
    CHECK(broca_error_code(error) == BROCA_E_CANCELLED);
    broca_error_free(error);
    return NULL;
}

static void a_thread_that_waits_for_a_step_holds_nobody_up(void) {
    broca_client *client = new_client(0);
    broca_io *io = broca_client_io(client);
    broca_session *session = open_with(client, "read_file", 0);
    broca_subscription *subscription = NULL;
    broca_step *step = NULL;
    pthread_t thread;
    OK(broca_session_subscribe(session, &subscription, err));
    while (step == NULL) {
        OK(broca_io_wait(io, -1, NULL, err));
        OK(broca_io_next(io, &step, err));
    }
    broca_step_free(step);
    pthread_create(&thread, NULL, watch_on, subscription);
    usleep(100000);
    int64_t from = now_ms();
    OK(broca_io_wait(io, 50, NULL, err));
    OK(broca_io_next(io, &step, err));
    broca_step_free(step);
    broca_io_due(io);
    CHECK(now_ms() - from < 5000);
    OK(broca_subscription_cancel(subscription, err));
    pthread_join(thread, NULL);
    broca_subscription_free(subscription);
    close_all(client, session);
}

static void io_wait_and_next_serve_many_sessions_at_once(void) {
    broca_client *client = new_client(0);
    broca_io *io = broca_client_io(client);
    broca_session *sessions[8];
    broca_turn *turns[8];
    int over = 0;
    for (int i = 0; i < 8; i++) {
        sessions[i] = open_with(client, "read_file", 0);
        OK(broca_session_send(sessions[i], TEXT("read_file on a.txt"), &turns[i], err));
    }
    int64_t until = now_ms() + 30000;
    while (over < 8 && now_ms() < until) {
        broca_step *step = NULL;
        int32_t ready = 0;
        OK(broca_io_wait(io, 1000, &ready, err));
        OK(broca_io_next(io, &step, err));
        CHECK(ready == 0 || step != NULL);
        if (broca_step_kind(step) == BROCA_STEP_TOOL_CALL) {
            OK(broca_call_complete_text(step, TEXT("x"), NULL, err));
        }
        over += broca_step_kind(step) == BROCA_STEP_FINISHED;
        broca_step_free(step);
    }
    CHECK(over == 8);
    for (int i = 0; i < 8; i++) {
        CHECK(broca_turn_is_over(turns[i]) == 1);
        broca_turn_free(turns[i]);
        OK(broca_session_close(sessions[i], err));
        broca_session_free(sessions[i]);
    }
    broca_client_free(client);
}

static void a_wrong_key_is_told_with_details_and_logs_hold_no_key(void) {
    const char *url = getenv("BROCA_URL");
    broca_options *options = NULL;
    broca_client *client = NULL;
    broca_session *session = NULL;
    broca_error *error = NULL;
    broca_bytes message;
    int32_t level;
    OK(broca_options_new(TEXT(url), TEXT("bae_hunter2"), &options, err));
    OK(broca_client_new(options, &client, err));
    broca_options_free(options);
    CHECK(broca_client_open(client, NULL, 0, &session, &error) == BROCA_E_UNAUTHORIZED);
    CHECK(session == NULL && holds(broca_error_details(error), "401"));
    CHECK(!holds(broca_error_message(error), "hunter2"));
    broca_error_free(error);
    do {
        OK(broca_client_next_log(client, &level, &message, err));
        CHECK(!holds(message, "hunter2"));
        CHECK(level >= BROCA_LOG_DEBUG && level <= BROCA_LOG_WARNING);
    } while (message.data != NULL);
    broca_client_free(client);
}

#ifdef BROCA_TESTING
static void a_panic_is_an_error_and_only_its_session_is_lost(void) {
    broca_client *client = new_client(0);
    broca_session *lost = open_with(client, "read_file", 0);
    broca_session *session = open_with(client, "read_file", 0);
    broca_turn *turn = NULL;
    broca_step *step = NULL;
    broca_error *error = NULL;
    OK(broca_session_send(lost, TEXT("read_file on a.txt"), &turn, err));
    broca_step_free(next_of(turn, BROCA_STEP_EVENT));
    FAILS(BROCA_E_PANIC, broca_testing_panic(lost, err));
    while (broca_turn_next(turn, 1000, &step, &error) == BROCA_OK && step != NULL) {
        broca_step_free(step);
    }
    CHECK(broca_error_code(error) == BROCA_E_PANIC && broca_turn_is_over(turn) == 1);
    broca_error_free(error);
    broca_turn_free(turn);
    FAILS(BROCA_E_PANIC, broca_session_send(lost, TEXT("hi"), &turn, err));
    broca_session_free(lost);
    OK(broca_session_ask(session, TEXT("hello"), NULL, NULL, &step, err));
    broca_step_free(step);
    close_all(client, session);
}

static void every_kind_of_error_keeps_its_number(void) {
    broca_client *client = new_client(0);
    broca_session *session = NULL;
    OK(broca_session_new(client, &session, err));
    for (int32_t code = -1; code > -1000; code--) {
        if (strcmp(broca_status_name(code), "BROCA_E_UNKNOWN") != 0) {
            broca_error *error = NULL;
            CHECK(broca_testing_throw(session, code, &error) == code && broca_error_code(error) == code);
            CHECK(is(broca_error_details(error), "{\"test\":\"details\"}"));
            broca_error_free(error);
        }
    }
    broca_session_free(session);
    broca_client_free(client);
}
#endif

static int descriptors(void) {
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    if (folder == NULL) {
        return 0;
    }
    while (readdir(folder) != NULL) {
        count++;
    }
    closedir(folder);
    return count;
}

static long number_of(const char *name) {
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    long value = 0;
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, name, strlen(name)) == 0) {
            value = strtol(line + strlen(name), NULL, 10);
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return value;
}

static void many_sessions_leave_nothing_behind(void) {
    const char *wanted = getenv("BROCA_TEST_SESSIONS");
    int sessions = wanted != NULL ? atoi(wanted) : 2000;
    broca_client *client = new_client(0);
    int first_descriptors = 0;
    long first_kb = 0, first_threads = 0;
    for (int i = 0; i < sessions; i++) {
        broca_session *session = NULL;
        OK(broca_client_open(client, NULL, 0, &session, err));
        OK(broca_session_close(session, err));
        broca_session_free(session);
        if (i == sessions / 4) {
            first_descriptors = descriptors();
            first_kb = number_of("VmRSS:");
            first_threads = number_of("Threads:");
        }
        if (failed_checks != 0) {
            break;
        }
    }
    fprintf(stderr, "%d sessions: memory %ld -> %ld kB, descriptors %d -> %d, threads %ld -> %ld\n", sessions,
            first_kb, number_of("VmRSS:"), first_descriptors, descriptors(), first_threads, number_of("Threads:"));
    CHECK(descriptors() <= first_descriptors + 2);
    CHECK(number_of("Threads:") == first_threads && first_threads == 1);
    if (getenv("BROCA_TEST_MEMORY") != NULL) {
        CHECK(number_of("VmRSS:") <= first_kb + 1024);
    }
    broca_client_free(client);
}

int main(int argc, char **argv) {
    wanted_test = argc > 1 ? argv[1] : NULL;
    TEST(a_turn_calls_a_tool_and_ends_with_its_reply);
    TEST(ask_drives_the_loop_and_answers_what_nobody_does);
    TEST(content_holds_images_and_files);
    TEST(approvals_are_asked_for_and_decide);
    TEST(hooks_see_and_change_messages);
    TEST(the_log_is_read_page_by_page_and_watched_from_a_cursor);
    TEST(a_session_tells_how_it_stands_and_keeps_what_is_said_of_it);
    TEST(tools_are_replaced_and_others_join);
    TEST(a_thread_answers_while_another_waits);
    TEST(cancel_twice_from_another_thread_ends_the_turn_once);
    TEST(a_turn_is_left_early_and_the_session_goes_on);
    TEST(a_late_answer_after_close_changes_nothing);
    TEST(worker_threads_come_and_go_with_work_in_flight);
    TEST(after_a_fork_every_use_says_so);
    TEST(an_event_loop_drives_everything);
    TEST(the_programs_own_resolver_is_asked_and_may_answer_from_inside);
    if (getenv("BROCA_TLS_URL") != NULL) {
        TEST(tls_trusts_whom_it_is_told_to);
    } else {
        SKIP(tls_trusts_whom_it_is_told_to, "there is no service behind TLS");
    }
    TEST(a_thread_that_waits_for_a_step_holds_nobody_up);
    TEST(io_wait_and_next_serve_many_sessions_at_once);
    TEST(a_wrong_key_is_told_with_details_and_logs_hold_no_key);
#ifdef BROCA_TESTING
    TEST(a_panic_is_an_error_and_only_its_session_is_lost);
    TEST(every_kind_of_error_keeps_its_number);
#else
    SKIP(a_panic_is_an_error_and_only_its_session_is_lost, "the library has no faults on demand");
    SKIP(every_kind_of_error_keeps_its_number, "the library has no faults on demand");
#endif
    TEST(many_sessions_leave_nothing_behind);
    TEST(many_threads_share_a_client);
    return report("conversation");
}
