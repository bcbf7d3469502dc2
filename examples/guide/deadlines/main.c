/* A tool takes longer than the service waits: its pause is held, or the call is over in time. */

#include "../guide.h"

/* guide: begin */
static void ask(const char *how, broca_client *client, const broca_tool *ponder) {
    broca_session *session;
    broca_turn *turn;
    broca_step *step, *call = NULL;
    check(broca_client_open(client, &ponder, 1, &session, &error));
    check(broca_session_send(session, TEXT("Ponder it."), &turn, &error));
    while (!broca_turn_is_over(turn)) {
        /* Four seconds, and the service waits for three: it is held as long as somebody is inside a call that waits. */
        check(broca_turn_next(turn, call != NULL ? 4000 : -1, &step, &error));
        if (step == NULL && call != NULL) check(broca_call_complete_text(call, TEXT("42"), NULL, &error));
        switch (broca_step_kind(step)) {
        case BROCA_STEP_TOOL_CALL: call = step; continue;
        case BROCA_STEP_TOOL_SETTLED:
            printf("%s: %s", how, broca_step_outcome(step).data);
            broca_step_free(call);
            call = NULL;
            break;
        case BROCA_STEP_DONE: printf(", and the model says: %s\n", broca_step_text(step).data); break;
        }
        broca_step_free(step);
    }
    broca_turn_free(turn);
    check(broca_session_close(session, &error));
    broca_session_free(session);
}

int main(void) {
    broca_options *options = options_of_environment();
    broca_client *holds, *does_not;
    broca_tool *ponder;
    check(broca_tool_new(TEXT("ponder"), TEXT("Takes four seconds."), NULL, 0, &ponder, &error));
    check(broca_client_new(options, &holds, &error));
    check(broca_options_set_number(options, TEXT("hold_ms"), 0, &error));
    check(broca_client_new(options, &does_not, &error));
    ask("not held", does_not, ponder);
    ask("held", holds, ponder);
    /* guide: end */

    broca_client_free(does_not);
    broca_client_free(holds);
    broca_tool_free(ponder);
    broca_options_free(options);
    return 0;
}
