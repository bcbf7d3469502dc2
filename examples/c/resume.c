/* A conversation that outlives its program: killed at any time and started again, it goes on where it was.
 *
 *   cc resume.c $(pkg-config --cflags --libs broca) -o resume
 *   BROCA_CLIENT_KEY=… ./resume SESSION_FILE "What does read_file say about notes.txt?"
 *
 * The file holds the key of the session: only its owner may read it.
 */
#include "quickstart.h"
#include <fcntl.h>
#include <unistd.h>

/* Writes the session beside the file and puts it in its place: whoever is killed meanwhile leaves the old one or the new one. */
static int store(broca_session *session, const char *path, broca_error **error) {
    char beside[1024];
    broca_saved *saved = NULL;
    snprintf(beside, sizeof beside, "%s.new", path);
    if (broca_session_save(session, &saved, error) != BROCA_OK) {
        return 0;
    }
    broca_bytes text = broca_saved_text(saved);
    int file = open(beside, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    int stored = file >= 0 && write(file, text.data, text.len) == (ssize_t)text.len &&
                 fsync(file) == 0 && close(file) == 0 && rename(beside, path) == 0;
    broca_saved_free(saved);
    if (!stored) {
        perror(path);
    }
    return stored;
}

/* What the program before has left; NULL when there was none. */
static char *left(const char *path, size_t *size) {
    enum { MOST = 1 << 25 };
    FILE *file = fopen(path, "rb");
    char *text = file != NULL ? malloc(MOST) : NULL;
    *size = text != NULL ? fread(text, 1, MOST, file) : 0;
    if (file != NULL) {
        fclose(file);
    }
    return text;
}

int main(int argc, char **argv) {
    broca_client *client = NULL;
    broca_tool *tool = NULL;
    broca_session *session = NULL;
    broca_turn *turn = NULL;
    broca_step *step = NULL;
    broca_error *error = NULL;
    broca_status status;
    size_t size = 0;

    if (argc < 3) {
        fputs("usage: resume SESSION_FILE MESSAGE\n", stderr);
        return 2;
    }
    if (make_client(&client, &error) != BROCA_OK || make_tool(&tool, &error) != BROCA_OK) {
        return failed(error);
    }
    const broca_tool *tools[] = {tool};
    char *saved = left(argv[1], &size);
    if (saved != NULL) {
        status = broca_client_attach(client, saved, size, tools, 1, &session, &error);
        free(saved);
    } else {
        status = broca_client_open(client, tools, 1, &session, &error);
    }
    /* The turn that was left; without one, a new one. */
    if (status != BROCA_OK || broca_session_resume(session, &turn, &error) != BROCA_OK) {
        return failed(error);
    }
    if (turn == NULL && broca_session_send(session, argv[2], strlen(argv[2]), &turn, &error) != BROCA_OK) {
        return failed(error);
    }
    while (broca_turn_next(turn, -1, &step, &error) == BROCA_OK && step != NULL) {
        int32_t kind = broca_step_kind(step);
        /* Before a tool runs: the next program is then asked for this call, and knows that it may have run. After it has its
         * result: that is kept. */
        if ((kind == BROCA_STEP_TOOL_CALL || kind == BROCA_STEP_TOOL_SETTLED) && !store(session, argv[1], &error)) {
            return error != NULL ? failed(error) : 1;
        }
        if (kind == BROCA_STEP_TOOL_CALL && broca_step_may_have_run(step)) {
            /* To read a file twice does no harm. What does looks up broca_step_idempotency_key first. */
            puts("[once more]");
        }
        show_step(step);
        broca_step_free(step);
    }
    if (error != NULL) {
        return failed(error);
    }
    broca_turn_free(turn);
    remove(argv[1]);
    if (broca_session_close(session, &error) != BROCA_OK) {
        return failed(error);
    }
    broca_session_free(session);
    broca_tool_free(tool);
    broca_client_free(client);
    return 0;
}
