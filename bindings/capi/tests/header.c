/* Compiled as C99 and as C++17: sizes, numbers, and nothing that a strict compiler minds. */
#include <broca.h>

#ifdef __cplusplus
#include <broca.hpp>
#define ASSERT(name, condition) static_assert(condition, #name)
#else
#define ASSERT(name, condition) typedef char assert_##name[(condition) ? 1 : -1]
#endif

ASSERT(status_is_32_bits, sizeof(broca_status) == 4);
ASSERT(bytes_are_a_pointer_and_a_size, sizeof(broca_bytes) == sizeof(char *) + sizeof(size_t));
ASSERT(data_comes_first, offsetof(broca_bytes, data) == 0);
ASSERT(a_socket_holds_a_pointer, sizeof(broca_socket) == sizeof(void *));
ASSERT(number_is_made_of_the_parts, BROCA_VERSION_NUMBER == BROCA_VERSION_MAJOR * 1000000 +
                                                              BROCA_VERSION_MINOR * 1000 + BROCA_VERSION_PATCH);
ASSERT(abi_is_known, BROCA_ABI_VERSION >= 1);
ASSERT(ok_is_zero, BROCA_OK == 0 && BROCA_E_USAGE == -1 && BROCA_E_VERSION_MISMATCH == -902);

int main(void) {
    return BROCA_CHECK_ABI() ? 0 : 1;
}
