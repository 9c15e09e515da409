// Parses expressions of templates, with the precedence of jinja2's parser.
#include "template/internal.h"
#include <stdarg.h>
#include <string.h>

typedef JinjaParser Parser;
typedef JinjaNode Node;

Status jinja_refuse(const Parser *p, const char *fmt, ...) {
    char what[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    return fail(ERR_DATA, "%s:%d: %s", p->template->what, p->token->line, what);
}

static Status refuse_token(const Parser *p, const char *expected) {
    const JinjaToken *t = p->token;
    if (t->text && t->kind != JINJA_DATA)
        return jinja_refuse(p, "%s is expected, not '%.*s'", expected, (int)(t->size < 40 ? t->size : 40),
                            t->text);
    return jinja_refuse(p, "%s is expected, not %s", expected,
                        t->kind == JINJA_LITERAL ? "a string or a number" : "the end of the tag");
}

Node *jinja_node(Parser *p, JinjaNodeKind kind) {
    Node *node = jinja_pool_take(&p->template->pool, sizeof *node);
    node->kind = kind;
    node->line = p->token->line;
    return node;
}

static bool token_is(const JinjaToken *t, JinjaTokenKind kind, const char *text) {
    return t->kind == kind && t->size == strlen(text) && !memcmp(t->text, text, t->size);
}

bool jinja_at_sign(const Parser *p, const char *sign) { return token_is(p->token, JINJA_SIGN, sign); }
bool jinja_at_word(const Parser *p, const char *word) { return token_is(p->token, JINJA_WORD, word); }

bool jinja_skip_sign(Parser *p, const char *sign) {
    bool there = jinja_at_sign(p, sign);
    p->token += there;
    return there;
}

bool jinja_skip_word(Parser *p, const char *word) {
    bool there = jinja_at_word(p, word);
    p->token += there;
    return there;
}

Status jinja_expect_sign(Parser *p, const char *sign) {
    char quoted[8];
    snprintf(quoted, sizeof quoted, "'%s'", sign);
    return jinja_skip_sign(p, sign) ? OK : refuse_token(p, quoted);
}

Status jinja_take_name(Parser *p, const char **name) {
    if (p->token->kind != JINJA_WORD) return refuse_token(p, "a name");
    *name = jinja_pool_copy(&p->template->pool, p->token->text, p->token->size);
    p->token++;
    return OK;
}

static Status deeper(Parser *p) {
    return ++p->depth > JINJA_MAX_DEPTH
               ? jinja_refuse(p, "more than %d expressions or tags within each other", JINJA_MAX_DEPTH)
               : OK;
}

// ---- what an expression is made of --------------------------------------------------------------------------

// Elements up to a closing bracket; of a dict keys and values in turn.
static Status parse_elements(Parser *p, const char *closing, bool dict, Node *into) {
    for (Node **end = &into->list; !jinja_at_sign(p, closing); end = &(*end)->next) {
        TRY(jinja_parse_expression(p, true, end));
        if (dict) {
            TRY(jinja_expect_sign(p, ":"));
            end = &(*end)->next;
            TRY(jinja_parse_expression(p, true, end));
        }
        if (!jinja_skip_sign(p, ",") && !jinja_at_sign(p, closing)) break;
    }
    return jinja_expect_sign(p, closing);
}

// (a), or a tuple: (), (a,), (a, b)
static Status parse_parentheses(Parser *p, Node **node) {
    if (jinja_at_sign(p, ")"))
        *node = jinja_node(p, JINJA_MAKE_TUPLE);
    else
        TRY(jinja_parse_expressions(p, true, node));
    return jinja_expect_sign(p, ")");
}

static Status parse_constant(Parser *p, Node **node) {
    *node = jinja_node(p, JINJA_CONSTANT);
    (*node)->value = (p->token++)->value;
    // Strings side by side are one.
    while ((*node)->value.type == JINJA_STRING && p->token->kind == JINJA_LITERAL &&
           p->token->value.type == JINJA_STRING) {
        const JinjaValue *a = &(*node)->value, *b = &(p->token++)->value;
        char *both = jinja_pool_take(&p->template->pool, a->size + b->size + 1);
        if (a->size) memcpy(both, a->string, a->size);
        if (b->size) memcpy(both + a->size, b->string, b->size);
        (*node)->value = jinja_string(both, a->size + b->size);
    }
    return OK;
}

static Status parse_name(Parser *p, Node **node) {
    static const char *const WORDS[] = {"true", "True", "false", "False", "none", "None"};
    for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; i++) {
        if (!jinja_at_word(p, WORDS[i])) continue;
        *node = jinja_node(p, JINJA_CONSTANT);
        (*node)->value = i < 4 ? jinja_flag(i < 2) : jinja_none();
        p->token++;
        return OK;
    }
    *node = jinja_node(p, JINJA_NAME);
    TRY(jinja_take_name(p, &(*node)->name));
    JinjaBinding *name = jinja_pool_take(&p->template->pool, sizeof *name);
    *name = (JinjaBinding){.name = (*node)->name, .next = p->template->names};
    p->template->names = name;
    return OK;
}

