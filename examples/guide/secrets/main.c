/* All that a program might print of a session is searched for keys and for what was said: there is none of it. */

#include "../guide.h"

static char shown[16 * 1024];
static size_t used;

/* Keeps what a program might print. */
static void show(broca_bytes text) {
    int added = snprintf(shown + used, sizeof shown - used, "%" BROCA_FORMAT "\n", BROCA_ARGUMENTS(text));
    if (added < 0 || (size_t)added >= sizeof shown - used) exit(1);
    used += (size_t)added;
}

/* What was said, and the keys of this service. */
static int secrets(const char *text) {
    int found = 0;
    for (; *text != '\0'; text++) found += strncmp(text, "swordfish", 9) == 0 || strncmp(text, "bae_", 4) == 0;
    return found;
}

/* guide: begin */
/* Shows all that an error says. */
static void show_error(void) {
    printf("failed: %s\n", broca_error_kind(error).data);
    show(broca_error_message(error));
    show(broca_error_details(error));
    broca_error_free(error);
}

static void talk(broca_session *session, const char *message) {
    broca_turn *turn;
    broca_step *step;
    broca_status status;
    check(broca_session_send(session, TEXT(message), &turn, &error));
    while ((status = broca_turn_next(turn, -1, &step, &error)) == BROCA_OK && step != NULL) {
        if (broca_step_kind(step) == BROCA_STEP_TOOL_CALL) /* only the model reads this */
            check(broca_call_fail(step, TEXT("swordfish is not the word"), NULL, &error));
        else if (broca_step_kind(step) == BROCA_STEP_DONE) printf("the answer: %s\n", broca_step_text(step).data);
        broca_step_free(step);
    }
    if (status != BROCA_OK) show_error();
    broca_turn_free(turn);
}

int main(void) {
    broca_options *options = options_of_environment(), *wrong;
    broca_client *client, *stranger;
    broca_session *session, *refused;
    broca_tool *vault;
    broca_saved *saved;
    broca_bytes record;
    int32_t level;
    size_t records = 0;
    check(broca_tool_new(TEXT("vault"), TEXT("Opens the vault."), NULL, 0, &vault, &error));
    check(broca_client_new(options, &client, &error));
    check(broca_client_open(client, (const broca_tool *const *)&vault, 1, &session, &error));
    talk(session, "Open with swordfish.");
    talk(session, "Tell nobody of swordfish.");
    check(broca_session_save(session, &saved, &error));

    check(broca_options_new(TEXT(getenv("BROCA_URL")), TEXT("bae_of_somebody_else"), &wrong, &error));
    check(broca_client_new(wrong, &stranger, &error));
    if (broca_client_open(stranger, NULL, 0, &refused, &error) != BROCA_OK) show_error();

    while (check(broca_client_next_log(client, &level, &record, &error)), record.data != NULL) {
        show(record);
        records++;
    }
    printf("in the log: %s\n", records > 0 ? "words" : "nothing");
    printf("secrets in log, errors and debug output: %d\n", secrets(shown));
    printf("secrets in the saved session: %d\n", secrets(broca_saved_text(saved).data)); /* for a safe place */
    /* guide: end */

    broca_saved_free(saved);
    check(broca_session_close(session, &error));
    broca_session_free(session);
    broca_tool_free(vault);
    broca_client_free(stranger);
    broca_client_free(client);
    broca_options_free(wrong);
    broca_options_free(options);
    return 0;
}
