/* The service is newer than this program: what the library does not know comes as data, and the turn goes on. */

#include "../guide.h"

int main(void) {
    broca_options *options = options_of_environment();
    broca_client *client;
    broca_session *session;
    broca_turn *turn;
    broca_step *step;
    check(broca_client_new(options, &client, &error));
    check(broca_client_open(client, NULL, 0, &session, &error));

    /* guide: begin */
    check(broca_session_send(session, TEXT("How is the weather?"), &turn, &error));
    while (check(broca_turn_next(turn, -1, &step, &error)), step != NULL) {
        switch (broca_step_kind(step)) {
        case BROCA_STEP_NOTIFICATION: /* the whole line: broca_step_json */
            printf("a notification: %" BROCA_FORMAT "\n", BROCA_ARGUMENTS(broca_step_name(step)));
            break;
        case BROCA_STEP_EVENT:
            if (!is(broca_step_type(step), "weather.changed")) break;
            printf("an event: %" BROCA_FORMAT "\n", BROCA_ARGUMENTS(broca_step_payload(step)));
            break;
        case BROCA_STEP_DONE:
            printf("the answer: %" BROCA_FORMAT "\n", BROCA_ARGUMENTS(broca_step_text(step)));
            printf("the message: %" BROCA_FORMAT "\n", BROCA_ARGUMENTS(broca_step_message(step)));
            break;
        default: break; /* also steps of a kind that is new to this program */
        }
        broca_step_free(step);
    }
    /* guide: end */

    broca_turn_free(turn);
    check(broca_session_close(session, &error));
    broca_session_free(session);
    broca_client_free(client);
    broca_options_free(options);
    return 0;
}
