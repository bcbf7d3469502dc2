/* A stream is cut, and its turn goes on; the service is killed, and the error says what is not known. */

#include "../guide.h"

/* guide: begin */
static broca_status count(broca_session *session, const char *message, int kill) {
    broca_turn *turn;
    broca_step *step;
    broca_status status;
    int broke = 0, words = 0;
    check(broca_session_send(session, TEXT(message), &turn, &error));
    while ((status = broca_turn_next(turn, -1, &step, &error)) == BROCA_OK && step != NULL) {
        switch (broca_step_kind(step)) {
        case BROCA_STEP_EVENT: printf("event: %s\n", broca_step_type(step).data); break;
        case BROCA_STEP_DELTA:
            if (kill && words++ == 0) puts("now the service is killed");
            break;
        case BROCA_STEP_STATUS:
            if (is(broca_step_state(step), "reconnecting") && broke++ == 0) puts("the connection broke");
            break;
        case BROCA_STEP_DONE: printf("the answer: %s\n", broca_step_text(step).data); break;
        }
        broca_step_free(step);
    }
    broca_turn_free(turn);
    return status;
}

int main(void) {
    static const char *const again[] = {"", "safe", "unsafe", "unknown"};
    broca_options *options = options_of_environment();
    broca_client *client;
    broca_session *session;
    broca_step *done;
    check(broca_client_new(options, &client, &error));
    check(broca_client_open(client, NULL, 0, &session, &error));
    check(count(session, "Count.", 0));
    if (count(session, "Count slowly.", 1) != BROCA_OK) {
        printf("%s, again? %s\n", broca_error_kind(error).data, again[broca_error_retry(error)]);
        broca_error_free(error);
    }
    check(broca_session_ask(session, TEXT("Are you there?"), NULL, NULL, &done, &error));
    printf("the next answer: %s\n", broca_step_text(done).data);
    /* guide: end */

    broca_step_free(done);
    check(broca_session_close(session, &error));
    broca_session_free(session);
    broca_client_free(client);
    broca_options_free(options);
    return 0;
}