static Status parse_primary(Parser *p, Node **node) {
    if (p->token->kind == JINJA_LITERAL) return parse_constant(p, node);
    if (p->token->kind == JINJA_WORD) return parse_name(p, node);
    if (jinja_skip_sign(p, "(")) return parse_parentheses(p, node);
    bool dict = jinja_at_sign(p, "{");
    *node = jinja_node(p, dict ? JINJA_MAKE_DICT : JINJA_MAKE_LIST);
    if (jinja_skip_sign(p, dict ? "{" : "[")) return parse_elements(p, dict ? "}" : "]", dict, *node);
    return refuse_token(p, "a value");
}

Status jinja_parse_arguments(Parser *p, Node **list) {
    TRY(jinja_expect_sign(p, "("));
    bool named = false;
    for (Node **end = list; !jinja_at_sign(p, ")"); end = &(*end)->next) {
        if (jinja_at_sign(p, "*") || jinja_at_sign(p, "**"))
            return jinja_refuse(p, "arguments by * and ** are not supported: write them one by one");
        *end = jinja_node(p, JINJA_ARGUMENT);
        if (p->token->kind == JINJA_WORD && token_is(p->token + 1, JINJA_SIGN, "=")) {
            TRY(jinja_take_name(p, &(*end)->name));
            p->token++;
            named = true;
        } else if (named) {
            return jinja_refuse(p, "an argument without a name follows one with a name: put it before");
        }
        TRY(jinja_parse_expression(p, true, &(*end)->a));
        if (!jinja_skip_sign(p, ",") && !jinja_at_sign(p, ")")) break;
    }
    return jinja_expect_sign(p, ")");
}

// Behind '[': b, or b:c:d
static Status parse_subscript(Parser *p, Node *item) {
    Node **parts[] = {&item->b, &item->c, &item->d};
    for (int i = 0; i < 3; i++) {
        if (!jinja_at_sign(p, ":") && !jinja_at_sign(p, "]")) TRY(jinja_parse_expression(p, true, parts[i]));
        if (!jinja_skip_sign(p, ":")) break;
        item->kind = JINJA_SLICE;
    }
    if (item->kind == JINJA_ITEM && !item->b) return refuse_token(p, "a value");
    return jinja_expect_sign(p, "]");
}

static Status parse_dot(Parser *p, Node *item) {
    if (p->token->kind == JINJA_LITERAL && p->token->value.type == JINJA_INTEGER) {
        item->kind = JINJA_ITEM;
        return parse_constant(p, &item->b);
    }
    item->kind = JINJA_ATTRIBUTE;
    return jinja_take_name(p, &item->name);
}

static Status parse_call(Parser *p, Node **node) {
    Node *call = jinja_node(p, JINJA_CALL);
    call->a = *node;
    *node = call;
    return jinja_parse_arguments(p, &call->list);
}

static Status parse_postfix(Parser *p, Node **node) {
    for (;;) {
        if (jinja_at_sign(p, "(")) {
            TRY(parse_call(p, node));
            continue;
        }
        if (!jinja_at_sign(p, ".") && !jinja_at_sign(p, "[")) return OK;
        Node *item = jinja_node(p, JINJA_ITEM);
        item->a = *node;
        *node = item;
        bool dot = jinja_at_sign(p, ".");
        p->token++;
        TRY(dot ? parse_dot(p, item) : parse_subscript(p, item));
    }
}

// ---- filters and tests --------------------------------------------------------------------------------------

