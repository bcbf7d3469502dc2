/* One leg of a relay, as relay.py beside it: relay leave|take FILE */
#include <broca.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char text[1 << 20];

static int failed(const broca_error *error) {
    fprintf(stderr, "%s: %" BROCA_FORMAT "\n", broca_status_name(broca_error_code(error)),
            BROCA_ARGUMENTS(broca_error_message(error)));
    return 1;
}

int main(int argc, char **argv) {
    static const char *const names[] = {"quick", "slow"};
    static const char asked[] = "use quick and slow";
    const char *url = getenv("BROCA_URL");
    const char *key = getenv("BROCA_CLIENT_KEY");
    broca_options *options = NULL;
    broca_client *client = NULL;
    broca_tool *made[2] = {NULL, NULL};
    broca_session *session = NULL;
    broca_turn *turn = NULL;
    broca_step *step = NULL;
    broca_error *error = NULL;
    broca_status status;

    if (argc != 3 || url == NULL || key == NULL) {
        return 2;
    }
    if (broca_options_new(url, strlen(url), key, strlen(key), &options, &error) != BROCA_OK ||
        broca_client_new(options, &client, &error) != BROCA_OK) {
        return failed(error);
    }
    broca_options_free(options);
    int leaves = strcmp(argv[1], "leave") == 0;
    for (int i = 0; i < 2; i++) {
        if (broca_tool_new(names[i], strlen(names[i]), "A leg.", 6, "{\"type\":\"object\"}", 17, &made[i], &error) != BROCA_OK) {
            return failed(error);
        }
    }
    const broca_tool *tools[] = {made[0], made[1]};
    if (leaves) {
        status = broca_client_open(client, tools, 2, &session, &error);
        if (status == BROCA_OK) {
            status = broca_session_send(session, asked, sizeof asked - 1, &turn, &error);
        }
    } else {
        FILE *file = fopen(argv[2], "rb");
        size_t size = file != NULL ? fread(text, 1, sizeof text, file) : 0;
        if (file != NULL) {
            fclose(file);
        }
        status = broca_client_attach(client, text, size, tools, 2, &session, &error);
        if (status == BROCA_OK) {
            status = broca_session_resume(session, &turn, &error);
        }
    }
    if (status != BROCA_OK || turn == NULL) {
        return failed(error);
    }
    while (broca_turn_next(turn, -1, &step, &error) == BROCA_OK && step != NULL) {
        int32_t kind = broca_step_kind(step);
        int held = 0;
        if (kind == BROCA_STEP_EVENT) {
            printf("event %" BROCA_FORMAT "\n", BROCA_ARGUMENTS(broca_step_id(step)));
        } else if (kind == BROCA_STEP_TOOL_CALL) {
            broca_bytes name = broca_step_name(step);
            char result[64];
            printf("call %" BROCA_FORMAT " %" BROCA_FORMAT " %d\n", BROCA_ARGUMENTS(name),
                   BROCA_ARGUMENTS(broca_step_idempotency_key(step)), (int)broca_step_may_have_run(step));
            if (!leaves || (name.len == 5 && memcmp(name.data, "quick", 5) == 0)) {
                int size = snprintf(result, sizeof result, "%" BROCA_FORMAT " by c", BROCA_ARGUMENTS(name));
                if (broca_call_complete_text(step, result, (size_t)size, NULL, &error) != BROCA_OK) {
                    return failed(error);
                }
            } else {
                /* A call that is let go of without an answer has failed; this one stays open. */
                held = 1;
            }
        } else if (kind == BROCA_STEP_TOOL_SETTLED && leaves) {
            broca_saved *saved = NULL;
            if (broca_session_save(session, &saved, &error) != BROCA_OK) {
                return failed(error);
            }
            broca_bytes bytes = broca_saved_text(saved);
            FILE *file = fopen(argv[2], "wb");
            if (file == NULL || fwrite(bytes.data, 1, bytes.len, file) != bytes.len || fclose(file) != 0) {
                return 1;
            }
            fflush(stdout);
            /* As a crash would: nobody is told. */
            _Exit(0);
        } else if (kind == BROCA_STEP_DONE) {
            printf("reply %" BROCA_FORMAT "\n", BROCA_ARGUMENTS(broca_step_text(step)));
        }
        if (!held) {
            broca_step_free(step);
        }
    }
    if (error != NULL) {
        return failed(error);
    }
    broca_turn_free(turn);
    if (broca_session_close(session, &error) != BROCA_OK) {
        return failed(error);
    }
    broca_session_free(session);
    broca_tool_free(made[0]);
    broca_tool_free(made[1]);
    broca_client_free(client);
    return 0;
}
