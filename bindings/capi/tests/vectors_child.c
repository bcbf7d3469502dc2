/*
 * Plays the shared vectors: holds an engine of libbroca and does what it is told, line by line.
 *
 *     vectors --through PATH/vectors_child core/vectors/reports.jsonl
 *
 * The protocol is described in core/vectors/README.md. Steps and errors are reported with the functions that every program
 * has; the clock, the service and everything that is expected stay with the caller. A request that cannot be
 * understood ends the program: then the caller says which case it was.
 */

#define _POSIX_C_SOURCE 200809L

#include "broca_testing.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS = 16 };

/* What a word says: NULL and 0 when it is absent. */
typedef struct {
    char *data;
    size_t len;
} text;

/* A question that was asked, kept until the engine is gone: whoever frees it has answered it. */
typedef struct question {
    broca_step *step;
    struct question *next;
} question;

static broca_testing_engine *engine;
static broca_testing_chat *chat;
static question *questions;

static void give_up(const char *why) {
    fprintf(stderr, "vectors_child: %s\n", why);
    exit(2);
}

/* Words in. */

static uint64_t number(const char *word) {
    char *end;
    unsigned long long value = strtoull(word, &end, 10);
    if (*word == '\0' || *end != '\0') give_up("a number is not one");
    return value;
}

static int digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    give_up("a digit is not one");
    return 0;
}

/* Decodes in place: the bytes take half the room of their digits. */
static text given(char *word) {
    text said = {NULL, 0};
    if (strcmp(word, "-") == 0) return said;
    if (word[0] != 'x') give_up("bytes begin with x");
    said.data = word;
    for (const char *at = word + 1; at[0] != '\0'; at += 2) {
        int high = digit(at[0]);
        said.data[said.len++] = (char)(high << 4 | digit(at[1]));
    }
    return said;
}

/* Words out. */

static void put_number(const char *name, uint64_t value) {
    printf(" %s=%" PRIu64, name, value);
}

static void put_bytes(const char *name, broca_bytes bytes) {
    static const char digits[] = "0123456789abcdef";
    printf(" %s=", name);
    if (bytes.data == NULL) {
        putchar('-');
        return;
    }
    if (bytes.data[bytes.len] != '\0') give_up("no NUL follows a text");
    putchar('x');
    for (size_t i = 0; i < bytes.len; i++) {
        unsigned char byte = (unsigned char)bytes.data[i];
        putchar(digits[byte >> 4]);
        putchar(digits[byte & 15]);
    }
}

static void put_text(const char *name, const char *said) {
    broca_bytes bytes = {said, strlen(said)};
    put_bytes(name, bytes);
}

static void put_error(const broca_error *error) {
    int32_t retry = broca_error_retry(error);
    printf(" code=%" PRId32, broca_error_code(error));
    put_bytes("kind", broca_error_kind(error));
    put_bytes("message", broca_error_message(error));
    put_text("retry", retry == BROCA_RETRY_SAFE ? "safe" : retry == BROCA_RETRY_UNSAFE ? "unsafe" : "unknown");
    put_bytes("details", broca_error_details(error));
}

/* Says that a call was refused, if it was. */
static int refused(broca_status status, broca_error *error) {
    if (status == BROCA_OK) {
        if (error != NULL) give_up("a call that went well has an error");
        return 0;
    }
    if (error == NULL || broca_error_code(error) != status) give_up("a status is not that of its error");
    fputs("error", stdout);
    put_error(error);
    putchar('\n');
    broca_error_free(error);
    return 1;
}

/* Steps. */

static void put_gap(const broca_step *step) {
    int32_t reason = broca_step_gap_reason(step);
    printf(" lost=%" PRId32, reason);
    if (reason == BROCA_GAP_DELTAS || reason == BROCA_GAP_LINE) put_number("count", broca_step_count(step));
    else fputs(" count=-", stdout);
    if (reason == BROCA_GAP_LINE) put_number("limit", broca_step_limit(step));
    else fputs(" limit=-", stdout);
    put_bytes("cursor", broca_step_cursor(step));
    put_bytes("after", broca_step_after(step));
}

