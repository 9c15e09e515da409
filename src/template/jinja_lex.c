// Cuts a template into text and the tokens of its tags, and strips blanks around tags as jinja2's lexer does with
// trim_blocks and lstrip_blocks.
#include "base/array.h"
#include "template/internal.h"
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TOKENS = 1 << 18, MAX_BRACKETS = JINJA_MAX_DEPTH };

typedef struct {
    JinjaTemplate *template;
    const char *text;
    size_t size, at;
    int line;
    bool starts_line; // what has been read last ended with a line end
} Lexer;

static Status refuse(const Lexer *l, const char *what) {
    return fail(ERR_DATA, "%s:%d: %s", l->template->what, l->line, what);
}

static bool begins(const Lexer *l, size_t at, const char *with) {
    size_t size = strlen(with);
    return l->size - at >= size && !memcmp(l->text + at, with, size);
}

static bool is_mark(char c) { return c == '+' || c == '-'; }

static void advance(Lexer *l, size_t to) {
    for (; l->at < to; l->at++) l->line += l->text[l->at] == '\n';
}

static size_t skip_blanks(const Lexer *l, size_t at) {
    while (at < l->size && isspace((unsigned char)l->text[at])) at++;
    return at;
}

static Status add(Lexer *l, JinjaTokenKind kind, const char *text, size_t size) {
    JinjaTokens *t = &l->template->tokens;
    if (t->count == MAX_TOKENS) return refuse(l, "a template of more than 262144 tokens");
    array_grow(&t->tokens, sizeof *t->tokens, t->count + 1, &t->capacity);
    t->tokens[t->count++] = (JinjaToken){.kind = kind, .line = l->line, .text = text, .size = size};
    return OK;
}

static Status add_literal(Lexer *l, JinjaValue value) {
    TRY(add(l, JINJA_LITERAL, NULL, 0));
    l->template->tokens.tokens[l->template->tokens.count - 1].value = value;
    return OK;
}

// ---- text between tags -------------------------------------------------------------------------------------

// The end of text before a tag that begins at `end`: the mark '-' strips all blanks; without '+', blanks between a
// line end and a tag that is no {{ }} go, too.
static size_t strip_end(const Lexer *l, size_t start, size_t end, char mark, bool prints) {
    size_t stop = end;
    while (stop > start && isspace((unsigned char)l->text[stop - 1])) stop--;
    if (mark == '-') return stop;
    if (mark == '+' || prints) return end;
    size_t line = end;
    while (line > start && l->text[line - 1] != '\n') line--;
    bool at_line = line > start || l->starts_line;
    return at_line && stop <= line ? line : end;
}

// Moves behind the end of a tag or comment, `size` bytes at `at` behind a mark, and behind blanks that go with it.
static void leave(Lexer *l, size_t at, size_t size, char mark, bool trims) {
    at += size;
    if (mark == '-')
        at = skip_blanks(l, at);
    else if (trims && mark != '+' && at < l->size && l->text[at] == '\n')
        at++;
    advance(l, at);
    l->starts_line = l->text[at - 1] == '\n';
}

static Status skip_comment(Lexer *l) {
    for (size_t at = l->at; at < l->size; at++) {
        char mark = is_mark(l->text[at]) && begins(l, at + 1, "#}") ? l->text[at] : 0;
        if (!mark && !begins(l, at, "#}")) continue;
        leave(l, at + (mark != 0), 2, mark, true);
        return OK;
    }
    return refuse(l, "a comment {# begins here and does not end: write #}");
}

// The place behind `{% word`, its mark and the mark before `%}`; 0: this tag is another.
static size_t word_tag(const Lexer *l, size_t at, const char *word, char *first, char *last) {
    if (!begins(l, at, "{%")) return 0;
    at += 2;
    *first = at < l->size && is_mark(l->text[at]) ? l->text[at++] : 0;
    at = skip_blanks(l, at);
    if (!begins(l, at, word)) return 0;
    at = skip_blanks(l, at + strlen(word));
    *last = at < l->size && is_mark(l->text[at]) ? l->text[at++] : 0;
    return begins(l, at, "%}") ? at + 2 : 0;
}

