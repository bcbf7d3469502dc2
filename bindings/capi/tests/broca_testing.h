/*
 * What libbroca exports for tests when it is built with the feature `testing`: bindings/capi/src/testing/vectors.rs.
 * Not part of the interface.
 */
#ifndef BROCA_TESTING_H
#define BROCA_TESTING_H

#include "broca.h"

typedef struct broca_testing_engine broca_testing_engine;
typedef struct broca_testing_chat broca_testing_chat;

broca_status broca_testing_engine_new(const char *json, size_t json_len, uint64_t seed, uint64_t wall_ms,
                                      broca_testing_engine **engine, broca_error **err);
void broca_testing_engine_free(broca_testing_engine *engine);
broca_status broca_testing_engine_command(broca_testing_engine *engine, uint64_t now, const char *json, size_t json_len,
                                          const char *traceparent, size_t traceparent_len, const char *tracestate,
                                          size_t tracestate_len, uint64_t *op, broca_error **err);
broca_status broca_testing_engine_cancel(broca_testing_engine *engine, uint64_t now, uint64_t op, broca_error **err);
broca_status broca_testing_engine_answer(broca_testing_engine *engine, uint64_t now, uint64_t question, broca_step *step,
                                         const char *word, size_t word_len, const char *value, size_t value_len,
                                         const char *traceparent, size_t traceparent_len, const char *tracestate,
                                         size_t tracestate_len, int32_t *accepted, broca_error **err);
broca_status broca_testing_engine_resolved(broca_testing_engine *engine, uint64_t now, uint64_t req,
                                           const char *addresses, size_t addresses_len, const char *why, size_t why_len,
                                           broca_error **err);
broca_status broca_testing_engine_connected(broca_testing_engine *engine, uint64_t now, uint64_t conn, broca_error **err);
broca_status broca_testing_engine_tls_started(broca_testing_engine *engine, uint64_t now, uint64_t conn,
                                              broca_error **err);
broca_status broca_testing_engine_data(broca_testing_engine *engine, uint64_t now, uint64_t conn, const char *data,
                                       size_t data_len, broca_error **err);
broca_status broca_testing_engine_written(broca_testing_engine *engine, uint64_t now, uint64_t conn, size_t size,
                                          broca_error **err);
broca_status broca_testing_engine_closed(broca_testing_engine *engine, uint64_t now, uint64_t conn, const char *why,
                                         size_t why_len, broca_error **err);
broca_status broca_testing_engine_timeout(broca_testing_engine *engine, uint64_t now, broca_error **err);
broca_status broca_testing_engine_effects(broca_testing_engine *engine, broca_bytes *lines, broca_error **err);
broca_status broca_testing_engine_steps(broca_testing_engine *engine, uint64_t op, size_t max_bytes, int32_t *over,
                                        broca_error **err);
broca_step *broca_testing_engine_next(broca_testing_engine *engine, uint64_t op);

broca_testing_chat *broca_testing_chat_new(uint16_t status);
broca_status broca_testing_chat_data(broca_testing_chat *chat, const char *data, size_t data_len, broca_error **err);
broca_status broca_testing_chat_end(broca_testing_chat *chat, int32_t broken, broca_error **err);
broca_bytes broca_testing_chat_take(broca_testing_chat *chat);
void broca_testing_chat_free(broca_testing_chat *chat);

#endif