static void put_call(const broca_step *step) {
    put_number("call", broca_step_call(step));
    put_bytes("tool_use_id", broca_step_tool_use_id(step));
    put_bytes("name", broca_step_name(step));
    put_bytes("input", broca_step_input(step));
    put_bytes("idempotency_key", broca_step_idempotency_key(step));
    put_number("may_have_run", (uint64_t)broca_step_may_have_run(step));
}

static void put_status(const broca_step *step) {
    broca_bytes state = broca_step_state(step);
    put_bytes("state", state);
    if (strcmp(state.data, "reconnecting") == 0) put_number("delay_ms", broca_step_delay_ms(step));
    else fputs(" delay_ms=-", stdout);
    put_bytes("error_kind", broca_step_error_kind(step));
    put_bytes("why", broca_step_why(step));
    if (broca_step_position(step) != 0) {
        put_number("position", broca_step_position(step));
        put_number("waiting", broca_step_waiting(step));
    } else {
        fputs(" position=- waiting=-", stdout);
    }
}

static void put_failure(const broca_step *step) {
    broca_error *error = NULL;
    broca_error *fault = NULL;
    if (broca_step_error(step, &error, &fault) != BROCA_OK || error == NULL) give_up("a failure has no error");
    put_error(error);
    broca_error_free(error);
}

static void put_step(const broca_step *step) {
    switch (broca_step_kind(step)) {
    case BROCA_STEP_EVENT:
        fputs("step event", stdout);
        put_bytes("id", broca_step_id(step));
        put_bytes("event_type", broca_step_type(step));
        put_bytes("session_id", broca_step_session_id(step));
        put_bytes("client_key_id", broca_step_client_key_id(step));
        put_bytes("created_at", broca_step_created_at(step));
        put_bytes("payload", broca_step_payload(step));
        put_bytes("raw", broca_step_json(step));
        break;
    case BROCA_STEP_NOTIFICATION:
        fputs("step notification", stdout);
        put_bytes("method", broca_step_name(step));
        put_bytes("raw", broca_step_json(step));
        break;
    case BROCA_STEP_DELTA:
        printf("step delta delta_kind=%" PRId32, broca_step_delta_kind(step));
        put_bytes("link", broca_step_link(step));
        put_bytes("text", broca_step_text(step));
        break;
    case BROCA_STEP_GAP:
        fputs("step gap", stdout);
        put_gap(step);
        break;
    case BROCA_STEP_TOOL_CALL:
        fputs("step tool_call", stdout);
        put_call(step);
        break;
    case BROCA_STEP_APPROVAL:
        fputs("step approval", stdout);
        put_call(step);
        put_number("server_side", (uint64_t)broca_step_server_side(step));
        break;
    case BROCA_STEP_TOOL_CANCEL:
        fputs("step tool_cancel", stdout);
        put_number("call", broca_step_call(step));
        break;
    case BROCA_STEP_APPROVAL_WITHDRAWN:
        fputs("step approval_withdrawn", stdout);
        put_number("call", broca_step_call(step));
        break;
    case BROCA_STEP_TOOL_SETTLED:
        fputs("step tool_settled", stdout);
        put_bytes("tool_use_id", broca_step_tool_use_id(step));
        put_bytes("outcome", broca_step_outcome(step));
        put_bytes("name", broca_step_name(step));
        break;
    case BROCA_STEP_STATUS:
        fputs("step status", stdout);
        put_status(step);
        break;
    case BROCA_STEP_WARNING:
        fputs("step warning", stdout);
        put_bytes("class", broca_step_category(step));
        put_bytes("message", broca_step_message(step));
        break;
    case BROCA_STEP_SENDING:
        fputs("step sending", stdout);
        put_number("call", broca_step_call(step));
        put_number("round", broca_step_rounds(step));
        put_bytes("message", broca_step_message(step));
        break;
    case BROCA_STEP_RECEIVED:
        fputs("step received", stdout);
        put_number("round", broca_step_rounds(step));
        put_bytes("message", broca_step_message(step));
        break;
    case BROCA_STEP_DONE:
        fputs("step done", stdout);
        put_bytes("text", broca_step_text(step));
        put_bytes("message", broca_step_message(step));
        put_bytes("usage", broca_step_usage(step));
        put_number("rounds", broca_step_rounds(step));
        put_number("tool_calls", broca_step_tool_calls(step));
        put_bytes("session", broca_step_session_spent(step));
        put_bytes("events", broca_step_events(step));
        break;
    case BROCA_STEP_FINISHED:
        fputs("step finished", stdout);
        put_bytes("outcome", broca_step_outcome(step));
        put_bytes("value", broca_step_value(step));
        break;
    case BROCA_STEP_FAILED:
        fputs("step failed", stdout);
        put_failure(step);
        break;
    default:
        give_up("a step of an unknown kind");
    }
    putchar('\n');
}

