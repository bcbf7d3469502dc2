/* An approval that narrows: the model may delete what a person has marked as old, and nothing else. */

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

/* Lets old.txt be deleted if that is among what was asked for. */
static broca_status decide(const broca_step *approval, broca_error **error) {
    broca_bytes input = broca_step_input(approval);
    printf("asked: %" BROCA_FORMAT " %" BROCA_FORMAT "\n", BROCA_ARGUMENTS(broca_step_name(approval)), BROCA_ARGUMENTS(input));
    if (strstr(input.data, "\"old.txt\"") == NULL) return broca_approval_deny(approval, TEXT("nothing of it is old"), NULL, error);
    puts("allowed: old.txt");
    return broca_approval_allow_narrowed(approval, TEXT("{\"paths\":[\"old.txt\"]}"), NULL, error);
}

/* The call comes with the arguments that were allowed. A real tool would delete the files. */
static broca_status delete_files(const broca_step *call, broca_error **error) {
    if (strstr(broca_step_input(call).data, "thesis") != NULL) return broca_call_fail(call, TEXT("never"), NULL, error);
    return broca_call_complete_text(call, TEXT("deleted old.txt"), NULL, error);
}

int main(void) {
    static const char schema[] =
        "{\"type\":\"object\",\"properties\":{\"paths\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}}},"
        "\"required\":[\"paths\"]}";
    const char *url = getenv("BROCA_URL"), *key = getenv("BROCA_CLIENT_KEY");
    broca_options *options;
    broca_client *client;
    broca_tool *tool;
    broca_session *session;
    broca_turn *turn;
    broca_step *step;
    broca_error *error;

    if (url == NULL) url = "http://127.0.0.1:8080";
    if (key == NULL) return fputs("set BROCA_CLIENT_KEY\n", stderr), 2;
    check(broca_options_new(TEXT(url), TEXT(key), &options, &error), &error);
    check(broca_client_new(options, &client, &error), &error);
    check(broca_tool_new(TEXT("delete_files"), TEXT("Delete files."), TEXT(schema), &tool, &error), &error);
    check(broca_tool_set_approval(tool, 1, &error), &error);
    check(broca_tool_add_narrow_rule(tool, TEXT("/paths"), TEXT("remove_elements"), &error), &error);
    check(broca_client_open(client, (const broca_tool *const *)&tool, 1, &session, &error), &error);

    check(broca_session_send(session, TEXT("Please delete_files {\"paths\": [\"old.txt\", \"thesis.txt\"]}"), &turn, &error), &error);
    while (check(broca_turn_next(turn, -1, &step, &error), &error), step != NULL) {
        switch (broca_step_kind(step)) {
            case BROCA_STEP_APPROVAL: check(decide(step, &error), &error); break;
            case BROCA_STEP_TOOL_CALL: check(delete_files(step, &error), &error); break;
            case BROCA_STEP_DONE: puts(broca_step_text(step).data); break;
        }
        broca_step_free(step);
    }
    broca_turn_free(turn);
    check(broca_session_close(session, &error), &error);

    broca_session_free(session);
    broca_tool_free(tool);
    broca_client_free(client);
    broca_options_free(options);
    return 0;
}
