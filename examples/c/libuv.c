/* A session with a tool in a program on libuv: a poll handle for each socket, a timer for what is due, and an async handle for
 * other threads.
 *
 *   cc libuv.c $(pkg-config --cflags --libs broca libuv) -o libuv
 */
#include "conversation.h"
#include <uv.h>

enum { MOST = 64 };

struct watcher {
    uv_poll_t poll;
    int fd;
};

static struct conversation talk;
static uv_loop_t *loop;
static uv_timer_t timer;
static uv_async_t async;
static struct watcher *watchers[MOST];

static void look(void);

static void freed(uv_handle_t *handle) {
    free(handle->data);
}

static void found(uv_poll_t *poll, int status, int events) {
    struct watcher *watcher = poll->data;
    int32_t what = (events & UV_READABLE ? BROCA_READABLE : 0) | (events & UV_WRITABLE ? BROCA_WRITABLE : 0);
    if (status < 0) {
        what = BROCA_READABLE | BROCA_WRITABLE;
    }
    broca_io_ready(talk.io, watcher->fd, what, NULL);
    look();
}

static void due(uv_timer_t *handle) {
    (void)handle;
    look();
}

static void woken(uv_async_t *handle) {
    (void)handle;
    look();
}

static void wake(void *user_data) {
    uv_async_send(user_data);
}

static void watch(int fd, int32_t events) {
    size_t at = 0;
    while (at < MOST && !(watchers[at] != NULL && watchers[at]->fd == fd)) {
        at++;
    }
    if (events & BROCA_FORGET) {
        if (at < MOST) {
            uv_poll_stop(&watchers[at]->poll);
            uv_close((uv_handle_t *)&watchers[at]->poll, freed);
            watchers[at] = NULL;
        }
        return;
    }
    for (at = at == MOST ? 0 : at; at < MOST; at++) {
        struct watcher *watcher = watchers[at];
        if (watcher == NULL) {
            watcher = calloc(1, sizeof *watcher);
            if (watcher == NULL) {
                exit(1);
            }
            watcher->fd = fd;
            watcher->poll.data = watcher;
            uv_poll_init(loop, &watcher->poll, fd);
            watchers[at] = watcher;
        }
        if (watcher->fd == fd) {
            int wanted = (events & BROCA_READABLE ? UV_READABLE : 0) | (events & BROCA_WRITABLE ? UV_WRITABLE : 0);
            if (wanted != 0) {
                uv_poll_start(&watcher->poll, wanted, found);
            } else {
                uv_poll_stop(&watcher->poll);
            }
            return;
        }
    }
    fputs("too many sockets for this example\n", stderr);
    exit(1);
}

/* Lets time pass, takes steps, and says anew what to wait for. */
static void look(void) {
    broca_socket socket;
    int32_t events;

    broca_io_tick(talk.io, NULL);
    take_steps(&talk);
    if (talk.over && !uv_is_closing((uv_handle_t *)&timer)) {
        for (size_t at = 0; at < MOST; at++) {
            if (watchers[at] != NULL) {
                watch(watchers[at]->fd, BROCA_FORGET);
            }
        }
        end(&talk);
        uv_close((uv_handle_t *)&timer, NULL);
        uv_close((uv_handle_t *)&async, NULL);
        return;
    }
    while (broca_io_wants(talk.io, &socket, &events, NULL) == BROCA_OK && socket != -1) {
        watch((int)socket, events);
    }
    int64_t wait = broca_io_due(talk.io);
    if (wait < 0) {
        uv_timer_stop(&timer);
    } else {
        uv_timer_start(&timer, due, (uint64_t)wait, 0);
    }
}

int main(int argc, char **argv) {
    loop = uv_default_loop();
    uv_timer_init(loop, &timer);
    uv_async_init(loop, &async, woken);
    if (begin(&talk, argc > 1 ? argv[1] : "What does read_file say about notes.txt?") != 0) {
        return 1;
    }
    broca_io_set_wake(talk.io, wake, &async, NULL, NULL);
    look();
    uv_run(loop, UV_RUN_DEFAULT);
    uv_loop_close(loop);
    return talk.status;
}
