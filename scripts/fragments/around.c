/* What the fragments of C in the guides take for granted. */

#include <broca.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern broca_client *client;
extern broca_session *session;
extern broca_turn *turn;
extern broca_step *step;
extern broca_error *error;
extern broca_io *io;
extern const broca_tool *tools[1];
extern FILE *file;
extern const char *text_of_file;
extern size_t size;
extern broca_socket socket;
extern int32_t events;

int failed(broca_error *error);
void watch(broca_socket socket, int32_t events);
void wait(int64_t milliseconds);
void handle(broca_step *step);
#define for_each_socket_that_woke_you if (events != 0)

int fragment(void);
int fragment(void) {
    FRAGMENT
    return 0;
}
