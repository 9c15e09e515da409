// The structures behind a template, and the functions that the files of this folder share: source, tokens, tree,
// values.
#pragma once
#include "template/jinja.h"

// ---- memory: blocks that live until the template or the rendering ends --------------------------------------

typedef struct JinjaChunk JinjaChunk;
typedef struct {
    JinjaChunk *chunks;
    size_t used; // bytes in all chunks
} JinjaPool;

// Returns zeroed memory. Out of memory is a CHECK: callers limit what they take.
void *jinja_pool_take(JinjaPool *pool, size_t bytes);
char *jinja_pool_copy(JinjaPool *pool, const char *bytes, size_t size); // NUL-terminated
void jinja_pool_free(JinjaPool *pool);

// ---- values -------------------------------------------------------------------------------------------------

typedef enum {
    JINJA_UNDEFINED,
    JINJA_NONE,
    JINJA_BOOL,
    JINJA_INTEGER,
    JINJA_FLOAT,
    JINJA_STRING,
    JINJA_LIST,
    JINJA_TUPLE,
    JINJA_DICT,
    JINJA_NAMESPACE,
    JINJA_LOOP, // the variable `loop`
    JINJA_MACRO,
    JINJA_FUNCTION, // a global function, by its name
    JINJA_METHOD,   // of `object`
} JinjaType;

typedef struct JinjaValue JinjaValue;
typedef struct JinjaPair JinjaPair;
typedef struct JinjaScope JinjaScope;
typedef struct JinjaLoop JinjaLoop;
typedef struct JinjaNode JinjaNode;

// Strings are UTF-8. Values do not change, but namespaces.
struct JinjaValue {
    JinjaType type;
    size_t size; // bytes of a string, elements of a list, pairs of a dict
    union {
        bool flag;
        int64_t integer;
        double real;
        const char *string; // also the name, NUL-terminated, of a function, a method and of what is undefined
        const JinjaValue *items;
        const JinjaPair *pairs;
        JinjaScope *space;
        const JinjaLoop *loop;
        const JinjaNode *macro;
    };
    union {
        const JinjaValue *object; // of a method; of something undefined the value that lacks it, or NULL
        JinjaScope *scope;        // where a macro was made
    };
};

struct JinjaPair {
    JinjaValue key, value;
};

typedef struct JinjaBinding JinjaBinding;
struct JinjaBinding {
    const char *name;
    JinjaValue value;
    JinjaBinding *next;
};

// ---- source and tokens --------------------------------------------------------------------------------------

typedef enum {
    JINJA_DATA,
    JINJA_PRINT_BEGIN,
    JINJA_PRINT_END,
    JINJA_BLOCK_BEGIN,
    JINJA_BLOCK_END,
    JINJA_WORD,
    JINJA_LITERAL, // a string or a number
    JINJA_SIGN,    // an operator or a bracket
    JINJA_END,
} JinjaTokenKind;

typedef struct {
    JinjaTokenKind kind;
    int line;
    const char *text; // of data, words, signs
    size_t size;
    JinjaValue value; // of a literal
} JinjaToken;

typedef struct {
    JinjaToken *tokens;
    size_t count, capacity;
} JinjaTokens;

// ---- the tree -----------------------------------------------------------------------------------------------

typedef enum {
    // expressions
    JINJA_CONSTANT,  // value
    JINJA_NAME,      // name
    JINJA_MAKE_LIST, // list
    JINJA_MAKE_TUPLE,
    JINJA_MAKE_DICT, // list: key, value, key, value ...
    JINJA_ATTRIBUTE, // a.name
    JINJA_ITEM,      // a[b]
    JINJA_SLICE,     // a[b:c:d], where b, c, d may be NULL
    JINJA_CALL,      // a(list of arguments)
    JINJA_ARGUMENT,  // name=a, or a
    JINJA_FILTER,    // a|name(list)
    JINJA_TEST,      // a is name(list)
    JINJA_NOT,
    JINJA_UNARY,   // sign, a
    JINJA_BINARY,  // a sign b
    JINJA_COMPARE, // a, then list of JINJA_OPERAND: sign, a
    JINJA_OPERAND,
    JINJA_AND,
    JINJA_OR,
    JINJA_CONDITION, // a if b else c; c may be NULL
    JINJA_CONCAT,    // list
    // statements
    JINJA_TEXT, // value
    JINJA_SHOW, // a
    JINJA_IF,   // list of JINJA_BRANCH: a (NULL: else), body
    JINJA_BRANCH,
    JINJA_FOR,        // for target in a if b: body, else: list
    JINJA_SET,        // target = a
    JINJA_SET_BLOCK,  // target, body; the filters of a
    JINJA_DEFINE,     // a macro: name, list of JINJA_ARGUMENT with defaults, body
    JINJA_FILTERED,   // body, filters of a
    JINJA_GENERATION, // body
    JINJA_BREAK,
    JINJA_CONTINUE,
    JINJA_BODY, // stands for the text of a body in the filters of a block
} JinjaNodeKind;

