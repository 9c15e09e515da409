// Reads the YAML files of machines and stacks into structs, by tables. One table per struct lists its keys: the
// member of each, its type and its range. The same table reads, checks, writes the error messages, and prints.
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

// Finds and parses the file of `name`, a name or path as for machine_open.   ERR_USAGE, ERR_DATA, or as file_read.
Status document_open(YamlDocument *document, const Library *library, const char *name);
void document_close(YamlDocument *document);

// ---- reading ------------------------------------------------------------------------------------

// The type of a key's value and of its member.
//   FIELD_TEXT             char[], printable ASCII
//   FIELD_NUMBER           double
//   FIELD_COUNT            int
//   FIELD_FLAG             bool
//   FIELD_PART             no member: the key is allowed, and read by other code
typedef enum { FIELD_TEXT, FIELD_NUMBER, FIELD_COUNT, FIELD_FLAG, FIELD_PART } YamlFieldType;

typedef struct {
    const char *key;
    YamlFieldType type;
    bool required;
    size_t offset, size;    // of the member in its struct
    double lowest, highest; // allowed, for a number or count
    const char *unit;       // NULL: none
} YamlField;

// A row of a table whose key is the member's name.
#define FIELD(Struct, type, member, required, ...)                                                           \
    { #member, FIELD_##type, required, offsetof(Struct, member), sizeof(((Struct *)0)->member), __VA_ARGS__ }
// A row for a key that other code reads.
#define FIELD_ELSEWHERE(key)                                                                                 \
    { key, FIELD_PART, false, 0, 0, 0, 0, NULL }
#define FIELD_COUNT_OF(fields) ((int)(sizeof(fields) / sizeof *(fields)))

// Reads the keys of a mapping into their members; members without a key keep their values.   ERR_DATA for an
// unknown key, a missing required one, and a value of the wrong type or out of range.
Status fields_read(const char *file, const Json *mapping, const YamlField *fields, int count, void *out);
// Reads one value as its row says.   ERR_DATA
Status field_read(const char *file, const Json *value, const YamlField *field, void *out);
Status field_require(const char *file, const Json *mapping,
                     const char *key); // ERR_DATA unless the key is there
// Fails with ERR_DATA and "FILE:LINE: KEY: VALUE: `expected` is expected".
Status value_wrong(const char *file, const Json *value, const char *expected);
Status expect_type(const char *file, const Json *value, JsonType type, const char *expected);

Status aliases_read(const char *file, const Json *list, Aliases *out); // list NULL: no aliases
// Reads a mapping from names of constants to numbers; NULL: none. Marks those that are there in `set`.
Status constants_read(const char *file, const Json *mapping, Constants *constants, bool set[MAX_CONSTANTS]);

// Reads a mapping from names of variants to mappings from constants to factors; NULL: none.
Status variants_read(const char *file, const Json *mapping, Stack *stack);

// ---- writing ------------------------------------------------------------------------------------

// Prints a line `KEY: VALUE`, indented by `indent`, for each row that is required or whose member is not zero.
void fields_print(const YamlField *fields, int count, const void *from, const char *indent, Text *out);
// Prints the same rows on one line, separated by commas.
void fields_print_inline(const YamlField *fields, int count, const void *from, Text *out);
void aliases_print(const Aliases *aliases, Text *out);
void constants_print(const char *key, const Constants *constants, const bool set[MAX_CONSTANTS], Text *out);
void variants_print(const Stack *stack, Text *out);
