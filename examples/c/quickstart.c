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

/* The tool: its input is {"path": …}; take the JSON library that you like. */
static broca_status read_file(const broca_step *call, broca_error **error) {
    char path[256], text[4096];
    FILE *file = NULL;
    if (sscanf(broca_step_input(call).data, "{\"path\":\"%255[^\"\\]\"}", path) == 1) file = fopen(path, "rb");
    if (file == NULL) return broca_call_fail(call, TEXT("no such file"), NULL, error);
    size_t size = fread(text, 1, sizeof text, file);
    fclose(file);
    return broca_call_complete_text(call, text, size, NULL, error);
}

int main(void) {
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
    check(broca_tool_new(TEXT("read_file"), TEXT("Return the text of a file."),
                         TEXT("{\"type\":\"object\",\"properties\":{\"path\":{\"type\":\"string\"}},\"required\":[\"path\"]}"),
                         &tool, &error), &error);
    check(broca_client_open(client, (const broca_tool *const *)&tool, 1, &session, &error), &error);

    check(broca_session_send(session, TEXT("What does read_file say about quickstart.c?"), &turn, &error), &error);
    while (check(broca_turn_next(turn, -1, &step, &error), &error), step != NULL) {
        switch (broca_step_kind(step)) {
            case BROCA_STEP_DELTA:
                if (broca_step_delta_kind(step) == BROCA_DELTA_TEXT) fputs(broca_step_text(step).data, stderr);
                break;
            case BROCA_STEP_TOOL_CALL:
                fprintf(stderr, "\n[%s %s]\n", broca_step_name(step).data, broca_step_input(step).data);
                check(read_file(step, &error), &error);
                break;
            case BROCA_STEP_DONE: /* broca_step_text is the whole answer */
                fprintf(stderr, "\n[%u rounds]\n", (unsigned)broca_step_rounds(step));
                break;
        }
        broca_step_free(step);
    }
    broca_turn_free(turn);

    check(broca_session_ask(session, TEXT("And what is 2 and 2?"), NULL, NULL, &step, &error), &error); /* driven for you */
    puts(broca_step_text(step).data);
    broca_step_free(step);
    check(broca_session_close(session, &error), &error);

    broca_session_free(session);
    broca_tool_free(tool);
    broca_client_free(client);
    broca_options_free(options);
    return 0;
}