Status jinja_parse_filter(Parser *p, Node **node) {
    Node *filter = jinja_node(p, JINJA_FILTER);
    filter->a = *node;
    *node = filter;
    TRY(jinja_take_name(p, &filter->name));
    if (!jinja_has_filter(filter->name)) {
        p->token--;
        return jinja_refuse(p, "the filter '%s' is not known here", filter->name);
    }
    return jinja_at_sign(p, "(") ? jinja_parse_arguments(p, &filter->list) : OK;
}

// A test takes an argument in parentheses, or one value beside it: `x is divisibleby 3`.
static Status parse_test(Parser *p, Node **node) {
    bool negated = jinja_skip_word(p, "not");
    Node *test = jinja_node(p, JINJA_TEST);
    test->a = *node;
    TRY(jinja_take_name(p, &test->name));
    if (!jinja_has_test(test->name)) {
        p->token--;
        return jinja_refuse(p, "the test 'is %s' is not known here", test->name);
    }
    const JinjaToken *t = p->token;
    bool word = t->kind == JINJA_WORD && !jinja_at_word(p, "else") && !jinja_at_word(p, "or") &&
                !jinja_at_word(p, "and");
    if (jinja_at_word(p, "is")) return jinja_refuse(p, "two tests in a row: write `x is a and x is b`");
    if (jinja_at_sign(p, "(")) {
        TRY(jinja_parse_arguments(p, &test->list));
    } else if ((word && !jinja_at_word(p, "if")) || t->kind == JINJA_LITERAL || jinja_at_sign(p, "[") ||
               jinja_at_sign(p, "{")) {
        test->list = jinja_node(p, JINJA_ARGUMENT);
        TRY(parse_primary(p, &test->list->a));
        TRY(parse_postfix(p, &test->list->a));
    }
    *node = test;
    if (negated) {
        *node = jinja_node(p, JINJA_NOT);
        (*node)->a = test;
    }
    return OK;
}

Status jinja_parse_filters(Parser *p, Node **node) {
    for (;;) {
        if (jinja_skip_sign(p, "|"))
            TRY(jinja_parse_filter(p, node));
        else if (jinja_skip_word(p, "is"))
            TRY(parse_test(p, node));
        else if (jinja_at_sign(p, "("))
            TRY(parse_call(p, node));
        else
            return OK;
    }
}

// ---- operators, the tightest first --------------------------------------------------------------------------

static Status parse_unary(Parser *p, bool with_filters, Node **node) {
    bool minus = jinja_at_sign(p, "-");
    TRY(deeper(p));
    if (minus || jinja_at_sign(p, "+")) {
        *node = jinja_node(p, JINJA_UNARY);
        (*node)->sign = minus ? JINJA_SUBTRACT : JINJA_ADD;
        p->token++;
        TRY(parse_unary(p, false, &(*node)->a));
    } else {
        TRY(parse_primary(p, node));
    }
    p->depth--;
    TRY(parse_postfix(p, node));
    return with_filters ? jinja_parse_filters(p, node) : OK;
}

typedef struct {
    const char *text;
    JinjaSign sign;
} SignName;

static const SignName ADDITIONS[] = {{"+", JINJA_ADD}, {"-", JINJA_SUBTRACT}, {NULL, JINJA_ADD}};
static const SignName PRODUCTS[] = {{"*", JINJA_MULTIPLY},
                                    {"//", JINJA_FLOOR_DIVIDE},
                                    {"/", JINJA_DIVIDE},
                                    {"%", JINJA_MODULO},
                                    {NULL, JINJA_ADD}};
static const SignName POWERS[] = {{"**", JINJA_POWER}, {NULL, JINJA_ADD}};
static const SignName COMPARISONS[] = {
    {"==", JINJA_EQUAL},  {"!=", JINJA_UNEQUAL},       {"<", JINJA_LESS}, {"<=", JINJA_LESS_EQUAL},
    {">", JINJA_GREATER}, {">=", JINJA_GREATER_EQUAL}, {NULL, JINJA_ADD}};

static const SignName *take_sign(Parser *p, const SignName *signs) {
    while (signs->text && !jinja_skip_sign(p, signs->text)) signs++;
    return signs->text ? signs : NULL;
}

// Operators of one precedence, from left to right.
static Status parse_binary(Parser *p, const SignName *signs, Status (*operand)(Parser *, Node **),
                           Node **node) {
    TRY(operand(p, node));
    for (const SignName *found; (found = take_sign(p, signs));) {
        Node *both = jinja_node(p, JINJA_BINARY);
        both->sign = found->sign;
        both->a = *node;
        *node = both;
        TRY(operand(p, &both->b));
    }
    return OK;
}

