// UTF-8, strictly (Unicode, table 3-7): no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once
#include <stddef.h>
#include <stdint.h>

// The bytes of the character at `text`, 1 to 4, of which `size` > 0 may be read; 0 when it is invalid.
static inline size_t utf8_length(const char *text, size_t size) {
    const unsigned char *c = (const unsigned char *)text;
    if (c[0] < 0x80) return 1;
    size_t length = c[0] >= 0xf0 ? 4 : c[0] >= 0xe0 ? 3 : 2;
    if (c[0] < 0xc2 || c[0] > 0xf4 || length > size) return 0;
    for (size_t i = 1; i < length; i++)
        if ((c[i] & 0xc0) != 0x80) return 0;
    // The second byte shows overlong forms, surrogates and numbers that are too large.
    if ((c[0] == 0xe0 && c[1] < 0xa0) || (c[0] == 0xed && c[1] > 0x9f)) return 0;
    if ((c[0] == 0xf0 && c[1] < 0x90) || (c[0] == 0xf4 && c[1] > 0x8f)) return 0;
    return length;
}
