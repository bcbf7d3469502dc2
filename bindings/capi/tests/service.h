/* What tests with a service share: clients, tools, and loops that wait for a step. */
#ifndef SERVICE_H
#define SERVICE_H

#include "check.h"
#include <poll.h>
#include <time.h>

static inline broca_client *new_client(int hooks) {
    const char *url = getenv("BROCA_URL");
    const char *key = getenv("BROCA_CLIENT_KEY");
    broca_options *options = NULL;
    broca_client *client = NULL;
    OK(broca_options_new(TEXT(url), TEXT(key), &options, err));
    OK(broca_options_set_flag(options, TEXT("hooks"), hooks, err));
    OK(broca_options_set_flag(options, TEXT("proxy_from_environment"), 0, err));
    OK(broca_client_new(options, &client, err));
    broca_options_free(options);
    return client;
}

static inline broca_tool *new_tool(const char *name, int approval) {
    static const char schema[] =
        "{\"type\":\"object\",\"properties\":{\"path\":{\"type\":\"string\"}},\"required\":[\"path\"]}";
    broca_tool *tool = NULL;
    OK(broca_tool_new(TEXT(name), TEXT("Does something to a file."), TEXT(schema), &tool, err));
    OK(broca_tool_set_approval(tool, approval, err));
    return tool;
}

static inline broca_session *open_with(broca_client *client, const char *name, int approval) {
    broca_session *session = NULL;
    broca_tool *tool = new_tool(name, approval);
    const broca_tool *tools[] = {tool};
    OK(broca_client_open(client, tools, 1, &session, err));
    broca_tool_free(tool);
    return session;
}

static inline int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Waits for the next step of this kind; those before it are passed over. */
static inline broca_step *next_of(broca_turn *turn, int32_t kind) {
    broca_step *step = NULL;
    for (;;) {
        OK(broca_turn_next(turn, 20000, &step, err));
        if (step == NULL || broca_step_kind(step) == kind) {
            CHECK(step != NULL);
            return step;
        }
        broca_step_free(step);
    }
}

static inline void close_all(broca_client *client, broca_session *session) {
    OK(broca_session_close(session, err));
    broca_session_free(session);
    broca_client_free(client);
}

/* An event loop on poll(), for programs that have one. */
struct loop {
    broca_io *io;
    struct pollfd watched[32];
    nfds_t count;
    int told; /* changes that were told */
};

static inline void loop_turn(struct loop *loop, int most_ms) {
    broca_socket socket;
    int32_t events;
    for (;;) {
        OK(broca_io_wants(loop->io, &socket, &events, err));
        if (socket == -1) {
            break;
        }
        loop->told++;
        nfds_t at = 0;
        while (at < loop->count && loop->watched[at].fd != (int)socket) {
            at++;
        }
        if (events & BROCA_FORGET) {
            CHECK(at < loop->count);
            loop->watched[at] = loop->watched[--loop->count];
            continue;
        }
        if (at == loop->count) {
            CHECK(loop->count < 32);
            loop->watched[loop->count++].fd = (int)socket;
        }
        loop->watched[at].events =
            (short)((events & BROCA_READABLE ? POLLIN : 0) | (events & BROCA_WRITABLE ? POLLOUT : 0));
    }
    int64_t due = broca_io_due(loop->io);
    poll(loop->watched, loop->count, due < 0 || due > most_ms ? most_ms : (int)due);
    for (nfds_t i = loop->count; i-- > 0;) {
        short found = loop->watched[i].revents;
        CHECK(!(found & POLLNVAL));
        if (found != 0) {
            OK(broca_io_ready(loop->io, loop->watched[i].fd,
                              (found & ~POLLOUT ? BROCA_READABLE : 0) | (found & ~POLLIN ? BROCA_WRITABLE : 0), err));
        }
    }
    OK(broca_io_tick(loop->io, err));
}

/* Turns the loop until a step of this kind comes; those before it are passed over. */
static inline broca_step *loop_until(struct loop *loop, int32_t kind) {
    int64_t until = now_ms() + 20000;
    while (now_ms() < until) {
        broca_step *step = NULL;
        OK(broca_io_next(loop->io, &step, err));
        if (step == NULL) {
            loop_turn(loop, 1000);
        } else if (broca_step_kind(step) == kind) {
            return step;
        } else {
            CHECK(broca_step_kind(step) != BROCA_STEP_FAILED);
            broca_step_free(step);
        }
    }
    CHECK(!"no such step");
    return NULL;
}

#endif
