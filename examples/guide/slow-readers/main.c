/* A display that is slow: words come while the model speaks, some are left out, and no event is. */

#define _POSIX_C_SOURCE 200809L
#include "../guide.h"
#include <unistd.h>

int main(void) {
    broca_options *options = options_of_environment();
    broca_client *client;
    broca_session *session;
    broca_turn *turn;
    broca_step *step;
    int words = 0, gaps = 0;

    /* guide: begin */
    check(broca_options_set_number(options, TEXT("delta_buffer_bytes"), 64 * 1024, &error));
    check(broca_client_new(options, &client, &error));
    check(broca_client_open(client, NULL, 0, &session, &error));
    check(broca_session_send(session, TEXT("Tell me everything."), &turn, &error));
    while (check(broca_turn_next(turn, -1, &step, &error)), step != NULL) {
        switch (broca_step_kind(step)) {
        case BROCA_STEP_DELTA:
            if (words++ > 0) break;
            puts("the first words are here");
            sleep(1); /* a slow display: meanwhile nothing is read */
            break;
        case BROCA_STEP_GAP:
            if (gaps++ == 0) puts("some words were not shown");
            break;
        case BROCA_STEP_EVENT: printf("event: %s\n", broca_step_type(step).data); break;
        case BROCA_STEP_DONE:
            printf("the whole answer has %u characters\n", (unsigned)broca_step_text(step).len);
            break;
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
