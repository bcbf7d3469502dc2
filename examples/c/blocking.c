/* A session with a tool, in the blocking style: one loop, no event loop, no threads.
 *
 *   cc blocking.c $(pkg-config --cflags --libs broca) -o blocking
 *   BROCA_URL=http://127.0.0.1:8080 BROCA_CLIENT_KEY=… ./blocking "What does read_file say about notes.txt?"
 */
#include "quickstart.h"

int main(int argc, char **argv) {
    const char *message = argc > 1 ? argv[1] : "What does read_file say about notes.txt?";
    broca_client *client = NULL;
    broca_tool *tool = NULL;
    broca_session *session = NULL;
    broca_turn *turn = NULL;
    broca_step *step = NULL;
    broca_error *error = NULL;

    if (make_client(&client, &error) != BROCA_OK || make_tool(&tool, &error) != BROCA_OK) {
        return failed(error);
    }
    const broca_tool *tools[] = {tool};
    if (broca_client_open(client, tools, 1, &session, &error) != BROCA_OK) {
        return failed(error);
    }
    if (broca_session_send(session, message, strlen(message), &turn, &error) != BROCA_OK) {
        return failed(error);
    }
    /* The next step, however long it takes; none when the turn is over. */
    while (broca_turn_next(turn, -1, &step, &error) == BROCA_OK && step != NULL) {
        show_step(step);
        broca_step_free(step);
    }
    if (error != NULL) {
        return failed(error);
    }
    broca_turn_free(turn);

    /* The same, with the loop driven for you. */
    if (broca_session_ask(session, "What is 2 and 2?", 16, NULL, NULL, &step, &error) != BROCA_OK) {
        return failed(error);
    }
    printf("%" BROCA_FORMAT "\n", BROCA_ARGUMENTS(broca_step_text(step)));
    broca_step_free(step);

    if (broca_session_close(session, &error) != BROCA_OK) {
        return failed(error);
    }
    broca_session_free(session);
    broca_tool_free(tool);
    broca_client_free(client);
    return 0;
}
