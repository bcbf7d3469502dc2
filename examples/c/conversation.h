/* The same conversation for every event loop: open a session, send a message, close the session. */
#ifndef CONVERSATION_H
#define CONVERSATION_H

#include "quickstart.h"

struct conversation {
    broca_client *client;
    broca_io *io;
    broca_tool *tool;
    broca_session *session;
    broca_request *opening;
    broca_turn *turn;
    broca_request *closing;
    const char *message;
    int over;   /* nothing follows */
    int status; /* for main */
};

/* Begins. Nothing here waits: what follows comes as steps. */
static int begin(struct conversation *talk, const char *message) {
    broca_error *error = NULL;
    memset(talk, 0, sizeof *talk);
    talk->message = message;
    if (make_client(&talk->client, &error) != BROCA_OK ||
        make_tool(&talk->tool, &error) != BROCA_OK ||
        broca_session_new(talk->client, &talk->session, &error) != BROCA_OK) {
        return failed(error);
    }
    talk->io = broca_client_io(talk->client);
    const broca_tool *tools[] = {talk->tool};
    if (broca_session_start_open(talk->session, tools, 1, &talk->opening, &error) != BROCA_OK) {
        return failed(error);
    }
    return 0;
}

/* An operation is over: goes on with the next. */
static void go_on(struct conversation *talk, const broca_step *step) {
    broca_error *error = NULL;
    broca_status status = BROCA_OK;
    uint64_t operation = broca_step_operation(step);

    if (broca_step_kind(step) == BROCA_STEP_FAILED) {
        broca_step_error(step, &error, NULL);
        talk->status = failed(error);
        talk->over = 1;
    } else if (operation == broca_request_id(talk->opening)) {
        status = broca_session_send(talk->session, talk->message, strlen(talk->message),
                                    &talk->turn, &error);
    } else if (talk->turn != NULL && operation == broca_turn_id(talk->turn)) {
        status = broca_session_start_close(talk->session, &talk->closing, &error);
    } else {
        talk->over = 1;
    }
    if (status != BROCA_OK) {
        talk->status = failed(error);
        talk->over = 1;
    }
}

/* Takes every step that is there. */
static void take_steps(struct conversation *talk) {
    broca_step *step = NULL;
    broca_error *error = NULL;
    while (broca_io_next(talk->io, &step, &error) == BROCA_OK && step != NULL) {
        int32_t kind = broca_step_kind(step);
        if (kind == BROCA_STEP_FINISHED || kind == BROCA_STEP_FAILED) {
            go_on(talk, step);
        } else {
            show_step(step);
        }
        broca_step_free(step);
    }
    if (error != NULL) {
        talk->status = failed(error);
        talk->over = 1;
    }
}

static void end(struct conversation *talk) {
    broca_request_free(talk->closing);
    broca_turn_free(talk->turn);
    broca_request_free(talk->opening);
    broca_session_free(talk->session);
    broca_tool_free(talk->tool);
    broca_client_free(talk->client);
}

#endif
