/* Two loops are left early, one on purpose and one by an error: their turns end, and the next message can start. */

#include "../guide.h"

static int cancelled_in_the_log(broca_session *session) {
    broca_request *page;
    broca_step *step;
    int cancelled = 0;
    check(broca_session_history(session, NULL, 0, 0, &page, &error));
    while (check(broca_request_next(page, -1, &step, &error)), step != NULL) {
        cancelled += is(broca_step_type(step), "session.turn.cancelled");
        broca_step_free(step);
    }
    broca_request_free(page);
    return cancelled;
}

/* guide: begin */
/* Starts a turn and reads it up to its first word. */
static broca_turn *begin_story(broca_session *session, char *word, size_t size) {
    broca_turn *turn;
    broca_step *step;
    int found = 0;
    check(broca_session_send(session, TEXT("Tell me a story."), &turn, &error));
    while (!found) {
        check(broca_turn_next(turn, -1, &step, &error));
        found = broca_step_kind(step) == BROCA_STEP_DELTA;
        if (found) snprintf(word, size, "%s", broca_step_text(step).data);
        broca_step_free(step);
    }
    word[strcspn(word, " ")] = '\0';
    return turn;
}

int main(void) {
    broca_options *options = options_of_environment();
    broca_client *client;
    broca_session *session;
    broca_turn *turn;
    broca_step *done;
    char word[32];
    check(broca_client_new(options, &client, &error));
    check(broca_client_open(client, NULL, 0, &session, &error));

    turn = begin_story(session, word, sizeof word);
    check(broca_turn_leave(turn, &error)); /* cancels the turn and waits until it is quiet */
    broca_turn_free(turn);
    printf("the first word: %s\nthe turn is quiet\n", word);

    turn = begin_story(session, word, sizeof word);
    broca_turn_free(turn); /* cancels it, too, and waits for nothing */
    puts("left by an error: the display is broken");

    check(broca_session_ask(session, TEXT("Are you there?"), NULL, NULL, &done, &error));
    printf("the next answer: %s\n", broca_step_text(done).data);
    /* guide: end */

    printf("in the log: %d turns that were cancelled\n", cancelled_in_the_log(session));
    broca_step_free(done);
    check(broca_session_close(session, &error));
    broca_session_free(session);
    broca_client_free(client);
    broca_options_free(options);
    return 0;
}
