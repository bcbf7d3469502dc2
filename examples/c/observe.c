/*
 * Watches a session and goes on where it ended: the cursor lies in a file.
 *
 *     observe SESSION CURSOR_FILE [EVENTS]      ends with the session, or after so many events
 */

#include <broca.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT(literal) literal, strlen(literal)

static void check(broca_status status, broca_error **error) {
    if (status == BROCA_OK) return;
    fprintf(stderr, "%s: %" BROCA_FORMAT "\n", broca_status_name(status), BROCA_ARGUMENTS(broca_error_message(*error)));
    exit(1);
}

/* Writes the cursor; what it stands after is never shown again. */
static void store(const char *path, broca_bytes cursor) {
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(cursor.data, 1, cursor.len, file) != cursor.len || fclose(file) != 0) {
        perror(path);
        exit(1);
    }
}

int main(int argc, char **argv) {
    const char *url = getenv("BROCA_URL"), *key = getenv("BROCA_CLIENT_KEY");
    char cursor[256];
    size_t stored = 0;
    long wanted;
    FILE *file;
    broca_options *options;
    broca_client *client;
    broca_session *session;
    broca_subscription *events;
    broca_step *step;
    broca_error *error;

    if (argc < 3 || key == NULL) return fputs("usage: BROCA_CLIENT_KEY=… observe SESSION CURSOR_FILE [EVENTS]\n", stderr), 2;
    wanted = argc > 3 ? atol(argv[3]) : -1;
    if (url == NULL) url = "http://127.0.0.1:8080";
    if ((file = fopen(argv[2], "rb")) != NULL) {
        stored = fread(cursor, 1, sizeof cursor, file);
        fclose(file);
    }

    check(broca_options_new(TEXT(url), TEXT(key), &options, &error), &error);
    check(broca_client_new(options, &client, &error), &error);
    check(broca_client_observe(client, TEXT(argv[1]), &session, &error), &error);
    check(broca_session_subscribe_from(session, cursor, stored, &events, &error), &error);
    while (wanted != 0 && (check(broca_subscription_next(events, -1, &step, &error), &error), step != NULL)) {
        if (broca_step_kind(step) == BROCA_STEP_EVENT) {
            printf("%s %s\n", broca_step_id(step).data, broca_step_type(step).data);
            store(argv[2], broca_step_id(step));
            wanted--;
        } else if (broca_step_kind(step) == BROCA_STEP_GAP) {
            fprintf(stderr, "something is missing after %s\n", broca_step_after(step).data);
        }
        broca_step_free(step);
    }

    broca_subscription_free(events);
    broca_session_free(session);
    broca_client_free(client);
    broca_options_free(options);
    return 0;
}
