/* An answer that is longer than this program allows: the errors name limit and cure, and the session goes on. */

#include "../guide.h"

int main(void) {
    broca_options *options = options_of_environment();
    broca_client *client;
    broca_session *session;
    broca_turn *turn;
    broca_request *page;
    broca_step *step;
    int gaps = 0;

    /* guide: begin */
    check(broca_options_set_number(options, TEXT("max_line_bytes"), 64 * 1024, &error));
    check(broca_options_set_number(options, TEXT("max_answer_bytes"), 64 * 1024, &error));
    check(broca_options_set_number(options, TEXT("recovery_timeout_ms"), 0, &error));
    check(broca_client_new(options, &client, &error));
    check(broca_client_open(client, NULL, 0, &session, &error));
    check(broca_session_send(session, TEXT("Tell me everything."), &turn, &error));
    while (broca_turn_next(turn, -1, &step, &error) == BROCA_OK && step != NULL) {
        if (broca_step_kind(step) == BROCA_STEP_GAP && broca_step_gap_reason(step) == BROCA_GAP_LINE && gaps++ == 0)
            printf("a line was passed over: the limit is %u\n", (unsigned)broca_step_limit(step));
        broca_step_free(step);
    }
    if (error != NULL) {
        const char *limit = strstr(broca_error_message(error).data, "the limit is"); /* before: how long the line was */
        printf("%s: %s\n", broca_error_kind(error).data, limit != NULL ? limit : "");
        broca_error_free(error);
    }
    check(broca_session_history(session, NULL, 0, 0, &page, &error));
    if (broca_request_next(page, -1, &step, &error) != BROCA_OK) {
        printf("%s: %s\n", broca_error_kind(error).data, broca_error_message(error).data);
        broca_error_free(error);
    }
    check(broca_session_ask(session, TEXT("Are you there?"), NULL, NULL, &step, &error));
    printf("the next answer: %s\n", broca_step_text(step).data);
    /* guide: end */

    broca_step_free(step);
    broca_request_free(page);
    broca_turn_free(turn);
    check(broca_session_close(session, &error));
    broca_session_free(session);
    broca_client_free(client);
    broca_options_free(options);
    return 0;
}
