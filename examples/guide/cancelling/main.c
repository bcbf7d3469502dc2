/* A turn is cancelled while its tools ignore it: it gets quiet all the same, and the next message can start. */

#include "../guide.h"

static int results_in_the_log(broca_session *session) {
    broca_request *page;
    broca_step *step;
    int results = 0;
    check(broca_session_history(session, NULL, 0, 0, &page, &error));
    while (check(broca_request_next(page, -1, &step, &error)), step != NULL) {
        results += is(broca_step_type(step), "tool.result");
        broca_step_free(step);
    }
    broca_request_free(page);
    return results;
}

int main(void) {
    broca_options *options = options_of_environment();
    broca_client *client;
    broca_session *session;
    broca_tool *tools[2];
    broca_turn *turn;
    broca_step *step, *calls[2];
    int count = 0;
    check(broca_tool_new(TEXT("obedient"), TEXT("Works until it is told to stop."), NULL, 0, &tools[0], &error));
    check(broca_tool_new(TEXT("deaf"), TEXT("Works on, whatever it is told."), NULL, 0, &tools[1], &error));

    /* guide: begin */
    check(broca_options_set_number(options, TEXT("cancel_grace_ms"), 500, &error));
    check(broca_client_new(options, &client, &error));
    check(broca_client_open(client, (const broca_tool *const *)tools, 2, &session, &error));
    check(broca_session_send(session, TEXT("Go to work."), &turn, &error));
    while (count < 2) {
        check(broca_turn_next(turn, -1, &step, &error));
        if (broca_step_kind(step) == BROCA_STEP_TOOL_CALL) calls[count++] = step; /* nobody answers them */
        else broca_step_free(step);
    }
    puts("both tools work: cancelling");
    check(broca_turn_leave(turn, &error));
    puts("the turn is quiet");
    broca_step_free(calls[0]);
    broca_step_free(calls[1]);

    check(broca_session_ask(session, TEXT("Are you there?"), NULL, NULL, &step, &error));
    printf("the next message: %s\n", broca_step_text(step).data);
    /* guide: end */

    printf("in the log: %d results\n", results_in_the_log(session));
    broca_step_free(step);
    broca_turn_free(turn);
    check(broca_session_close(session, &error));
    broca_session_free(session);
    broca_tool_free(tools[0]);
    broca_tool_free(tools[1]);
    broca_client_free(client);
    broca_options_free(options);
    return 0;
}
