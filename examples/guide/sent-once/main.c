/* The answer to a message is cut: the message does not leave twice, and what is not known is said. */

#include "../guide.h"

static int sent(broca_session *session) {
    broca_request *page;
    broca_step *step;
    int count = 0;
    check(broca_session_history(session, NULL, 0, 0, &page, &error));
    while (check(broca_request_next(page, -1, &step, &error)), step != NULL) {
        count += is(broca_step_type(step), "client.message.send");
        broca_step_free(step);
    }
    broca_request_free(page);
    return count;
}

/* guide: begin */
static void book(const char *service, const broca_options *options) {
    static const char *const again[] = {"", "safe", "unsafe", "unknown"};
    broca_client *client;
    broca_session *session;
    broca_step *done;
    check(broca_client_new(options, &client, &error));
    check(broca_client_open(client, NULL, 0, &session, &error));
    /* The connection breaks in the answer. */
    if (broca_session_ask(session, TEXT("Book the flight."), NULL, NULL, &done, &error) == BROCA_OK) {
        printf("%s: %s\n", service, broca_step_text(done).data);
    } else {
        printf("%s: %s, again? %s\n", service, broca_error_kind(error).data, again[broca_error_retry(error)]);
        broca_error_free(error);
    }
    broca_step_free(done);
    printf("  messages in the log: %d\n", sent(session));
    check(broca_session_close(session, &error));
    broca_session_free(session);
    broca_client_free(client);
}

int main(void) {
    broca_options *plain = options_of_environment(), *options = options_of_environment();
    /* As at a service that knows no ids, and without looking into its log for what became of the message. */
    check(broca_options_set_text(plain, TEXT("features"), NULL, 0, &error));
    check(broca_options_set_number(plain, TEXT("recovery_timeout_ms"), 0, &error));
    book("plain service", plain);
    book("message ids", options);
    /* guide: end */

    broca_options_free(plain);
    broca_options_free(options);
    return 0;
}