static void keep(broca_step *step) {
    question *asked = malloc(sizeof *asked);
    if (asked == NULL) give_up("no memory");
    asked->step = step;
    asked->next = questions;
    questions = asked;
}

static broca_step *asked(uint64_t call) {
    for (question *each = questions; each != NULL; each = each->next) {
        if (broca_step_call(each->step) == call) return each->step;
    }
    return NULL;
}

static void forget_questions(void) {
    while (questions != NULL) {
        question *next = questions->next;
        broca_step_free(questions->step);
        free(questions);
        questions = next;
    }
}

/* Requests. */

static void steps(uint64_t op, size_t max_bytes) {
    int32_t over = 0;
    broca_error *error = NULL;
    broca_step *step;
    if (refused(broca_testing_engine_steps(engine, op, max_bytes, &over, &error), error)) return;
    while ((step = broca_testing_engine_next(engine, op)) != NULL) {
        put_step(step);
        switch (broca_step_kind(step)) {
        case BROCA_STEP_TOOL_CALL:
        case BROCA_STEP_APPROVAL:
        case BROCA_STEP_SENDING:
            keep(step);
            break;
        default:
            broca_step_free(step);
        }
    }
    printf("over %" PRId32 "\n", over);
}

static void command(uint64_t now, text json, text traceparent, text tracestate) {
    uint64_t op = 0;
    broca_error *error = NULL;
    broca_status status =
        broca_testing_engine_command(engine, now, json.data, json.len, traceparent.data, traceparent.len,
                                     tracestate.data, tracestate.len, &op, &error);
    if (!refused(status, error)) printf("op %" PRIu64 "\n", op);
}

static void answer(uint64_t now, uint64_t call, const char *word, text value, text traceparent, text tracestate) {
    int32_t accepted = 0;
    broca_error *error = NULL;
    broca_status status = broca_testing_engine_answer(
        engine, now, call, asked(call), word, strlen(word), value.data, value.len, traceparent.data, traceparent.len,
        tracestate.data, tracestate.len, &accepted, &error);
    if (!refused(status, error)) printf("accepted %" PRId32 "\n", accepted);
}

static void resolved(uint64_t now, uint64_t req, text why, char **words, size_t count) {
    char addresses[1024] = "";
    size_t used = 0;
    broca_error *error = NULL;
    for (size_t i = 0; i < count; i++) {
        text address = given(words[i]);
        if (used + address.len + 1 > sizeof addresses) give_up("too many addresses");
        memcpy(addresses + used, address.data, address.len);
        used += address.len;
        addresses[used++] = ' ';
    }
    refused(broca_testing_engine_resolved(engine, now, req, addresses, used, why.data, why.len, &error), error);
}

static void effects(void) {
    broca_bytes lines = {NULL, 0};
    broca_error *error = NULL;
    if (refused(broca_testing_engine_effects(engine, &lines, &error), error)) return;
    fwrite(lines.data, 1, lines.len, stdout);
}

static void renew(text options, uint64_t seed, uint64_t wall_ms) {
    broca_error *error = NULL;
    forget_questions();
    broca_testing_engine_free(engine);
    engine = NULL;
    refused(broca_testing_engine_new(options.data, options.len, seed, wall_ms, &engine, &error), error);
}

