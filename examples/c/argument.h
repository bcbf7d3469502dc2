/*
 * Reads one text argument of a tool call, for the examples: broca hands the arguments out as JSON, as the model wrote them,
 * and a program takes the JSON library that it likes. This one knows flat objects of texts, which is all that is needed here.
 */
#ifndef BROCA_EXAMPLES_ARGUMENT_H
#define BROCA_EXAMPLES_ARGUMENT_H

#include <broca.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Writes a code point as UTF-8, and returns what is behind it. */
static char *argument_put(char *to, unsigned long point) {
    if (point < 0x80) {
        *to++ = (char)point;
    } else if (point < 0x800) {
        *to++ = (char)(0xC0 | point >> 6);
        *to++ = (char)(0x80 | (point & 0x3F));
    } else if (point < 0x10000) {
        *to++ = (char)(0xE0 | point >> 12);
        *to++ = (char)(0x80 | (point >> 6 & 0x3F));
        *to++ = (char)(0x80 | (point & 0x3F));
    } else {
        *to++ = (char)(0xF0 | point >> 18);
        *to++ = (char)(0x80 | (point >> 12 & 0x3F));
        *to++ = (char)(0x80 | (point >> 6 & 0x3F));
        *to++ = (char)(0x80 | (point & 0x3F));
    }
    return to;
}

/* Reads the four digits of a \u escape. */
static int argument_hex(const char *at, const char *end, unsigned long *point) {
    char digits[5] = {0}, *rest;
    if (end - at < 4) return 0;
    memcpy(digits, at, 4);
    *point = strtoul(digits, &rest, 16);
    return rest == digits + 4;
}

/* Decodes the text that begins behind a quote into `to`, which has room for it, and returns what is behind its end; NULL for
   what is no text. */
static const char *argument_text(const char *at, const char *end, char *to) {
    for (; at < end && *at != '"'; at++) {
        unsigned long point, low;
        if (*at != '\\') {
            *to++ = *at;
            continue;
        }
        if (++at == end) return NULL;
        switch (*at) {
            case 'b': *to++ = '\b'; break;
            case 'f': *to++ = '\f'; break;
            case 'n': *to++ = '\n'; break;
            case 'r': *to++ = '\r'; break;
            case 't': *to++ = '\t'; break;
            case 'u':
                if (!argument_hex(at + 1, end, &point)) return NULL;
                at += 4;
                if (point >= 0xD800 && point < 0xDC00 && end - at > 6 && at[1] == '\\' && at[2] == 'u' &&
                    argument_hex(at + 3, end, &low) && low >= 0xDC00 && low < 0xE000) {
                    point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00);
                    at += 6;
                }
                to = argument_put(to, point);
                break;
            default: *to++ = *at;
        }
    }
    *to = 0;
    return at < end ? at + 1 : NULL;
}

/* The argument of this name as a text that the caller frees; NULL when there is none. */
static char *argument(broca_bytes input, const char *name) {
    const char *at = input.data, *end = input.data + input.len;
    char *key = malloc(input.len + 1), *value = malloc(input.len + 1);
    while (key != NULL && value != NULL && at != NULL && (at = memchr(at, '"', (size_t)(end - at))) != NULL) {
        at = argument_text(at + 1, end, key);
        while (at != NULL && at < end && strchr(" \t\n\r:", *at) != NULL) at++;
        if (at == NULL || at == end || *at != '"') continue;
        at = argument_text(at + 1, end, value);
        if (at != NULL && strcmp(key, name) == 0) {
            free(key);
            return value;
        }
    }
    free(key);
    free(value);
    return NULL;
}

#endif
