/* A session with a tool in a program that waits with epoll, and is woken by other threads through an eventfd.
 *
 *   cc epoll.c $(pkg-config --cflags --libs broca) -o epoll
 */
#define _GNU_SOURCE
#include "conversation.h"
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

static void wake(void *user_data) {
    uint64_t one = 1;
    if (write(*(int *)user_data, &one, sizeof one) < 0) {
        perror("eventfd"); /* full: it wakes all the same */
    }
}

static void watch(int epoll, int fd, int32_t events) {
    struct epoll_event event;
    memset(&event, 0, sizeof event);
    event.data.fd = fd;
    event.events = (events & BROCA_READABLE ? EPOLLIN : 0u) | (events & BROCA_WRITABLE ? EPOLLOUT : 0u);
    if (events & BROCA_FORGET) {
        epoll_ctl(epoll, EPOLL_CTL_DEL, fd, NULL);
    } else if (epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event) != 0) {
        epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
    }
}

int main(int argc, char **argv) {
    struct conversation talk;
    struct epoll_event found[16];
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    int woken = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

    if (epoll < 0 || woken < 0) {
        perror("epoll");
        return 1;
    }
    if (begin(&talk, argc > 1 ? argv[1] : "What does read_file say about notes.txt?") != 0) {
        return 1;
    }
    watch(epoll, woken, BROCA_READABLE);
    broca_io_set_wake(talk.io, wake, &woken, NULL, NULL);
    while (!talk.over) {
        broca_socket socket;
        int32_t events;
        while (broca_io_wants(talk.io, &socket, &events, NULL) == BROCA_OK && socket != -1) {
            watch(epoll, (int)socket, events);
        }
        int n = epoll_wait(epoll, found, 16, (int)broca_io_due(talk.io));
        for (int i = 0; i < n; i++) {
            if (found[i].data.fd == woken) {
                uint64_t times;
                if (read(woken, &times, sizeof times) < 0) {
                    perror("eventfd");
                }
                continue;
            }
            events = (found[i].events & ~(uint32_t)EPOLLOUT ? BROCA_READABLE : 0) |
                     (found[i].events & ~(uint32_t)EPOLLIN ? BROCA_WRITABLE : 0);
            broca_io_ready(talk.io, found[i].data.fd, events, NULL);
        }
        broca_io_tick(talk.io, NULL);
        take_steps(&talk);
    }
    end(&talk);
    close(woken);
    close(epoll);
    return talk.status;
}