/* True for a request about a provider's answer. */
static int serve_chat(char **words, size_t count) {
    broca_error *error = NULL;
    const char *verb = words[0];
    if (count == 2 && strcmp(verb, "chat_new") == 0) {
        broca_testing_chat_free(chat);
        chat = broca_testing_chat_new((uint16_t)number(words[1]));
    } else if (count == 2 && strcmp(verb, "chat_data") == 0) {
        text data = given(words[1]);
        refused(broca_testing_chat_data(chat, data.data, data.len, &error), error);
    } else if (strcmp(verb, "chat_end") == 0) {
        refused(broca_testing_chat_end(chat, 0, &error), error);
    } else if (strcmp(verb, "chat_broken") == 0) {
        refused(broca_testing_chat_end(chat, 1, &error), error);
    } else if (strcmp(verb, "chat_take") == 0) {
        broca_bytes taken = broca_testing_chat_take(chat);
        fputs("chat ", stdout);
        putchar('x');
        for (size_t i = 0; i < taken.len; i++) printf("%02x", (unsigned)(unsigned char)taken.data[i]);
        putchar('\n');
    } else {
        return 0;
    }
    return 1;
}

static void serve_engine(char **words, size_t count) {
    broca_error *error = NULL;
    const char *verb = words[0];
    uint64_t now = count > 1 ? number(words[1]) : 0;
    if (count == 5 && strcmp(verb, "command") == 0) {
        command(now, given(words[2]), given(words[3]), given(words[4]));
    } else if (count == 7 && strcmp(verb, "answer") == 0) {
        answer(now, number(words[2]), words[3], given(words[4]), given(words[5]), given(words[6]));
    } else if (count == 3 && strcmp(verb, "steps") == 0) {
        steps(now, (size_t)number(words[2])); /* its first number is an operation */
    } else if (count == 3 && strcmp(verb, "cancel") == 0) {
        refused(broca_testing_engine_cancel(engine, now, number(words[2]), &error), error);
    } else if (count >= 4 && strcmp(verb, "resolved") == 0) {
        resolved(now, number(words[2]), given(words[3]), words + 4, count - 4);
    } else if (count == 3 && strcmp(verb, "connected") == 0) {
        refused(broca_testing_engine_connected(engine, now, number(words[2]), &error), error);
    } else if (count == 3 && strcmp(verb, "tls_started") == 0) {
        refused(broca_testing_engine_tls_started(engine, now, number(words[2]), &error), error);
    } else if (count == 4 && strcmp(verb, "data") == 0) {
        text data = given(words[3]);
        refused(broca_testing_engine_data(engine, now, number(words[2]), data.data, data.len, &error), error);
    } else if (count == 4 && strcmp(verb, "written") == 0) {
        size_t size = (size_t)number(words[3]);
        refused(broca_testing_engine_written(engine, now, number(words[2]), size, &error), error);
    } else if (count == 4 && strcmp(verb, "closed") == 0) {
        const char *why = words[3];
        refused(broca_testing_engine_closed(engine, now, number(words[2]), why, strlen(why), &error), error);
    } else if (count == 2 && strcmp(verb, "timeout") == 0) {
        refused(broca_testing_engine_timeout(engine, now, &error), error);
    } else {
        give_up("a request that is not known");
    }
    effects();
}

static void serve(char *line) {
    char *words[WORDS];
    size_t count = 0;
    for (char *word = strtok(line, " \r\n"); word != NULL; word = strtok(NULL, " \r\n")) {
        if (count == WORDS) give_up("a request of too many words");
        words[count++] = word;
    }
    if (count == 0) give_up("an empty request");
    if (count == 4 && strcmp(words[0], "new") == 0) renew(given(words[1]), number(words[2]), number(words[3]));
    else if (!serve_chat(words, count)) serve_engine(words, count);
    fputs(".\n", stdout);
    if (fflush(stdout) != 0) give_up("nobody reads the answers");
}

int main(void) {
    char *line = NULL;
    size_t room = 0;
    if (!BROCA_CHECK_ABI()) give_up("the library is of another version than its header");
    while (getline(&line, &room, stdin) > 0) serve(line);
    free(line);
    forget_questions();
    broca_testing_engine_free(engine);
    broca_testing_chat_free(chat);
    return 0;
}