static Status take_raw(Lexer *l, size_t start) {
    char first, last;
    for (size_t at = start; at < l->size; at++) {
        size_t end = word_tag(l, at, "endraw", &first, &last);
        if (!end) continue;
        size_t stop = strip_end(l, start, at, first, false);
        TRY(add(l, JINJA_DATA, l->text + start, stop - start));
        leave(l, end - 2, 2, last, true);
        return OK;
    }
    return refuse(l, "{% raw %} begins here and does not end: write {% endraw %}");
}

// ---- tokens within a tag ------------------------------------------------------------------------------------

static Status take_string(Lexer *l) {
    char quote = l->text[l->at];
    size_t end = l->at + 1;
    while (end < l->size && l->text[end] != quote) end += l->text[end] == '\\' ? 2 : 1;
    if (end >= l->size) return refuse(l, "a string begins here and does not end");
    JinjaValue value;
    if (!jinja_unescape(&l->template->pool, l->text + l->at + 1, end - l->at - 1, &value))
        return refuse(
            l, "an escape in a string that is not known: \\n, \\t, \\\\, \\', \\\", \\x41 and \\u0041 are");
    TRY(add_literal(l, value));
    advance(l, end + 1);
    return OK;
}

static size_t digits_end(const Lexer *l, size_t at) {
    while (at < l->size && (isdigit((unsigned char)l->text[at]) || l->text[at] == '_')) at++;
    return at;
}

static bool digit_at(const Lexer *l, size_t at) {
    return at < l->size && isdigit((unsigned char)l->text[at]);
}

// Numbers such as 12, 1_000, 0.5, 1e-3. After a dot, as in x.0.1, there are only whole ones.
static Status take_number(Lexer *l) {
    enum { MAX_DIGITS = 64 };
    size_t end = digits_end(l, l->at);
    bool after_dot = l->at && l->text[l->at - 1] == '.', real = false;
    if (!after_dot && end < l->size && l->text[end] == '.' && digit_at(l, end + 1)) {
        real = true;
        end = digits_end(l, end + 1);
    }
    size_t e = end < l->size && (l->text[end] | 0x20) == 'e' ? end + 1 : 0;
    if (e && e < l->size && is_mark(l->text[e])) e++;
    if (!after_dot && e && digit_at(l, e)) {
        real = true;
        end = digits_end(l, e);
    }
    char number[MAX_DIGITS + 1];
    int count = 0;
    for (size_t i = l->at; i < end && count < MAX_DIGITS; i++)
        if (l->text[i] != '_') number[count++] = l->text[i];
    number[count] = 0;
    errno = 0;
    JinjaValue value = {.type = JINJA_FLOAT};
    if (real)
        value.real = strtod(number, NULL);
    else
        value = jinja_integer(strtoll(number, NULL, 10));
    if (errno || count == MAX_DIGITS) return refuse(l, "a number that is too large: 64 bits are kept");
    TRY(add_literal(l, value));
    advance(l, end);
    return OK;
}

static bool is_letter(char c) { return isalpha((unsigned char)c) || c == '_'; }

static Status take_word(Lexer *l) {
    size_t end = l->at;
    while (end < l->size && (is_letter(l->text[end]) || isdigit((unsigned char)l->text[end]))) end++;
    TRY(add(l, JINJA_WORD, l->text + l->at, end - l->at));
    advance(l, end);
    return OK;
}

typedef struct {
    char closing[MAX_BRACKETS];
    int count;
} Brackets;

static Status balance(Lexer *l, Brackets *open, char sign) {
    static const char OPENING[] = "([{", CLOSING[] = ")]}";
    const char *opens = strchr(OPENING, sign);
    if (opens) {
        if (open->count == MAX_BRACKETS) return refuse(l, "more than 100 brackets within each other");
        open->closing[open->count++] = CLOSING[opens - OPENING];
    } else if (strchr(CLOSING, sign)) {
        if (!open->count || open->closing[open->count - 1] != sign)
            return refuse(l, "a bracket closes here that was not opened");
        open->count--;
    }
    return OK;
}