typedef enum {
    JINJA_ADD,
    JINJA_SUBTRACT,
    JINJA_MULTIPLY,
    JINJA_DIVIDE,
    JINJA_FLOOR_DIVIDE,
    JINJA_MODULO,
    JINJA_POWER,
    JINJA_EQUAL,
    JINJA_UNEQUAL,
    JINJA_LESS,
    JINJA_LESS_EQUAL,
    JINJA_GREATER,
    JINJA_GREATER_EQUAL,
    JINJA_IN,
    JINJA_NOT_IN,
} JinjaSign;

struct JinjaNode {
    JinjaNodeKind kind;
    int line;
    JinjaSign sign;
    const char *name;
    JinjaValue value;
    JinjaNode *a, *b, *c, *d, *target;
    JinjaNode *list, *body; // first elements
    JinjaNode *next;        // element of the same list
};

struct JinjaTemplate {
    char *what;
    JinjaPool pool;
    JinjaTokens tokens; // while it is parsed
    JinjaNode *body;
    JinjaBinding *names; // that it reads
    bool marks_generation;
};

Status jinja_lex(JinjaTemplate *template, const char *text, size_t size);
// Reads the literal of a string, between its quotes, to memory of the pool. Returns false for a bad escape.
bool jinja_unescape(JinjaPool *pool, const char *text, size_t size, JinjaValue *out);
// Expressions; the parser of statements is jinja_parse.
typedef struct {
    JinjaTemplate *template;
    const JinjaToken *token; // the next one
    int depth;
} JinjaParser;

Status jinja_refuse(const JinjaParser *parser, const char *what, ...) __attribute__((format(printf, 2, 3)));
JinjaNode *jinja_node(JinjaParser *parser, JinjaNodeKind kind);
bool jinja_at_sign(const JinjaParser *parser, const char *sign);
bool jinja_at_word(const JinjaParser *parser, const char *word);
bool jinja_skip_sign(JinjaParser *parser, const char *sign); // true: it was there
bool jinja_skip_word(JinjaParser *parser, const char *word);
Status jinja_expect_sign(JinjaParser *parser, const char *sign);
Status jinja_take_name(JinjaParser *parser, const char **name);
Status jinja_parse_expression(JinjaParser *parser, bool with_condition, JinjaNode **node);
// One expression, or several with commas, which are a tuple.
Status jinja_parse_expressions(JinjaParser *parser, bool with_condition, JinjaNode **node);
// The filters that follow, applied to `node`: `| name(arguments)` and so on.
Status jinja_parse_filters(JinjaParser *parser, JinjaNode **node);
Status jinja_parse_filter(JinjaParser *parser, JinjaNode **node); // the first of them, without its bar
Status jinja_parse_arguments(JinjaParser *parser, JinjaNode **list);

// ---- rendering ----------------------------------------------------------------------------------------------

struct JinjaScope {
    JinjaBinding *bindings;
    JinjaScope *parent;
};

struct JinjaLoop {
    const JinjaValue *items;
    size_t count, at;
};

typedef enum { JINJA_RUNS, JINJA_BREAKS, JINJA_CONTINUES } JinjaFlow;

typedef struct {
    const JinjaTemplate *template;
    JinjaPool pool;
    int line; // of what runs
    int depth;
    int64_t steps;
    time_t now;
    JinjaScope *scope;
    Text *out;
    JinjaOutput *output;
    const JinjaValue *body; // of the block whose filters run
    JinjaFlow flow;
} JinjaRender;

// Arguments of a call: `names` are NULL for positional ones, which come first.
typedef struct {
    const JinjaValue *values;
    const char *const *names;
    int count, positional;
} JinjaArguments;

