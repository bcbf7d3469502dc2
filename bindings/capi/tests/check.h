/* What the tests share: checks that name their line, and a count at the end. */
#ifndef CHECK_H
#define CHECK_H

#include <broca.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int passed_tests, failed_tests, skipped_tests, failed_checks;

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            failed_checks++;                                                                       \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
        }                                                                                          \
    } while (0)

/* The call succeeds; if not, its error is shown and freed. */
#define OK(call)                                                                                   \
    do {                                                                                           \
        broca_error *error_ = NULL;                                                                \
        broca_error **err = &error_;                                                               \
        broca_status status_ = (call);                                                             \
        if (status_ != BROCA_OK || error_ != NULL) {                                               \
            failed_checks++;                                                                       \
            fprintf(stderr, "%s:%d: %s: %s: %" BROCA_FORMAT "\n", __FILE__, __LINE__, #call,       \
                    broca_status_name(status_), BROCA_ARGUMENTS(broca_error_message(error_)));     \
            broca_error_free(error_);                                                              \
        }                                                                                          \
    } while (0)

/* The call fails with this status, and its error says the same. */
#define FAILS(wanted, call)                                                                        \
    do {                                                                                           \
        broca_error *error_ = NULL;                                                                \
        broca_error **err = &error_;                                                               \
        broca_status status_ = (call);                                                             \
        if (status_ != (wanted) || broca_error_code(error_) != (wanted) ||                         \
            broca_error_message(error_).len == 0) {                                                \
            failed_checks++;                                                                       \
            fprintf(stderr, "%s:%d: %s: %s: %" BROCA_FORMAT "\n", __FILE__, __LINE__, #call,       \
                    broca_status_name(status_), BROCA_ARGUMENTS(broca_error_message(error_)));     \
        }                                                                                          \
        broca_error_free(error_);                                                                  \
    } while (0)

#define TEST(name)                                                                                 \
    do {                                                                                           \
        if (wanted_test == NULL || strcmp(wanted_test, #name) == 0) {                              \
            failed_checks = 0;                                                                     \
            name();                                                                                \
            if (failed_checks == 0) {                                                              \
                passed_tests++;                                                                    \
            } else {                                                                               \
                failed_tests++;                                                                    \
                fprintf(stderr, "FAILED: %s\n", #name);                                            \
            }                                                                                      \
        }                                                                                          \
    } while (0)

#define SKIP(name, why)                                                                            \
    do {                                                                                           \
        skipped_tests++;                                                                           \
        fprintf(stderr, "skipped: %s: %s\n", #name, why);                                          \
    } while (0)

/* A text as the two arguments that functions take. */
#define TEXT(literal) literal, strlen(literal)

static const char *wanted_test;

static inline int is(broca_bytes bytes, const char *text) {
    return bytes.len == strlen(text) && memcmp(bytes.data, text, bytes.len) == 0;
}

static inline int holds(broca_bytes bytes, const char *text) {
    return bytes.data != NULL && bytes.data[bytes.len] == 0 && strstr(bytes.data, text) != NULL;
}

static int report(const char *name) {
    printf("%s: %d passed, %d failed, %d skipped\n", name, passed_tests, failed_tests, skipped_tests);
    fflush(stdout);
    return failed_tests != 0;
}

#endif
