/* Calls in any order: whatever a program does with objects that live, nothing crashes, hangs or leaks. `sequences [SEED]` */
#include "check.h"
#include <time.h>

enum { SESSIONS = 4, TURNS = 6, STEPS = 8, ACTIONS = 1500 };

static uint64_t state;

static unsigned below(unsigned bound) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(state >> 33) % bound;
}

static broca_client *client;
static broca_tool *tool;
static broca_session *sessions[SESSIONS];
static broca_turn *turns[TURNS];
static broca_subscription *subscriptions[SESSIONS];
static broca_step *steps[STEPS];
static unsigned answers;

/* A step of this kind, if one is held. */
static broca_step *held(int32_t kind) {
    for (int i = 0; i < STEPS; i++) {
        if (broca_step_kind(steps[i]) == kind) {
            return steps[i];
        }
    }
    return steps[below(STEPS)];
}

static void act(void) {
    unsigned s = below(SESSIONS), t = below(TURNS), k = below(STEPS);
    const broca_tool *tools[] = {tool};
    broca_error *error = NULL;
    broca_step *step = NULL;
    int32_t accepted = 0;
    switch (below(16)) {
    case 0:
        if (sessions[s] == NULL) {
            broca_client_open(client, tools, 1, &sessions[s], &error);
        }
        break;
    case 1:
    case 2:
    case 3:
        if (turns[t] == NULL) {
            const char *text = below(2) ? "remove a.txt" : "hello";
            broca_session_send(sessions[s], TEXT(text), &turns[t], &error);
        }
        break;
    case 4:
    case 5:
    case 6:
    case 7:
        /* A few at once: most steps are words. */
        for (int i = 0; i < 6 && error == NULL; i++) {
            int32_t kind = broca_step_kind(steps[k]);
            if (kind == BROCA_STEP_APPROVAL || kind == BROCA_STEP_TOOL_CALL) {
                k = below(STEPS);
            }
            broca_step_free(steps[k]);
            broca_turn_next(turns[t], below(20), &steps[k], &error);
        }
        break;
    case 8:
        broca_call_complete_text(held(BROCA_STEP_TOOL_CALL), TEXT("x"), &accepted, &error);
        answers += (unsigned)accepted;
        break;
    case 9:
        broca_approval_allow(held(BROCA_STEP_APPROVAL), &accepted, &error);
        answers += (unsigned)accepted;
        break;
    case 10:
        if (below(4) == 0) {
            broca_turn_cancel(turns[t], &error);
        }
        break;
    case 11:
        if (broca_turn_is_over(turns[t]) == 1 || below(6) == 0) {
            if (below(3) == 0) {
                broca_turn_leave(turns[t], NULL);
            }
            broca_turn_free(turns[t]);
            turns[t] = NULL;
        }
        break;
    case 12:
        if (subscriptions[s] == NULL) {
            broca_session_subscribe_from(sessions[s], NULL, 0, &subscriptions[s], &error);
        } else if (broca_subscription_next(subscriptions[s], below(5), &step, &error) != BROCA_OK || below(8) == 0) {
            broca_subscription_free(subscriptions[s]);
            subscriptions[s] = NULL;
        }
        broca_step_free(step);
        break;
    case 13:
        if (below(4) == 0) {
            broca_session_close(sessions[s], &error);
            broca_session_free(sessions[s]);
            sessions[s] = NULL;
        }
        break;
    case 14:
        broca_io_wait(broca_client_io(client), below(5), NULL, NULL);
        broca_io_next(broca_client_io(client), &step, NULL);
        broca_step_text(step);
        broca_step_payload(step);
        broca_step_free(step);
        break;
    default:
        if (below(6) == 0) {
            broca_session_cancel(sessions[s], &error);
        }
        break;
    }
    broca_error_message(error);
    broca_error_free(error);
}

static void any_order_of_calls_is_survived(void) {
    const char *url = getenv("BROCA_URL");
    const char *key = getenv("BROCA_CLIENT_KEY");
    broca_options *options = NULL;
    OK(broca_options_new(TEXT(url), TEXT(key), &options, err));
    OK(broca_options_set_number(options, TEXT("cancel_grace_ms"), 20, err));
    OK(broca_client_new(options, &client, err));
    OK(broca_tool_new(TEXT("remove"), TEXT("Removes a file."),
                      TEXT("{\"type\":\"object\",\"properties\":{\"path\":{\"type\":\"string\"}}}"), &tool, err));
    OK(broca_tool_set_approval(tool, 1, err));
    for (int i = 0; i < ACTIONS; i++) {
        act();
    }
    for (int i = 0; i < SESSIONS; i++) {
        broca_session_free(sessions[i]);
        broca_subscription_free(subscriptions[i]);
    }
    broca_client_free(client);
    for (int i = 0; i < TURNS; i++) {
        broca_turn_free(turns[i]);
    }
    for (int i = 0; i < STEPS; i++) {
        broca_step_free(steps[i]);
    }
    broca_tool_free(tool);
    broca_options_free(options);
    CHECK(answers > 0); /* it was not all refused */
}

int main(int argc, char **argv) {
    state = argc > 1 ? strtoull(argv[1], NULL, 10) : (uint64_t)time(NULL);
    fprintf(stderr, "seed %llu\n", (unsigned long long)state);
    TEST(any_order_of_calls_is_survived);
    return report("sequences");
}
