// Cutting text into the pieces that BPE never merges across: contractions, words, numbers, punctuation,
// blanks.
//
// The rule is GPT-2's regular expression, run by PCRE2 on the valid stretches of UTF-8. Every byte that
// belongs to no valid character is a piece of its own, so that any byte string is the concatenation of its
// pieces.
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>

// The length of the longest valid prefix (Unicode 15, table 3-7: no overlong forms, surrogates or values
// above 10FFFF).
size_t utf8_valid_prefix(const char *text, size_t bytes);

// One thread's scanner.
typedef struct PieceScanner PieceScanner;

Status piece_scanner_open(PieceScanner **scanner);
void piece_scanner_close(PieceScanner *scanner);
// The text is borrowed until the last piece.
void piece_scanner_start(PieceScanner *scanner, const char *text, size_t bytes);
bool piece_scanner_next(PieceScanner *scanner, const char **piece, size_t *bytes); // false: no more
