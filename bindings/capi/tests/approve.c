/* Consent to tools that the service runs.
 *
 * BROCA_URL and BROCA_CLIENT_KEY name a service with the scripted model.
 */
#define _GNU_SOURCE
#include "service.h"

static broca_client *asking(const char *approvals) {
    broca_options *options = NULL;
    broca_client *client = NULL;
    OK(broca_options_new(TEXT(getenv("BROCA_URL")), TEXT(getenv("BROCA_CLIENT_KEY")), &options, err));
    OK(broca_options_set_flag(options, TEXT("proxy_from_environment"), 0, err));
    OK(broca_options_set_text(options, TEXT("approvals"), TEXT(approvals), err));
    OK(broca_client_new(options, &client, err));
    broca_options_free(options);
    return client;
}

static broca_session *opened(broca_client *client) {
    broca_session *session = NULL;
    OK(broca_client_open(client, NULL, 0, &session, err));
    return session;
}

static broca_step *question_of(broca_session *session, broca_turn **turn) {
    OK(broca_session_send(session, TEXT("What time is it? clock"), turn, err));
    broca_step *question = next_of(*turn, BROCA_STEP_APPROVAL);
    CHECK(is(broca_step_name(question), "clock") && broca_step_server_side(question) == 1);
    CHECK(broca_step_may_have_run(question) == 0);
    return question;
}

static void a_person_is_asked_before_the_service_runs_its_tool(void) {
    static const char ask[] = "{\"ask\":[\"clock\"],\"narrow\":{\"clock\":{\"/timezone\":\"one_of_prefix\"}}}";
    broca_client *client = asking(ask);
    broca_session *session = opened(client);
    for (int way = 0; way < 3; way++) {
        broca_turn *turn = NULL;
        broca_step *question = question_of(session, &turn);
        int32_t accepted = 0;
        if (way == 0) OK(broca_approval_allow(question, &accepted, err));
        if (way == 1) OK(broca_approval_deny(question, TEXT("not now"), &accepted, err));
        if (way == 2) OK(broca_approval_allow_narrowed(question, TEXT("{\"other\":1}"), &accepted, err));
        CHECK(accepted == 1);
        broca_step_free(question);
        broca_step *done = next_of(turn, BROCA_STEP_DONE);
        CHECK(holds(broca_step_text(done), "denied and not run") == (way > 0));
        CHECK(holds(broca_step_text(done), "not now") == (way == 1));
        CHECK(holds(broca_step_text(done), "narrowing_widens") == (way == 2));
        broca_step_free(done);
        broca_turn_free(turn);
    }
    close_all(client, session);
}

static void a_question_that_is_freed_is_denied_and_a_cancelled_turn_takes_it_back(void) {
    broca_client *client = asking("{\"ask\":\"*\"}");
    broca_session *session = opened(client);
    broca_turn *turn = NULL;
    broca_step_free(question_of(session, &turn));
    broca_step *done = next_of(turn, BROCA_STEP_DONE);
    CHECK(holds(broca_step_text(done), "denied and not run"));
    broca_step_free(done);
    broca_turn_free(turn);

    broca_step *question = question_of(session, &turn);
    int32_t accepted = 1;
    OK(broca_turn_cancel(turn, err));
    OK(broca_approval_allow(question, &accepted, err));
    CHECK(accepted == 0);
    broca_step_free(question);
    broca_turn_free(turn);
    close_all(client, session);
}

static void what_cannot_be_asked_for_is_refused(void) {
    broca_options *options = NULL;
    broca_session *session = NULL;
    OK(broca_options_new(TEXT("http://127.0.0.1:1"), TEXT("k"), &options, err));
    FAILS(BROCA_E_INVALID_ARGUMENT, broca_options_set_text(options, TEXT("approvals"), TEXT("{"), err));
    FAILS(BROCA_E_INVALID_ARGUMENT, broca_options_set_text(options, TEXT("approvals"), TEXT("{\"ask\":1}"), err));
    broca_options_free(options);
    broca_client *client = asking("{\"ask\":[\"clok\"]}");
    FAILS(BROCA_E_API, broca_client_open(client, NULL, 0, &session, err));
    broca_client_free(client);
    CHECK(broca_step_server_side(NULL) == 0);
}

int main(int argc, char **argv) {
    wanted_test = argc > 1 ? argv[1] : NULL;
    TEST(a_person_is_asked_before_the_service_runs_its_tool);
    TEST(a_question_that_is_freed_is_denied_and_a_cancelled_turn_takes_it_back);
    TEST(what_cannot_be_asked_for_is_refused);
    return report("approve");
}
