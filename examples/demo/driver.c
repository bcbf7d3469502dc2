/* The driver in C of the demo: brings the tool file_size. README.md beside it tells what it says to whom. */

#include "../c/argument.h"

#include <broca.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void tell(const char *verb, broca_bytes text) {
    size_t at;
    printf("%s ", verb);
    for (at = 0; at < text.len; at++) {
        if (text.data[at] == '\n') fputs("\\n", stdout);
        else if (text.data[at] == '\\') fputs("\\\\", stdout);
        else putchar(text.data[at]);
    }
    putchar('\n');
    fflush(stdout);
}

static broca_bytes text_of(const char *text) {
    broca_bytes bytes = {text, strlen(text)};
    return bytes;
}

/* The tool: answers the call with the bytes of the one file that may be read. */
static broca_status file_size(const broca_step *call, const char *file, broca_error **err) {
    char said[4200];
    broca_status status;
    char *path = argument(broca_step_input(call), "path");
    if (path == NULL || strcmp(path, file) != 0) {
        snprintf(said, sizeof said, "only %s may be read here", file);
        status = broca_call_fail(call, said, strlen(said), NULL, err);
    } else {
        FILE *opened = fopen(path, "rb");
        if (opened == NULL || fseek(opened, 0, SEEK_END) != 0) {
            snprintf(said, sizeof said, "%s cannot be read", file);
            status = broca_call_fail(call, said, strlen(said), NULL, err);
        } else {
            snprintf(said, sizeof said, "%ld", ftell(opened));
            status = broca_call_complete_text(call, said, strlen(said), NULL, err);
        }
        if (opened != NULL) fclose(opened);
    }
    free(path);
    return status;
}

static broca_status run_tool(const broca_step *call, const char *file, broca_error **err) {
    broca_bytes name = broca_step_name(call), input = broca_step_input(call);
    char *shown = malloc(name.len + input.len + 2);
    if (shown != NULL) {
        snprintf(shown, name.len + input.len + 2, "%s %s", name.data, input.data);
        tell("runs", text_of(shown));
        free(shown);
    }
    return file_size(call, file, err);
}

static broca_status take_turn(broca_session *session, const char *file, const char *question, broca_error **err) {
    broca_turn *turn = NULL;
    broca_status status;
    tell("asks", text_of(question));
    status = broca_session_send(session, question, strlen(question), &turn, err);
    while (status == BROCA_OK) {
        broca_step *step = NULL;
        status = broca_turn_next(turn, -1, &step, err);
        if (step == NULL) break;
        switch (broca_step_kind(step)) {
            case BROCA_STEP_DELTA:
                if (broca_step_delta_kind(step) == BROCA_DELTA_TEXT) tell("words", broca_step_text(step));
                break;
            case BROCA_STEP_TOOL_CALL:
                status = run_tool(step, file, err);
                break;
            case BROCA_STEP_DONE:
                tell("reply", broca_step_text(step));
                break;
            default:
                break;
        }
        broca_step_free(step);
    }
    broca_turn_free(turn);
    return status;
}

int main(int argc, char **argv) {
    static const char schema[] =
        "{\"type\":\"object\",\"properties\":{\"path\":{\"type\":\"string\"}},\"required\":[\"path\"]}";
    static const char about[] = "Tell the bytes of a file.";
    const char *key = getenv("BROCA_CLIENT_KEY");
    const broca_tool *tools[1];
    broca_options *options = NULL;
    broca_client *client = NULL;
    broca_tool *tool = NULL;
    broca_session *session = NULL;
    broca_error *error = NULL;
    broca_status status;

    if (argc != 5 || key == NULL) {
        fputs("usage: BROCA_CLIENT_KEY=… driver URL SESSION FILE QUESTION\n", stderr);
        return 2;
    }
    status = broca_options_new(argv[1], strlen(argv[1]), key, strlen(key), &options, &error);
    if (status == BROCA_OK) status = broca_client_new(options, &client, &error);
    if (status == BROCA_OK)
        status = broca_tool_new("file_size", strlen("file_size"), about, strlen(about), schema, strlen(schema), &tool, &error);
    if (status == BROCA_OK) {
        tools[0] = tool;
        status = broca_client_join(client, argv[2], strlen(argv[2]), tools, 1, &session, &error);
    }
    if (status == BROCA_OK) {
        tell("joins", text_of("file_size"));
        status = take_turn(session, argv[3], argv[4], &error);
    }
    if (status != BROCA_OK)
        fprintf(stderr, "the driver in C: %" BROCA_FORMAT "\n", BROCA_ARGUMENTS(broca_error_message(error)));

    broca_error_free(error);
    broca_session_free(session);
    broca_tool_free(tool);
    broca_client_free(client);
    broca_options_free(options);
    return status == BROCA_OK ? 0 : 1;
}
