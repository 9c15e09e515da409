// Splits text into the pieces that a tokenizer's pattern matches.
#include "tokenizer/pieces.h"
#include "tokenizer/pattern.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

const char gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const char cl100k_pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

// One pattern. It cuts the pieces that the stage before it makes.
typedef struct {
    bool by_hand; // GPT-2's
    Pattern *pattern;
    const char *text;
    size_t bytes, done;
    size_t match_start, match_end; // of the next match; match_end <= done: not looked for yet
} Stage;

struct PieceScanner {
    Stage stages[MAX_PATTERNS];
    int num_stages;
    const char *text; // the rest of the text
    size_t bytes;     // of it
    int error;        // of pattern_find; 0: none
};

// The length of the character at p, of which `left` bytes remain; 0 when it is invalid.
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

static bool is_blank(uint32_t c) {
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
           c == 0x3000;
}

// The code point of a valid character of at most three bytes, as all blanks have.
static uint32_t code_point(const char *text, size_t length) {
    const unsigned char *c = (const unsigned char *)text;
    if (length == 1) return c[0];
    if (length == 2) return (c[0] & 31U) << 6 | (c[1] & 63U);
    return length == 3 ? (c[0] & 15U) << 12 | (c[1] & 63U) << 6 | (c[2] & 63U) : UINT32_MAX;
}

size_t utf8_leading_blanks(const char *text, size_t bytes) {
    size_t at = 0, length;
    for (; at < bytes; at += length) {
        length = utf8_char((const unsigned char *)text + at, bytes - at);
        if (!length || !is_blank(code_point(text + at, length))) break;
    }
    return at;
}

size_t utf8_trailing_blanks(const char *text, size_t bytes) {
    size_t at = bytes;
    while (at) {
        size_t start = at - 1;
        while (start && at - start < 4 && ((unsigned char)text[start] & 0xc0) == 0x80) start--;
        if (!is_blank(code_point(text + start, at - start))) break;
        at = start;
    }
    return bytes - at;
}

// ---- Opening ------------------------------------------------------------------------------------------

static Status stage_open(Stage *stage, const char *pattern) {
    stage->by_hand = strcmp(pattern, gpt2_pattern) == 0;
    return pattern_open(&stage->pattern, pattern);
}

Status piece_scanner_open(PieceScanner **scanner, const char *const *patterns, int count) {
    CHECK(count >= 1 && count <= MAX_PATTERNS, "%d patterns", count);
    PieceScanner *s = *scanner = calloc(1, sizeof *s);
    if (!s) return fail(ERR_OS, "no memory for a piece scanner");
    Status status = OK;
    for (; status == OK && s->num_stages < count; s->num_stages++)
        status = stage_open(&s->stages[s->num_stages], patterns[s->num_stages]);
    if (status == OK) return OK;
    piece_scanner_close(s);
    *scanner = NULL;
    return status;
}

void piece_scanner_close(PieceScanner *scanner) {
    if (!scanner) return;
    for (int i = 0; i < scanner->num_stages; i++) pattern_close(scanner->stages[i].pattern);
    free(scanner);
}

// ---- GPT-2's pattern on ASCII -------------------------------------------------------------------------

typedef enum { OTHER, LETTER, DIGIT, BLANK, NOT_ASCII } CharClass;

static CharClass class_of(unsigned char c) {
    if (c >= 128) return NOT_ASCII;
    if ((c | 32) >= 'a' && (c | 32) <= 'z') return LETTER;
    if (c >= '0' && c <= '9') return DIGIT;
    return c == ' ' || (c >= 9 && c <= 13) ? BLANK : OTHER;
}

// The end of the run of characters of one class.
static size_t run_end(const char *text, size_t bytes, size_t at, CharClass class) {
    while (at < bytes && class_of((unsigned char)text[at]) == class) at++;
    return at;
}

// The length of 's 't 'm 'd 're 've 'll at the apostrophe at `text`; 0 when it is none of them.
static size_t contraction(const char *text, size_t left) {
    if (left < 2) return 0;
    if (strchr("stmd", text[1]) && text[1]) return 2;
    if (left < 3) return 0;
    bool two = (text[2] == 'e' && (text[1] == 'r' || text[1] == 'v')) || (text[1] == 'l' && text[2] == 'l');
    return two ? 3 : 0;
}

// Where other text follows blanks, the last blank is not part of their piece: a blank begins the next piece,
// other white space is a piece of its own.
static size_t blanks_end(const char *text, size_t bytes, size_t at) {
    size_t end = run_end(text, bytes, at, BLANK);
    if (end == bytes) return end;
    if (class_of((unsigned char)text[end]) == NOT_ASCII) return 0;
    return end - at > 1 ? end - 1 : end;
}

// The end of the piece at `at`; 0 when it depends on a character that is not ASCII.
static size_t gpt2_end(const char *text, size_t bytes, size_t at) {
    CharClass class = class_of((unsigned char)text[at]);
    size_t start = at;
    if (text[at] == '\'') {
        size_t short_form = contraction(text + at, bytes - at);
        if (short_form) return at + short_form;
    }
    if (text[at] == ' ' && at + 1 < bytes && class_of((unsigned char)text[at + 1]) != BLANK)
        class = class_of((unsigned char)text[++start]);
    if (class == NOT_ASCII) return 0;
    if (class == BLANK) return blanks_end(text, bytes, at);
    size_t end = run_end(text, bytes, start, class);
    return end < bytes && (unsigned char)text[end] >= 128 ? 0 : end;
}

// ---- Scanning -----------------------------------------------------------------------------------------

static void find_match(PieceScanner *s, Stage *g) {
    int error = pattern_find(g->pattern, g->text, g->bytes, g->done, &g->match_start, &g->match_end);
    if (error) s->error = error;
}

static bool stage_next(PieceScanner *s, int k, const char **piece, size_t *bytes) {
    if (k < 0) return false;
    Stage *g = &s->stages[k];
    while (g->done == g->bytes) {
        if (!stage_next(s, k - 1, &g->text, &g->bytes)) return false;
        g->done = g->match_start = g->match_end = 0;
    }
    size_t start = g->done, end = 0;
    if (g->by_hand) end = gpt2_end(g->text, g->bytes, start);
    if (!end) {
        if (g->match_end <= start) find_match(s, g);
        end = start < g->match_start ? g->match_start : g->match_end;
    }
    *piece = g->text + start;
    *bytes = end - start;
    g->done = end;
    return true;
}

// Gives the first stage the valid UTF-8 at the start of the remaining text.
static void start_stretch(PieceScanner *s) {
    Stage *first = &s->stages[0];
    size_t valid = utf8_valid_prefix(s->text, s->bytes);
    first->text = s->text;
    first->bytes = valid;
    first->done = first->match_start = first->match_end = 0;
    s->text += valid;
    s->bytes -= valid;
}

void piece_scanner_start(PieceScanner *s, const char *text, size_t bytes) {
    s->text = bytes ? text : "";
    s->bytes = bytes;
    s->error = 0;
    for (int i = 1; i < s->num_stages; i++) s->stages[i].done = s->stages[i].bytes = 0;
    start_stretch(s);
}

bool piece_scanner_next(PieceScanner *s, const char **piece, size_t *bytes) {
    if (stage_next(s, s->num_stages - 1, piece, bytes)) return true;
    if (!s->bytes) return false;
    *piece = s->text++; // an invalid byte
    *bytes = 1;
    s->bytes--;
    start_stretch(s);
    return true;
}

Status piece_scanner_status(const PieceScanner *s) { return s->error ? pattern_fail(s->error) : OK; }
