// Files of machines and stacks: found by name, parsed, and read into structs by tables. One table per struct
// says which key is which member and what it may be; the same table reads, checks, says what is allowed, and
// prints.
#pragma once
#include "formats/formats.h"
#include "machine/machine.h"
#include <stddef.h>

// ---- finding ------------------------------------------------------------------------------------

typedef struct {
    const char *kind, *folder; // "machine", "machines"
    const ShippedFile *shipped;
    int num_shipped;
} Library;

typedef struct {
    char name[MAX_NAME];
    char file[512]; // for messages
    Json *root;     // a mapping
} YamlDocument;

// `name` as of machine_open.   ERR_USAGE, ERR_DATA, what file_read says.
Status document_open(YamlDocument *document, const Library *library, const char *name);
void document_close(YamlDocument *document);

// ---- reading ------------------------------------------------------------------------------------

// What a key's value is.   member
//   FIELD_TEXT             char[], printable ASCII
//   FIELD_NUMBER           double
//   FIELD_COUNT            int
//   FIELD_FLAG             bool
//   FIELD_PART             none: the key is known, and read by who knows more
typedef enum { FIELD_TEXT, FIELD_NUMBER, FIELD_COUNT, FIELD_FLAG, FIELD_PART } FieldType;

typedef struct {
    const char *key;
    FieldType type;
    bool required;
    size_t offset, size;    // of the member
    double lowest, highest; // of a number or count
    const char *unit;       // NULL: none
} Field;

// A row whose key is the name of the member.
#define FIELD(Struct, type, member, required, ...)                                                           \
    { #member, FIELD_##type, required, offsetof(Struct, member), sizeof(((Struct *)0)->member), __VA_ARGS__ }
// A key that is read elsewhere.
#define FIELD_ELSEWHERE(key)                                                                                 \
    { key, FIELD_PART, false, 0, 0, 0, 0, NULL }
#define FIELD_COUNT_OF(fields) ((int)(sizeof(fields) / sizeof *(fields)))

// Every key of the mapping has a row, every required row a key, every value its kind and range; members
// without a key keep what they are.
Status fields_read(const char *file, const Json *mapping, const Field *fields, int count, void *out);
// One value by its row.
Status field_read(const char *file, const Json *value, const Field *field, void *out);
Status field_require(const char *file, const Json *mapping, const char *key);
// What it should be: "FILE:LINE: KEY: VALUE: `expected` is expected".
Status value_wrong(const char *file, const Json *value, const char *expected);
Status expect_type(const char *file, const Json *value, JsonType type, const char *expected);

Status aliases_read(const char *file, const Json *list, Aliases *out); // NULL: none
// A mapping from names of the table of constants to numbers; NULL: none.
Status constants_read(const char *file, const Json *mapping, Constants *constants, bool set[MAX_CONSTANTS]);

// A mapping from names of variants to mappings from constants to factors; NULL: none.
Status variants_read(const char *file, const Json *mapping, Stack *stack);

// ---- writing ------------------------------------------------------------------------------------

// Lines `KEY: VALUE` behind `indent` of the rows that are required or not zero.
void fields_print(const Field *fields, int count, const void *from, const char *indent, Text *out);
// The same as `KEY: VALUE, KEY: VALUE` in one line.
void fields_print_inline(const Field *fields, int count, const void *from, Text *out);
void aliases_print(const Aliases *aliases, Text *out);
void constants_print(const char *key, const Constants *constants, const bool set[MAX_CONSTANTS], Text *out);
void variants_print(const Stack *stack, Text *out);
