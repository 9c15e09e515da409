// Pieces in a build without PCRE2, of whose files this test is linked (tests/CMakeLists.txt): GPT-2's of ASCII are the
// same, everything else is refused with what to install.
#include "base/text.h"
#include "harness.h"
#include "tokenizer/pieces.h"
#include <string.h>

// The pieces of a text, with a bar behind each.
static Status cut(const char *text, Text *pieces) {
    PieceScanner *scanner;
    TRY(piece_scanner_open(&scanner, &(const char *){gpt2_pattern}, 1));
    piece_scanner_start(scanner, text, strlen(text));
    const char *piece;
    for (size_t bytes; piece_scanner_next(scanner, &piece, &bytes);)
        text_add(pieces, "%.*s|", (int)bytes, piece);
    Status status = piece_scanner_status(scanner);
    piece_scanner_close(scanner);
    return status;
}

static void ascii_is_cut(void) {
    Text pieces = {0};
    EXPECT_OK(cut("Don't  row 12 oars, (now)!\n\n x", &pieces));
    EXPECT(!strcmp(text_string(&pieces), "Don|'t| | row| 12| oars|,| (|now|)!|\n\n| x|"), "got: %s",
           text_string(&pieces));
    text_free(&pieces);
}

static void other_text_is_refused(void) {
    Text pieces = {0};
    EXPECT(cut("an oar, na\xc3\xafve", &pieces) == ERR_UNAVAILABLE, "more than ASCII was cut");
    EXPECT(strstr(fail_message(), "PCRE2") && strstr(fail_message(), "libpcre2-dev"), "got: %s",
           fail_message());
    EXPECT(!strcmp(text_string(&pieces), "an| oar|,| na\xc3\xafve|"), "text is missing: %s",
           text_string(&pieces));
    text_free(&pieces);
}

static void other_patterns_are_refused(void) {
    PieceScanner *scanner;
    EXPECT(piece_scanner_open(&scanner, &(const char *){cl100k_pattern}, 1) == ERR_UNAVAILABLE, "was opened");
    EXPECT(!scanner && strstr(fail_message(), "libpcre2-dev"), "got: %s", fail_message());
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"ascii_is_cut", ascii_is_cut},
                                      {"other_text_is_refused", other_text_is_refused},
                                      {"other_patterns_are_refused", other_patterns_are_refused},
                                      {0}},
                       argc, argv);
}
