/* What the quickstarts share: a client, a tool, and what to do with each step. */
#ifndef QUICKSTART_H
#define QUICKSTART_H

#include <broca.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Says what went wrong, and gives the status for main. */
static int failed(broca_error *error) {
    fprintf(stderr, "%s: %" BROCA_FORMAT "\n", broca_status_name(broca_error_code(error)),
            BROCA_ARGUMENTS(broca_error_message(error)));
    broca_error_free(error);
    return 1;
}

/* A client of the service that the environment names. */
static broca_status make_client(broca_client **client, broca_error **error) {
    const char *url = getenv("BROCA_URL");
    const char *key = getenv("BROCA_CLIENT_KEY");
    broca_options *options = NULL;
    if (url == NULL) {
        url = "http://127.0.0.1:8080";
    }
    broca_status status =
        broca_options_new(url, strlen(url), key, key ? strlen(key) : 0, &options, error);
    if (status == BROCA_OK) {
        status = broca_client_new(options, client, error);
    }
    broca_options_free(options);
    return status;
}

/* A tool that the model may call. */
static broca_status make_tool(broca_tool **tool, broca_error **error) {
    static const char description[] = "Return the text of a file.";
    static const char schema[] =
        "{\"type\":\"object\",\"properties\":{\"path\":{\"type\":\"string\"}},\"required\":[\"path\"]}";
    return broca_tool_new("read_file", 9, description, sizeof description - 1, schema,
                          sizeof schema - 1, tool, error);
}

/* Runs the tool and answers its call. A real program reads `path` with its JSON library. */
static void run_tool(const broca_step *call) {
    broca_bytes input = broca_step_input(call);
    broca_error *error = NULL;
    char text[4096];
    char path[256];
    const char *from = strstr(input.data, "\"path\":\"");
    FILE *file = NULL;

    if (from != NULL && sscanf(from, "\"path\":\"%255[^\"]\"", path) == 1) {
        file = fopen(path, "rb");
    }
    if (file == NULL) {
        static const char reason[] = "there is no such file";
        broca_call_fail(call, reason, sizeof reason - 1, NULL, &error);
    } else {
        size_t size = fread(text, 1, sizeof text, file);
        fclose(file);
        broca_call_complete_text(call, text, size, NULL, &error);
    }
    if (error != NULL) {
        failed(error);
    }
}

/* Prints what there is to see, and answers what asks for an answer. */
static void show_step(const broca_step *step) {
    switch (broca_step_kind(step)) {
    case BROCA_STEP_DELTA:
        if (broca_step_delta_kind(step) == BROCA_DELTA_TEXT) {
            printf("%" BROCA_FORMAT, BROCA_ARGUMENTS(broca_step_text(step)));
            fflush(stdout);
        }
        break;
    case BROCA_STEP_TOOL_CALL:
        printf("[%" BROCA_FORMAT " %" BROCA_FORMAT "]\n", BROCA_ARGUMENTS(broca_step_name(step)),
               BROCA_ARGUMENTS(broca_step_input(step)));
        run_tool(step);
        break;
    case BROCA_STEP_DONE:
        printf("\n[%u rounds] %" BROCA_FORMAT "\n", broca_step_rounds(step),
               BROCA_ARGUMENTS(broca_step_text(step)));
        break;
    default:
        break;
    }
}

#endif