static Status take_sign(Lexer *l, Brackets *open) {
    static const char *const LONG[] = {"**", "//", "==", "!=", "<=", ">="};
    char c = l->text[l->at];
    size_t size = 1;
    for (size_t i = 0; i < sizeof LONG / sizeof *LONG; i++)
        if (begins(l, l->at, LONG[i])) size = 2;
    if (size == 1 && !strchr("+-*/%~.:,|()[]{}<>=", c))
        return refuse(l, "a character that Jinja does not have in a tag: is a quote missing?");
    TRY(balance(l, open, c));
    TRY(add(l, JINJA_SIGN, l->text + l->at, size));
    advance(l, l->at + size);
    return OK;
}

// Reads a tag to its end, %} or }}, which within brackets are brackets.
static Status take_tag(Lexer *l, bool prints) {
    const char *end = prints ? "}}" : "%}";
    int first_line = l->line;
    Brackets open = {.count = 0};
    for (;;) {
        advance(l, skip_blanks(l, l->at));
        if (l->at >= l->size) {
            l->line = first_line;
            return refuse(l, prints ? "{{ begins here and does not end: write }}"
                                    : "{% begins here and does not end: write %}");
        }
        char c = l->text[l->at], mark = is_mark(c) && begins(l, l->at + 1, end) ? c : 0;
        if (!open.count && (mark || begins(l, l->at, end)) && (mark != '+' || !prints)) {
            TRY(add(l, prints ? JINJA_PRINT_END : JINJA_BLOCK_END, NULL, 0));
            leave(l, l->at + (mark != 0), 2, mark, !prints);
            return OK;
        }
        if (c == '"' || c == '\'')
            TRY(take_string(l));
        else if (isdigit((unsigned char)c))
            TRY(take_number(l));
        else if (is_letter(c))
            TRY(take_word(l));
        else
            TRY(c ? take_sign(l, &open) : refuse(l, "a NUL in a tag"));
    }
}

// ---- the whole template -------------------------------------------------------------------------------------

// Text up to the next tag, and that tag.
static Status take_next(Lexer *l) {
    size_t start = l->at, at = start;
    while (at < l->size &&
           !(l->text[at] == '{' && at + 1 < l->size && l->text[at + 1] && strchr("{%#", l->text[at + 1])))
        at++;
    if (at >= l->size) {
        TRY(add(l, JINJA_DATA, l->text + start, l->size - start));
        advance(l, l->size);
        return OK;
    }
    char kind = l->text[at + 1], mark = at + 2 < l->size && is_mark(l->text[at + 2]) ? l->text[at + 2] : 0,
         last;
    size_t stop = strip_end(l, start, at, mark, kind == '{');
    if (stop > start) TRY(add(l, JINJA_DATA, l->text + start, stop - start));
    advance(l, at);
    size_t raw = word_tag(l, at, "raw", &mark, &last);
    if (raw) {
        leave(l, raw - 2, 2, last, false);
        return take_raw(l, l->at);
    }
    advance(l, at + 2 + (mark != 0));
    if (kind == '#') return skip_comment(l);
    TRY(add(l, kind == '{' ? JINJA_PRINT_BEGIN : JINJA_BLOCK_BEGIN, NULL, 0));
    return take_tag(l, kind == '{');
}

// Line ends become \n, and one at the end of the template goes.
static char *normalize(JinjaTemplate *template, const char *text, size_t *size) {
    char *copy = jinja_pool_take(&template->pool, *size + 1);
    size_t count = 0;
    for (size_t i = 0; i < *size; i++) {
        if (text[i] == '\r' && i + 1 < *size && text[i + 1] == '\n') continue;
        copy[count++] = (char)(text[i] == '\r' ? '\n' : text[i]);
    }
    if (count && copy[count - 1] == '\n') count--;
    copy[count] = 0;
    *size = count;
    return copy;
}

Status jinja_lex(JinjaTemplate *template, const char *text, size_t size) {
    Lexer l = {.template = template, .size = size, .line = 1, .starts_line = true};
    if (size > JINJA_MAX_SOURCE_BYTES) return refuse(&l, "a template of more than 1 MiB");
    l.text = normalize(template, text, &l.size);
    while (l.at < l.size) TRY(take_next(&l));
    return add(&l, JINJA_END, NULL, 0);
}
