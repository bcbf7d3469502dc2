/* A consumer of a stream of events, in the blocking style: `events ADDRESS`.
 *
 * It sends a message and reads what the contender in Rust reads beside it: two fields of every event that
 * comes before the answer. The connection is there before the clock starts: the session was opened on it.
 */
#define _POSIX_C_SOURCE 200809L
#include <broca.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define TEXT(literal) literal, strlen(literal)

static void check(broca_status status, const broca_error *error) {
    if (status == BROCA_OK) return;
    fprintf(stderr, "%s: %" BROCA_FORMAT "\n", broca_status_name(status), BROCA_ARGUMENTS(broca_error_message(error)));
    exit(1);
}

/* Seconds of a clock. */
static double seconds(clockid_t clock) {
    struct timespec time;
    if (clock_gettime(clock, &time) != 0) {
        perror("clock_gettime");
        exit(1);
    }
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* Voluntary context switches of this process so far. */
static long switches(void) {
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0) {
        perror("getrusage");
        exit(1);
    }
    return usage.ru_nvcsw;
}

int main(int argc, char **argv) {
    const char *amount = getenv("BENCH_EVENTS");
    long wanted = amount == NULL ? 0 : atol(amount), events = 0, waits;
    size_t seen = 0;
    int done = 0;
    double wall, cpu;
    broca_options *options = NULL;
    broca_client *client = NULL;
    broca_session *session = NULL;
    broca_turn *turn = NULL;
    broca_step *step = NULL;
    broca_error *error = NULL;

    if (argc != 2 || wanted <= 0) return fputs("usage: BENCH_EVENTS=… events ADDRESS\n", stderr), 2;
    check(broca_options_new(TEXT(argv[1]), TEXT("bae_bench"), &options, &error), error);
    check(broca_client_new(options, &client, &error), error);
    check(broca_client_open(client, NULL, 0, &session, &error), error);

    waits = switches();
    cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
    wall = seconds(CLOCK_MONOTONIC);
    check(broca_session_send(session, TEXT("go"), &turn, &error), error);
    for (;;) {
        check(broca_turn_next(turn, -1, &step, &error), error);
        if (step == NULL) break;
        switch (broca_step_kind(step)) {
        case BROCA_STEP_EVENT:
            events++;
            seen += broca_step_id(step).len + broca_step_type(step).len;
            break;
        case BROCA_STEP_DONE:
            done = 1;
            break;
        default:
            break;
        }
        broca_step_free(step);
    }
    wall = seconds(CLOCK_MONOTONIC) - wall;
    cpu = seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    waits = switches() - waits;

    if (!done || events != wanted || seen == 0) {
        fprintf(stderr, "the stream was not complete: %ld of %ld events, done=%d\n", events, wanted, done);
        return 1;
    }
    printf("{\"rate\":%.1f,\"switches\":%.3f,\"cpu_us\":%.4f}\n", (double)events / wall,
           (double)waits * 1e3 / (double)events, cpu * 1e6 / (double)events);
    broca_turn_free(turn);
    broca_session_free(session);
    broca_client_free(client);
    broca_options_free(options);
    return 0;
}
