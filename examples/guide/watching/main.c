/* An observer whose stream is cut, repeats a line, and loses its service: it sees every event once and in order. */

#include "../guide.h"

static char seen[64][64]; /* ids of events */
static int count;

static void note(broca_bytes id) {
    if (count < 64) snprintf(seen[count++], sizeof seen[0], "%" BROCA_FORMAT, BROCA_ARGUMENTS(id));
}

static void compare_with_log(broca_session *session) {
    broca_request *page;
    broca_step *step;
    int logged = 0, same = 1;
    check(broca_session_history(session, NULL, 0, 0, &page, &error));
    while (check(broca_request_next(page, -1, &step, &error)), step != NULL) {
        if (broca_step_kind(step) == BROCA_STEP_EVENT) {
            same = same && logged < count && is(broca_step_id(step), seen[logged]);
            logged++;
        }
        broca_step_free(step);
    }
    broca_request_free(page);
    printf("seen: %d events, in the log: %d, %s\n", count, logged,
           same && logged == count ? "the same in the same order" : "not the same");
}

int main(void) {
    const char *url = getenv("BROCA_URL"), *watch_key = getenv("BROCA_WATCH_KEY");
    broca_options *options = options_of_environment(), *watching;
    broca_client *client, *watcher;
    broca_session *session, *observed;
    broca_subscription *events;
    broca_step *step, *done;
    int killed = 0, back = 0;
    if (watch_key == NULL) return fputs("set BROCA_WATCH_KEY\n", stderr), 2;
    check(broca_options_new(TEXT(url), TEXT(watch_key), &watching, &error));
    check(broca_client_new(options, &client, &error));
    check(broca_client_new(watching, &watcher, &error));
    check(broca_client_open(client, NULL, 0, &session, &error));
    check(broca_session_ask(session, TEXT("Are you there?"), NULL, NULL, &done, &error));
    broca_step_free(done);
    broca_bytes id = broca_session_id(session);

    /* guide: begin */
    check(broca_client_observe(watcher, id.data, id.len, &observed, &error));
    check(broca_session_subscribe_from(observed, NULL, 0, &events, &error)); /* or a cursor that was stored */
    while (check(broca_subscription_next(events, -1, &step, &error)), step != NULL) { /* ends with the session */
        switch (broca_step_kind(step)) {
        case BROCA_STEP_EVENT:
            note(broca_step_id(step)); /* the cursor just after it: store it */
            if (is(broca_step_type(step), "server.message.send") && killed++ == 0) puts("now the service is killed");
            break;
        case BROCA_STEP_STATUS:
            if (!is(broca_step_state(step), "connected") || !killed || back++ > 0) break;
            check(broca_session_ask(session, TEXT("And now?"), NULL, NULL, &done, &error));
            printf("it is back: %s\n", broca_step_text(done).data);
            broca_step_free(done);
            check(broca_session_close(session, &error));
            break;
        }
        broca_step_free(step);
    }
    /* guide: end */

    compare_with_log(session);
    broca_subscription_free(events);
    broca_session_free(observed);
    broca_session_free(session);
    broca_client_free(watcher);
    broca_client_free(client);
    broca_options_free(watching);
    broca_options_free(options);
    return 0;
}
