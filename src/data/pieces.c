#include "data/pieces.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

// Radford 2019, encoder.py of GPT-2. The leftmost alternative that matches wins.
static const char gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

struct PieceScanner {
    pcre2_code *code;
    pcre2_match_data *match;
    const char *text;     // the rest of the text
    size_t bytes;         // of it
    size_t valid, offset; // its valid prefix, and how much of that is done
};

// The length of the character at p (`left` bytes remain), 0 when invalid.
static size_t utf8_char(const unsigned char *p, size_t left) {
    if (p[0] < 0x80) return 1;
    size_t length = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    if (p[0] < 0xc2 || p[0] > 0xf4 || left < length) return 0;
    unsigned char low = p[0] == 0xe0 ? 0xa0 : p[0] == 0xf0 ? 0x90 : 0x80;
    unsigned char high = p[0] == 0xed ? 0x9f : p[0] == 0xf4 ? 0x8f : 0xbf;
    if (p[1] < low || p[1] > high) return 0;
    for (size_t i = 2; i < length; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    return length;
}

size_t utf8_valid_prefix(const char *text, size_t bytes) {
    size_t at = 0;
    while (at < bytes) {
        uint64_t eight;
        if (bytes - at >= 8 && (memcpy(&eight, text + at, 8), (eight & 0x8080808080808080U) == 0)) {
            at += 8;
            continue;
        }
        size_t length = utf8_char((const unsigned char *)text + at, bytes - at);
        if (!length) break;
        at += length;
    }
    return at;
}

Status piece_scanner_open(PieceScanner **scanner) {
    PieceScanner *s = *scanner = calloc(1, sizeof *s);
    if (!s) return fail(ERR_OS, "no memory for a piece scanner");
    int error;
    PCRE2_SIZE where;
    // Anchored here, not when matching: there the option would keep PCRE2 from using its compiled code.
    s->code = pcre2_compile((PCRE2_SPTR)gpt2_pattern, PCRE2_ZERO_TERMINATED,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &where, NULL);
    if (s->code) s->match = pcre2_match_data_create_from_pattern(s->code, NULL);
    if (!s->match) {
        piece_scanner_close(s);
        *scanner = NULL;
        return fail(ERR_UNAVAILABLE,
                    "PCRE2 cannot compile GPT-2's pattern (error %d): it lacks Unicode support", error);
    }
    pcre2_jit_compile(s->code, PCRE2_JIT_COMPLETE); // without JIT it is only slower
    return OK;
}

void piece_scanner_close(PieceScanner *scanner) {
    if (!scanner) return;
    pcre2_match_data_free(scanner->match);
    pcre2_code_free(scanner->code);
    free(scanner);
}

void piece_scanner_start(PieceScanner *s, const char *text, size_t bytes) {
    s->text = text;
    s->bytes = bytes;
    s->valid = utf8_valid_prefix(text, bytes);
    s->offset = 0;
}

bool piece_scanner_next(PieceScanner *s, const char **piece, size_t *bytes) {
    if (!s->bytes) return false;
    *piece = s->text + s->offset;
    if (s->offset == s->valid) { // the end, or an invalid byte
        if (s->valid == s->bytes) return false;
        *bytes = 1;
        piece_scanner_start(s, *piece + 1, s->bytes - s->valid - 1);
        return true;
    }
    // Matching unchecked is safe: the prefix was validated. The pattern covers every character, so it always
    // matches.
    int matched =
        pcre2_match(s->code, (PCRE2_SPTR)s->text, s->valid, s->offset, PCRE2_NO_UTF_CHECK, s->match, NULL);
    size_t end = matched > 0 ? pcre2_get_ovector_pointer(s->match)[1] : 0;
    CHECK(end > s->offset, "PCRE2 gives %d at byte %zu of a text", matched, s->offset);
    *bytes = end - s->offset;
    s->offset = end;
    return true;
}
