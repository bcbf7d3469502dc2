/* A session with a tool in a program that waits with poll().
 *
 *   cc poll.c $(pkg-config --cflags --libs broca) -o poll
 */
#include "conversation.h"
#include <poll.h>

enum { MOST = 64 };

/* What poll() shall watch, kept in step with what the library wants. */
static struct pollfd watched[MOST];
static nfds_t count;

static void watch(int fd, int32_t events) {
    nfds_t at = 0;
    while (at < count && watched[at].fd != fd) {
        at++;
    }
    if (events & BROCA_FORGET) {
        if (at < count) {
            watched[at] = watched[--count];
        }
        return;
    }
    if (at == count) {
        if (count == MOST) {
            fputs("too many sockets for this example\n", stderr);
            exit(1);
        }
        watched[count++].fd = fd;
    }
    watched[at].events = (short)((events & BROCA_READABLE ? POLLIN : 0) |
                                 (events & BROCA_WRITABLE ? POLLOUT : 0));
}

int main(int argc, char **argv) {
    struct conversation talk;
    if (begin(&talk, argc > 1 ? argv[1] : "What does read_file say about notes.txt?") != 0) {
        return 1;
    }
    while (!talk.over) {
        broca_socket socket;
        int32_t events;
        while (broca_io_wants(talk.io, &socket, &events, NULL) == BROCA_OK && socket != -1) {
            watch((int)socket, events);
        }
        poll(watched, count, (int)broca_io_due(talk.io));
        /* From the end: a socket may leave the list only in watch(). */
        for (nfds_t i = count; i-- > 0;) {
            short found = watched[i].revents;
            if (found != 0) {
                events = (found & ~POLLOUT ? BROCA_READABLE : 0) |
                         (found & ~POLLIN ? BROCA_WRITABLE : 0);
                broca_io_ready(talk.io, watched[i].fd, events, NULL);
            }
        }
        broca_io_tick(talk.io, NULL);
        take_steps(&talk);
    }
    end(&talk);
    return talk.status;
}
