// Cutting text into the pieces that BPE never merges across: contractions, words, numbers, punctuation,
// blanks.
//
// The rule is one or several regular expressions: GPT-2's, or those of a tokenizer.json. Each one cuts the
// pieces of the one before. PCRE2 runs them on valid UTF-8; for GPT-2's expression, ASCII is cut by code of our
// own. Every byte that belongs to no valid character is a piece of its own, so any byte string is the
// concatenation of its pieces.
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>

enum { MAX_PATTERNS = 8 };

// Source: Radford 2019, encoder.py of GPT-2. The leftmost alternative that matches wins.
extern const char gpt2_pattern[];
// The published pattern of tiktoken's cl100k, also Llama 3's.
extern const char cl100k_pattern[];

// The length of the longest valid prefix (Unicode 15, table 3-7: no overlong forms, surrogates or values
// above 10FFFF).
size_t utf8_valid_prefix(const char *text, size_t bytes);
// Bytes of blanks (Unicode's White_Space) that valid text begins or ends with.
size_t utf8_leading_blanks(const char *text, size_t bytes);
size_t utf8_trailing_blanks(const char *text, size_t bytes);

// One thread's scanner.
typedef struct PieceScanner PieceScanner;

// A match is a piece, and so is the text between two matches. 1 <= count <= MAX_PATTERNS. Fails with ERR_DATA
// and PCRE2's message when a pattern is not a regular expression.
Status piece_scanner_open(PieceScanner **scanner, const char *const *patterns, int count);
void piece_scanner_close(PieceScanner *scanner);
// The text is borrowed until the last piece.
void piece_scanner_start(PieceScanner *scanner, const char *text, size_t bytes);
bool piece_scanner_next(PieceScanner *scanner, const char **piece, size_t *bytes); // false: no more
// Call it after the last piece. Fails with ERR_DATA when a pattern exceeded PCRE2's limits; GPT-2's never does.
Status piece_scanner_status(const PieceScanner *scanner);
