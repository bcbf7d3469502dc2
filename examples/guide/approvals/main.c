/* An approval that narrows, one that would widen, and one that nobody gives. */

#include "../guide.h"

int main(void) {
    static const char schema[] =
        "{\"type\":\"object\",\"properties\":{\"amount\":{\"type\":\"integer\"}},\"required\":[\"amount\"]}";
    static const char *const narrowed[] = {"{\"amount\":50}", "{\"amount\":5000}"};
    broca_options *options = options_of_environment();
    broca_client *client;
    broca_session *session;
    broca_tool *pay;
    broca_turn *turn;
    broca_step *step;
    int paid = 0, amount;
    check(broca_client_new(options, &client, &error));

    /* guide: begin */
    check(broca_tool_new(TEXT("pay"), TEXT("Pay an amount."), TEXT(schema), &pay, &error));
    check(broca_tool_set_approval(pay, 1, &error));
    check(broca_tool_add_narrow_rule(pay, TEXT("/amount"), TEXT("at_most"), &error));
    check(broca_client_open(client, (const broca_tool *const *)&pay, 1, &session, &error));

    for (int i = 0; i < 2; i++) {
        check(broca_session_send(session, TEXT("Pay the bill."), &turn, &error));
        while (check(broca_turn_next(turn, -1, &step, &error)), step != NULL) {
            switch (broca_step_kind(step)) {
            case BROCA_STEP_APPROVAL:
                printf("asked: %s %s, allowed: %d\n", broca_step_name(step).data, broca_step_input(step).data, i == 0 ? 50 : 5000);
                check(broca_approval_allow_narrowed(step, TEXT(narrowed[i]), NULL, &error));
                break;
            case BROCA_STEP_TOOL_CALL: /* comes only for a call that was allowed, with the input that was */
                if (sscanf(broca_step_input(step).data, "{\"amount\":%d}", &amount) == 1) paid += amount;
                check(broca_call_complete_text(step, TEXT("paid"), NULL, &error));
                break;
            case BROCA_STEP_TOOL_SETTLED: printf("outcome: %s\n", broca_step_outcome(step).data); break;
            }
            broca_step_free(step);
        }
        broca_turn_free(turn);
    }
    check(broca_session_ask(session, TEXT("Pay the bill."), NULL, NULL, &step, &error)); /* nobody looks: denied */
    printf("nobody is asked: %s\n", broca_step_text(step).data);
    printf("paid: %d\n", paid);
    /* guide: end */

    broca_step_free(step);
    check(broca_session_close(session, &error));
    broca_session_free(session);
    broca_tool_free(pay);
    broca_client_free(client);
    broca_options_free(options);
    return 0;
}