static Status parse_operand(Parser *p, Node **node) { return parse_unary(p, true, node); }
static Status parse_power(Parser *p, Node **node) { return parse_binary(p, POWERS, parse_operand, node); }
static Status parse_product(Parser *p, Node **node) { return parse_binary(p, PRODUCTS, parse_power, node); }

static Status parse_concat(Parser *p, Node **node) {
    TRY(parse_product(p, node));
    if (!jinja_at_sign(p, "~")) return OK;
    Node *concat = jinja_node(p, JINJA_CONCAT), **end = &(*node)->next;
    concat->list = *node;
    for (; jinja_skip_sign(p, "~"); end = &(*end)->next) TRY(parse_product(p, end));
    *node = concat;
    return OK;
}

static Status parse_sum(Parser *p, Node **node) { return parse_binary(p, ADDITIONS, parse_concat, node); }

static bool take_comparison(Parser *p, JinjaSign *sign) {
    const SignName *found = take_sign(p, COMPARISONS);
    if (found) {
        *sign = found->sign;
        return true;
    }
    *sign = JINJA_IN;
    if (jinja_skip_word(p, "in")) return true;
    if (!jinja_at_word(p, "not") || !token_is(p->token + 1, JINJA_WORD, "in")) return false;
    p->token += 2;
    *sign = JINJA_NOT_IN;
    return true;
}

static Status parse_comparison(Parser *p, Node **node) {
    TRY(parse_sum(p, node));
    JinjaSign sign;
    if (!take_comparison(p, &sign)) return OK;
    Node *compare = jinja_node(p, JINJA_COMPARE), **end = &compare->list;
    compare->a = *node;
    *node = compare;
    do {
        *end = jinja_node(p, JINJA_OPERAND);
        (*end)->sign = sign;
        TRY(parse_sum(p, &(*end)->a));
        end = &(*end)->next;
    } while (take_comparison(p, &sign));
    return OK;
}

static Status parse_not(Parser *p, Node **node) {
    if (!jinja_at_word(p, "not")) return parse_comparison(p, node);
    *node = jinja_node(p, JINJA_NOT);
    p->token++;
    TRY(deeper(p));
    TRY(parse_not(p, &(*node)->a));
    p->depth--;
    return OK;
}

static Status parse_logic(Parser *p, JinjaNodeKind kind, Node **node) {
    bool either = kind == JINJA_OR;
    TRY(either ? parse_logic(p, JINJA_AND, node) : parse_not(p, node));
    while (jinja_skip_word(p, either ? "or" : "and")) {
        Node *both = jinja_node(p, kind);
        both->a = *node;
        *node = both;
        TRY(either ? parse_logic(p, JINJA_AND, &both->b) : parse_not(p, &both->b));
    }
    return OK;
}

Status jinja_parse_expression(Parser *p, bool with_condition, Node **node) {
    TRY(deeper(p));
    TRY(parse_logic(p, JINJA_OR, node));
    while (with_condition && jinja_skip_word(p, "if")) {
        Node *condition = jinja_node(p, JINJA_CONDITION);
        condition->a = *node;
        *node = condition;
        TRY(parse_logic(p, JINJA_OR, &condition->b));
        if (jinja_skip_word(p, "else")) TRY(jinja_parse_expression(p, true, &condition->c));
    }
    p->depth--;
    return OK;
}

static bool ends_expressions(const Parser *p) {
    JinjaTokenKind kind = p->token->kind;
    return kind == JINJA_PRINT_END || kind == JINJA_BLOCK_END || kind == JINJA_END || jinja_at_sign(p, ")") ||
           jinja_at_sign(p, "=") || jinja_at_word(p, "if") || jinja_at_word(p, "in");
}

Status jinja_parse_expressions(Parser *p, bool with_condition, Node **node) {
    TRY(jinja_parse_expression(p, with_condition, node));
    if (!jinja_at_sign(p, ",")) return OK;
    Node *tuple = jinja_node(p, JINJA_MAKE_TUPLE), **end = &(*node)->next;
    tuple->list = *node;
    for (; jinja_skip_sign(p, ",") && !ends_expressions(p); end = &(*end)->next)
        TRY(jinja_parse_expression(p, with_condition, end));
    *node = tuple;
    return OK;
}
