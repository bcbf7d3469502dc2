/* One tool fails, another never answers: each call has its one result, and the turn goes on. */

#include "../guide.h"

static void show_log(broca_session *session) {
    broca_request *page;
    broca_step *step;
    const char *between = "in the log: ";
    check(broca_session_history(session, NULL, 0, 0, &page, &error));
    while (check(broca_request_next(page, -1, &step, &error)), step != NULL) {
        if (is(broca_step_type(step), "tool.result")) {
            broca_bytes payload = broca_step_payload(step);
            printf("%s%s", between, strstr(payload.data, "\"first\"") != NULL ? "first" : "second");
            between = ", ";
        }
        broca_step_free(step);
    }
    puts("");
    broca_request_free(page);
}

int main(void) {
    broca_options *options = options_of_environment();
    broca_client *client;
    broca_session *session;
    broca_turn *turn;
    broca_step *step;
    check(broca_client_new(options, &client, &error));

    /* guide: begin */
    broca_tool *tools[2];
    check(broca_tool_new(TEXT("broken"), TEXT("Fails."), NULL, 0, &tools[0], &error));
    check(broca_tool_new(TEXT("stuck"), TEXT("Never answers."), NULL, 0, &tools[1], &error));
    check(broca_tool_set_timeout_ms(tools[1], 500, &error));
    check(broca_client_open(client, (const broca_tool *const *)tools, 2, &session, &error));

    broca_step *stuck = NULL; /* a call that nobody answers */
    check(broca_session_send(session, TEXT("Use both tools."), &turn, &error));
    while (check(broca_turn_next(turn, -1, &step, &error)), step != NULL) {
        switch (broca_step_kind(step)) {
        case BROCA_STEP_TOOL_CALL:
            if (is(broca_step_name(step), "stuck")) {
                stuck = step;
                continue; /* not freed: that would be an answer */
            }
            check(broca_call_fail(step, TEXT("the disk is gone"), NULL, &error));
            break;
        case BROCA_STEP_TOOL_SETTLED:
            printf("%s: %s\n", broca_step_name(step).data, broca_step_outcome(step).data);
            break;
        case BROCA_STEP_DONE: printf("the model: %s\n", broca_step_text(step).data); break;
        }
        broca_step_free(step);
    }
    broca_step_free(stuck); /* too late to matter */
    /* guide: end */

    show_log(session);
    broca_turn_free(turn);
    check(broca_session_close(session, &error));
    broca_session_free(session);
    broca_tool_free(tools[0]);
    broca_tool_free(tools[1]);
    broca_client_free(client);
    broca_options_free(options);
    return 0;
}
