/* What every program of the guide in C begins with. */
#ifndef BROCA_EXAMPLES_GUIDE_H
#define BROCA_EXAMPLES_GUIDE_H

#include <broca.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT(literal) literal, strlen(literal)

/* What went wrong last: the programs hand it to every call, and check() reads it. */
static broca_error *error;

/* Ends the program with the message of `error` unless a call went well. */
static void check(broca_status status) {
    if (status == BROCA_OK) return;
    fprintf(stderr, "%s: %" BROCA_FORMAT "\n", broca_status_name(status), BROCA_ARGUMENTS(broca_error_message(error)));
    exit(1);
}

/* Options with the address and the key of the service that the environment names. */
static broca_options *options_of_environment(void) {
    const char *url = getenv("BROCA_URL"), *key = getenv("BROCA_CLIENT_KEY");
    broca_options *options;
    if (url == NULL || key == NULL) {
        fputs("set BROCA_URL and BROCA_CLIENT_KEY\n", stderr);
        exit(2);
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    check(broca_options_new(TEXT(url), TEXT(key), &options, &error));
    return options;
}

/* Whether a text of broca is this one. */
static inline int is(broca_bytes text, const char *word) { return text.len == strlen(word) && memcmp(text.data, word, text.len) == 0; }

#endif