Status jinja_fail(const JinjaRender *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
Status jinja_take(JinjaRender *r, size_t bytes, void *address); // sets the pointer at `address`
Status jinja_work(JinjaRender *r, size_t bytes); // counts a step, and those of a search in so many bytes
Status jinja_step(JinjaRender *r);               // counts one
Status jinja_enter(JinjaRender *r); // one call of eval or exec deeper; its end subtracts one from r->depth
Status jinja_eval(JinjaRender *r, const JinjaNode *node, JinjaValue *out);
Status jinja_exec(JinjaRender *r, const JinjaNode *list); // a list of statements
Status jinja_eval_arguments(JinjaRender *r, const JinjaNode *list, JinjaArguments *out);
Status jinja_call(JinjaRender *r, const JinjaValue *callee, const JinjaArguments *arguments, JinjaValue *out);
Status jinja_call_macro(JinjaRender *r, const JinjaValue *macro, const JinjaArguments *arguments,
                        JinjaValue *out);
// Binds arguments to parameters, in the order of `names`, separated by blanks: those after a '|' are optional
// (jinja_given says whether they are there).
Status jinja_bind(JinjaRender *r, const char *what, const char *names, const JinjaArguments *arguments,
                  JinjaValue *out);
bool jinja_given(const JinjaValue *value);
void jinja_assign(JinjaRender *r, JinjaScope *scope, const char *name, const JinjaValue *value);
const JinjaValue *jinja_lookup(const JinjaScope *scope,
                               const char *name); // in this scope and its parents; or NULL

// Filters, tests, methods, functions. False: there is none of this name.
bool jinja_has_filter(const char *name);
bool jinja_has_test(const char *name);
bool jinja_has_method(const JinjaValue *object, const char *name);
Status jinja_filter(JinjaRender *r, const char *name, const JinjaValue *value,
                    const JinjaArguments *arguments, JinjaValue *out);
// Those of lists, of jinja_lists.c, by which jinja_filter is made.
bool jinja_has_list_filter(const char *name);
Status jinja_list_filter(JinjaRender *r, const char *name, const JinjaValue *value,
                         const JinjaArguments *arguments, JinjaValue *out);
Status jinja_test(JinjaRender *r, const char *name, const JinjaValue *value, const JinjaArguments *arguments,
                  bool *out);
Status jinja_method(JinjaRender *r, const JinjaValue *object, const char *name,
                    const JinjaArguments *arguments, JinjaValue *out);
bool jinja_has_function(const char *name);
Status jinja_function(JinjaRender *r, const char *name, const JinjaArguments *arguments, JinjaValue *out);

// ---- operations on values -----------------------------------------------------------------------------------

JinjaValue jinja_string(const char *bytes, size_t size); // borrowed
JinjaValue jinja_integer(int64_t integer);
JinjaValue jinja_flag(bool flag);
JinjaValue jinja_none(void);
Status jinja_make_string(JinjaRender *r, const Text *text, JinjaValue *out); // copied to the pool
Status jinja_make_list(JinjaRender *r, JinjaType type, size_t size, JinjaValue **items, JinjaValue *out);
Status jinja_of_json(JinjaRender *r, const Json *json, JinjaValue *out);
bool jinja_is(const JinjaValue *value, const char *string); // a string with these characters
bool jinja_truth(const JinjaValue *value);
bool jinja_equal(const JinjaValue *a, const JinjaValue *b, int depth);
const char *jinja_type_name(const JinjaValue *value); // as Python calls it
// Appends the value as Python's str() and repr() write it.
Status jinja_add_str(JinjaRender *r, const JinjaValue *value, Text *out);
Status jinja_add_repr(JinjaRender *r, const JinjaValue *value, Text *out);
void jinja_add_float(double value, Text *out);
Status jinja_str(JinjaRender *r, const JinjaValue *value, JinjaValue *out);
Status jinja_compare(JinjaRender *r, JinjaSign sign, const JinjaValue *a, const JinjaValue *b, bool *out);
Status jinja_binary(JinjaRender *r, JinjaSign sign, const JinjaValue *a, const JinjaValue *b,
                    JinjaValue *out);
Status jinja_length(JinjaRender *r, const JinjaValue *value, int64_t *out);
// The elements of a list, the keys of a dict, the characters of a string, as a list.
Status jinja_elements(JinjaRender *r, const JinjaValue *value, JinjaValue *out);
Status jinja_attribute(JinjaRender *r, const JinjaValue *object, const char *name, JinjaValue *out);
Status jinja_item(JinjaRender *r, const JinjaValue *object, const JinjaValue *key, JinjaValue *out);
Status jinja_slice(JinjaRender *r, const JinjaValue *object, const JinjaValue bounds[3], JinjaValue *out);
const JinjaValue *jinja_find(const JinjaValue *dict, const JinjaValue *key); // NULL: absent
Status jinja_undefined(JinjaRender *r, const JinjaValue *value);             // fails, as it is used
Status jinja_add_json(JinjaRender *r, const JinjaValue *value, int indent, int depth, bool sorted, Text *out);
// Strings are cut at characters. The number of bytes of the blanks that begin and end a text, as Python counts blanks;
// with `set` of the characters of it.
size_t jinja_leading(const JinjaValue *string, const JinjaValue *set);
size_t jinja_trailing(const JinjaValue *string, const JinjaValue *set);
size_t jinja_character(const char *text, size_t size); // bytes of the first one, at least 1
// Bytes of the line that a text begins with, and of the line end behind it (0: there is none), as str.splitlines()
// cuts.
size_t jinja_line(const char *text, size_t size, size_t *line_end);
size_t jinja_blank(const char *text, size_t size); // bytes of the blank that it begins with; 0: none
