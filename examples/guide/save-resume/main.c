/* A program dies between two results; the next one takes its turn up, and nothing is done twice. */

#include "../guide.h"

/* Writes a file, or ends the program. */
static void keep(const char *path, broca_bytes text) {
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(text.data, 1, text.len, file) != text.len || fclose(file) != 0) {
        perror(path);
        exit(1);
    }
}

/* Reads what keep() wrote, as a text. */
static size_t kept(const char *path, char *text, size_t most) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        perror(path);
        exit(1);
    }
    size_t size = fread(text, 1, most - 1, file);
    text[size] = '\0';
    fclose(file);
    return size;
}

/* guide: begin */
static void first(broca_client *client, const broca_tool *const *tools) {
    broca_session *session;
    broca_turn *turn;
    broca_step *step, *call = NULL;
    broca_saved *saved;
    check(broca_client_open(client, tools, 2, &session, &error));
    check(broca_session_send(session, TEXT("Pay what it costs."), &turn, &error));
    while (check(broca_turn_next(turn, -1, &step, &error)), step != NULL) {
        switch (broca_step_kind(step)) {
        case BROCA_STEP_TOOL_CALL:
            if (is(broca_step_name(step), "pay")) {
                keep("bank", broca_step_idempotency_key(step));
                puts("pay: the bank has it"); /* and this program dies before it answers the call */
                call = step;
                continue; /* not freed: that would be an answer */
            }
            check(broca_call_complete_text(step, TEXT("12 crowns"), NULL, &error));
            break;
        case BROCA_STEP_TOOL_SETTLED:
            printf("%s: %s\n", broca_step_name(step).data, broca_step_outcome(step).data);
            check(broca_session_save(session, &saved, &error));
            /* It holds the key of the session: a place that only its owner reads. */
            keep("session.json", broca_saved_text(saved));
            puts("saved; now this program and the service are killed");
            _Exit(0);
        }
        broca_step_free(step);
    }
    broca_step_free(call);
}

static void next(broca_client *client, const broca_tool *const *tools) {
    static char saved[1 << 20], bank[256];
    size_t size = kept("session.json", saved, sizeof saved);
    broca_session *session;
    broca_turn *turn;
    broca_step *step;
    kept("bank", bank, sizeof bank);
    check(broca_client_attach(client, saved, size, tools, 2, &session, &error));
    check(broca_session_resume(session, &turn, &error));
    if (turn == NULL) return; /* no turn was left: send a message, as ever */
    while (check(broca_turn_next(turn, -1, &step, &error)), step != NULL) {
        switch (broca_step_kind(step)) {
        case BROCA_STEP_TOOL_CALL:
            if (!broca_step_may_have_run(step)) break;
            printf("%s may have run\n", broca_step_name(step).data); /* not `price`: its result was saved */
            if (is(broca_step_idempotency_key(step), bank)) {
                check(broca_call_complete_text(step, TEXT("paid before"), NULL, &error));
            } else {
                check(broca_call_fail(step, TEXT("nothing was paid"), NULL, &error));
            }
            break;
        case BROCA_STEP_DONE: printf("the model: %s\n", broca_step_text(step).data); break;
        }
        broca_step_free(step);
    }
    broca_turn_free(turn);
    broca_session_free(session);
}
/* guide: end */

int main(int argc, char **argv) {
    broca_options *options = options_of_environment();
    broca_client *client;
    broca_tool *tools[2];
    check(broca_client_new(options, &client, &error));
    check(broca_tool_new(TEXT("price"), TEXT("Look the price up."), NULL, 0, &tools[0], &error));
    check(broca_tool_new(TEXT("pay"), TEXT("Pay."), NULL, 0, &tools[1], &error));
    (argc > 1 && strcmp(argv[1], "first") == 0 ? first : next)(client, (const broca_tool *const *)tools);
    broca_tool_free(tools[0]);
    broca_tool_free(tools[1]);
    broca_client_free(client);
    broca_options_free(options);
    return 0;
}
