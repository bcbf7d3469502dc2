/* Two calls run at once, the answer to their results is cut, and neither runs again. */

#include "../guide.h"

int main(void) {
    static const char schema[] =
        "{\"type\":\"object\",\"properties\":{\"seat\":{\"type\":\"string\"}},\"required\":[\"seat\"]}";
    broca_options *options = options_of_environment();
    broca_client *client;
    broca_session *session;
    broca_tool *book;
    broca_turn *turn;
    broca_step *step;
    check(broca_client_new(options, &client, &error));

    /* guide: begin */
    check(broca_tool_new(TEXT("book"), TEXT("Book a seat."), TEXT(schema), &book, &error));
    check(broca_client_open(client, (const broca_tool *const *)&book, 1, &session, &error));

    broca_step *calls[2];
    int count = 0, keys;
    check(broca_session_send(session, TEXT("Two seats, please."), &turn, &error));
    while (check(broca_turn_next(turn, -1, &step, &error)), step != NULL) {
        switch (broca_step_kind(step)) {
        case BROCA_STEP_TOOL_CALL: /* a call is answered by any thread, at any time; a third one would be one too many */
            if (count == 2) return 1;
            calls[count++] = step;
            if (count < 2) continue;
            puts("both calls run at once");
            for (int i = 0; i < 2; i++) check(broca_call_complete_text(calls[i], TEXT("booked"), NULL, &error));
            continue;
        case BROCA_STEP_STATUS:
            if (is(broca_step_state(step), "reconnecting")) puts("the connection broke: reconnecting");
            break;
        case BROCA_STEP_DONE:
            printf("the model: %s\n", broca_step_text(step).data);
            /* For whatever must not happen twice. */
            keys = is(broca_step_idempotency_key(calls[0]), broca_step_idempotency_key(calls[1]).data) ? 1 : 2;
            printf("%u calls, %d keys, each ran once\n", (unsigned)broca_step_tool_calls(step), keys);
            break;
        }
        broca_step_free(step);
    }
    broca_step_free(calls[0]);
    broca_step_free(calls[1]);
    /* guide: end */

    broca_turn_free(turn);
    check(broca_session_close(session, &error));
    broca_session_free(session);
    broca_tool_free(book);
    broca_client_free(client);
    broca_options_free(options);
    return 0;
}
